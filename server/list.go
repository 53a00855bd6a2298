package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/pagetoken"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var limitPrefix = fmt.Sprintf("at most %d bytes of UTF-8 without NUL; needs consumer", claim.EventIDBytesMax)

const (
	limitStates       = "states that records can have"
	limitOwnConsumers = "a consumer that this API key may see"
)

// admin serves warifu.v1.ClaimAdminService.
type admin struct {
	*Server
}

// ListClaims pages through the tenant's records. Result bodies are not loaded.
func (s *admin) ListClaims(ctx context.Context, m *warifuv1.ListClaimsRequest) (*warifuv1.ListClaimsResponse, error) {
	of, err := s.acting(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	l, f := s.list(of, m)
	if f != nil {
		return nil, f
	}
	page, listErr := s.store.List(ctx, l.List)
	if listErr != nil {
		return nil, readFault(listErr)
	}
	res := &warifuv1.ListClaimsResponse{Claims: make([]*warifuv1.ClaimRecord, 0, len(page.Records))}
	for i := range page.Records {
		if rec := &page.Records[i]; l.shows(rec, page.Now) {
			res.Claims = append(res.Claims, recordMessage(rec, page.Now))
		}
	}
	if page.Cursor != nil {
		res.NextPageToken = s.tokens.Seal(page.Cursor, l.bound()...)
	}
	return res, nil
}

// filter is what a list, or a bulk action, looks for.
type filter interface {
	GetConsumer() string
	GetEventIdPrefix() string
	GetStates() []warifuv1.State
	GetAgeMin() *durationpb.Duration
	GetPageToken() string
}

// listing is a list with what the store does not filter.
type listing struct {
	storage.List
	ageMin time.Duration
	what   string // of several lists with the same filter
}

// shows reports whether a record of the store's page is in the list.
func (l *listing) shows(rec *claim.Record, now claim.Time) bool {
	return !rec.Expired(now) && (l.ageMin == 0 || now.Sub(rec.ClaimedAt) >= l.ageMin)
}

// bound is what a page token is bound to: tenant and filter.
func (l *listing) bound() [][]byte {
	states := make([]byte, 0, len(l.States))
	for _, s := range l.States {
		states = append(states, byte(s))
	}
	number := func(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) } //nolint:gosec // its bits
	return [][]byte{[]byte(l.what), number(int64(l.Tenant)), []byte(l.Consumer), []byte(l.Prefix), states, number(int64(l.ageMin))}
}

func (s *admin) list(of *actor, m *warifuv1.ListClaimsRequest) (listing, *fault.Fault) {
	limit, ok := pagetoken.Size(m.GetPageSize())
	if !ok {
		return listing{}, fault.Invalid("page_size", pagetoken.LimitSize)
	}
	return s.filtered(of, "claims", m, limit)
}

// filtered checks a filter and opens its page token.
func (s *admin) filtered(of *actor, what string, m filter, limit int) (listing, *fault.Fault) {
	l := listing{what: what, List: storage.List{Tenant: of.tenant.ID, Consumer: m.GetConsumer(), Prefix: m.GetEventIdPrefix(), Limit: limit}}
	if l.Consumer != "" && !tenant.ValidConsumer(l.Consumer) {
		return l, fault.Invalid("consumer", limitConsumer)
	}
	if !of.call.Principal.Consumer(l.Consumer) {
		return l, fault.Invalid("consumer", limitOwnConsumers)
	}
	if l.Prefix != "" && (l.Consumer == "" || !validEventID(l.Prefix)) {
		return l, fault.Invalid("event_id_prefix", limitPrefix)
	}
	if m.GetAgeMin() != nil {
		var ok bool
		if l.ageMin, ok = span(m.GetAgeMin()); !ok || l.ageMin < 0 {
			return l, fault.Invalid("age_min", "a length of time, not negative")
		}
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
	cursor, ok := s.tokens.Open(m.GetPageToken(), l.bound()...)
	if !ok {
		return l, fault.New(warifuv1.Reason_REASON_INVALID_PAGE_TOKEN,
			"page_token: not one of ours, or made for another filter; begin again without one")
	}
	l.Cursor = cursor
	return l, nil
}
