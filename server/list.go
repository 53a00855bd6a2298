package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

const (
	pageSizeMax     = 500
	pageSizeDefault = 50
	// pageTokenCharsMax bounds what is decoded before its MAC is checked; a
	// cursor holds a consumer, an event ID and little more.
	pageTokenCharsMax = 4096
	macBytes          = 16
)

var (
	limitPageSize = fmt.Sprintf("1-%d, or 0 for %d", pageSizeMax, pageSizeDefault)
	limitPrefix   = fmt.Sprintf("at most %d bytes of UTF-8 without NUL; needs consumer", claim.EventIDBytesMax)
)

const limitStates = "states that records can have"

// admin serves warifu.v1.ClaimAdminService.
type admin struct {
	*Server
}

// ListClaims pages through the tenant's records. Result bodies are not loaded.
func (s *admin) ListClaims(ctx context.Context, m *warifuv1.ListClaimsRequest) (*warifuv1.ListClaimsResponse, error) {
	call := interceptor.CallFrom(ctx)
	l, f := s.list(call, m)
	if f != nil {
		return nil, f
	}
	page, err := s.store.List(ctx, l)
	if err != nil {
		return nil, readFault(err)
	}
	res := &warifuv1.ListClaimsResponse{Claims: make([]*warifuv1.ClaimRecord, 0, len(page.Records))}
	for i := range page.Records {
		if rec := &page.Records[i]; !rec.Expired(page.Now) {
			res.Claims = append(res.Claims, recordMessage(rec, page.Now))
		}
	}
	if page.Cursor != nil {
		res.NextPageToken = s.tokens.seal(&l, page.Cursor)
	}
	return res, nil
}

func (s *admin) list(call *interceptor.Call, m *warifuv1.ListClaimsRequest) (storage.List, *fault.Fault) {
	l := storage.List{
		Tenant: call.Principal.Tenant.ID, Consumer: m.GetConsumer(), Prefix: m.GetEventIdPrefix(), Limit: pageSizeDefault,
	}
	if l.Consumer != "" && !tenant.ValidConsumer(l.Consumer) {
		return l, fault.Invalid("consumer", limitConsumer)
	}
	if l.Prefix != "" && (l.Consumer == "" || !validEventID(l.Prefix)) {
		return l, fault.Invalid("event_id_prefix", limitPrefix)
	}
	if m.GetPageSize() > pageSizeMax {
		return l, fault.Invalid("page_size", limitPageSize)
	}
	if m.GetPageSize() > 0 {
		l.Limit = int(m.GetPageSize())
	}
	for i, st := range m.GetStates() {
		at := slices.Index(states[:], st)
		if at <= int(claim.Absent) {
			return l, fault.Invalid(fmt.Sprintf("states[%d]", i), limitStates)
		}
		if s := claim.State(at); !slices.Contains(l.States, s) { //nolint:gosec // an index into states
			l.States = append(l.States, s)
		}
	}
	slices.Sort(l.States)
	if m.GetPageToken() == "" {
		return l, nil
	}
	cursor, ok := s.tokens.open(&l, m.GetPageToken())
	if !ok {
		return l, fault.New(warifuv1.Reason_REASON_INVALID_PAGE_TOKEN,
			"page_token: not one of ours, or made for another filter; begin again without one")
	}
	l.Cursor = cursor
	return l, nil
}

// pageTokens seals cursors to the tenant and filter they were made for, so
// that a token can be neither made up nor used elsewhere.
type pageTokens struct{ key []byte }

func (p *pageTokens) seal(l *storage.List, cursor []byte) string {
	return base64.RawURLEncoding.EncodeToString(append(p.mac(l, cursor), cursor...))
}

func (p *pageTokens) open(l *storage.List, token string) (cursor []byte, ok bool) {
	if len(token) > pageTokenCharsMax {
		return nil, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) < macBytes {
		return nil, false
	}
	cursor = raw[macBytes:]
	return cursor, hmac.Equal(raw[:macBytes], p.mac(l, cursor))
}

// mac covers tenant, filter and position, each preceded by its length.
func (p *pageTokens) mac(l *storage.List, cursor []byte) []byte {
	h := hmac.New(sha256.New, p.key)
	var b []byte
	b = binary.BigEndian.AppendUint64(b, uint64(l.Tenant)) //nolint:gosec // its bits
	b = binary.AppendUvarint(b, uint64(len(l.Consumer)))
	b = append(b, l.Consumer...)
	b = binary.AppendUvarint(b, uint64(len(l.Prefix)))
	b = append(b, l.Prefix...)
	b = binary.AppendUvarint(b, uint64(len(l.States)))
	for _, s := range l.States {
		b = append(b, byte(s))
	}
	h.Write(append(b, cursor...))
	return h.Sum(nil)[:macBytes:macBytes]
}
