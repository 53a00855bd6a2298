// The tests of this file run the whole server behind HTTP, in virtual time: what
// a store of known speed does to callers is then the same on every machine. Only
// the store takes time there; what CPU costs is for loadtest/bench.
package server_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/storagetest"
)

// slowStore is how long a store takes: some time for each batch and for each of
// its keys, one batch after the other, or all at once. Time that was overslept is
// not lost, so that its capacity is what it says.
type slowStore struct {
	batch, key time.Duration
	parallel   bool
	mu         sync.Mutex
	free       time.Time
	stalled    chan struct{} // nil: it answers; closed when it does again
}

func (s *slowStore) hook(ctx context.Context, c storagetest.Call) storagetest.Fault {
	s.mu.Lock()
	now, stalled := time.Now(), s.stalled
	if s.parallel || s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(s.batch + time.Duration(len(c.Keys))*s.key)
	wait := s.free.Sub(now)
	s.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-ctx.Done(): // it was sent, and nobody knows what became of it
			return storagetest.Fault{After: storage.ErrUnknown}
		}
	}
	time.Sleep(wait)
	return storagetest.Fault{}
}

// stall keeps the store from answering until the returned function is called.
func (s *slowStore) stall() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stalled := make(chan struct{})
	s.stalled = stalled
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stalled, s.free = nil, time.Time{}
		close(stalled)
	}
}

// pipes is a listener without a network.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "127.0.0.1:1" }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// wire is a rig behind the product's HTTP server.
type wire struct {
	*rig
	pipes *pipes
}

// overHTTP is made within a bubble of virtual time.
func overHTTP(t *testing.T, store *slowStore, opts ...option) *wire {
	t.Helper()
	opts = append([]option{func(c *server.Config) { c.Clock, c.Logger = time.Now, nil }}, opts...)
	w := &wire{rig: setup(t, opts...), pipes: newPipes()}
	w.serve(server.NewHTTPServer(w.server.Handler()))
	w.failing(store.hook)
	return w
}

func (w *wire) serve(h *http.Server) {
	served := make(chan error, 1)
	go func() { served <- h.Serve(w.pipes) }()
	w.t.Cleanup(func() {
		if err := errors.Join(h.Close(), <-served); !errors.Is(err, http.ErrServerClosed) {
			w.t.Error(err)
		}
		time.Sleep(time.Second) // of virtual time: connections linger for half of one
	})
}

// network is a client's side of it: HTTP/2 is one connection for all calls.
func (w *wire) network(http2 bool) *http.Transport {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	network := &http.Transport{
		Protocols: protocols, MaxIdleConnsPerHost: 1 << 12, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.pipes.dial(ctx) },
	}
	w.t.Cleanup(network.CloseIdleConnections)
	return network
}

func (w *wire) dial(key string, http2 bool) warifuv1connect.ClaimServiceClient {
	transport := connecthttp.NewTransport(&http.Client{Transport: w.network(http2)}, "http://warifu.test", connecthttp.WithCompressors())
	return warifuv1connect.NewClaimServiceClient(connect.NewClient(transport, bearer(w.keys[key])))
}

// tally is what came of the calls of one load.
type tally struct {
	mu        sync.Mutex
	good      int             // granted in time
	took      []time.Duration // of those
	shed      int
	dishonest []error // refusals that say too little or something else
	unclosed  []error // completions that were not taken
}

func (y *tally) p50() time.Duration {
	slices.Sort(y.took)
	if len(y.took) == 0 {
		return 0
	}
	return y.took[len(y.took)/2]
}

// load sends claims at a rate, whatever becomes of them, and completes what is
// granted. Every caller waits a second, and each event is its own.
func (w *wire) load(c warifuv1connect.ClaimServiceClient, perSecond int, length time.Duration) *tally {
	var y tally
	var calls sync.WaitGroup
	for range int(length.Seconds() * float64(perSecond)) {
		time.Sleep(time.Second / time.Duration(perSecond))
		calls.Go(func() { w.life(c, &y) })
	}
	calls.Wait()
	return &y
}

const callerPatience = time.Second

func (w *wire) life(c warifuv1connect.ClaimServiceClient, y *tally) {
	ctx, cancel := context.WithTimeout(w.t.Context(), callerPatience)
	defer cancel()
	began, m := time.Now(), request(uuid.NewString(), uuid.NewString())
	res, err := c.Claim(ctx, m)
	took := time.Since(began)
	y.mu.Lock()
	switch {
	case err != nil:
		y.refused(w.t, err)
	case res.GetDecision() == warifuv1.Decision_DECISION_GRANTED:
		y.good++
		y.took = append(y.took, took)
	default:
		y.dishonest = append(y.dishonest, fmt.Errorf("a fresh event is answered %v", res.GetDecision()))
	}
	y.mu.Unlock()
	if err != nil {
		return
	}
	done, err := c.Complete(w.t.Context(), &warifuv1.CompleteRequest{
		Consumer: m.GetConsumer(), EventId: m.GetEventId(), AttemptId: m.GetAttemptId(), Fence: res.GetGrant().GetFence(), Completion: success("done"),
	})
	if err != nil || !done.GetAccepted() {
		y.mu.Lock()
		y.unclosed = append(y.unclosed, fmt.Errorf("%v: %w", done, err))
		y.mu.Unlock()
	}
}

// refused takes note of a claim that was not answered. mu is held.
func (y *tally) refused(t *testing.T, err error) {
	t.Helper()
	y.shed++
	var wire *connect.Error
	if !errors.As(err, &wire) || connect.CodeOf(err) != connect.CodeResourceExhausted {
		y.dishonest = append(y.dishonest, err)
		return
	}
	i, retry := info(t, err), retryInfo(t, err)
	if i.GetReason() != warifuv1.Reason_REASON_OVERLOADED || !i.GetNotApplied() || i.GetRetryAfter().AsDuration() <= 0 || retry.AsDuration() <= 0 {
		y.dishonest = append(y.dishonest, fmt.Errorf("%w: %v, retry in %v", err, i, retry))
	}
}

// mustBeHonest fails the test where a refusal is none, or where work that was
// granted could not be completed.
func (y *tally) mustBeHonest(t *testing.T, what string) {
	t.Helper()
	if len(y.dishonest) > 0 {
		t.Errorf("%s: %d of %d refusals are dishonest, such as %v", what, len(y.dishonest), y.shed, y.dishonest[0])
	}
	if len(y.unclosed) > 0 {
		t.Errorf("%s: %d of %d completions were not taken, such as %v", what, len(y.unclosed), y.good, y.unclosed[0])
	}
}

// TestGoodputUnderOverload: three times what the store can take for 20 s leaves
// at least 90 % of the best goodput, and nothing of it is felt 5 s later.
func TestGoodputUnderOverload(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		if http2 && os.Getenv("WARIFU_SOAK") == "" {
			continue // nothing in it depends on the protocol
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { goodput(t, http2) })
		})
	}
}

func goodput(t *testing.T, http2 bool) {
	t.Helper()
	// 10 ms for a batch and 8 ms for a key: some 50 lives a second, of two keys.
	const capacity, calm = 50, 5 * time.Second
	w := overHTTP(t, &slowStore{batch: 10 * time.Millisecond, key: 8 * time.Millisecond})
	c := w.dial("shop", http2)
	before := w.load(c, capacity/2, calm)
	if before.mustBeHonest(t, "half load"); before.shed > 0 {
		t.Errorf("half load: %d calls were shed", before.shed)
	}
	peak := 0.0
	for _, load := range []int{capacity * 9 / 10, capacity, capacity * 5 / 4} {
		y := w.load(c, load, calm)
		y.mustBeHonest(t, fmt.Sprintf("%d/s", load))
		peak = max(peak, float64(y.good)/calm.Seconds())
	}
	const long = 20 * time.Second
	over := w.load(c, 3*capacity, long)
	over.mustBeHonest(t, "overload")
	got := float64(over.good) / long.Seconds()
	t.Logf("peak %.0f/s; at 3x %.0f/s, p50 %v, %d shed", peak, got, over.p50(), over.shed)
	if got < 0.9*peak || over.shed == 0 {
		t.Errorf("goodput %.0f/s with %d shed, want 90 %% of %.0f/s", got, over.shed, peak)
	}
	time.Sleep(5 * time.Second)
	after := w.load(c, capacity/2, calm)
	if after.shed > 0 || after.p50() > before.p50()*3/2 {
		t.Errorf("afterwards: %d shed, p50 %v; before it was %v", after.shed, after.p50(), before.p50())
	}
}
