package server

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

const fuzzAttempt = "0e1a5b52-7c26-4b6e-9d5c-4a6f3a0f2a01"

// FuzzKey: what is taken for an event is what the contract says.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"", "order-7", "a\x00b", "\xff", strings.Repeat("é", 256), strings.Repeat("x", 513), "\u202e"} {
		f.Add("orders", seed)
		f.Add(seed, "e")
	}
	table := mustTable(f)
	shop, _ := table.Tenant("shop")
	f.Fuzz(func(t *testing.T, consumer, eventID string) {
		e := &edge{tenant: shop, principal: &tenant.Principal{Tenant: shop}}
		key, bad := e.key(consumer, eventID)
		okConsumer := consumer != "" && len(consumer) <= claim.ConsumerCharsMax &&
			strings.Trim(consumer, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-") == ""
		okEvent := eventID != "" && len(eventID) <= claim.EventIDBytesMax && utf8.ValidString(eventID) && !strings.Contains(eventID, "\x00")
		// Trim looks at the ends only: what is left inside is checked by rune.
		for _, c := range consumer {
			okConsumer = okConsumer && c < utf8.RuneSelf && nameRune(c)
		}
		if (bad == nil) != (okConsumer && okEvent) {
			t.Fatalf("%q %q: %v", consumer, eventID, bad)
		}
		if bad == nil && (key != claim.Key{Tenant: 1, Consumer: consumer, EventID: eventID}) {
			t.Fatalf("%q %q became %v", consumer, eventID, key)
		}
	})
}

func nameRune(c rune) bool {
	return strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-", c)
}

// FuzzAttempt: an attempt ID that is taken is written back as the same UUID.
func FuzzAttempt(f *testing.F) {
	for _, seed := range []string{"", fuzzAttempt, strings.ToUpper(fuzzAttempt), strings.ReplaceAll(fuzzAttempt, "-", ""), strings.Repeat("-", 36), strings.Repeat("0", 32)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, ok := parseAttempt(s)
		if !ok {
			return
		}
		text := attemptText(id)
		if strings.ReplaceAll(strings.ToLower(s), "-", "") != strings.ReplaceAll(text, "-", "") || id.IsZero() {
			t.Fatalf("%q became %q", s, text)
		}
		if again, ok := parseAttempt(text); !ok || again != id {
			t.Fatalf("%q does not read back", text)
		}
	})
}

// FuzzDigests: what is taken keeps the limits, and never more than was sent.
func FuzzDigests(f *testing.F) {
	f.Add("jcs-sha256/order.v2", []byte{1}, "raw", []byte{2}, uint8(2))
	f.Add("a", []byte{}, "a", []byte{2}, uint8(9))
	table := mustTable(f)
	shop, _ := table.Tenant("shop")
	c, _, err := shop.Consumer("orders")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, scheme string, value []byte, other string, otherValue []byte, n uint8) {
		var ms []*warifuv1.Digest
		for i := range int(n) {
			ms = append(ms, &warifuv1.Digest{Scheme: scheme, Value: value})
			scheme, value, other, otherValue = other, otherValue, scheme+string(rune('a'+i%26)), value
		}
		e, r, slab := &edge{tenant: shop, principal: &tenant.Principal{Tenant: shop}, consumer: c}, &claim.Request{}, make([]claim.Digest, 0, claim.DigestsMax)
		if bad := e.digests(ms, r, &slab); bad != nil {
			if bad.Limit == "" || !strings.HasPrefix(bad.Field, "digests") {
				t.Fatalf("refused without field and limit: %v", bad)
			}
			return
		}
		if len(r.Digests) != len(ms) || len(ms) > claim.DigestsMax {
			t.Fatalf("%d digests became %d", len(ms), len(r.Digests))
		}
		seen := map[string]bool{}
		for _, d := range r.Digests {
			if seen[d.Scheme] || d.Scheme == "" || !utf8.ValidString(d.Scheme) || len(d.Value) == 0 || len(d.Value) > claim.DigestBytesMax {
				t.Fatalf("digest %v was taken", d)
			}
			seen[d.Scheme] = true
		}
	})
}

// FuzzBatchClaimDecode: arbitrary bytes as a batch, binary or JSON, are
// answered without a panic, and whatever reaches the store keeps the limits.
func FuzzBatchClaimDecode(f *testing.F) {
	good := &warifuv1.BatchClaimRequest{Items: []*warifuv1.ClaimRequest{
		{Consumer: "orders", EventId: "e", AttemptId: fuzzAttempt, Digests: []*warifuv1.Digest{{Scheme: "raw", Value: []byte{1}}}},
		{Consumer: "held", EventId: "f", Record: &warifuv1.Completion{Outcome: 1, Metadata: map[string]string{"a": "b"}}},
	}}
	binary, err := proto.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	text, err := protojson.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(binary, false)
	f.Add(text, true)
	f.Add([]byte(`{"items":[{"consumer":"orders","eventId":"\ud800"}]}`), true)
	f.Add([]byte(`{"items":[null,{"lease":"-1s","wait":"1s","eventTime":"0001-01-01T00:00:00Z"}]}`), true)
	h := newFuzzServer(f)
	f.Fuzz(func(t *testing.T, body []byte, json bool) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/warifu.v1.ClaimService/BatchClaim", bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/proto")
		if json {
			req.Header.Set("Content-Type", "application/json")
		}
		req.Header.Set("Authorization", "Bearer "+h.key)
		h.store.reset(t)
		w := httptest.NewRecorder()
		h.server.Handler().ServeHTTP(w, req)
		if w.Code != http.StatusOK && w.Code != http.StatusBadRequest {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	})
}

func mustTable(tb testing.TB, keys ...tenant.Key) *tenant.Table {
	tb.Helper()
	table, err := tenant.NewTable([]tenant.Config{{
		ID: 1, Name: "shop", Keys: keys, Consumers: []tenant.ConsumerConfig{{Name: "orders"}, {Name: "held", Hold: true}},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return table
}

// fuzzServer is a server over a store that checks what reaches it.
type fuzzServer struct {
	server *Server
	store  *pickyStore
	key    string
}

func newFuzzServer(f *testing.F) *fuzzServer {
	f.Helper()
	clock := storagetest.NewClock(storagetest.Start)
	text, key := tenant.NewKey("fuzz")
	h := &fuzzServer{store: &pickyStore{Model: storagetest.NewModel(clock.Now, claim.SweepGrace)}, key: text}
	var err error
	h.server, err = New(Config{Store: h.store, Directory: tenant.NewDirectory(mustTable(f, key)), Clock: clock.Now})
	if err != nil {
		f.Fatal(err)
	}
	runUntilCleanup(f, h.server)
	return h
}
