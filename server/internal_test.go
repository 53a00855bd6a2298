package server

import (
	"context"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// runUntilCleanup runs a server until the test is over.
func runUntilCleanup(tb testing.TB, s *Server) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	<-s.arbiter.Started()
}

// pickyStore fails the test when anything reaches it that breaks a limit of
// the contract. It checks by its own means, not by the server's.
type pickyStore struct {
	*storagetest.Model
	mu sync.Mutex
	t  *testing.T
}

func (p *pickyStore) reset(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.t = t
}

func (p *pickyStore) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	p.mu.Lock()
	t := p.t
	p.mu.Unlock()
	if len(reqs) == 0 || len(reqs) > claim.BatchItemsMax {
		t.Errorf("%d requests reached the store", len(reqs))
	}
	for i := range reqs {
		checkRequest(t, &reqs[i])
	}
	return p.Model.InsertOrGet(ctx, reqs)
}

func checkRequest(t *testing.T, r *claim.Request) {
	t.Helper()
	k := r.Key
	if k.Tenant != 1 || !tenant.ValidConsumer(k.Consumer) || k.EventID == "" || len(k.EventID) > 512 || !utf8.ValidString(k.EventID) || strings.Contains(k.EventID, "\x00") {
		t.Errorf("key %+v reached the store", k)
	}
	if r.Attempt.IsZero() || r.Lease < claim.LeaseMin || r.Lease > claim.LeaseMax || len(r.Digests) > 8 || r.EventTime < 0 || r.Policy.Window == 0 {
		t.Errorf("request %+v reached the store", r)
	}
	if c := r.Record; c != nil && (c.Outcome == claim.NoOutcome || c.Outcome > claim.Rejected || len(c.Body) > 256<<10 || len(c.Metadata) > 16 || c.Sum == [32]byte{}) {
		t.Errorf("completion %+v reached the store", c)
	}
}

func TestNewReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := New(Config{InFlightMax: -1, CallTimeout: -1, PageTokenKey: []byte("short")})
	if err == nil {
		t.Fatal("an empty configuration is accepted")
	}
	for _, want := range []string{"Store", "Directory", "Clock", "InFlightMax", "CallTimeout", "PageTokenKey"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func checkShape(t *testing.T, d protoreflect.MessageDescriptor, s *shape) {
	t.Helper()
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		number := int(f.Number())
		repeated := f.Message() != nil && (f.IsList() || f.IsMap())
		if repeated && (number >= shapeFields || s == nil || !s.counted[number]) {
			t.Errorf("%s is a repeated message and is not counted", f.FullName())
		}
		if f.Message() == nil || f.IsMap() || strings.HasPrefix(string(f.Message().FullName()), "google.protobuf.") {
			continue
		}
		var within *shape
		if s != nil && number < shapeFields {
			within = s.within[number]
		}
		checkShape(t, f.Message(), within)
	}
}
