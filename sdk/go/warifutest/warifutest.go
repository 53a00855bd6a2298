// Package warifutest runs a whole Warifu server inside a test: the real server
// over the real embedded store, on a file system in memory, without a network,
// and with a clock that moves only when the test moves it.
//
//	srv := warifutest.NewServer(t)
//	srv.Consumer("billing", warifutest.Policy{Hold: true})
//	client := srv.Client()
//	…
//	srv.Clock.Advance(31 * time.Second) // leases lapse
package warifutest

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2/connectinprocess"
	"github.com/cockroachdb/pebble/v2/vfs"

	warifu "github.com/warifu/warifu/sdk/go"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/pebble"
	"github.com/warifu/warifu/storage/storagetest"
)

// Clock is the server's clock. It stands still until Advance or Set moves it.
// Clients keep their own time: a handler notices that its lease was lost when
// its next heartbeat is answered.
type Clock = storagetest.Clock

// Server is one server with one tenant, alive until the test ends.
type Server struct {
	// Clock is the only time that leases and retention follow.
	Clock *Clock

	t      testing.TB
	server *server.Server
	dir    *tenant.Directory
	apiKey string

	mu struct {
		sync.Mutex
		config tenant.Config
	}
}

// NewServer starts a server and stops it, after its clients, when the test ends.
func NewServer(t testing.TB) *Server {
	t.Helper()
	s := &Server{Clock: storagetest.NewClock(storagetest.Start), t: t}
	var key tenant.Key
	s.apiKey, key = tenant.NewKey("test")
	s.mu.config = tenant.Config{ID: 1, Name: "test", Keys: []tenant.Key{key}}
	s.dir = tenant.NewDirectory(s.table())
	store, err := pebble.Open(pebble.Config{Dir: "store", FS: vfs.NewMem(), Clock: s.Clock.Now})
	if err != nil {
		t.Fatalf("warifutest: open store: %v", err)
	}
	s.server, err = server.New(server.Config{Store: store, Directory: s.dir, Clock: s.Clock.Now})
	if err != nil {
		t.Fatalf("warifutest: %v", errors.Join(err, store.Close()))
	}
	s.run(store)
	s.awaitReady()
	return s
}

// How long a server may take to be ready, and how often it is asked.
const (
	readyMax   = 30 * time.Second
	readyEvery = time.Millisecond
)

// awaitReady returns when claims would be answered.
func (s *Server) awaitReady() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyMax)
	defer cancel()
	ask := time.NewTicker(readyEvery)
	defer ask.Stop()
	for {
		w := httptest.NewRecorder()
		s.server.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz?verbose", nil))
		if w.Code == http.StatusOK {
			return
		}
		select {
		case <-ask.C:
		case <-ctx.Done():
			s.t.Fatalf("warifutest: not ready after %s: %s", readyMax, w.Body)
		}
	}
}

// run starts the background work, and stops it in the order that loses nothing.
func (s *Server) run(store *pebble.Store) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	failed := make(chan error, 2)
	wg.Go(func() { failed <- s.server.Run(ctx) })
	wg.Go(func() { failed <- store.Run(ctx) })
	s.t.Cleanup(func() {
		s.server.Drain()
		cancel()
		wg.Wait()
		if err := errors.Join(<-failed, <-failed, store.Close()); err != nil {
			s.t.Errorf("warifutest: stop: %v", err)
		}
	})
}

// Client returns a new client of the server, closed when the test ends.
func (s *Server) Client(opts ...warifu.Option) *warifu.Client {
	s.t.Helper()
	own := []warifu.Option{warifu.WithTransport(connectinprocess.New(s.server.Connect())), warifu.WithAPIKey(s.apiKey)}
	c, err := warifu.New("", append(own, opts...)...)
	if err != nil {
		s.t.Fatalf("warifutest: %v", err)
	}
	s.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.t.Errorf("warifutest: close client: %v", err)
		}
	})
	return c
}

// Policy is how claims of one consumer are decided. Zero values are the
// server's defaults: window 24 h, retention twice the window, lease 30 s,
// leases that lapse are granted again.
type Policy struct {
	// Hold puts an event in doubt when its lease lapses.
	Hold bool
	// FailOpen answers UNPROTECTED while the store cannot be asked.
	FailOpen bool
	// AttemptsMax is how many leases may lapse before the event is in doubt.
	AttemptsMax uint32
	// Window is how long the upstream can redeliver, Retention how long events
	// are remembered.
	Window, Retention time.Duration
	// Lease is the default lease, LeaseMax the longest, HoldMax how long one
	// grant may be extended in all.
	Lease, LeaseMax, HoldMax time.Duration
	// ResultBytesMax is the longest result that is stored.
	ResultBytesMax int
	// DigestRequired refuses claims without a digest.
	DigestRequired bool
}

// Consumer declares a consumer, or gives a declared one another policy, which
// holds for events that are new from now on.
func (s *Server) Consumer(name string, p Policy) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	declared := tenant.ConsumerConfig{
		Name: name, Window: p.Window, Retention: p.Retention, LeaseDefault: p.Lease, LeaseMax: p.LeaseMax, HoldMax: p.HoldMax,
		Hold: p.Hold, AttemptsMax: p.AttemptsMax, ResultBytesMax: p.ResultBytesMax, DigestRequired: p.DigestRequired,
	}
	if p.FailOpen {
		declared.OnUnavailable = tenant.FailOpen
	}
	others := s.mu.config.Consumers[:0:0]
	for _, c := range s.mu.config.Consumers {
		if c.Name != name {
			others = append(others, c)
		}
	}
	others = append(others, declared)
	s.mu.config.Consumers = others
	s.dir.Swap(s.table())
}

// table builds the tenant table in force.
func (s *Server) table() *tenant.Table {
	s.t.Helper()
	table, err := tenant.NewTable([]tenant.Config{s.mu.config})
	if err != nil {
		s.t.Fatalf("warifutest: %v", err)
	}
	return table
}
