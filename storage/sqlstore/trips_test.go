package sqlstore_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
	"github.com/warifu/warifu/storage/storagetest"
)

// TestTrips counts what goes to the database: one trip for each call, one more
// where a result is stored aside, and two for a claim that needs a second look.
func TestTrips(t *testing.T) {
	t.Parallel()
	l := newLane(t, sqlstore.Postgres)
	claims := func(change ...func(*claim.Request)) call { return claimOnce(2, change...) }
	finished := func(c *claim.Completion) step { return steps(claimed(), moved(claim.Complete, c)) }
	lapsed := later(matrixLease)
	for _, c := range []struct {
		name    string
		prepare step
		call    call
		trips   int
	}{
		{"new", steps(), claims(), 1},
		{"new, recorded at once", steps(), claims(shot(small())), 1},
		{"new, recorded at once with a large result", steps(), claims(shot(large())), 1},
		{"live in progress", claimed(), claims(), 1},
		{"resend of a live grant", claimed(), claimOnce(1), 1},
		{"duplicate", finished(small()), claims(), 1},
		{"duplicate with a large result", finished(large()), claims(), 2},
		{"mismatch", claimed(), claims(func(r *claim.Request) { r.Digests[0].Value = []byte("x") }), 1},
		{"in doubt", steps(claimed(held), lapsed), claims(), 1},
		{"takeover", steps(claimed(), lapsed), claims(), 2},
		{"released", steps(claimed(), moved(claim.Release, nil)), claims(), 2},
		{"expired, unswept", steps(claimed(), later(10*matrixWindow)), claims(), 2},
		{"complete", claimed(), transition(claim.Complete, small()), 1},
		{"complete with a large result", claimed(), transition(claim.Complete, large()), 1},
		{"extend", claimed(), transition(claim.Extend, nil), 1},
		{"release", claimed(), transition(claim.Release, nil), 1},
		{"complete what is complete", finished(small()), transition(claim.Complete, small()), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			if err := emptied(ctx, l.url); err != nil {
				t.Fatal(err)
			}
			l.start = l.start.Add(cellLength)
			l.clock.Set(l.start)
			c.prepare(ctx, t, l.direct, l.clock)
			seen := records(t, l.direct)[0]
			l.proxy.Reset()
			if _, err := c.call(ctx, l.patient, seen); err != nil {
				t.Fatal(err)
			}
			if got := l.proxy.Trips(); got != c.trips {
				t.Errorf("%d trips, want %d", got, c.trips)
			}
		})
	}
	t.Run("a batch", func(t *testing.T) { tripsOfABatch(t, l) })
}

// claimOnce is a whole claim of the first key, decided and written.
func claimOnce(attempt byte, change ...func(*claim.Request)) call {
	return func(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
		_, err := storagetest.Claim(ctx, s, []claim.Request{matrixRequest(matrixKeys[0], attempt, change...)})
		return nil, err
	}
}

// tripsOfABatch: 200 completions are one trip, and so are as many claims.
func tripsOfABatch(t *testing.T, l *lane) {
	t.Helper()
	const n = 200
	ctx := t.Context()
	var reqs []claim.Request
	for i := range n {
		r := matrixRequest(matrixKeys[0], 1)
		r.Key.EventID = string(rune('a'+i%26)) + string(rune('a'+i/26))
		reqs = append(reqs, r)
	}
	l.proxy.Reset()
	found, err := l.patient.InsertOrGet(ctx, reqs)
	if err != nil || l.proxy.Trips() != 1 {
		t.Fatalf("%d trips for a batch of claims, error %v", l.proxy.Trips(), err)
	}
	var ts []claim.Transition
	for i := range found {
		ts = append(ts, claim.Transition{
			Kind: claim.Complete, Key: reqs[i].Key, Attempt: reqs[i].Attempt, Fence: found[i].Record.Fence, Completion: small(),
		})
	}
	l.proxy.Reset()
	done, err := l.patient.Transition(ctx, ts)
	if err != nil || l.proxy.Trips() != 1 {
		t.Fatalf("%d trips for a batch of completions, error %v", l.proxy.Trips(), err)
	}
	for i := range done {
		if !done[i].Applied {
			t.Fatalf("item %d was not applied", i)
		}
	}
}

// TestSweepOfThePast: on CockroachDB a sweep looks for candidates in the past,
// in a transaction of its own. The proxy takes that word out, PostgreSQL does not
// know it.
func TestSweepOfThePast(t *testing.T) {
	t.Parallel()
	l := newLane(t, sqlstore.Cockroach)
	through, err := l.proxy.URL(l.url)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, "cockroach"+strings.TrimPrefix(through, "postgres"), nil, time.Hour, nil)
	if _, err := sweepAll(t.Context(), s, claim.Record{}); err != nil {
		t.Fatal(err)
	}
	past := sqlstore.Words("sweep_scan", sqlstore.Cockroach)
	alone := l.proxy.Count(func(trip mitm.Trip) bool { return len(trip.SQL) == 1 && trip.SQL[0] == past })
	if all := l.proxy.Count(func(trip mitm.Trip) bool { return slices.Contains(trip.SQL, past) }); alone == 0 || all != alone {
		t.Errorf("%d trips with the statement, %d of them with nothing else", all, alone)
	}
}
