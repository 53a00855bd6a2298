package pebble

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// sweepAll sweeps until the shard is done and returns how many went.
func sweepAll(t *testing.T, s *Store, limit int) (deleted int) {
	t.Helper()
	var cursor []byte
	for {
		out, err := s.Sweep(context.Background(), storage.Sweep{Cursor: cursor, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		deleted += out.Deleted
		if cursor = out.Cursor; cursor == nil {
			return deleted
		}
	}
}

// flushAll writes out all that is in memory.
func flushAll(t *testing.T, s *Store) {
	t.Helper()
	for {
		s.mu.Lock()
		s.freeze()
		frozen := slices.Clone(s.mu.front.frozen)
		s.mu.Unlock()
		if len(frozen) == 0 {
			return
		}
		for _, m := range frozen {
			<-m.flushed
		}
	}
}

// countKeys counts the keys of one kind.
func countKeys(t *testing.T, s *Store, prefix byte) (n int) {
	t.Helper()
	flushAll(t, s)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		t.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return n
}

func transition(t *testing.T, s *Store, kind claim.TransitionKind, rec claim.Record, c *claim.Completion) claim.Record {
	t.Helper()
	found, err := s.Transition(context.Background(), []claim.Transition{{
		Kind: kind, Key: rec.Key, Attempt: rec.AttemptID, Fence: rec.Fence, Lease: claim.LeaseDefault, Completion: c,
	}})
	if err != nil || !found[0].Applied {
		t.Fatalf("transition: %+v, %v", found, err)
	}
	return found[0].Record
}

// TestSweepLeavesNothingBehind: records, bodies and index entries of everything
// expired are gone, whatever the step size.
func TestSweepLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 7, storage.SweepLimitMax} {
		t.Run(fmt.Sprintf("limit=%d", limit), func(t *testing.T) {
			t.Parallel()
			clock := storagetest.NewClock(epoch)
			s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: clock.Now})
			insertMany(t, s, "a", 100)
			big := claim.Completion{Outcome: claim.Succeeded, Body: make([]byte, inlineBodyMax+1)}.Summed()
			for i := range 10 {
				rec := claimOne(t, s, fmt.Sprintf("big-%d", i), testRng())
				clock.Advance(time.Second)
				transition(t, s, claim.Complete, rec, &big)
			}
			if n := countKeys(t, s, bodyPrefix); n != 10 {
				t.Fatalf("%d bodies stored aside, want 10", n)
			}
			if n := sweepAll(t, s, limit); n != 0 {
				t.Fatalf("%d live records deleted", n)
			}
			clock.Advance(claim.RetentionDefault + claim.SweepGrace + 2*time.Minute)
			if n := sweepAll(t, s, limit); n != 110 {
				t.Errorf("%d records deleted, want 110", n)
			}
			for _, prefix := range []byte{recordPrefix, bodyPrefix, indexPrefix} {
				if n := countKeys(t, s, prefix); n != 0 {
					t.Errorf("%d keys of kind %q are left", n, prefix)
				}
			}
		})
	}
}

// TestSweepRaces stops a sweep between finding a due record and deleting it,
// and lets something happen to the record. Whoever acted wins.
func TestSweepRaces(t *testing.T) {
	t.Parallel()
	result := claim.Completion{Outcome: claim.Succeeded, Body: []byte("late")}.Summed()
	for _, c := range []struct {
		what     string
		act      func(t *testing.T, s *Store, rec claim.Record)
		survives bool
	}{
		{"nothing", func(*testing.T, *Store, claim.Record) {}, false},
		{"a new life", func(t *testing.T, s *Store, rec claim.Record) {
			t.Helper()
			req := testRequest(rec.Key.EventID, claim.AttemptID{9})
			swap(t, s, claim.NewSwap(claim.BeginAnew, &rec, &req))
		}, true},
		{"a late completion", func(t *testing.T, s *Store, rec claim.Record) {
			t.Helper()
			transition(t, s, claim.Complete, rec, &result)
		}, true},
		{"a renewal by its own attempt", func(t *testing.T, s *Store, rec claim.Record) {
			t.Helper()
			req := testRequest(rec.Key.EventID, rec.AttemptID)
			swap(t, s, claim.NewSwap(claim.Renew, &rec, &req))
		}, true},
		{"a forget", func(t *testing.T, s *Store, rec claim.Record) {
			t.Helper()
			swap(t, s, claim.NewSwap(claim.Forget, &rec, nil))
		}, true},
		{"another sweep", func(t *testing.T, s *Store, _ claim.Record) {
			t.Helper()
			s.cfg.hooks.sweepFound = nil
			if n := sweepAll(t, s, 10); n != 1 {
				t.Errorf("the second sweep deleted %d", n)
			}
		}, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			clock := storagetest.NewClock(epoch)
			s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: clock.Now})
			rec := claimOne(t, s, "a", testRng())
			clock.Set(rec.ExpiresAt.Add(claim.SweepGrace).Std()) // the first instant at which it is due
			s.cfg.hooks.sweepFound = func() { c.act(t, s, rec) }
			sweepAll(t, s, 10)
			found, err := s.Get(context.Background(), []claim.Key{rec.Key})
			if err != nil {
				t.Fatal(err)
			}
			if survived := found[0].Record.State != claim.Absent; survived != c.survives {
				t.Fatalf("survived=%v, want %v: %+v", survived, c.survives, found[0].Record)
			}
			s.cfg.hooks.sweepFound = nil
			clock.Advance(2*claim.RetentionDefault + claim.SweepGrace + time.Second)
			sweepAll(t, s, 10)
			if n := countKeys(t, s, recordPrefix) + countKeys(t, s, indexPrefix); n != 0 {
				t.Errorf("%d keys are never swept", n)
			}
		})
	}
}

func swap(t *testing.T, s *Store, sw claim.Swap) {
	t.Helper()
	found, err := s.Replace(context.Background(), []claim.Swap{sw})
	if err != nil || !found[0].Applied {
		t.Fatalf("replace: %+v, %v", found, err)
	}
}

// TestForgetDropsTheBody: a forgotten result is gone from the disk's keys, not
// only from the record.
func TestForgetDropsTheBody(t *testing.T) {
	t.Parallel()
	clock := storagetest.NewClock(epoch)
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: clock.Now})
	big := claim.Completion{Outcome: claim.Succeeded, Body: make([]byte, inlineBodyMax+1)}.Summed()
	rec := transition(t, s, claim.Complete, claimOne(t, s, "a", testRng()), &big)
	swap(t, s, claim.NewSwap(claim.Forget, &rec, nil))
	if n := countKeys(t, s, bodyPrefix); n != 0 {
		t.Fatalf("%d bodies are left", n)
	}
}

// TestSweptFenceIsNotReused: also where fences come from the floor that a
// restart left ahead of the clock, a key's next life begins above its last.
func TestSweptFenceIsNotReused(t *testing.T) {
	t.Parallel()
	fs, clock := vfs.NewMem(), storagetest.NewClock(epoch)
	open := func() *Store {
		return mustOpen(t, Config{FS: fs, Clock: clock.Now, SweepGrace: time.Microsecond})
	}
	if err := open().Close(); err != nil {
		t.Fatal(err)
	}
	s := open()
	req := testRequest("a", claim.AttemptID{1})
	req.Lease, req.Policy.Window, req.Policy.Retention = time.Second, time.Second, 2*time.Second
	insert := func() claim.Record {
		found, err := s.InsertOrGet(context.Background(), []claim.Request{req})
		if err != nil {
			t.Fatal(err)
		}
		return found[0].Record
	}
	first := insert()
	clock.Advance(3 * time.Second)
	if n := sweepAll(t, s, 10); n != 1 {
		t.Fatalf("%d swept, want 1", n)
	}
	if second := insert(); second.Fence <= first.Fence {
		t.Fatalf("fence %d after %d", second.Fence, first.Fence)
	}
}
