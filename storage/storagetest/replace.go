package storagetest

import (
	"fmt"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var replaceCases = []testCase{
	{"replace/every-guard-at-every-boundary", replaceMatrix},
	{"replace/absent", func(e *env) {
		req := request("a", 2)
		ghost := claim.Fresh(&req, e.now(), 0)
		for _, kind := range swapKinds {
			f := e.replace(swapOf(kind, ghost, &req))[0]
			if f.Applied || f.Record.State != claim.Absent {
				e.Fatalf("kind %d made %s of nothing", kind, show(f.Record))
			}
		}
		e.wantAbsent(key("a"))
	}},
	{"replace/lapse-at-exactly-its-end", func(e *env) {
		rec := e.granted(request("a", 1))
		req := request("a", 2)
		e.goTo(rec.LeaseUntil - 1)
		if f := e.replace(swapOf(claim.TakeOver, rec, &req))[0]; f.Applied {
			e.Fatalf("a live lease was taken over: %s", show(f.Record))
		}
		e.goTo(rec.LeaseUntil)
		second := e.must(e.replace(swapOf(claim.TakeOver, rec, &req)))
		if second.Fence <= rec.Fence || second.Attempt != 2 || second.Takeover != claim.LeaseLapsed {
			e.Fatalf("taken over as %s", show(second))
		}
	}},
	{"replace/stale-version", func(e *env) {
		rec := e.granted(request("a", 1))
		longer := e.must(e.transition(extend(rec, time.Minute)))
		e.goTo(longer.LeaseUntil)
		req := request("a", 2)
		f := e.replace(swapOf(claim.TakeOver, rec, &req))[0] // the fence is current, the version is not
		if f.Applied {
			e.Fatalf("applied on a version that was overwritten: %s", show(f.Record))
		}
		e.wantRecord(f.Record, longer)
		e.wantStored(longer)
	}},
	{"replace/fences-grow-without-time", func(e *env) {
		// Grants within one microsecond of each other: the fence must not wait
		// for the clock.
		rec := e.granted(request("a", 1))
		for i := range 20 {
			req := request("a", i+2)
			released := e.must(e.transition(release(rec)))
			next := e.must(e.replace(swapOf(claim.TakeOver, released, &req)))
			if next.Fence <= rec.Fence {
				e.Fatalf("fence %d follows %d", next.Fence, rec.Fence)
			}
			rec = next
		}
		e.wantStored(rec)
	}},
	{"replace/forgotten-keeps-its-owner-and-drops-the-rest", func(e *env) {
		done := e.must(e.transition(complete(e.granted(request("a", 1)), result("secret"))))
		gone := e.must(e.replace(swapOf(claim.Forget, done, nil)))
		if gone.Completion != nil || gone.Digests != nil || gone.Fence != done.Fence || gone.AttemptID != done.AttemptID {
			e.Fatalf("forgotten as %s", show(gone))
		}
		e.wantStored(gone)
	}},
	{"replace/mixed-batch", func(e *env) {
		a, b := e.granted(request("a", 1)), e.granted(request("b", 1))
		reqB := request("b", 2)
		found := e.replace(
			swapOf(claim.TakeOver, b, &reqB), // live
			swapOf(claim.ResolveRetry, a, nil),
			swapOf(claim.Forget, claim.Fresh(ptr(request("c", 1)), e.now(), 0), nil), // absent
		)
		for i, want := range []bool{false, true, false} {
			if found[i].Applied != want {
				e.Errorf("item %d applied: %t, want %t", i, found[i].Applied, want)
			}
		}
		e.wantStored(b)
		e.wantStored(found[1].Record)
		e.wantAbsent(key("c"))
	}},
	{"replace/repeated-key", func(e *env) {
		rec := e.granted(request("a", 1))
		refused(e, storage.ErrRepeatedKey, func() ([]storage.Found, error) {
			return e.store.Replace(e.Context(), []claim.Swap{swapOf(claim.ResolveRetry, rec, nil), swapOf(claim.Forget, rec, nil)})
		})
		e.wantStored(rec)
	}},
	{"replace/batch-too-large", func(e *env) {
		swaps := make([]claim.Swap, claim.BatchItemsMax+1)
		for i := range swaps {
			swaps[i] = claim.Swap{Kind: claim.Forget, Key: key(fmt.Sprint(i)), Fence: 1, Version: 1}
		}
		refused(e, storage.ErrBatchTooLarge, func() ([]storage.Found, error) { return e.store.Replace(e.Context(), swaps) })
	}},
	{"replace/empty-batch", func(e *env) { e.replace() }},
}

var swapKinds = []claim.SwapKind{
	claim.BeginAnew, claim.TakeOver, claim.Renew, claim.RecordOwn,
	claim.PutInDoubt, claim.ResolveComplete, claim.ResolveRetry, claim.Forget,
}

// replaceMatrix: each kind with fence and version current, behind and ahead;
// for another attempt and for the record's own, with and without an outcome;
// and with an insert-before that has just come or is about to.
func replaceMatrix(e *env) {
	var ops []build[claim.Swap]
	for _, kind := range swapKinds {
		asks := other
		if kind == claim.RecordOwn { // always comes with an outcome
			asks = ownShot
		}
		for _, seen := range []func(*claim.Record){
			func(*claim.Record) {},
			func(rec *claim.Record) { rec.Fence-- },
			func(rec *claim.Record) { rec.Fence++ },
			func(rec *claim.Record) { rec.Version-- },
			func(rec *claim.Record) { rec.Version++ },
		} {
			ops = append(ops, swapBy(kind, seen, asks))
		}
		for _, asks := range askers[kind] {
			ops = append(ops, swapBy(kind, func(*claim.Record) {}, asks))
		}
	}
	matrix(e, ops, e.replace,
		func(s *claim.Swap, cur *claim.Record, now claim.Time) (claim.Record, bool) {
			return s.Apply(cur, now, 0)
		})
}

// asker changes a request for a record at an instant.
type asker func(r *claim.Request, rec *claim.Record, at claim.Time)

// askers are who else asks for a swap of each kind.
var askers = map[claim.SwapKind][]asker{
	claim.BeginAnew: {own, shot, ownShot, justTooOld, soonTooOld},
	claim.TakeOver:  {own, shot, ownShot},
	claim.Renew:     {own, shot, ownShot},
	claim.RecordOwn: {shot},
}

func other(*claim.Request, *claim.Record, claim.Time)             {}
func own(r *claim.Request, rec *claim.Record, _ claim.Time)       { r.Attempt = rec.AttemptID }
func justTooOld(r *claim.Request, _ *claim.Record, at claim.Time) { r.InsertBefore = at }
func soonTooOld(r *claim.Request, _ *claim.Record, at claim.Time) { r.InsertBefore = at + 1 }
func ownShot(r *claim.Request, rec *claim.Record, at claim.Time)  { own(r, rec, at); shot(r, rec, at) }
func shot(r *claim.Request, _ *claim.Record, _ claim.Time) {
	r.Record = result("one shot")
	r.Digests = append(r.Digests, claim.Digest{Scheme: "second", Value: []byte("2")})
}

func swapBy(kind claim.SwapKind, seen func(*claim.Record), asks asker) build[claim.Swap] {
	return func(rec claim.Record, at claim.Time) claim.Swap {
		req := requestFor(rec.Key, 3)
		asks(&req, &rec, at)
		seen(&rec)
		s := swapOf(kind, rec, &req)
		if kind == claim.ResolveComplete {
			s.Result = result("resolved")
		}
		return s
	}
}
