package storagetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var sweepCases = []testCase{
	{"sweep/grace-is-half-open", func(e *env) {
		rec := e.must(e.transition(complete(e.granted(request("a", 1)), result("one"))))
		e.goTo(rec.ExpiresAt.Add(e.grace) - 1)
		e.wantSwept(0)
		e.wantStored(rec)
		e.goTo(rec.ExpiresAt.Add(e.grace))
		e.wantSwept(1)
		e.wantAbsent(rec.Key)
		if again := e.granted(request("a", 1)); again.Fence <= rec.Fence {
			e.Fatalf("fence %d follows %d over a sweep", again.Fence, rec.Fence)
		}
	}},
	{"sweep/what-may-go-and-what-never", sweepStates},
	{"sweep/in-doubt-goes-once-it-is-resolved", func(e *env) {
		req := request("a", 1)
		req.Policy.Hold = true
		rec := e.granted(req)
		e.goTo(rec.ExpiresAt.Add(e.grace))
		e.wantSwept(0)
		doubt := e.must(e.replace(swapOf(claim.PutInDoubt, rec, nil)))
		e.goTo(doubt.ExpiresAt.Add(10 * testRetention))
		e.wantSwept(0)
		s := swapOf(claim.ResolveComplete, doubt, nil)
		s.Result = result("resolved")
		done := e.must(e.replace(s))
		e.wantSwept(0)
		e.goTo(done.ExpiresAt.Add(e.grace))
		e.wantSwept(1)
		e.wantAbsent(rec.Key)
	}},
	{"sweep/expiry-that-moved-is-found-again", sweepMoved},
	{"sweep/expiry-that-moved-counts-once", func(e *env) {
		// Nobody swept when the first expiry was due: both are now.
		rec := e.granted(request("a", 1))
		for range 3 {
			e.goTo(rec.ExpiresAt.Add(e.grace / 2))
			req := request("a", 1)
			rec = e.must(e.replace(swapOf(claim.Renew, rec, &req)))
		}
		e.goTo(rec.ExpiresAt.Add(e.grace))
		e.wantSwept(1)
		e.wantAbsent(rec.Key)
	}},
	{"sweep/expiry-that-came-nearer-is-found", func(e *env) {
		// Begun anew under a much shorter retention while the old expiry lies
		// far ahead: its new expiry must be indexed, not the old one.
		req := request("a", 1)
		req.Policy.Retention = 100 * testRetention
		gone := e.must(e.replace(swapOf(claim.Forget, e.must(e.transition(release(e.granted(req)))), nil)))
		next := request("a", 2)
		next.Policy.Retention, next.Policy.Window = time.Minute, time.Second
		rec := e.must(e.replace(swapOf(claim.BeginAnew, gone, &next)))
		if rec.ExpiresAt >= gone.ExpiresAt {
			e.Fatalf("begun anew as %s", show(rec))
		}
		e.goTo(rec.ExpiresAt.Add(e.grace) - 1)
		e.wantSwept(0)
		e.goTo(rec.ExpiresAt.Add(e.grace))
		e.wantSwept(1)
		e.wantAbsent(rec.Key)
	}},
	{"sweep/limit-cursor-and-end", sweepSteps},
	{"sweep/every-expired-record-in-the-end", func(e *env) {
		// Expiries over many hours, some at the same instant.
		const n = 240
		reqs := manyRequests(n)
		for i := range reqs {
			reqs[i].Policy.Retention = testRetention + time.Duration(i/2)*17*time.Minute
		}
		recs := e.insert(reqs...)
		left := n
		for i := 9; i < n; i += 10 {
			e.goTo(recs[i].Record.ExpiresAt.Add(e.grace))
			e.wantSwept(10)
			left -= 10
		}
		if left != 0 {
			e.Fatalf("%d records were never swept", left)
		}
	}},
	{"sweep/oldest-expired", func(e *env) {
		rec := e.must(e.transition(release(e.granted(request("a", 1)))))
		e.goTo(rec.ExpiresAt + 1)
		for shard := range e.shards() {
			s := e.step(storage.Sweep{Shard: shard, Limit: 10})
			if s.OldestExpired != 0 && s.OldestExpired != rec.ExpiresAt {
				e.Errorf("oldest expired is %v, want none or %v", s.OldestExpired.Std(), rec.ExpiresAt.Std())
			}
		}
	}},
	{"sweep/refuses-what-is-out-of-range", func(e *env) {
		shards := e.shards()
		for _, s := range []storage.Sweep{
			{Shard: -1, Limit: 1}, {Shard: shards, Limit: 1},
			{Limit: 0}, {Limit: -1}, {Limit: storage.SweepLimitMax + 1},
		} {
			if got, err := e.store.Sweep(e.Context(), s); err == nil {
				e.Errorf("%+v was taken: %+v", s, got)
			}
		}
		for _, garbage := range garbageCursors() {
			if got, err := e.store.Sweep(e.Context(), storage.Sweep{Limit: 1, Cursor: garbage}); !errors.Is(err, storage.ErrCursor) {
				e.Errorf("cursor %q: %+v and error %v, want %v", garbage, got, err, storage.ErrCursor)
			}
		}
	}},
}

// garbageCursors are cursors that no store hands out.
func garbageCursors() [][]byte {
	return [][]byte{[]byte("x"), []byte("garbage"), {0}, {0xff}, slices.Repeat([]byte{0xff}, 64), slices.Repeat([]byte("a"), 4096)}
}

func (e *env) shards() int {
	e.Helper()
	stats, err := e.store.Stats(e.Context())
	if err != nil {
		e.Fatalf("Stats: %v", err)
	}
	return stats.Shards
}

// step is one Sweep that must not fail.
func (e *env) step(s storage.Sweep) storage.Swept {
	e.Helper()
	swept, err := e.store.Sweep(e.Context(), s)
	switch {
	case err != nil:
		e.Fatalf("Sweep: %v", err)
	case swept.Looked > s.Limit || swept.Deleted > swept.Looked || swept.Deleted < 0:
		e.Fatalf("limit %d, but looked at %d and deleted %d", s.Limit, swept.Looked, swept.Deleted)
	case swept.Now != e.now():
		e.Fatalf("Sweep: store time is %v, want %v", swept.Now.Std(), e.clock.Now())
	}
	return swept
}

// sweepStepsMax ends a sweep whose cursor makes no progress.
const sweepStepsMax = 20_000

// sweepAll sweeps every shard to its end, between steps calling meanwhile, and
// returns how many records were deleted.
func (e *env) sweepAll(limit int, meanwhile func()) int {
	e.Helper()
	deleted, steps := 0, 0
	for shard := range e.shards() {
		var cursor []byte
		for {
			s := e.step(storage.Sweep{Shard: shard, Cursor: cursor, Limit: limit})
			deleted += s.Deleted
			meanwhile()
			if s.Cursor == nil {
				break
			}
			if steps++; steps > sweepStepsMax {
				e.Fatalf("shard %d does not end within %d steps", shard, sweepStepsMax)
			}
			cursor = s.Cursor
		}
	}
	return deleted
}

// wantSwept demands that a whole sweep deletes exactly n records, and that
// there is nothing left to sweep then.
func (e *env) wantSwept(n int) {
	e.Helper()
	if got := e.sweepAll(storage.SweepLimitMax, func() {}); got != n {
		e.Fatalf("swept %d records, want %d", got, n)
	}
	if got := e.sweepAll(7, func() {}); got != 0 {
		e.Fatalf("a second sweep found %d more records", got)
	}
}

// sweepStates: at the end of each record's grace it goes, or, in doubt, stays
// for ever; a moment earlier nothing goes.
func sweepStates(e *env) {
	recs := oneOfEach(e)
	slices.SortFunc(recs, func(a, b claim.Record) int { return int(a.ExpiresAt - b.ExpiresAt) })
	for len(recs) > 0 {
		end := recs[0].ExpiresAt.Add(e.grace)
		e.goTo(end - 1)
		e.wantSwept(0)
		e.goTo(end)
		goes := 0
		for _, rec := range recs {
			if rec.Sweepable(end, e.grace) {
				goes++
			}
		}
		e.wantSwept(goes)
		for _, rec := range recs {
			if rec.Sweepable(end, e.grace) {
				e.wantAbsent(rec.Key)
			} else {
				e.wantStored(rec)
			}
		}
		recs = slices.DeleteFunc(recs, func(rec claim.Record) bool { return rec.ExpiresAt.Add(e.grace) <= end })
	}
}

// sweepMoved: what was written late is kept for as long as its new expiry
// says, and found then.
func sweepMoved(e *env) {
	for _, c := range []struct {
		name string
		move func(rec claim.Record) claim.Record
	}{
		{"completed late", func(rec claim.Record) claim.Record {
			return e.must(e.transition(complete(rec, result("late"))))
		}},
		{"released late", func(rec claim.Record) claim.Record { return e.must(e.transition(release(rec))) }},
		{"begun anew", func(rec claim.Record) claim.Record {
			req := requestFor(rec.Key, 2)
			return e.must(e.replace(swapOf(claim.BeginAnew, rec, &req)))
		}},
		{"renewed", func(rec claim.Record) claim.Record {
			req := requestFor(rec.Key, 1)
			return e.must(e.replace(swapOf(claim.Renew, rec, &req)))
		}},
	} {
		rec := e.granted(request(c.name, 1))
		e.goTo(rec.ExpiresAt.Add(e.grace / 2))
		e.wantSwept(0)
		moved := c.move(rec)
		if moved.ExpiresAt <= rec.ExpiresAt {
			e.Fatalf("%s: the expiry did not move", c.name)
		}
		e.goTo(rec.ExpiresAt.Add(e.grace))
		e.wantSwept(0)
		e.goTo(moved.ExpiresAt.Add(e.grace) - 1)
		e.wantSwept(0)
		e.wantStored(moved)
		e.goTo(moved.ExpiresAt.Add(e.grace))
		e.wantSwept(1)
		e.wantAbsent(rec.Key)
	}
}

func sweepSteps(e *env) {
	const n, limit = 120, 7
	recs := e.insert(manyRequests(n)...)
	kept := e.granted(func() claim.Request {
		r := request("kept", 1)
		r.Policy.Retention = 10 * testRetention
		return r
	}())
	e.goTo(recs[0].Record.ExpiresAt.Add(e.grace))
	steps := 0
	if got := e.sweepAll(limit, func() { steps++ }); got != n {
		e.Fatalf("swept %d of %d in steps of %d", got, n, limit)
	}
	if steps < n/limit {
		e.Fatalf("%d records in %d steps of at most %d", n, steps, limit)
	}
	e.wantStored(kept)
	for i := range recs {
		e.wantAbsent(key(fmt.Sprintf("event-%04d", i)))
	}
}
