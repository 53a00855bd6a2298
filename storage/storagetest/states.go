package storagetest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// shortLease lapses while the leases of the other states live.
const shortLease = 2 * time.Second

// stateSpec says how a key gets into a state: a first claim, what follows at
// once, and what follows when shortLease is over.
type stateSpec struct {
	name  string
	claim func(*claim.Request)
	then  []step
	later []step
}

// step does the same to many records of distinct keys.
type step func(e *env, recs []claim.Record) []claim.Record

var stateSpecs = []stateSpec{
	{name: "live"},
	{name: "live-hold", claim: hold},
	{name: "live-capped", claim: capped},
	{name: "live-long-window", claim: func(r *claim.Request) { r.Policy.Window = r.Policy.Retention }},
	{name: "lapsing", claim: short},
	{name: "lapsing-hold", claim: func(r *claim.Request) { short(r); hold(r) }},
	{name: "lapsing-capped", claim: func(r *claim.Request) { short(r); capped(r) }},
	{name: "in-doubt", claim: func(r *claim.Request) { short(r); hold(r) }, later: []step{swapAll(claim.PutInDoubt)}},
	{name: "renewed", claim: short, later: []step{swapAll(claim.Renew)}},
	{name: "released", then: []step{releaseAll}},
	{name: "released-capped", claim: capped, then: []step{releaseAll}},
	{name: "taken-over", then: []step{releaseAll, swapAll(claim.TakeOver)}},
	{name: "completed", then: []step{completeAll}},
	{name: "completed-late", claim: short, later: []step{completeAll}},
	{name: "forgotten", then: []step{completeAll, swapAll(claim.Forget)}},
	{name: "begun-anew", then: []step{completeAll, swapAll(claim.Forget), swapAll(claim.BeginAnew)}},
}

func hold(r *claim.Request)   { r.Policy.Hold = true }
func capped(r *claim.Request) { r.Policy.AttemptsMax = 1 }
func short(r *claim.Request)  { r.Lease = shortLease }

func releaseAll(e *env, recs []claim.Record) []claim.Record {
	return inBatches(e, recs, e.transition, release)
}

func completeAll(e *env, recs []claim.Record) []claim.Record {
	return inBatches(e, recs, e.transition, func(rec claim.Record) claim.Transition {
		return complete(rec, result("of "+rec.Key.EventID))
	})
}

// swapAll grants to the second attempt where the kind takes over, and to the
// record's own where it renews.
func swapAll(kind claim.SwapKind) step {
	return func(e *env, recs []claim.Record) []claim.Record {
		return inBatches(e, recs, e.replace, func(rec claim.Record) claim.Swap {
			req := requestFor(rec.Key, 2)
			if kind == claim.Renew {
				req.Attempt = rec.AttemptID
			}
			return swapOf(kind, rec, &req)
		})
	}
}

// inBatches sends one item for each record; all must be applied.
func inBatches[I any](e *env, recs []claim.Record, send func(...I) []storage.Found, item func(claim.Record) I) []claim.Record {
	e.Helper()
	var out []claim.Record
	for chunk := range slices.Chunk(recs, claim.BatchItemsMax) {
		items := make([]I, len(chunk))
		for i := range chunk {
			items[i] = item(chunk[i])
		}
		found := send(items...)
		e.must(found)
		for i := range found {
			out = append(out, found[i].Record)
		}
	}
	return out
}

// statesOf brings copies keys into each state that a store can hold, and
// returns the records as stored, state by state. It moves the clock by
// shortLease.
func statesOf(e *env, copies int) [][]claim.Record {
	e.Helper()
	all := make([][]claim.Record, len(stateSpecs))
	for i, spec := range stateSpecs {
		reqs := make([]claim.Request, copies)
		for c := range reqs {
			reqs[c] = request(fmt.Sprintf("%s-%d", spec.name, c), 1)
			if spec.claim != nil {
				spec.claim(&reqs[c])
			}
		}
		for chunk := range slices.Chunk(reqs, claim.BatchItemsMax) {
			for j, f := range e.insert(chunk...) {
				e.wantGrant(f.Record, claim.Fresh(&chunk[j], e.now(), 0))
				all[i] = append(all[i], f.Record)
			}
		}
		for _, do := range spec.then {
			all[i] = do(e, all[i])
		}
	}
	e.clock.Advance(shortLease)
	for i, spec := range stateSpecs {
		for _, do := range spec.later {
			all[i] = do(e, all[i])
		}
	}
	return all
}

// oneOfEach is statesOf with one key for each state.
func oneOfEach(e *env) []claim.Record {
	e.Helper()
	return slices.Concat(statesOf(e, 1)...)
}

// cell is one operation on a record in one state at one instant, on a key of
// its own.
type cell[O any] struct {
	at  claim.Time
	rec claim.Record
	op  O
}

// instantsOf are where the guards on a record change their minds; those in
// the past are left out.
func instantsOf(e *env, rec claim.Record) []claim.Time {
	all := []claim.Time{
		e.now(), rec.LeaseUntil - 1, rec.LeaseUntil, rec.LeaseUntil + 1, rec.HoldUntil,
		rec.ExpiresAt - 1, rec.ExpiresAt, rec.ExpiresAt + 1, rec.ExpiresAt.Add(e.grace),
	}
	return slices.DeleteFunc(all, func(at claim.Time) bool { return at < e.now() })
}

// instantsMax is how many instants a record has at most.
const instantsMax = 9

// build makes an operation for a record in its state, to be run at an instant.
type build[O any] func(rec claim.Record, at claim.Time) O

// matrix runs every operation on every state at every instant, in batches in
// the order of time, and compares what the store did with the pure rule.
func matrix[O any](e *env, ops []build[O], send func(...O) []storage.Found,
	rule func(op *O, cur *claim.Record, now claim.Time) (claim.Record, bool),
) {
	e.Helper()
	var cells []cell[O]
	for _, copies := range statesOf(e, len(ops)*instantsMax) {
		for i := range instantsOf(e, copies[0]) {
			for j, op := range ops {
				rec := copies[i*len(ops)+j]
				at := instantsOf(e, rec)[i]
				cells = append(cells, cell[O]{at: at, rec: rec, op: op(rec, at)})
			}
		}
	}
	slices.SortStableFunc(cells, func(a, b cell[O]) int { return cmp.Compare(a.at, b.at) })
	for len(cells) > 0 {
		n := 1
		for n < min(len(cells), claim.BatchItemsMax) && cells[n].at == cells[0].at {
			n++
		}
		runCells(e, cells[:n], send, rule)
		cells = cells[n:]
	}
}

func runCells[O any](e *env, cells []cell[O], send func(...O) []storage.Found,
	rule func(op *O, cur *claim.Record, now claim.Time) (claim.Record, bool),
) {
	e.Helper()
	e.goTo(cells[0].at)
	items, keys := make([]O, len(cells)), make([]claim.Key, len(cells))
	for i, c := range cells {
		items[i], keys[i] = c.op, c.rec.Key
	}
	found := send(items...)
	stored := e.get(keys...)
	for i, c := range cells {
		want, applied := rule(&c.op, &c.rec, c.at)
		if !applied {
			want = c.rec
		} else if want.Fence > c.rec.Fence && found[i].Record.Fence > want.Fence {
			want.Fence = found[i].Record.Fence // a store may know a floor
		}
		if found[i].Applied != applied || !SameRecord(found[i].Record, want) || !SameRecord(stored[i].Record, want) {
			e.Fatalf("%s, %+v, lease %+v, expiry %+v from now\napplied %t, want %t\nanswer %s\nstored %s\nwant   %s",
				c.rec.Key.EventID, c.op, c.rec.LeaseUntil.Sub(c.at), c.rec.ExpiresAt.Sub(c.at),
				found[i].Applied, applied, show(found[i].Record), show(stored[i].Record), show(want))
		}
	}
}
