package arbiter

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a running arbiter over the model with a clock that the test sets.
type rig struct {
	*Arbiter
	t     *testing.T
	clock *storagetest.Clock
	store *hooked
	stop  func() // ends Run and waits for it; may be called again
}

func setup(t *testing.T, edit ...func(*Config)) *rig {
	t.Helper()
	clock := storagetest.NewClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	r := setupOn(t, clock.Now, edit...)
	r.clock = clock
	return r
}

func setupOn(t *testing.T, now func() time.Time, edit ...func(*Config)) *rig {
	t.Helper()
	store := &hooked{Store: storagetest.NewModel(now, claim.SweepGrace)}
	cfg := Config{Store: store}
	for _, e := range edit {
		e(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	<-a.Started()
	r := &rig{Arbiter: a, t: t, store: store}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// hooked is a store that counts, and whose calls a test can hold up or fail.
type hooked struct {
	storage.Store
	before  atomic.Pointer[func(ctx context.Context, method string) error]
	after   atomic.Pointer[func(method string, found []storage.Found) error]
	inserts counter
	gets    counter
	moves   counter // transitions
	swaps   counter
}

type counter struct{ calls, items atomic.Int64 }

// onCall runs f before each call; an error is what the call returns, and
// nothing is applied.
func (h *hooked) onCall(f func(ctx context.Context, method string) error) { h.before.Store(&f) }

// onReturn runs f after each call; an error takes the place of its answer.
func (h *hooked) onReturn(f func(method string, found []storage.Found) error) { h.after.Store(&f) }

func through[I any](ctx context.Context, h *hooked, method string, c *counter, items []I,
	call func(context.Context, []I) ([]storage.Found, error),
) ([]storage.Found, error) {
	c.calls.Add(1)
	c.items.Add(int64(len(items)))
	if f := h.before.Load(); f != nil {
		if err := (*f)(ctx, method); err != nil {
			return nil, err
		}
	}
	found, err := call(ctx, items)
	if f := h.after.Load(); f != nil && err == nil {
		if err := (*f)(method, found); err != nil {
			return nil, err
		}
	}
	return found, err
}

func (h *hooked) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	return through(ctx, h, "InsertOrGet", &h.inserts, reqs, h.Store.InsertOrGet)
}

func (h *hooked) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	return through(ctx, h, "Get", &h.gets, keys, h.Store.Get)
}

func (h *hooked) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	return through(ctx, h, "Transition", &h.moves, ts, h.Store.Transition)
}

func (h *hooked) Replace(ctx context.Context, swaps []claim.Swap) ([]storage.Found, error) {
	return through(ctx, h, "Replace", &h.swaps, swaps, h.Store.Replace)
}

// trips is how many calls that a request waits for the store has had.
func (h *hooked) trips() int64 {
	return h.inserts.calls.Load() + h.gets.calls.Load() + h.moves.calls.Load() + h.swaps.calls.Load()
}

func attempt(n int) claim.AttemptID { return claim.AttemptID{0xA7, byte(n >> 8), byte(n)} }

func key(event string) claim.Key {
	return claim.Key{Tenant: 7, Consumer: "inventory", EventID: event}
}

func request(event string, n int) claim.Request {
	return claim.Request{
		Key: key(event), Attempt: attempt(n), InsertBefore: claim.Never,
		Lease: claim.LeaseDefault, Policy: claim.DefaultPolicy(),
	}
}

func result(text string) *claim.Completion {
	c := claim.Completion{Outcome: claim.Succeeded, ContentType: "text/plain", Body: []byte(text)}.Summed()
	return &c
}

func (r *rig) claim(req claim.Request) Answered {
	r.t.Helper()
	got := r.ClaimOne(r.t.Context(), req)
	if got.Err != nil {
		r.t.Fatalf("claim %s: %v", req.Key.EventID, got.Err)
	}
	return got
}

// granted claims and must get a grant.
func (r *rig) granted(req claim.Request) Answered {
	r.t.Helper()
	got := r.claim(req)
	if got.Decision != claim.Granted {
		r.t.Fatalf("claim %s: got %v, want GRANTED", req.Key.EventID, got.Decision)
	}
	return got
}

func (r *rig) transition(kind claim.TransitionKind, req claim.Request, fence claim.Fence) Replied {
	r.t.Helper()
	got := r.Transition(r.t.Context(), []claim.Transition{transition(kind, req, fence)})
	if got[0].Err != nil {
		r.t.Fatalf("transition %s: %v", req.Key.EventID, got[0].Err)
	}
	return got[0]
}

func transition(kind claim.TransitionKind, req claim.Request, fence claim.Fence) claim.Transition {
	t := claim.Transition{Kind: kind, Key: req.Key, Attempt: req.Attempt, Fence: fence, Lease: time.Minute}
	if kind == claim.Complete {
		t.Completion = result("done")
	}
	return t
}

// gate holds up every store call until it is opened.
type gate chan struct{}

func (r *rig) gate() gate {
	g := make(gate)
	r.store.onCall(func(context.Context, string) error { <-g; return nil })
	return g
}

// async claims on a goroutine of its own.
func (r *rig) async(ctx context.Context, reqs ...claim.Request) <-chan []Answered {
	got := make(chan []Answered, 1)
	go func() { got <- r.Claim(ctx, reqs) }()
	return got
}

// record is what is stored, read past the arbiter.
func (r *rig) record(k claim.Key) claim.Record {
	r.t.Helper()
	found, err := r.store.Store.Get(r.t.Context(), []claim.Key{k})
	if err != nil {
		r.t.Fatal(err)
	}
	return found[0].Record
}

// decisions is what was decided, in order.
func decisions(got []Answered) string {
	var s string
	for i := range got {
		s += fmt.Sprintf("%v ", got[i].Decision)
	}
	return s
}
