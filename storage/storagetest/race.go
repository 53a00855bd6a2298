package storagetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var raceCases = []testCase{
	{"race/one-winner", func(e *env) {
		for _, n := range []int{2, 3, 8, 64} {
			for round := range 5 {
				raceForOne(e, fmt.Sprintf("%d claimants, round %d", n, round), n)
			}
		}
	}},
	{"race/resends-of-one-attempt", func(e *env) {
		found := together(e, 16, func(int) ([]storage.Found, error) {
			return e.store.InsertOrGet(e.Context(), []claim.Request{request("a", 1)})
		})
		stored := e.get(key("a"))[0].Record
		if stored.Version != 1 || stored.AttemptID != attempt(1) {
			e.Fatalf("stored is %s", show(stored))
		}
		for i := range found {
			e.wantRecord(found[i][0].Record, stored)
		}
	}},
	{"race/key-after-key", raceKeyAfterKey},
	{"race/overlapping-batches", raceOverlapping},
	{"race/one-swap", func(e *env) {
		rec := e.must(e.transition(release(e.granted(request("a", 1)))))
		found := together(e, 32, func(i int) ([]storage.Found, error) {
			req := request("a", i+2)
			return e.store.Replace(e.Context(), []claim.Swap{swapOf(claim.TakeOver, rec, &req)})
		})
		oneApplied(e, found, func(i int, rec claim.Record) bool { return rec.AttemptID == attempt(i+2) })
	}},
	{"race/one-completion", func(e *env) {
		rec := e.granted(request("a", 1))
		found := together(e, 32, func(i int) ([]storage.Found, error) {
			return e.store.Transition(e.Context(), []claim.Transition{complete(rec, result(fmt.Sprint(i)))})
		})
		oneApplied(e, found, func(i int, rec claim.Record) bool { return rec.Completion.Same(result(fmt.Sprint(i))) })
	}},
	{"race/completion-against-takeover", raceCompletionAgainstTakeover},
}

// together calls n goroutines at once, waits for all, and returns what each
// was answered.
func together(e *env, n int, call func(i int) ([]storage.Found, error)) [][]storage.Found {
	e.Helper()
	found, errs := make([][]storage.Found, n), make([]error, n)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-begin
			found[i], errs[i] = call(i)
		})
	}
	close(begin)
	wg.Wait()
	for i := range errs {
		if errs[i] != nil {
			e.Fatalf("call %d: %v", i, errs[i])
		}
		for j := range found[i] {
			if found[i][j].Err != nil {
				e.Fatalf("call %d, item %d: %v", i, j, found[i][j].Err)
			}
		}
	}
	return found
}

func raceForOne(e *env, event string, n int) {
	e.Helper()
	found := together(e, n, func(i int) ([]storage.Found, error) {
		return e.store.InsertOrGet(e.Context(), []claim.Request{request(event, i)})
	})
	stored, winners := e.get(key(event))[0].Record, 0
	for i := range found {
		e.wantRecord(found[i][0].Record, stored)
		if found[i][0].Record.AttemptID == attempt(i) {
			winners++
		}
	}
	if winners != 1 {
		e.Fatalf("%s: %d found themselves, want 1", event, winners)
	}
}

// raceKeyAfterKey: claimants walk over the same keys in step, so that they
// meet at each, however fast the store is.
func raceKeyAfterKey(e *env) {
	const claimants, keys = 8, 200
	var arrived atomic.Int64
	found := together(e, claimants, func(i int) ([]storage.Found, error) {
		var all []storage.Found
		var failed error
		for n := range keys {
			arrived.Add(1)
			for arrived.Load() < int64(claimants*(n+1)) {
				runtime.Gosched() // whoever failed arrives all the same
			}
			f, err := e.store.InsertOrGet(e.Context(), []claim.Request{request(fmt.Sprint(n), i)})
			all, failed = append(all, f...), errors.Join(failed, err)
		}
		return all, failed
	})
	for n := range keys {
		stored := e.get(key(fmt.Sprint(n)))[0].Record
		for i := range found {
			e.wantRecord(found[i][n].Record, stored)
		}
	}
}

// raceOverlapping: batches over the same keys in different orders neither wait
// for each other for ever nor give a key two owners.
func raceOverlapping(e *env) {
	const claimants, keys, rounds = 8, 40, 4
	seed := rand.Uint64()
	e.Logf("seed %d", seed)
	for round := range rounds {
		found := together(e, claimants, func(i int) ([]storage.Found, error) {
			rng := rand.New(rand.NewPCG(seed, uint64(round*claimants+i)))
			reqs := make([]claim.Request, keys)
			for j, n := range rng.Perm(keys) {
				reqs[j] = request(fmt.Sprintf("%d-%d", round, n), i)
			}
			return e.store.InsertOrGet(e.Context(), reqs)
		})
		owners := map[claim.Key]claim.Record{}
		for i := range found {
			for _, f := range found[i] {
				if owner, ok := owners[f.Record.Key]; ok {
					e.wantRecord(f.Record, owner)
				}
				owners[f.Record.Key] = f.Record
			}
		}
		if len(owners) != keys {
			e.Fatalf("%d keys are owned, want %d", len(owners), keys)
		}
	}
}

// oneApplied demands that exactly one of the calls has written, and that what
// it wrote is what all others were shown.
func oneApplied(e *env, found [][]storage.Found, mine func(i int, rec claim.Record) bool) {
	e.Helper()
	applied := 0
	for i := range found {
		f := found[i][0]
		e.wantStored(f.Record)
		if f.Applied != mine(i, f.Record) {
			e.Errorf("call %d: applied %t, but stored is %s", i, f.Applied, show(f.Record))
		}
		if f.Applied {
			applied++
		}
	}
	if applied != 1 {
		e.Fatalf("%d calls were applied, want 1", applied)
	}
}

// raceCompletionAgainstTakeover: at a lapsed lease the owner completes while
// another takes over. Whoever is second must miss.
func raceCompletionAgainstTakeover(e *env) {
	const rounds = 20
	recs := make([]claim.Record, rounds)
	for i := range recs {
		recs[i] = e.granted(request(fmt.Sprint(i), 1))
	}
	e.goTo(recs[0].LeaseUntil)
	for _, rec := range recs {
		found := together(e, 2, func(i int) ([]storage.Found, error) {
			if i == 0 {
				return e.store.Transition(e.Context(), []claim.Transition{complete(rec, result("late"))})
			}
			req := requestFor(rec.Key, 2)
			return e.store.Replace(e.Context(), []claim.Swap{swapOf(claim.TakeOver, rec, &req)})
		})
		oneApplied(e, found, func(i int, rec claim.Record) bool {
			return (rec.State == claim.Completed) == (i == 0)
		})
	}
}
