package arbiter

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// waiting is one long poll of a test: its answer, when it came, and when the
// store was asked last.
type waiting struct {
	Answered
	took, asked time.Duration
}

// await starts a long poll and returns when it waits, or is answered.
func (r *rig) await(ctx context.Context, req claim.Request, wait time.Duration) <-chan waiting {
	got := make(chan waiting, 1)
	began := time.Now()
	go func() {
		var asked time.Duration
		ans := r.ClaimWait(ctx, req, wait, func() { asked = time.Since(began) })
		// The store counts in microseconds, the timers in nanoseconds.
		got <- waiting{ans, time.Since(began).Truncate(time.Microsecond), asked}
	}()
	synctest.Wait()
	return got
}

// want checks an answer and the time that it took.
func (w waiting) want(t *testing.T, decision claim.Decision, took time.Duration) {
	t.Helper()
	if w.Err != nil || w.Decision != decision || w.took != took {
		t.Errorf("got %v (%v) after %v, want %v after %v", w.Decision, w.Err, w.took, decision, took)
	}
}

// setupBubble is setup within a bubble: store and timers share its clock.
func setupBubble(t *testing.T, edit ...func(*Config)) *rig {
	t.Helper()
	return setupOn(t, time.Now, edit...)
}

// longLease is longer than every wait.
func longLease(event string, n int) claim.Request {
	req := request(event, n)
	req.Lease = time.Hour
	return req
}

func TestWaitWithoutHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		(<-r.await(t.Context(), request("order", 1), time.Minute)).want(t, claim.Granted, 0)
		(<-r.await(t.Context(), request("order", 1), time.Minute)).want(t, claim.Granted, 0)
		(<-r.await(t.Context(), request("order", 2), 0)).want(t, claim.HeldByOther, 0)
		if s := r.Stats(); s.Waiters != 0 || s.WatchedKeys != 0 || s.Polls != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestWaitCompleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := longLease("order", 1)
		fence := r.granted(own).Fence
		got := r.await(t.Context(), request("order", 2), time.Minute)
		time.Sleep(time.Second)
		r.transition(claim.Complete, own, fence)
		w := <-got
		w.want(t, claim.Duplicate, time.Second)
		if string(w.Completion.Body) != "done" {
			t.Errorf("%+v", w)
		}
	})
}

// TestWaitRecorded: a one-shot outcome ends a key too.
func TestWaitRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := longLease("order", 1)
		r.granted(own)
		got := r.await(t.Context(), request("order", 2), time.Minute)
		own.Record = result("done")
		r.granted(own)
		(<-got).want(t, claim.Duplicate, 0)
	})
}

// TestWaitReleased: one waiter is let through for each release.
func TestWaitReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		const waiters = 20
		holder := longLease("order", 0)
		fence := r.granted(holder).Fence
		got := make(chan waiting, waiters)
		for n := range waiters {
			go func() {
				ans := r.ClaimWait(t.Context(), longLease("order", n+1), claim.WaitMax, func() {})
				got <- waiting{Answered: ans}
			}()
		}
		synctest.Wait()
		for n := range waiters {
			time.Sleep(time.Second / 4)
			before := r.store.inserts.items.Load()
			r.transition(claim.Release, holder, fence)
			synctest.Wait()
			if len(got) != 1 {
				t.Fatalf("after release %d: %d answers", n, len(got))
			}
			w := <-got
			if w.Decision != claim.Granted || w.Takeover != claim.AttemptReleased || w.Fence <= fence {
				t.Fatalf("%+v", w)
			}
			if items := r.store.inserts.items.Load() - before; items != 1 {
				t.Errorf("after release %d: %d claims asked the store", n, items)
			}
			fence = w.Fence
			rec := r.record(key("order"))
			holder = longLease("order", 0)
			holder.Attempt = rec.AttemptID
		}
	})
}

// TestWaitLapsed: a lease that ends is taken over at that instant.
func TestWaitLapsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := request("order", 1)
		own.Lease = 2345 * time.Millisecond
		r.granted(own)
		got := r.await(t.Context(), request("order", 2), time.Minute)
		w := <-got
		w.want(t, claim.Granted, own.Lease)
		if w.Takeover != claim.LeaseLapsed {
			t.Errorf("%+v", w)
		}
	})
}

func TestWaitLapsedUnderHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := request("order", 1)
		own.Lease, own.Policy.Hold = time.Second, true
		r.granted(own)
		first, second := r.await(t.Context(), request("order", 2), time.Minute), r.await(t.Context(), request("order", 3), time.Minute)
		(<-first).want(t, claim.Doubtful, time.Second)
		(<-second).want(t, claim.Doubtful, time.Second)
	})
}

// TestWaitExtended: a lease that was extended meanwhile is waited for.
func TestWaitExtended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := request("order", 1)
		own.Lease = 10 * time.Second
		fence := r.granted(own).Fence
		got := r.await(t.Context(), request("order", 2), claim.WaitMax)
		time.Sleep(9 * time.Second)
		more := transition(claim.Extend, own, fence)
		more.Lease = 10 * time.Second
		r.Transition(t.Context(), []claim.Transition{more})
		(<-got).want(t, claim.Granted, 19*time.Second)
	})
}

// TestWaitAsksAfresh: what the watch read does not grant. Between its look at
// a lapsed lease and the waiter's turn the holder comes back.
func TestWaitAsksAfresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := request("order", 1)
		own.Lease = 3 * time.Second
		r.granted(own)
		lapses := 0
		r.store.onReturn(func(method string, found []storage.Found) error {
			if method == "Get" && found[0].Record.Lapsed(found[0].Now) {
				if lapses++; lapses == 1 {
					r.ClaimOne(t.Context(), own) // renewed: the same grant again
				}
			}
			return nil
		})
		got := r.await(t.Context(), request("order", 2), claim.WaitMax)
		(<-got).want(t, claim.Granted, 6*time.Second)
		if lapses != 2 {
			t.Errorf("%d lapses", lapses)
		}
	})
}

// TestWaitForeignEnding: an ending on another replica is found by one poll per
// key, however many wait.
func TestWaitForeignEnding(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 1))
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t, func(c *Config) {
			c.Rand = func() float64 {
				mu.Lock()
				defer mu.Unlock()
				return rnd.Float64()
			}
		})
		const waiters = 50
		own := longLease("order", 1)
		fence := r.granted(own).Fence
		got := make([]<-chan waiting, waiters)
		for n := range got {
			got[n] = r.await(t.Context(), request("order", n+2), claim.WaitMax)
		}
		asked := r.store.inserts.items.Load()
		time.Sleep(10 * time.Second)
		end := transition(claim.Complete, own, fence)
		if _, err := r.store.Store.Transition(t.Context(), []claim.Transition{end}); err != nil {
			t.Fatal(err)
		}
		for _, g := range got {
			w := <-g
			if w.Decision != claim.Duplicate || w.took < 10*time.Second || w.took > 10*time.Second+PollMax {
				t.Fatalf("%+v", w)
			}
		}
		polls := r.store.gets.items.Load()
		if least, most := int64(20), int64(10*time.Second/(PollMax/2))+2; polls < least || polls > most {
			t.Errorf("%d polls in 10 s, want %d to %d", polls, least, most)
		}
		if now := r.store.inserts.items.Load(); now != asked {
			t.Errorf("waiters asked %d times while they waited", now-asked)
		}
	})
}

// TestWaitThousand: a key that ends with a thousand waiters is read a few
// times, not a thousand.
func TestWaitThousand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t, func(c *Config) { c.WaitersPerKeyMax = 2000 })
		const waiters = 1000
		own := longLease("order", 1)
		fence := r.granted(own).Fence
		got := make(chan Answered, waiters)
		for n := range waiters {
			go func() { got <- r.ClaimWait(t.Context(), request("order", n+2), claim.WaitMax, func() {}) }()
		}
		synctest.Wait()
		if n := r.Stats().Waiters; n != waiters {
			t.Fatalf("%d wait", n)
		}
		reads, asks := r.store.gets.items.Load(), r.store.inserts.items.Load()
		r.transition(claim.Complete, own, fence)
		synctest.Wait()
		for range waiters {
			if ans := <-got; ans.Decision != claim.Duplicate {
				t.Fatalf("%+v", ans)
			}
		}
		reads, asks = r.store.gets.items.Load()-reads, r.store.inserts.items.Load()-asks
		if reads != 1 || asks != 0 {
			t.Errorf("%d reads and %d claims for %d waiters", reads, asks, waiters)
		}
		if s := r.Stats(); s.Waiters != 0 || s.WatchedKeys != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestWaitersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t, func(c *Config) { c.WaitersPerKeyMax, c.WaitersMax = 2, 4 })
		r.granted(longLease("a", 1))
		r.granted(longLease("b", 1))
		ctx, leave := context.WithCancel(t.Context())
		var held []<-chan waiting
		for n, event := range []string{"a", "a", "b"} {
			held = append(held, r.await(ctx, request(event, n+2), claim.WaitMax))
		}
		(<-r.await(t.Context(), request("a", 9), claim.WaitMax)).want(t, claim.HeldByOther, 0) // 2 per key
		more := r.await(ctx, request("b", 9), claim.WaitMax)
		(<-r.await(t.Context(), request("c", 9), claim.WaitMax)).want(t, claim.Granted, 0) // 4 in all, but nobody to wait for
		(<-r.await(t.Context(), request("c", 8), claim.WaitMax)).want(t, claim.HeldByOther, 0)
		if s := r.Stats(); s.Waiters != 4 || s.WaitersRefused != 3 || s.WatchedKeys != 2 {
			t.Errorf("%+v", s)
		}
		leave()
		for _, h := range append(held, more) {
			if w := <-h; !errors.Is(w.Err, context.Canceled) || !errors.Is(w.Err, ErrNotSent) || w.took != 0 {
				t.Errorf("%+v", w)
			}
		}
		synctest.Wait()
		if s := r.Stats(); s.Waiters != 0 || s.WatchedKeys != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestWaitRunsOut: the last answer is a fresh one.
func TestWaitRunsOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		r.granted(longLease("order", 1))
		w := <-r.await(t.Context(), request("order", 2), 7*time.Second)
		w.want(t, claim.HeldByOther, 7*time.Second)
		if w.RetryAfter != time.Hour-7*time.Second {
			t.Errorf("retry after %v", w.RetryAfter)
		}
		(<-r.await(t.Context(), request("order", 2), time.Hour)).want(t, claim.HeldByOther, claim.WaitMax)
	})
}

// TestWaiterGone: a waiter that leaves gets no grant, and the next one does.
func TestWaiterGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := longLease("order", 1)
		fence := r.granted(own).Fence
		ctx, leave := context.WithCancel(t.Context())
		gone := r.await(ctx, longLease("order", 2), claim.WaitMax)
		next := r.await(t.Context(), longLease("order", 3), claim.WaitMax)
		// It leaves when the watch has seen the release and is about to let it
		// through.
		r.store.onReturn(func(method string, _ []storage.Found) error {
			if method == "Get" {
				leave()
			}
			return nil
		})
		r.transition(claim.Release, own, fence)
		if w := <-gone; !errors.Is(w.Err, context.Canceled) {
			t.Errorf("%+v", w)
		}
		(<-next).want(t, claim.Granted, 0)
		if rec := r.record(key("order")); rec.AttemptID != attempt(3) || rec.Attempt != 2 {
			t.Errorf("%+v", rec)
		}
	})
}

// TestWaitOneTurn: while the one that was let through has no answer, polls let
// nobody else through.
func TestWaitOneTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := longLease("order", 1)
		fence := r.granted(own).Fence
		first := r.await(t.Context(), longLease("order", 2), claim.WaitMax)
		second := r.await(t.Context(), longLease("order", 3), claim.WaitMax)
		g := make(gate)
		r.store.onCall(func(_ context.Context, method string) error {
			if method == "InsertOrGet" {
				<-g
			}
			return nil
		})
		before := r.store.inserts.items.Load()
		polls := r.Stats().Polls
		r.transition(claim.Release, own, fence)
		time.Sleep(3 * time.Second)
		if polled := r.Stats().Polls - polls; polled < 6 {
			t.Errorf("%d polls", polled)
		}
		if s := r.Stats().Claims; s.Queued != 0 || r.store.inserts.items.Load()-before != 1 {
			t.Errorf("%d asked, %d are queued to ask", r.store.inserts.items.Load()-before, s.Queued)
		}
		close(g)
		(<-first).want(t, claim.Granted, 3*time.Second)
		(<-second).want(t, claim.HeldByOther, claim.WaitMax)
	})
}

// TestWaitTurnFails: the store fails the waiter that is let through; the next
// one gets its turn.
func TestWaitTurnFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := longLease("order", 1)
		fence := r.granted(own).Fence
		first := r.await(t.Context(), longLease("order", 2), claim.WaitMax)
		second := r.await(t.Context(), longLease("order", 3), claim.WaitMax)
		failed := false
		r.store.onCall(func(_ context.Context, method string) error {
			if method == "InsertOrGet" && !failed {
				failed = true
				return storage.ErrUnavailable
			}
			return nil
		})
		r.transition(claim.Release, own, fence)
		if w := <-first; !errors.Is(w.Err, storage.ErrUnavailable) {
			t.Errorf("%+v", w)
		}
		(<-second).want(t, claim.Granted, 0)
	})
}

// TestWaitStoreDown: looks that fail are repeated, and waiters go on waiting.
func TestWaitStoreDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := request("order", 1)
		own.Lease = time.Second
		r.granted(own)
		got := r.await(t.Context(), request("order", 2), claim.WaitMax)
		r.store.onCall(func(context.Context, string) error { return storage.ErrUnavailable })
		time.Sleep(10 * time.Second)
		if polls := r.Stats().Polls; polls < 20 || polls > 45 {
			t.Errorf("%d polls", polls)
		}
		r.store.onCall(func(context.Context, string) error { return nil })
		if w := <-got; w.Decision != claim.Granted || w.took > 10*time.Second+PollMax {
			t.Errorf("%+v", w)
		}
	})
}

// TestWaitMissesNothing: the key ends between a waiter's first answer and its
// wait; it must not sleep until the next poll. Once it is the first waiter of
// the key, and once the watch is running already.
func TestWaitMissesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		for _, others := range []int{0, 1} {
			event := "order " + strconv.Itoa(others)
			own := longLease(event, 1)
			fence := r.granted(own).Fence
			var got []<-chan waiting
			for n := range others {
				got = append(got, r.await(t.Context(), request(event, n+2), claim.WaitMax))
			}
			once := sync.OnceFunc(func() {
				r.transition(claim.Complete, own, fence)
				// On another goroutine than the test's: the watch, if it runs,
				// looks before this sender answers.
				for r.Stats().Polls < int64(others) {
					time.Sleep(time.Microsecond)
				}
			})
			r.store.onReturn(func(method string, _ []storage.Found) error {
				if method == "InsertOrGet" {
					once()
				}
				return nil
			})
			got = append(got, r.await(t.Context(), request(event, 9), claim.WaitMax))
			for _, g := range got {
				if w := <-g; w.Decision != claim.Duplicate || w.took > time.Millisecond {
					t.Errorf("with %d others: %+v", others, w)
				}
			}
		}
	})
}

// TestWaitOwnAttempt: the holder's own resend does not wait, and neither does
// one that waited when its attempt was granted elsewhere.
func TestWaitOwnAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := longLease("order", 1)
		fence := r.granted(own).Fence
		first := r.await(t.Context(), longLease("order", 2), claim.WaitMax)
		resent := r.await(t.Context(), longLease("order", 2), claim.WaitMax)
		r.transition(claim.Release, own, fence)
		a, b := <-first, <-resent
		a.want(t, claim.Granted, 0)
		b.want(t, claim.Granted, 0)
		if a.Fence != b.Fence {
			t.Errorf("fences %d and %d of one attempt", a.Fence, b.Fence)
		}
	})
}

// TestWaitOldLookGrantsNothing: what the watch read of a waiter's own attempt
// may be over when it says so. Between its look and its word that attempt ends
// and another one begins.
func TestWaitOldLookGrantsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := longLease("order", 1)
		fence := r.granted(own).Fence
		first := r.await(t.Context(), longLease("order", 2), claim.WaitMax)
		resent := r.await(t.Context(), longLease("order", 2), claim.WaitMax)
		r.store.onReturn(func(method string, found []storage.Found) error {
			if rec := &found[0].Record; method == "Get" && rec.AttemptID == attempt(2) {
				r.store.onReturn(func(string, []storage.Found) error { return nil })
				r.transition(claim.Release, longLease("order", 2), rec.Fence)
				r.granted(longLease("order", 3))
			}
			return nil
		})
		r.transition(claim.Release, own, fence)
		(<-first).want(t, claim.Granted, 0)
		(<-resent).want(t, claim.HeldByOther, claim.WaitMax)
	})
}

// TestWaitSaysWhenItAsked: a grant is not older than the last asking, however
// long the store then takes.
func TestWaitSaysWhenItAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		own := longLease("order", 1)
		fence := r.granted(own).Fence
		got := r.await(t.Context(), request("order", 2), claim.WaitMax)
		r.store.onCall(func(_ context.Context, method string) error {
			if method == "InsertOrGet" {
				time.Sleep(2 * time.Second)
			}
			return nil
		})
		time.Sleep(7 * time.Second)
		r.transition(claim.Release, own, fence)
		w := <-got
		w.want(t, claim.Granted, 9*time.Second)
		if w.asked != 7*time.Second {
			t.Errorf("asked after %v, want 7s", w.asked)
		}
		for _, wait := range []time.Duration{0, claim.WaitMax} {
			if w := <-r.await(t.Context(), request("other", 1), wait); w.Decision != claim.Granted || w.asked != 0 || w.took != 2*time.Second {
				t.Errorf("with nobody to wait for: %+v", w)
			}
		}
	})
}

// TestWaitersInTurn: many waiters, holders that complete, release or vanish,
// and callers that leave: no two grants live at once, nobody hangs.
func TestWaitersInTurn(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		r := setupBubble(t)
		const keys, callers = 5, 200
		var wg sync.WaitGroup
		var mu sync.Mutex
		fences := map[claim.Key]claim.Fence{}
		ends := map[claim.Key]time.Time{} // of the last grant, unless it ended before
		for n := range callers {
			rnd := rand.New(rand.NewPCG(seed, uint64(n)))
			wg.Go(func() {
				req := request(strconv.Itoa(n%keys), n+1)
				req.Lease = time.Second + time.Duration(rnd.IntN(3000))*time.Millisecond
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rnd.IntN(60_000))*time.Millisecond)
				defer cancel()
				ans := r.ClaimWait(ctx, req, claim.WaitMax, func() {})
				if ans.Err != nil && !errors.Is(ans.Err, context.DeadlineExceeded) {
					t.Error(ans.Err)
				}
				if ans.Err != nil || ans.Decision != claim.Granted {
					return
				}
				mu.Lock()
				if ans.Fence <= fences[req.Key] || time.Until(ends[req.Key]) > time.Microsecond {
					t.Errorf("a grant with fence %d after %d, %v before the other ended", ans.Fence, fences[req.Key], time.Until(ends[req.Key]))
				}
				fences[req.Key], ends[req.Key] = ans.Fence, time.Now().Add(ans.Lease)
				mu.Unlock()
				time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
				if rnd.IntN(3) == 0 {
					return // vanish
				}
				mu.Lock()
				ends[req.Key] = time.Now()
				mu.Unlock()
				r.Transition(t.Context(), []claim.Transition{transition(claim.Release, req, ans.Fence)})
			})
		}
		wg.Wait()
		synctest.Wait()
		if s := r.Stats(); s.Waiters != 0 || s.WatchedKeys != 0 {
			t.Errorf("%+v", s)
		}
		if len(fences) != keys {
			t.Errorf("%d of %d keys were granted", len(fences), keys)
		}
	})
}
