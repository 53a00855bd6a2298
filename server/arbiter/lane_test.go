package arbiter

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

func TestConfigReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Senders: -1, QueueItemsMax: 499, StoreTimeout: time.Hour, WaitersPerKeyMax: -1, WaitersMax: -1, Poll: time.Second})
	for _, field := range []string{"Store", "Senders", "QueueItemsMax", "StoreTimeout", "WaitersPerKeyMax", "WaitersMax", "Poll"} {
		if err == nil || !strings.Contains(err.Error(), field+" ") {
			t.Errorf("%s is not reported: %v", field, err)
		}
	}
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	store := &hooked{}
	a, err := New(Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(want error) {
		t.Helper()
		_, lookup := a.Lookup(t.Context(), []claim.Key{key("order")})
		for call, got := range map[string]error{
			"claim":      a.ClaimOne(t.Context(), request("order", 1)).Err,
			"batch":      a.Claim(t.Context(), []claim.Request{request("order", 1)})[0].Err,
			"wait":       a.ClaimWait(t.Context(), request("order", 1), time.Minute, func() {}).Err,
			"transition": a.Transition(t.Context(), []claim.Transition{{}})[0].Err,
			"lookup":     lookup,
		} {
			if !errors.Is(got, want) {
				t.Errorf("%s: got %v, want %v", call, got, want)
			}
		}
	}
	refused(storage.ErrUnavailable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Run(ctx); err != nil {
		t.Error(err)
	}
	refused(storage.ErrClosed)
	if a.Run(ctx) == nil {
		t.Error("Run ran twice")
	}
	if store.trips() != 0 {
		t.Error("the store was asked")
	}
}

// TestDrain: what was accepted is answered before Run returns.
func TestDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, func(c *Config) { c.Senders = 1 })
		holder := request("held", 99)
		r.granted(holder)
		waiting := make(chan Answered, 1)
		go func() { waiting <- r.ClaimWait(t.Context(), request("held", 1), time.Minute, func() {}) }()
		synctest.Wait()
		g := r.gate()
		var calls []<-chan []Answered
		for n := range 10 {
			calls = append(calls, r.async(t.Context(), request("order", n), request("order", n+100)))
			synctest.Wait()
		}
		stopped := make(chan struct{})
		go func() { defer close(stopped); r.stop() }()
		synctest.Wait()
		select {
		case <-stopped:
			t.Error("Run returned while calls are queued")
		default:
		}
		if got := <-waiting; got.Err != nil || got.Decision != claim.HeldByOther {
			t.Errorf("the waiter got %+v", got)
		}
		if got := r.ClaimOne(t.Context(), request("late", 1)); !errors.Is(got.Err, storage.ErrClosed) {
			t.Errorf("a late caller got %+v", got)
		}
		close(g)
		<-stopped
		grants := 0
		for _, c := range calls {
			for _, got := range <-c {
				if got.Err != nil {
					t.Error(got.Err)
				}
				if got.Decision == claim.Granted {
					grants++
				}
			}
		}
		if grants != 1 {
			t.Errorf("%d grants", grants)
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, func(c *Config) { c.Senders, c.SendersFull, c.QueueItemsMax = 1, 1, claim.BatchItemsMax })
		done := request("done", 1)
		fence := r.granted(done).Fence
		g := make(gate)
		r.store.onCall(func(_ context.Context, method string) error {
			if method == "InsertOrGet" {
				<-g
			}
			return nil
		})
		busy := r.async(t.Context(), request("busy", 1))
		synctest.Wait()
		many := make([]claim.Request, claim.BatchItemsMax)
		for i := range many {
			many[i] = request("full", i)
		}
		full := r.async(t.Context(), many...)
		synctest.Wait()
		if queued := r.Stats().Claims.Queued; queued != claim.BatchItemsMax {
			t.Errorf("%d items are queued", queued)
		}
		over := r.Claim(t.Context(), []claim.Request{request("over", 1), request("over", 2)})
		for _, got := range over {
			if !errors.Is(got.Err, ErrOverloaded) {
				t.Errorf("got %+v", got)
			}
		}
		// Completions do not queue behind claims.
		if reply := r.transition(claim.Complete, done, fence); reply.Status != claim.OK {
			t.Errorf("got %+v", reply)
		}
		close(g)
		<-busy
		if got := <-full; got[0].Decision != claim.Granted || got[1].Decision != claim.HeldByOther {
			t.Error(got[:2])
		}
		if rec := r.record(key("over")); rec.State != claim.Absent {
			t.Errorf("a refused claim was stored: %v", rec.State)
		}
		r.granted(request("over", 1))
		if s := r.Stats().Claims; s.Overloaded != 2 || s.Queued != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestBatchTooLarge(t *testing.T) {
	t.Parallel()
	r := setup(t)
	many := make([]claim.Request, claim.BatchItemsMax+1)
	for _, got := range r.Claim(t.Context(), many) {
		if !errors.Is(got.Err, storage.ErrBatchTooLarge) {
			t.Fatal(got)
		}
	}
	if r.store.trips() != 0 {
		t.Error("the store was asked")
	}
	if got := r.Claim(t.Context(), nil); len(got) != 0 {
		t.Error(got)
	}
}

// TestCallerLeavesQueue: whoever leaves before it was sent has changed
// nothing, by deadline or by cancelling.
func TestCallerLeavesQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, func(c *Config) { c.Senders = 1 })
		g := r.gate()
		busy := r.async(t.Context(), request("busy", 1))
		synctest.Wait()
		short, cancelShort := context.WithTimeout(t.Context(), time.Second)
		defer cancelShort()
		gone, leave := context.WithCancel(t.Context())
		left, late := r.async(gone, request("left", 1)), r.async(short, request("late", 1), request("late", 2))
		stays := r.async(t.Context(), request("stays", 1))
		synctest.Wait()
		leave()
		for _, c := range []struct {
			got  <-chan []Answered
			want error
		}{{left, context.Canceled}, {late, context.DeadlineExceeded}} {
			for _, got := range <-c.got {
				if !errors.Is(got.Err, c.want) || !errors.Is(got.Err, ErrNotSent) || errors.Is(got.Err, storage.ErrUnknown) {
					t.Errorf("got %v, want %v", got.Err, c.want)
				}
			}
		}
		close(g)
		<-busy
		if got := <-stays; got[0].Decision != claim.Granted {
			t.Error(got)
		}
		if items := r.store.inserts.items.Load(); items != 2 {
			t.Errorf("%d items were sent, want 2", items)
		}
		if s := r.Stats().Claims; s.Dropped != 3 || s.Queued != 0 {
			t.Errorf("%+v", s)
		}
		if got := r.ClaimOne(gone, request("left", 1)); !errors.Is(got.Err, ErrNotSent) {
			t.Errorf("an ended context: %v", got.Err)
		}
		if items := r.store.inserts.items.Load(); items != 2 {
			t.Error("an ended context asked the store")
		}
	})
}

// TestCallerLeavesSent: whoever leaves later does not know, and the write
// happens all the same.
func TestCallerLeavesSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t)
		g := r.gate()
		ctx, leave := context.WithCancel(t.Context())
		sent := r.async(ctx, request("a", 1), request("b", 1))
		synctest.Wait()
		leave()
		for _, got := range <-sent {
			if !errors.Is(got.Err, storage.ErrUnknown) || errors.Is(got.Err, context.Canceled) || errors.Is(got.Err, ErrNotSent) {
				t.Errorf("got %v", got.Err)
			}
		}
		close(g)
		synctest.Wait()
		first := r.record(key("a"))
		if again := r.granted(request("a", 1)); again.Fence != first.Fence {
			t.Errorf("resent: fence %d, want %d", again.Fence, first.Fence)
		}
		if s := r.Stats().Claims; s.Left != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestStoreTimeout: a store that does not answer is given up on, and what it
// was sent is unknown.
func TestStoreTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, func(c *Config) { c.StoreTimeout = 3 * time.Second })
		r.store.onCall(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
		began := time.Now()
		got := r.ClaimOne(t.Context(), request("order", 1))
		if !errors.Is(got.Err, storage.ErrUnknown) || errors.Is(got.Err, context.DeadlineExceeded) {
			t.Error(got.Err)
		}
		if _, err := r.Lookup(t.Context(), []claim.Key{key("order")}); err != nil {
			t.Error(err) // it is the item's
		}
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestStoreFaults(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken pipe")
	for _, c := range []struct {
		name  string
		fault error
		want  error
		read  error
	}{
		{"unavailable", storage.ErrUnavailable, storage.ErrUnavailable, storage.ErrUnavailable},
		{"full", storage.ErrFull, storage.ErrFull, storage.ErrFull},
		{"clock", storage.ErrClockSuspect, storage.ErrClockSuspect, storage.ErrClockSuspect},
		{"closed", storage.ErrClosed, storage.ErrClosed, storage.ErrClosed},
		{"damaged", storage.ErrDamaged, storage.ErrDamaged, storage.ErrDamaged},
		{"unclassified", broken, storage.ErrUnknown, storage.ErrUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.store.onCall(func(context.Context, string) error { return c.fault })
			for i, got := range r.Claim(t.Context(), []claim.Request{request("a", 1), request("b", 1), request("a", 2)}) {
				if !errors.Is(got.Err, c.want) || got.Decision != claim.Undecided {
					t.Errorf("claim %d: %+v", i, got)
				}
			}
			move := transition(claim.Complete, request("a", 1), 1)
			for i, got := range r.Transition(t.Context(), []claim.Transition{move, move}) {
				if !errors.Is(got.Err, c.want) {
					t.Errorf("transition %d: %+v", i, got)
				}
			}
			found, err := r.Lookup(t.Context(), []claim.Key{key("a"), key("a")})
			if err != nil || !errors.Is(found[1].Err, c.read) || errors.Is(found[1].Err, storage.ErrUnknown) {
				t.Errorf("lookup: %v %v", found, err)
			}
			r.store.onCall(func(context.Context, string) error { return nil })
			r.granted(request("a", 1))
		})
	}
}

// TestLostReply: the store wrote and its answer was lost; the same attempt
// finds its grant.
func TestLostReply(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.store.onReturn(func(string, []storage.Found) error { return storage.ErrUnknown })
	if got := r.ClaimOne(t.Context(), request("order", 1)); !errors.Is(got.Err, storage.ErrUnknown) {
		t.Error(got)
	}
	r.store.onReturn(func(string, []storage.Found) error { return nil })
	fence := r.record(key("order")).Fence
	if got := r.granted(request("order", 1)); got.Fence != fence {
		t.Errorf("fence %d, want %d", got.Fence, fence)
	}
}

// TestFaultOfOne: one item's error is its own, and that of those folded behind
// it.
func TestFaultOfOne(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.store.onReturn(func(_ string, found []storage.Found) error {
		found[1] = storage.Found{Err: storage.ErrFull}
		return nil
	})
	got := r.Claim(t.Context(), []claim.Request{request("a", 1), request("b", 1), request("c", 1), request("b", 2)})
	if decisions(got) != "GRANTED UNDECIDED GRANTED UNDECIDED " || !errors.Is(got[1].Err, storage.ErrFull) || !errors.Is(got[3].Err, storage.ErrFull) {
		t.Errorf("%+v", got)
	}
	move := transition(claim.Release, request("a", 1), got[0].Fence)
	other := transition(claim.Release, request("c", 1), got[2].Fence)
	replies := r.Transition(t.Context(), []claim.Transition{move, other})
	if replies[0].Status != claim.OK || !errors.Is(replies[1].Err, storage.ErrFull) {
		t.Errorf("%+v", replies)
	}
}

// TestSecondTripFails: only the items of that trip fail.
func TestSecondTripFails(t *testing.T) {
	t.Parallel()
	r := setup(t)
	lapsed(r, request("lapsed", 1))
	r.store.onCall(func(_ context.Context, method string) error {
		if method == "Replace" {
			return storage.ErrUnavailable
		}
		return nil
	})
	got := r.Claim(t.Context(), []claim.Request{request("new", 1), request("lapsed", 2), request("lapsed", 3), request("also new", 1)})
	if decisions(got) != "GRANTED UNDECIDED UNDECIDED GRANTED " || !errors.Is(got[1].Err, storage.ErrUnavailable) || !errors.Is(got[2].Err, storage.ErrUnavailable) {
		t.Errorf("%+v", got)
	}
}

func TestShortAnswer(t *testing.T) {
	t.Parallel()
	r := setup(t)
	short := &shortStore{r.store.Store}
	r.store.Store = short
	got := r.Claim(t.Context(), []claim.Request{request("a", 1), request("b", 1)})
	for _, one := range got {
		if !errors.Is(one.Err, storage.ErrUnknown) {
			t.Error(one)
		}
	}
}

type shortStore struct{ storage.Store }

func (s *shortStore) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	found, err := s.Store.InsertOrGet(ctx, reqs)
	return found[1:], err
}

// TestLostRace: somebody else takes over between the read and the write.
func TestLostRace(t *testing.T) {
	t.Parallel()
	r := setup(t)
	lapsed(r, request("order", 1))
	r.store.onReturn(func(method string, found []storage.Found) error {
		if method == "InsertOrGet" {
			r.takeOver(&found[0].Record, request("order", 3))
		}
		return nil
	})
	before := r.store.trips()
	if got := r.claim(request("order", 2)); got.Decision != claim.HeldByOther {
		t.Errorf("got %+v", got)
	}
	if trips := r.store.trips() - before; trips != 2 {
		t.Errorf("%d trips", trips)
	}
}

// takeOver lets another attempt take over, past the arbiter.
func (r *rig) takeOver(rec *claim.Record, req claim.Request) {
	r.t.Helper()
	swap := claim.NewSwap(claim.TakeOver, rec, &req)
	if found, err := r.store.Store.Replace(context.Background(), []claim.Swap{swap}); err != nil || !found[0].Applied {
		r.t.Error(found, err)
	}
}

// TestLostRaces: a key that others keep writing is asked for again, some
// times.
func TestLostRaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flaps    int64
		granted  bool
		replaces int64
	}{
		{lostRacesMax, true, lostRacesMax + 1},
		{lostRacesMax + 1, false, lostRacesMax + 1},
	} {
		r := setup(t)
		released(r, request("order", 1))
		var flaps atomic.Int64
		r.store.onReturn(func(method string, found []storage.Found) error {
			if method == "InsertOrGet" && flaps.Add(1) <= c.flaps {
				r.takeOver(&found[0].Record, request("order", 3))
				rec := r.record(key("order"))
				free := transition(claim.Release, request("order", 3), rec.Fence)
				if _, err := r.store.Store.Transition(context.Background(), []claim.Transition{free}); err != nil {
					t.Error(err)
				}
			}
			return nil
		})
		got := r.ClaimOne(t.Context(), request("order", 2))
		if c.granted && (got.Err != nil || got.Decision != claim.Granted) {
			t.Errorf("after %d flaps: %+v", c.flaps, got)
		}
		if !c.granted && !errors.Is(got.Err, storage.ErrUnavailable) {
			t.Errorf("after %d flaps: %+v", c.flaps, got)
		}
		if n := r.store.swaps.calls.Load(); n != c.replaces {
			t.Errorf("%d replaces, want %d", n, c.replaces)
		}
		if rec := r.record(key("order")); !c.granted && rec.State != claim.Released {
			t.Errorf("left %v behind", rec.State)
		}
	}
}

// TestAbsentAgain: a store that finds nothing and says that it is not too old
// is asked again, some times.
func TestAbsentAgain(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var calls atomic.Int64
	r.store.onReturn(func(_ string, found []storage.Found) error {
		if calls.Add(1) <= 2 {
			found[0].Record = claim.Record{}
		}
		return nil
	})
	r.granted(request("order", 1))
	r.store.onReturn(func(_ string, found []storage.Found) error {
		found[0].Record = claim.Record{}
		return nil
	})
	before := r.store.trips()
	if got := r.ClaimOne(t.Context(), request("other", 1)); !errors.Is(got.Err, storage.ErrUnavailable) {
		t.Errorf("got %+v", got)
	}
	if trips := r.store.trips() - before; trips != lostRacesMax+1 {
		t.Errorf("%d trips", trips)
	}
}

// TestTransitionBetweenChanges: a store that was read between two changes says
// neither, and is asked again.
func TestTransitionBetweenChanges(t *testing.T) {
	t.Parallel()
	r := setup(t)
	own := request("order", 1)
	fence := r.granted(own).Fence
	var calls atomic.Int64
	limit := int64(2)
	inner := r.store.Store
	r.store.Store = &transitionless{Store: inner, misses: func() bool { return calls.Add(1) <= limit }}
	if got := r.transition(claim.Complete, own, fence); got.Status != claim.OK {
		t.Errorf("got %+v", got)
	}
	calls.Store(0)
	limit = 100
	other := request("other", 1)
	fence = r.granted(other).Fence
	got := r.Transition(t.Context(), []claim.Transition{transition(claim.Release, other, fence)})
	if !errors.Is(got[0].Err, storage.ErrUnavailable) {
		t.Errorf("got %+v", got)
	}
	if calls.Load() != lostRacesMax+1 {
		t.Errorf("%d calls", calls.Load())
	}
}

// transitionless answers transitions with what is stored, and applies none.
type transitionless struct {
	storage.Store
	misses func() bool
}

func (s *transitionless) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	if s.misses() {
		return s.Get(ctx, []claim.Key{ts[0].Key})
	}
	return s.Store.Transition(ctx, ts)
}

func TestLookup(t *testing.T) {
	t.Parallel()
	r := setup(t)
	completed(r, request("a", 1))
	found, err := r.Lookup(t.Context(), []claim.Key{key("a"), key("none"), key("a")})
	if err != nil {
		t.Fatal(err)
	}
	if found[0].Record.State != claim.Completed || found[1].Record.State != claim.Absent || found[2].Record.State != claim.Completed {
		t.Errorf("%+v", found)
	}
	if items := r.store.gets.items.Load(); items != 2 {
		t.Errorf("%d items", items)
	}
}
