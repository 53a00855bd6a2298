package storagetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Caller is a loop whose trips are counted: one claim and one transition,
// alone, through whatever batches them.
type Caller struct {
	Claim      func(context.Context, claim.Request) (claim.Answer, error)
	Transition func(context.Context, claim.Transition) (claim.Reply, error)
}

// PlainCaller is the loop of this package.
func PlainCaller(_ T, store storage.Store) Caller {
	return Caller{
		Claim: func(ctx context.Context, r claim.Request) (claim.Answer, error) {
			a, err := Claim(ctx, store, []claim.Request{r})
			if err != nil {
				return claim.Answer{}, err
			}
			return a[0], nil
		},
		Transition: func(ctx context.Context, tr claim.Transition) (claim.Reply, error) {
			r, err := Move(ctx, store, []claim.Transition{tr})
			if err != nil {
				return claim.Reply{}, err
			}
			return r[0], nil
		},
	}
}

// tripRow is one budget: on a record that was granted to attempt 1 at Start
// and then prepared, the claim of attempt by takes trips.
type tripRow struct {
	name    string
	first   func(*claim.Request) // nil: nothing is stored
	prepare func(e *env, rec claim.Record)
	by      int
	ask     func(*claim.Request)
	want    claim.Decision
	trips   int
}

func unchanged(*claim.Request) {}

func lapse(e *env, rec claim.Record)  { e.goTo(rec.LeaseUntil) }
func expire(e *env, rec claim.Record) { e.goTo(rec.ExpiresAt) }
func free(e *env, rec claim.Record)   { e.must(e.transition(release(rec))) }
func finish(e *env, rec claim.Record) { e.must(e.transition(complete(rec, result("one")))) }
func shoot(r *claim.Request)          { r.Record = result("shot") }

var tripRows = []tripRow{
	{name: "new", by: 2, want: claim.Granted, trips: 1},
	{name: "new, recorded at once", by: 2, ask: shoot, want: claim.Granted, trips: 1},
	{name: "too old", by: 2, ask: func(r *claim.Request) { r.InsertBefore = 0 }, want: claim.TooOld, trips: 1},
	{name: "live in progress", first: unchanged, by: 2, want: claim.HeldByOther, trips: 1},
	{name: "resend of a live grant", first: unchanged, by: 1, want: claim.Granted, trips: 1},
	{name: "recorded on its own live grant", first: unchanged, by: 1, ask: shoot, want: claim.Granted, trips: 2},
	{name: "resend of a recorded claim", first: shoot, by: 1, ask: shoot, want: claim.Granted, trips: 1},
	{name: "duplicate", first: unchanged, prepare: finish, by: 2, want: claim.Duplicate, trips: 1},
	{name: "mismatch", first: unchanged, by: 2, ask: func(r *claim.Request) { r.Digests[0].Value = []byte("x") }, want: claim.Mismatch, trips: 1},
	{name: "in doubt", first: hold, prepare: lapse, by: 2, want: claim.Doubtful, trips: 1},
	{name: "own attempt was released", first: unchanged, prepare: free, by: 1, want: claim.AttemptEnded, trips: 1},
	{name: "takeover", first: unchanged, prepare: lapse, by: 2, want: claim.Granted, trips: 2},
	{name: "renewed", first: unchanged, prepare: lapse, by: 1, want: claim.Granted, trips: 2},
	{name: "at the attempt cap", first: capped, prepare: lapse, by: 2, want: claim.Doubtful, trips: 2},
	{name: "released", first: unchanged, prepare: free, by: 2, want: claim.Granted, trips: 2},
	{name: "expired, unswept", first: unchanged, prepare: expire, by: 2, want: claim.Granted, trips: 2},
	{name: "forgotten", first: unchanged, prepare: func(e *env, rec claim.Record) {
		e.must(e.transition(release(rec)))
		e.must(e.replace(swapOf(claim.Forget, e.get(rec.Key)[0].Record, nil)))
	}, by: 2, want: claim.Granted, trips: 2},
}

// Trips tests that a loop takes the trips to the store that are budgeted, and
// no more. newCaller makes the loop on a store; it registers the loop's end
// with t.Cleanup.
func Trips(t *testing.T, newCaller func(T, storage.Store) Caller) {
	t.Helper()
	for _, row := range tripRows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			e := modelEnv(t)
			if row.first != nil {
				req := request("a", 1)
				row.first(&req)
				rec := e.granted(req)
				if row.prepare != nil {
					row.prepare(e, rec)
				}
			}
			req := request("a", row.by)
			if row.ask != nil {
				row.ask(&req)
			}
			countClaim(e, newCaller, e.store, req, row.want, row.trips)
		})
	}
	t.Run("lost race", func(t *testing.T) { t.Parallel(); tripsLostRace(modelEnv(t), newCaller) })
	t.Run("transitions", func(t *testing.T) { t.Parallel(); tripsTransitions(modelEnv(t), newCaller) })
}

func modelEnv(t T) *env {
	return newEnv(t, func(_ T, clock *Clock, grace time.Duration) storage.Store { return NewModel(clock.Now, grace) })
}

func countClaim(e *env, newCaller func(T, storage.Store) Caller, store storage.Store, req claim.Request, want claim.Decision, trips int) {
	e.Helper()
	counting := NewCounting(store)
	got, err := newCaller(e.T, counting).Claim(e.Context(), req)
	if err != nil || got.Decision != want {
		e.Fatalf("answered %+v, error %v, want %s", got, err, want)
	}
	if counting.Trips() != trips {
		e.Errorf("%d trips, want %d: %s", counting.Trips(), trips, tripList(counting))
	}
}

// tripsLostRace: between its two trips somebody else is granted the released
// key. What the second trip returns is enough to answer.
func tripsLostRace(e *env, newCaller func(T, storage.Store) Caller) {
	rec := e.must(e.transition(release(e.granted(request("a", 1)))))
	racing := NewFaulty(e.store, func(_ context.Context, c Call) Fault {
		if c.Method == Replace && c.Index == 0 {
			winner := request("a", 2)
			if f, err := e.store.Replace(e.Context(), []claim.Swap{swapOf(claim.TakeOver, rec, &winner)}); err != nil || !f[0].Applied {
				return Fault{Before: fmt.Errorf("the winner did not win: %+v, %w", f, err)}
			}
		}
		return Fault{}
	})
	countClaim(e, newCaller, racing, request("a", 3), claim.HeldByOther, 2)
}

func tripsTransitions(e *env, newCaller func(T, storage.Store) Caller) {
	counting := NewCounting(e.store)
	caller := newCaller(e.T, counting)
	a, b := e.granted(request("a", 1)), e.granted(request("b", 1))
	stale := b
	stale.Fence--
	for _, row := range []struct {
		name string
		t    claim.Transition
		want claim.Status
	}{
		{"extend", extend(a, time.Minute), claim.OK},
		{"complete", complete(a, result("one")), claim.OK},
		{"complete again", complete(a, result("one")), claim.OK},
		{"complete with another result", complete(a, result("two")), claim.ResultConflict},
		{"not the owner", release(stale), claim.Stale},
		{"release", release(b), claim.OK},
	} {
		counting.Reset()
		got, err := caller.Transition(e.Context(), row.t)
		if err != nil || got.Status != row.want {
			e.Errorf("%s: answered %+v, error %v, want %s", row.name, got, err, row.want)
		}
		if counting.Trips() != 1 {
			e.Errorf("%s: %d trips, want 1: %s", row.name, counting.Trips(), tripList(counting))
		}
	}
}

func tripList(c *Counting) string {
	return fmt.Sprintf("InsertOrGet %d, Get %d, Transition %d, Replace %d",
		c.Calls(InsertOrGet), c.Calls(Get), c.Calls(Transition), c.Calls(Replace))
}
