package storagetest

import (
	"fmt"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var transitionCases = []testCase{
	{"transition/every-guard-at-every-boundary", transitionMatrix},
	{"transition/absent", func(e *env) {
		ghost := claim.Fresh(ptr(request("a", 1)), e.now(), 0)
		for _, t := range []claim.Transition{complete(ghost, result("one")), extend(ghost, time.Minute), release(ghost)} {
			f := e.transition(t)[0]
			if f.Applied || f.Record.State != claim.Absent {
				e.Fatalf("kind %d made %s of nothing", t.Kind, show(f.Record))
			}
		}
		e.wantAbsent(key("a"))
	}},
	{"transition/late-completion-beats-a-rerun", func(e *env) {
		rec := e.granted(request("a", 1))
		e.goTo(rec.ExpiresAt + 1)
		done := e.must(e.transition(complete(rec, result("late"))))
		if done.State != claim.Completed || done.ExpiresAt != e.now().Add(testWindow) {
			e.Fatalf("late completion stored %s", show(done))
		}
		e.wantStored(done)
		req := request("a", 2)
		if f := e.replace(swapOf(claim.TakeOver, rec, &req))[0]; f.Applied {
			e.Fatalf("taken over after its completion: %s", show(f.Record))
		}
	}},
	{"transition/resent-changes-nothing", func(e *env) {
		rec := e.granted(request("a", 1))
		done := e.must(e.transition(complete(rec, result("one"))))
		e.clock.Advance(time.Second)
		for _, again := range []claim.Transition{complete(rec, result("one")), complete(rec, result("two"))} {
			f := e.transition(again)[0]
			if f.Applied {
				e.Fatalf("completed twice: %s", show(f.Record))
			}
			e.wantRecord(f.Record, done)
		}
		e.wantStored(done)
	}},
	{"transition/of-an-earlier-attempt-is-refused", func(e *env) {
		first := e.granted(request("a", 1))
		e.goTo(first.LeaseUntil)
		req := request("a", 2)
		second := e.must(e.replace(swapOf(claim.TakeOver, first, &req)))
		mixed := first
		mixed.AttemptID = second.AttemptID // its attempt, but the earlier fence
		other := second
		other.AttemptID = first.AttemptID // its fence, but the earlier attempt
		for _, stale := range []claim.Record{first, mixed, other} {
			for _, t := range []claim.Transition{complete(stale, result("stale")), extend(stale, time.Hour), release(stale)} {
				f := e.transition(t)[0]
				if f.Applied {
					e.Fatalf("not the owner, but applied: %s", show(f.Record))
				}
				e.wantRecord(f.Record, second)
			}
		}
		e.wantStored(second)
	}},
	{"transition/mixed-batch", func(e *env) {
		a, b, c := e.granted(request("a", 1)), e.granted(request("b", 1)), e.granted(request("c", 1))
		stale := b
		stale.Fence--
		found := e.transition(release(c), complete(stale, result("stale")), extend(a, time.Hour))
		for i, want := range []bool{true, false, true} {
			if found[i].Applied != want {
				e.Errorf("item %d applied: %t, want %t", i, found[i].Applied, want)
			}
		}
		e.wantStored(b)
		e.wantStored(found[0].Record)
		e.wantStored(found[2].Record)
	}},
	{"transition/repeated-key", func(e *env) {
		rec := e.granted(request("a", 1))
		refused(e, storage.ErrRepeatedKey, func() ([]storage.Found, error) {
			return e.store.Transition(e.Context(), []claim.Transition{extend(rec, time.Hour), release(rec)})
		})
		e.wantStored(rec)
	}},
	{"transition/batch-too-large", func(e *env) {
		ts := make([]claim.Transition, claim.BatchItemsMax+1)
		for i := range ts {
			ts[i] = claim.Transition{Kind: claim.Release, Key: key(fmt.Sprint(i)), Attempt: attempt(1), Fence: 1}
		}
		refused(e, storage.ErrBatchTooLarge, func() ([]storage.Found, error) { return e.store.Transition(e.Context(), ts) })
	}},
	{"transition/empty-batch", func(e *env) { e.transition() }},
}

func ptr[V any](v V) *V { return &v }

// transitionMatrix: each kind by the owner, by another attempt with the fence,
// and by the attempt with another fence.
func transitionMatrix(e *env) {
	var ops []build[claim.Transition]
	for _, who := range []func(*claim.Record){
		func(*claim.Record) {},
		func(rec *claim.Record) { rec.AttemptID = attempt(9) },
		func(rec *claim.Record) { rec.Fence-- },
		func(rec *claim.Record) { rec.Fence++ },
	} {
		for _, does := range []func(claim.Record) claim.Transition{
			// The first is what is stored already, where the record is completed.
			func(rec claim.Record) claim.Transition { return complete(rec, result("of "+rec.Key.EventID)) },
			func(rec claim.Record) claim.Transition { return complete(rec, result("another")) },
			func(rec claim.Record) claim.Transition { return extend(rec, time.Second) },
			func(rec claim.Record) claim.Transition { return extend(rec, time.Hour) },
			func(rec claim.Record) claim.Transition { return extend(rec, claim.LeaseMax) },
			release,
		} {
			ops = append(ops, func(rec claim.Record, _ claim.Time) claim.Transition {
				who(&rec)
				return does(rec)
			})
		}
	}
	matrix(e, ops, e.transition,
		func(t *claim.Transition, cur *claim.Record, now claim.Time) (claim.Record, bool) {
			next, changed, _ := t.Apply(cur, now)
			return next, changed
		})
}
