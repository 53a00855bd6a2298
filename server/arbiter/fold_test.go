package arbiter

import (
	"context"
	"math/rand/v2"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

func TestFoldInOneBatch(t *testing.T) {
	t.Parallel()
	r := setup(t)
	got := r.Claim(t.Context(), []claim.Request{request("a", 1), request("b", 2), request("a", 3), request("a", 1)})
	if d := decisions(got); d != "GRANTED GRANTED IN_PROGRESS GRANTED " {
		t.Error(d)
	}
	if got[3].Fence != got[0].Fence {
		t.Errorf("the repeated attempt has fence %d, want %d", got[3].Fence, got[0].Fence)
	}
	if calls, items := r.store.inserts.calls.Load(), r.store.inserts.items.Load(); calls != 1 || items != 2 {
		t.Errorf("%d calls with %d items, want 1 with 2", calls, items)
	}
	if s := r.Stats().Claims; s.Folded != 2 || s.Items != 4 || s.Batches != 1 {
		t.Errorf("%+v", s)
	}
}

// TestFoldNeedsWrites: each item that needs a write of its own gets it, in
// order, and those behind it see what it wrote.
func TestFoldNeedsWrites(t *testing.T) {
	t.Parallel()
	r := setup(t)
	lapsed(r, request("order", 1))
	shot := request("order", 3)
	shot.Record = result("done")
	got := r.Claim(t.Context(), []claim.Request{request("order", 2), shot, request("order", 2)})
	if d := decisions(got); d != "GRANTED IN_PROGRESS GRANTED " || got[0].Takeover != claim.LeaseLapsed {
		t.Error(d, got[0].Takeover)
	}
	own := request("order", 2)
	own.Record = result("done")
	got = r.Claim(t.Context(), []claim.Request{request("order", 2), own, request("order", 4)})
	if d := decisions(got); d != "GRANTED GRANTED DUPLICATE " || !got[1].Recorded {
		t.Error(d)
	}

	other := request("transitions", 1)
	fence := r.granted(other).Fence
	var ts []claim.Transition
	for _, kind := range []claim.TransitionKind{claim.Extend, claim.Release, claim.Extend, claim.Complete, claim.Complete, claim.Release} {
		ts = append(ts, transition(kind, other, fence))
	}
	var statuses []claim.Status
	for _, reply := range r.Transition(t.Context(), ts) {
		statuses = append(statuses, reply.Status)
	}
	if want := []claim.Status{claim.OK, claim.OK, claim.Stale, claim.OK, claim.OK, claim.Stale}; !reflect.DeepEqual(statuses, want) {
		t.Errorf("got %v, want %v", statuses, want)
	}
}

func TestFoldAcrossCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, func(c *Config) { c.Senders = 1 })
		g := r.gate()
		first := r.async(t.Context(), request("busy", 1)) // keeps the sender
		synctest.Wait()
		var others []<-chan []Answered
		for n := range 20 {
			others = append(others, r.async(t.Context(), request("order", n), request("own "+strconv.Itoa(n), n)))
		}
		synctest.Wait()
		close(g)
		<-first
		grants := 0
		for _, o := range others {
			got := <-o
			if got[0].Decision == claim.Granted {
				grants++
			} else if got[0].Decision != claim.HeldByOther {
				t.Errorf("got %v", got[0])
			}
			if got[1].Decision != claim.Granted {
				t.Errorf("own key: %v", got[1])
			}
		}
		if grants != 1 {
			t.Errorf("%d grants", grants)
		}
		if calls, items := r.store.inserts.calls.Load(), r.store.inserts.items.Load(); calls != 2 || items != 1+1+20 {
			t.Errorf("%d calls with %d items", calls, items)
		}
	})
}

// TestJoinedBatchesAreBounded: calls are joined as long as they fit.
func TestJoinedBatchesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, func(c *Config) { c.Senders = 1 })
		g := r.gate()
		busy := r.async(t.Context(), request("busy", 1))
		synctest.Wait()
		var calls []<-chan []Answered
		for n := range 3 {
			reqs := make([]claim.Request, 200)
			for i := range reqs {
				reqs[i] = request(strconv.Itoa(n*len(reqs)+i), 1)
			}
			calls = append(calls, r.async(t.Context(), reqs...))
			synctest.Wait()
		}
		close(g)
		<-busy
		for _, c := range calls {
			for i, got := range <-c {
				if got.Err != nil || got.Decision != claim.Granted {
					t.Fatalf("item %d: %+v", i, got)
				}
			}
		}
		if s := r.Stats().Claims; s.Batches != 3 || s.Items != 601 {
			t.Errorf("%+v", s)
		}
	})
}

// TestSecondTripHoldsUpNobody: a caller whose answers are known does not wait
// for the second trip of another's.
func TestSecondTripHoldsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, func(c *Config) { c.Senders = 1 })
		lapsed(r, request("lapsed", 1))
		g, first := make(gate), make(gate)
		r.store.onCall(func(_ context.Context, method string) error {
			<-first
			if method == "Replace" {
				<-g
			}
			return nil
		})
		busy := r.async(t.Context(), request("busy", 1))
		synctest.Wait()
		slow, fast := r.async(t.Context(), request("lapsed", 2)), r.async(t.Context(), request("new", 1))
		synctest.Wait()
		close(first)
		<-busy
		synctest.Wait()
		if len(fast) != 1 || len(slow) != 0 {
			t.Errorf("%d fast and %d slow answers during the second trip", len(fast), len(slow))
		}
		close(g)
		if got := <-slow; got[0].Decision != claim.Granted || (<-fast)[0].Decision != claim.Granted {
			t.Errorf("%+v", got)
		}
	})
}

// TestFoldKeepsNobodyWaiting: a batch that writes one key 500 times does not
// hold up the callers that come meanwhile; they share its trips.
func TestFoldKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, func(c *Config) { c.Senders = 1 })
		own, other := request("much", 1), request("other", 2)
		fences := []claim.Fence{r.granted(own).Fence, r.granted(other).Fence}
		ts := make([]claim.Transition, claim.BatchItemsMax-1)
		for i := range ts {
			ts[i] = transition(claim.Extend, own, fences[0])
		}
		steps := make(chan struct{})
		r.store.onCall(func(context.Context, string) error { <-steps; return nil })
		long := make(chan []Replied, 1)
		go func() { long <- r.Transition(t.Context(), ts) }()
		steps <- struct{}{}
		synctest.Wait() // the second trip of the long batch is under way
		short := make(chan []Replied, 1)
		go func() {
			short <- r.Transition(t.Context(), []claim.Transition{transition(claim.Complete, other, fences[1])})
		}()
		synctest.Wait()
		steps <- struct{}{} // the second trip
		steps <- struct{}{} // the third takes the other caller along
		synctest.Wait()
		select {
		case got := <-short:
			if got[0].Status != claim.OK {
				t.Error(got)
			}
		default:
			t.Error("the short call waits for the long one")
		}
		close(steps)
		for i, got := range <-long {
			if got.Status != claim.OK {
				t.Fatalf("item %d: %+v", i, got)
			}
		}
		if calls := r.store.moves.calls.Load(); calls != int64(len(ts)) {
			t.Errorf("%d calls for %d writes", calls, len(ts))
		}
	})
}

// TestFoldIsOneByOne: random batches with repeated keys are answered exactly
// as the same items one after the other.
func TestFoldIsOneByOne(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 60 {
		batched, single := setup(t), setup(t)
		for range 30 {
			step := time.Duration(rnd.IntN(4)) * claim.LeaseDefault / 2
			if rnd.IntN(12) == 0 {
				step = claim.RetentionDefault
			}
			batched.clock.Advance(step)
			single.clock.Advance(step)
			if rnd.IntN(2) == 0 {
				sameClaims(t, batched, single, randomClaims(rnd))
			} else {
				sameTransitions(t, batched, single, randomTransitions(rnd, single))
			}
		}
		batched.stop()
		single.stop()
	}
}

func randomClaims(rnd *rand.Rand) []claim.Request {
	reqs := make([]claim.Request, 1+rnd.IntN(12))
	for i := range reqs {
		reqs[i] = request(strconv.Itoa(rnd.IntN(3)), rnd.IntN(4))
		reqs[i].Policy.Hold = rnd.IntN(8) == 0
		reqs[i].Policy.AttemptsMax = uint32(rnd.IntN(4))
		if rnd.IntN(3) == 0 {
			reqs[i].Record = result(strconv.Itoa(rnd.IntN(2)))
		}
		if rnd.IntN(4) == 0 {
			reqs[i].Digests = []claim.Digest{{Scheme: "s" + strconv.Itoa(rnd.IntN(2)), Value: []byte{byte(rnd.IntN(2))}}}
			reqs[i].AcceptNoCommonScheme = rnd.IntN(2) == 0
		}
	}
	return reqs
}

func randomTransitions(rnd *rand.Rand, r *rig) []claim.Transition {
	ts := make([]claim.Transition, 1+rnd.IntN(12))
	for i := range ts {
		rec := r.record(key(strconv.Itoa(rnd.IntN(3))))
		own := claim.Request{Key: key(strconv.Itoa(rnd.IntN(3))), Attempt: rec.AttemptID}
		if rnd.IntN(8) > 0 {
			own.Key = rec.Key
		}
		ts[i] = transition(claim.TransitionKind(1+rnd.IntN(3)), own, rec.Fence)
		if ts[i].Completion != nil && rnd.IntN(2) == 0 {
			ts[i].Completion = result(strconv.Itoa(rnd.IntN(2)))
		}
	}
	return ts
}

func sameClaims(t *testing.T, batched, single *rig, reqs []claim.Request) {
	t.Helper()
	for i, got := range batched.Claim(t.Context(), reqs) {
		want := single.ClaimOne(t.Context(), reqs[i])
		if got.Err != nil || want.Err != nil || !reflect.DeepEqual(got.Answer, want.Answer) {
			t.Fatalf("item %d of %+v:\n got %+v\nwant %+v", i, reqs, got, want)
		}
	}
}

func sameTransitions(t *testing.T, batched, single *rig, ts []claim.Transition) {
	t.Helper()
	for i, got := range batched.Transition(t.Context(), ts) {
		want := single.Transition(t.Context(), ts[i:i+1])[0]
		if got.Err != nil || want.Err != nil || !reflect.DeepEqual(got.Reply, want.Reply) {
			t.Fatalf("item %d of %+v:\n got %+v\nwant %+v", i, ts, got, want)
		}
	}
}

// TestRaceForOneGrant: 64 callers on two arbiters over one store, first sight
// and takeover, and never more than one grant.
func TestRaceForOneGrant(t *testing.T) {
	t.Parallel()
	const callers, rounds = 64, 200
	here := setup(t)
	there := setup(t, func(c *Config) { c.Store = here.store })
	for round := range rounds {
		event := strconv.Itoa(round)
		for _, takeover := range []claim.Takeover{claim.NoTakeover, claim.LeaseLapsed} {
			got := make([]Answered, callers)
			var wg sync.WaitGroup
			for n := range callers {
				wg.Go(func() {
					a := []*rig{here, there}[n%2]
					got[n] = a.ClaimOne(t.Context(), request(event, int(takeover)*callers+n))
				})
			}
			wg.Wait()
			oneGrant(t, got, takeover)
			here.clock.Advance(claim.LeaseDefault)
		}
	}
}

func oneGrant(t *testing.T, got []Answered, takeover claim.Takeover) {
	t.Helper()
	grants := 0
	for n, ans := range got {
		switch {
		case ans.Err != nil:
			t.Fatalf("caller %d: %v", n, ans.Err)
		case ans.Decision == claim.Granted && ans.Takeover == takeover:
			grants++
		case ans.Decision != claim.HeldByOther:
			t.Fatalf("caller %d: %+v", n, ans)
		}
	}
	if grants != 1 {
		t.Fatalf("%d grants", grants)
	}
}

// TestHashDoesNotDecide: keys whose hashes collide are still different keys.
func TestHashDoesNotDecide(t *testing.T) {
	t.Parallel()
	r := setup(t)
	b := newBatch(r.claims)
	c := &call[claim.Request, Answered]{}
	for i := range 8 {
		req := request(strconv.Itoa(i%4), i)
		req.Key.Tenant = claim.TenantID(i % 2)
		c.reqs = append(c.reqs, req)
	}
	c.left = len(c.reqs)
	b.add(c)
	b.fold()
	if len(b.heads) != 4 {
		t.Errorf("%d heads, want 4", len(b.heads))
	}
	for i := range b.hashes {
		b.hashes[i] = 42
	}
	for i := range int32(8) {
		for j := range int32(8) {
			if b.same(i, j) != (c.reqs[i].Key == c.reqs[j].Key) {
				t.Errorf("items %d and %d: same is %v", i, j, b.same(i, j))
			}
		}
	}
}
