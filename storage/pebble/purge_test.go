package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// purgedTenant is that of testRequest; keptTenant is the next one.
const (
	purgedTenant claim.TenantID = 1
	keptTenant   claim.TenantID = 2
)

// purgeAll purges until nothing is left and returns how many records went.
func purgeAll(t *testing.T, s *Store, limit int) (deleted int) {
	t.Helper()
	step := storage.TenantStep{Tenant: purgedTenant, Limit: limit}
	for {
		out, err := s.Purge(context.Background(), step)
		if err != nil {
			t.Fatal(err)
		}
		deleted += out.Deleted
		if step.Cursor = out.Cursor; step.Cursor == nil {
			return deleted
		}
	}
}

func largeBody() *claim.Completion {
	c := claim.Completion{Outcome: claim.Succeeded, Body: make([]byte, inlineBodyMax+1)}.Summed()
	return &c
}

// insertFor claims and, for every third event, completes with a body that is
// stored aside.
func insertFor(t *testing.T, s *Store, tenant claim.TenantID, name string, n int) (recs []claim.Record) {
	t.Helper()
	for i := range n {
		req := testRequest(fmt.Sprintf("%s-%d", name, i), claim.AttemptID{1})
		req.Key.Tenant = tenant
		found, err := s.InsertOrGet(context.Background(), []claim.Request{req})
		if err != nil {
			t.Fatal(err)
		}
		rec := found[0].Record
		if i%3 == 0 {
			rec = transition(t, s, claim.Complete, rec, largeBody())
		}
		recs = append(recs, rec)
	}
	return recs
}

// countOf counts keys of one kind that a tenant has in the engine, and in memory
// where they are the newest of their key.
func countOf(t *testing.T, s *Store, prefix byte, tenant claim.TenantID) (n int) {
	t.Helper()
	lower := appendRecordKey(nil, &claim.Key{Tenant: tenant})
	lower[0] = prefix
	lower = lower[:9]
	v, err := s.view(context.Background(), lower, successor(lower))
	if err != nil {
		t.Fatal(err)
	}
	for v.next() {
		n++
	}
	if err := v.close(); err != nil {
		t.Fatal(err)
	}
	return n
}

func wantPurged(t *testing.T, s *Store) {
	t.Helper()
	for _, prefix := range []byte{recordPrefix, bodyPrefix} {
		if n := countOf(t, s, prefix, purgedTenant); n != 0 {
			t.Fatalf("%d keys of kind %q are left", n, prefix)
		}
	}
}

// TestPurgeLeavesNothingBehind: wherever records and bodies are, in memory or in
// the engine, they are gone at once, and stay away when memory is written out.
// Entries of the expiry index go when they are due.
func TestPurgeLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 7, storage.TenantStepMax} {
		for _, flushed := range []string{"all", "half", "none"} {
			t.Run(fmt.Sprintf("limit=%d, flushed=%s", limit, flushed), func(t *testing.T) {
				t.Parallel()
				clock := storagetest.NewClock(epoch)
				s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: clock.Now, MemTableBytes: 1 << 20})
				first := insertFor(t, s, purgedTenant, "a", 30)
				kept := insertFor(t, s, keptTenant, "a", 9)
				if flushed != "none" {
					flushAll(t, s)
				}
				insertFor(t, s, purgedTenant, "b", 30)
				transition(t, s, claim.Complete, first[1], largeBody()) // in the engine, and then in memory
				if flushed == "all" {
					flushAll(t, s)
				}
				if n := purgeAll(t, s, limit); n != 60 {
					t.Errorf("%d records deleted, want 60", n)
				}
				for range 2 {
					wantPurged(t, s)
					if n := countOf(t, s, recordPrefix, keptTenant) + countOf(t, s, bodyPrefix, keptTenant); n != 9+3 {
						t.Errorf("another tenant has %d keys, want 12", n)
					}
					flushAll(t, s)
				}
				mustVerify(t, s, kept)
				clock.Advance(claim.RetentionDefault + claim.SweepGrace + 2*time.Minute)
				if n := sweepAll(t, s, 10); n != len(kept) {
					t.Errorf("%d records swept, want %d", n, len(kept))
				}
				if n := countKeys(t, s, indexPrefix); n != 0 {
					t.Errorf("%d index entries are left", n)
				}
			})
		}
	}
}

func mustVerify(t *testing.T, s *Store, recs []claim.Record) {
	t.Helper()
	acked := map[claim.Key]claim.Record{}
	for _, rec := range recs {
		acked[rec.Key] = rec
	}
	if err := verify(s, acked); err != nil {
		t.Fatal(err)
	}
}

// TestPurgeSurvivesCrashes crashes a store after every step of a purge, with
// none, some or all of what was not synced surviving. What is left of the disk
// opens, has everything of others, and can be purged to the end; after the last
// step nothing of the tenant is on it.
func TestPurgeSurvivesCrashes(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	clock := storagetest.NewClock(epoch)
	for round := range 12 {
		fs := vfs.NewCrashableMem()
		s := mustOpen(t, Config{FS: fs, Clock: clock.Now, MemTableBytes: 16 << 10 << rng.IntN(6)})
		n := 20 + rng.IntN(40)
		insertFor(t, s, purgedTenant, "a", n)
		kept := insertFor(t, s, keptTenant, "a", 10)
		if rng.IntN(2) == 0 {
			flushAll(t, s)
		}
		insertFor(t, s, purgedTenant, "b", n)
		step := storage.TenantStep{Tenant: purgedTenant, Limit: 1 + rng.IntN(n)}
		for done := false; !done; {
			out, err := s.Purge(context.Background(), step)
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			step.Cursor, done = out.Cursor, out.Cursor == nil
			kept = append(kept, insertFor(t, s, keptTenant, fmt.Sprintf("r%x", step.Cursor), 2)...)
			left := fs.CrashClone(vfs.CrashCloneCfg{
				UnsyncedDataPercent: []int{0, 50, 100}[rng.IntN(3)], RNG: rand.New(rand.NewPCG(rng.Uint64(), 6)),
			})
			checkPurgedClone(t, left, clock, kept, done)
		}
	}
}

func checkPurgedClone(t *testing.T, fs *vfs.MemFS, clock *storagetest.Clock, kept []claim.Record, done bool) {
	t.Helper()
	s, err := Open(small(Config{Dir: "store", FS: fs, Clock: clock.Now}))
	if err != nil {
		t.Fatalf("open after crash: %v", err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if !done {
		purgeAll(t, s, 10)
	}
	wantPurged(t, s)
	mustVerify(t, s, kept)
	fresh := claimOne(t, s, "fresh", testRng())
	for _, rec := range kept {
		if fresh.Fence <= rec.Fence {
			t.Fatalf("fence %d after %d", fresh.Fence, rec.Fence)
		}
	}
}

// TestPurgeRaces lets calls for the tenant in between finding keys and deleting
// them, and in between that and writing it out. The contract excludes such
// calls, but no record may be damaged by one: it is there with its body or gone.
func TestPurgeRaces(t *testing.T) {
	t.Parallel()
	finish := func(t *testing.T, s *Store, recs []claim.Record) {
		t.Helper()
		transition(t, s, claim.Complete, recs[1], largeBody())
	}
	forget := func(t *testing.T, s *Store, recs []claim.Record) {
		t.Helper()
		swap(t, s, claim.NewSwap(claim.Forget, &recs[0], nil))
	}
	add := func(t *testing.T, s *Store, _ []claim.Record) {
		t.Helper()
		insertFor(t, s, purgedTenant, "a-1-new", 1) // within the range that is deleted
	}
	for name, act := range map[string]func(*testing.T, *Store, []claim.Record){"finish": finish, "forget": forget, "add": add} {
		for _, early := range []bool{true, false} {
			for _, flushed := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, early=%t, flushed=%t", name, early, flushed), func(t *testing.T) {
					t.Parallel()
					s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now, MemTableBytes: 1 << 20})
					recs := insertFor(t, s, purgedTenant, "a", 12)
					if flushed {
						flushAll(t, s)
					}
					raceWithPurge(t, s, early, flushed || name == "add", func() { act(t, s, recs) })
				})
			}
		}
	}
}

func raceWithPurge(t *testing.T, s *Store, early, late bool, act func()) {
	t.Helper()
	ctx := t.Context()
	step := storage.TenantStep{Tenant: purgedTenant, Limit: storage.TenantStepMax}
	var keys [][]byte
	if _, err := s.walkTenant(ctx, "purge", step, func(v *view) (bool, error) {
		keys = append(keys, bytes.Clone(v.key))
		return false, nil
	}, func() {}); err != nil {
		t.Fatal(err)
	}
	if early {
		act()
	}
	lower, _, err := tenantBounds("purge", step)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.purgeKeys(ctx, lower, keys)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.durable(ctx, c); err != nil {
		t.Fatal(err)
	}
	if !early && late { // else there is nothing to act on any more
		act()
	}
	for range 2 {
		mustReadTenant(t, s)
		if err := s.flushNow(ctx); err != nil {
			t.Fatal(err)
		}
	}
	mustReadTenant(t, s)
	purgeAll(t, s, 3)
	wantPurged(t, s)
}

// mustReadTenant reads all that is found of the tenant, with bodies.
func mustReadTenant(t *testing.T, s *Store) {
	t.Helper()
	var keys []claim.Key
	err := s.Scan(t.Context(), func(k claim.Key) error { keys = append(keys, k); return nil })
	if err != nil {
		t.Fatal(err)
	}
	found, err := s.Get(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		if c := found[i].Record.Completion; c != nil && len(c.Body) != inlineBodyMax+1 {
			t.Fatalf("%+v has a body of %d bytes", keys[i], len(c.Body))
		}
	}
}

// TestPurgeWaitsForItsFlush: the last step is not over before the engine has
// it, also when memory is full; one that gives up does not say that nothing was
// applied, and what it did is done all the same.
func TestPurgeWaitsForItsFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newTrouble()
		s := mustOpen(t, Config{FS: errorfs.Wrap(vfs.NewMem(), v), Clock: time.Now})
		insertFor(t, s, purgedTenant, "a", 20)
		flushAll(t, s)
		gate := v.hold(makesFlush)
		fillMemory(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		step := storage.TenantStep{Tenant: purgedTenant, Limit: storage.TenantStepMax}
		if _, err := s.Purge(ctx, step); !errors.Is(err, storage.ErrUnknown) || errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("a purge whose time is up: %v, want %v", err, storage.ErrUnknown)
		}
		done := make(chan error, 1)
		go func() {
			_, err := s.Purge(t.Context(), step)
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("the purge did not wait: %v", err)
		default:
		}
		v.end()
		close(gate)
		if err := <-done; err != nil {
			t.Error(err)
		}
		wantPurged(t, s)
	})
}

// TestTallyReadsBodiesInBounds: a step that meets large results ends before it
// has looked at all that it may, and all are counted once.
func TestTallyReadsBodiesInBounds(t *testing.T) {
	t.Parallel()
	const n, size = 5, tallyBodyBytesMax / 4
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now, MemTableBytes: 2 * size})
	c := claim.Completion{Outcome: claim.Succeeded, Body: make([]byte, size)}.Summed()
	for i := range n {
		transition(t, s, claim.Complete, claimOne(t, s, fmt.Sprint(i), testRng()), &c)
	}
	var keys []int64
	var sum int64
	step := storage.TenantStep{Tenant: purgedTenant, Limit: storage.TenantStepMax}
	for {
		out, err := s.Tally(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		keys, sum = append(keys, out.Counts["c"].Keys), sum+out.Counts["c"].Bytes
		if step.Cursor = out.Cursor; step.Cursor == nil {
			break
		}
	}
	if len(keys) != 2 || keys[0] != 4 || keys[1] != 1 {
		t.Errorf("steps of %v records, want 4 and 1", keys)
	}
	if sum < n*size || sum > n*(size+1000) {
		t.Errorf("%d bytes of %d results of %d", sum, n, size)
	}
}

// TestPurgeEndsOnNothing: the last step also waits for what those before it have
// written where a sweep has left nothing for it.
func TestPurgeEndsOnNothing(t *testing.T) {
	t.Parallel()
	clock := storagetest.NewClock(epoch)
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: clock.Now, SweepGrace: time.Microsecond})
	insertFor(t, s, purgedTenant, "a", 5)
	for i := range 5 {
		req := testRequest(fmt.Sprintf("b-%d", i), claim.AttemptID{1})
		req.Lease, req.Policy.Window, req.Policy.Retention = time.Second, time.Second, 2*time.Second
		if _, err := s.InsertOrGet(t.Context(), []claim.Request{req}); err != nil {
			t.Fatal(err)
		}
	}
	flushAll(t, s)
	step := storage.TenantStep{Tenant: purgedTenant, Limit: 5}
	out, err := s.Purge(t.Context(), step)
	if err != nil || out.Deleted != 5 || out.Cursor == nil {
		t.Fatalf("the first step: %+v, %v", out, err)
	}
	clock.Advance(3 * time.Second)
	if n := sweepAll(t, s, 10); n != 5 {
		t.Fatalf("%d swept, want 5", n)
	}
	step.Cursor = out.Cursor
	if out, err = s.Purge(t.Context(), step); err != nil || out.Looked != 0 || out.Cursor != nil {
		t.Fatalf("the last step: %+v, %v", out, err)
	}
	wantPurged(t, s)
}
