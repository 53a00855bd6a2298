package sqlstore

import (
	"context"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// swapKinds is the order in which the groups of a call are sent.
var swapKinds = []claim.SwapKind{
	claim.BeginAnew, claim.TakeOver, claim.Renew, claim.RecordOwn,
	claim.PutInDoubt, claim.ResolveComplete, claim.ResolveRetry, claim.Forget,
}

// Replace implements storage.Store: one trip.
func (s *Store) Replace(ctx context.Context, swaps []claim.Swap) ([]storage.Found, error) {
	key := func(i int) *claim.Key { return &swaps[i].Key }
	leave, err := s.begin(ctx, len(swaps), key)
	if err != nil || leave == nil {
		return nil, err
	}
	defer leave()
	k, f := sorted(len(swaps), key), newFound(len(swaps))
	suspect := s.time.Suspect()
	var groups []change
	for _, kind := range swapKinds {
		groups = append(groups, swapsOf(kind, k, swaps, suspect))
	}
	if err := s.changeAll(ctx, k, f, groups, func(i int) bool { return showsIn(&swaps[i], &f.items[i].Record) }); err != nil {
		return nil, err
	}
	for i := range swaps {
		if suspect && trustsClock(&swaps[i]) {
			f.set(i, storage.Found{Err: storage.ErrClockSuspect})
		}
	}
	s.finish(ctx, k, f, key, func(i int) *claim.Completion { return result(&swaps[i]) }, storage.ErrUnknown)
	return f.items, nil
}

// showsIn reports whether a record tells by itself what became of a swap: it has
// not changed since, or is what the swap makes of it.
func showsIn(sw *claim.Swap, rec *claim.Record) bool {
	if rec.Fence == sw.Fence && rec.Version == sw.Version {
		return true
	}
	switch sw.Kind {
	case claim.BeginAnew, claim.TakeOver, claim.Renew, claim.RecordOwn:
		return sw.Request != nil && rec.State != claim.Absent && rec.AttemptID == sw.Request.Attempt
	case claim.PutInDoubt:
		return rec.Fence == sw.Fence && rec.State == claim.InDoubt
	case claim.ResolveComplete:
		return rec.Fence == sw.Fence && rec.State == claim.Completed && rec.Completion.Same(sw.Result)
	case claim.ResolveRetry:
		return rec.Fence == sw.Fence && rec.State == claim.Released
	case claim.Forget:
		return rec.Fence == sw.Fence && rec.State == claim.Forgotten
	case claim.NoSwap:
	}
	return true
}

// trustsClock reports whether a swap grants because something lapsed or
// expired: not while the clock is suspect.
func trustsClock(sw *claim.Swap) bool {
	switch sw.Kind {
	case claim.TakeOver:
		return sw.From == claim.InProgress
	case claim.BeginAnew:
		return sw.From != claim.Forgotten
	case claim.PutInDoubt:
		return true
	case claim.NoSwap, claim.Renew, claim.RecordOwn, claim.ResolveComplete, claim.ResolveRetry, claim.Forget:
	}
	return false
}

// swapArrays are the arrays of swaps of one kind.
type swapArrays struct {
	fence, version []int64
	attempt        [][16]byte
	digests        [][]byte
	lease          []time.Duration
	life           requests
}

// swapsOf collects those of one kind.
func swapsOf(kind claim.SwapKind, k *keys, swaps []claim.Swap, suspect bool) change {
	var g change
	var a swapArrays
	for p, i := range k.order {
		sw := &swaps[i]
		if sw.Kind != kind || suspect && trustsClock(sw) || kind == claim.ResolveComplete && noOutcome(sw.Result) {
			continue
		}
		g.places = append(g.places, p)
		a.fence, a.version = append(a.fence, int64(sw.Fence)), append(a.version, sw.Version)
		a.digests = append(a.digests, digestBytes(sw.Digests))
		g.cs.add(p, result(sw))
		if sw.Request != nil {
			a.attempt, a.lease = append(a.attempt, sw.Request.Attempt), append(a.lease, sw.Request.Lease)
			a.life.add(sw.Request)
		}
	}
	a.statement(kind, &g)
	return g
}

// result is what a swap completes its record with, if anything.
func result(sw *claim.Swap) *claim.Completion {
	switch {
	case sw.Kind == claim.ResolveComplete:
		return sw.Result
	case sw.Request != nil:
		return sw.Request.Record
	}
	return nil
}

// statement gives g the statement of a kind and its arrays.
func (a *swapArrays) statement(kind claim.SwapKind, g *change) {
	g.args = []any{a.fence, a.version}
	completed := g.cs.args()
	switch kind {
	case claim.BeginAnew:
		g.sql, g.drops = sqlBeginAnew, true
		g.args = append(append(g.args, a.life.args()...), completed...)
	case claim.TakeOver:
		g.sql, g.args = sqlTakeOver, append(append(g.args, a.attempt, a.digests, a.lease), completed...)
	case claim.Renew:
		g.sql, g.args = sqlRenew, append(append(g.args, a.attempt, a.lease), completed...)
	case claim.RecordOwn:
		g.sql, g.args = sqlRecordOwn, append(append(g.args, a.attempt), completed...)
	case claim.PutInDoubt:
		g.sql = sqlPutInDoubt
	case claim.ResolveComplete:
		g.sql, g.args = sqlResolveComplete, append(g.args, completed...)
	case claim.ResolveRetry:
		g.sql = sqlResolveRetry
	case claim.Forget:
		g.sql, g.drops = sqlForget, true
	case claim.NoSwap:
	}
}
