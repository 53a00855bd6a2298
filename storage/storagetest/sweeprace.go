package storagetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var sweepRaceCases = []testCase{
	{"sweep/revived-between-steps-is-kept", sweepRevived},
	{"sweep/race-with-writers", sweepRace},
}

// sweepRevived: between two steps records that were candidates are completed,
// begun anew or deleted. What was written in the meantime stays.
func sweepRevived(e *env) {
	const n = 60
	recs := e.insert(manyRequests(n)...)
	e.goTo(recs[0].Record.ExpiresAt.Add(e.grace))
	revived, next := map[claim.Key]claim.Record{}, 0
	deleted := e.sweepAll(3, func() {
		if next >= n {
			return
		}
		rec := recs[n-1-next].Record // the order of candidates is the store's own
		var f storage.Found
		if next++; next%2 == 0 {
			f = e.transition(complete(rec, result("late")))[0]
		} else {
			req := requestFor(rec.Key, 2)
			f = e.replace(swapOf(claim.BeginAnew, rec, &req))[0]
		}
		if f.Applied {
			revived[rec.Key] = f.Record
		}
	})
	for _, want := range revived {
		e.wantStored(want)
	}
	// What is found by the next sweep was behind the cursor; nothing else is left.
	deleted += e.sweepAll(storage.SweepLimitMax, func() {})
	if deleted+len(revived) != n {
		e.Fatalf("%d deleted and %d revived of %d", deleted, len(revived), n)
	}
}

// sweepRace: the same while sweepers and writers run side by side.
func sweepRace(e *env) {
	const rounds, n, sweepers, writers = 4, 400, 2, 4
	shards := e.shards()
	for round := range rounds {
		reqs := manyRequests(n)
		for i := range reqs {
			reqs[i].Key.EventID += fmt.Sprintf(", round %d", round)
		}
		recs := make([]claim.Record, n)
		for i, f := range e.insert(reqs...) {
			recs[i] = f.Record
		}
		e.goTo(recs[0].ExpiresAt.Add(e.grace))

		ctx, cancel := context.WithCancel(e.Context())
		errs, revived := make([]error, sweepers+writers), make([]map[claim.Key]claim.Record, writers)
		begin := make(chan struct{})
		var sweeping, writing sync.WaitGroup
		for i := range sweepers {
			sweeping.Go(func() { <-begin; errs[i] = sweepUntil(ctx, e.store, shards) })
		}
		for i := range writers {
			mine := recs[i*n/writers : (i+1)*n/writers]
			writing.Go(func() { <-begin; revived[i], errs[sweepers+i] = revive(ctx, e.store, mine) })
		}
		close(begin)
		writing.Wait()
		cancel()
		sweeping.Wait()
		if err := errors.Join(errs...); err != nil {
			e.Fatalf("%v", err)
		}
		wantRevived(e, recs, revived)
	}
}

// wantRevived: what a writer was told is stored, and nothing else is.
func wantRevived(e *env, recs []claim.Record, revived []map[claim.Key]claim.Record) {
	e.Helper()
	e.sweepAll(storage.SweepLimitMax, func() {})
	all := map[claim.Key]claim.Record{}
	for _, some := range revived {
		maps.Copy(all, some)
	}
	for _, rec := range recs {
		if want, ok := all[rec.Key]; ok {
			e.wantStored(want)
		} else {
			e.wantAbsent(rec.Key)
		}
	}
}

// reviver is an attempt that none of the records has.
const reviver = 10_000

// revive writes to records that are being swept, from the last to the first,
// and returns what each write that found its record, or inserted one, stored.
func revive(ctx context.Context, store storage.Store, recs []claim.Record) (map[claim.Key]claim.Record, error) {
	revived := map[claim.Key]claim.Record{}
	for i := range recs {
		rec := recs[len(recs)-1-i]
		req := requestFor(rec.Key, reviver)
		var found []storage.Found
		var err error
		switch i % 3 {
		case 0:
			found, err = store.Transition(ctx, []claim.Transition{complete(rec, result("late"))})
		case 1:
			found, err = store.Replace(ctx, []claim.Swap{swapOf(claim.BeginAnew, rec, &req)})
		default: // stored, unless the expired record is in the way still
			found, err = store.InsertOrGet(ctx, []claim.Request{req})
		}
		if err != nil {
			return nil, fmt.Errorf("write against sweeps: %w", err)
		}
		f := found[0]
		if f.Err != nil {
			return nil, fmt.Errorf("write against sweeps: %w", f.Err)
		}
		if f.Applied || f.Record.AttemptID == attempt(reviver) {
			revived[rec.Key] = f.Record
		}
	}
	return revived, nil
}

// sweepUntil sweeps all shards over and over until ctx ends.
func sweepUntil(ctx context.Context, store storage.Store, shards int) error {
	cursors := make([][]byte, shards)
	for shard := 0; ctx.Err() == nil; shard = (shard + 1) % shards {
		s, err := store.Sweep(ctx, storage.Sweep{Shard: shard, Cursor: cursors[shard], Limit: 5})
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("sweep against writers: %w", err)
		}
		cursors[shard] = s.Cursor
	}
	return nil
}
