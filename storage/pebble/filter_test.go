package pebble

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

func insertMany(t *testing.T, s *Store, prefix string, n int) {
	t.Helper()
	for from := 0; from < n; from += claim.BatchItemsMax {
		var reqs []claim.Request
		for i := from; i < min(n, from+claim.BatchItemsMax); i++ {
			reqs = append(reqs, testRequest(fmt.Sprintf("%s-%d", prefix, i), claim.AttemptID{1}))
		}
		if _, err := s.InsertOrGet(context.Background(), reqs); err != nil {
			t.Fatal(err)
		}
	}
}

func filterStats(t *testing.T, s *Store) storage.FilterStats {
	t.Helper()
	st, err := s.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return st.Filter
}

func TestFilterOfANewStoreIsComplete(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now})
	insertMany(t, s, "a", 1000)
	st := filterStats(t, s)
	if !st.Ready || st.Keys < 990 || st.Skipped < 990 {
		t.Fatalf("filter %+v: fresh keys of a new store should not be read", st)
	}
}

func TestFilterIsNotUsedBeforeItsScan(t *testing.T) {
	t.Parallel()
	fs, clock := vfs.NewMem(), storagetest.NewClock(epoch)
	s := mustOpen(t, Config{FS: fs, Clock: clock.Now})
	insertMany(t, s, "old", 700)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, Config{FS: fs, Clock: clock.Now})
	if st := filterStats(t, s); st.Ready {
		t.Fatalf("ready before a scan: %+v", st)
	}
	insertMany(t, s, "old", 700) // all taken: a filter used too early would grant them again
	insertMany(t, s, "young", 300)
	if err := s.RebuildFilter(context.Background()); err != nil {
		t.Fatal(err)
	}
	st := filterStats(t, s)
	if !st.Ready || st.Keys != 1000 || st.Rebuilds != 1 || st.Skipped != 0 {
		t.Fatalf("after the scan: %+v", st)
	}
	found, err := s.InsertOrGet(context.Background(), []claim.Request{testRequest("old-5", claim.AttemptID{9})})
	if err != nil || found[0].Record.AttemptID != (claim.AttemptID{1}) {
		t.Fatalf("%+v, %v", found, err)
	}
}

// TestFilterRebuildUnderWrites: keys written while a generation is built are
// in it.
func TestFilterRebuildUnderWrites(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now, FilterKeysMin: 64})
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := range 20 {
				insertMany(t, s, fmt.Sprintf("w%d-%d", w, i), 50)
			}
		})
	}
	for range 30 {
		if err := s.RebuildFilter(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	missing := 0
	for w := range 2 {
		for i := range 20 {
			for j := range 50 {
				k := testRequest(fmt.Sprintf("w%d-%d-%d", w, i, j), claim.AttemptID{}).Key
				if !s.filter.current.Test(entry(maphash.Bytes(s.seed, appendRecordKey(nil, &k)))) {
					missing++
				}
			}
		}
	}
	if missing > 0 {
		t.Fatalf("%d stored keys are missing in the filter", missing)
	}
}

// TestFilterGrows: a full filter asks to be rebuilt larger.
func TestFilterGrows(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now, FilterKeysMin: 128})
	insertMany(t, s, "a", 100)
	select {
	case <-s.filter.grow:
		t.Fatal("asked to grow before it was full")
	default:
	}
	insertMany(t, s, "b", 100)
	select {
	case <-s.filter.grow:
	default:
		t.Fatal("full and did not ask to grow")
	}
	before := filterStats(t, s).Bytes
	if err := s.RebuildFilter(context.Background()); err != nil {
		t.Fatal(err)
	}
	if after := filterStats(t, s).Bytes; after <= before {
		t.Fatalf("%d bytes after %d", after, before)
	}
}

// TestFilterAudit: a stored key that the filter denies is found by the audit,
// and the filter is dropped.
func TestFilterAudit(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now})
	insertMany(t, s, "a", 10)
	s.mu.Lock()
	s.filter.current = s.filter.newGeneration(1 << 10) // a generation that lost everything
	s.filter.skipped.Store(auditEvery - 1)
	s.mu.Unlock()
	again := []claim.Request{testRequest("a-3", claim.AttemptID{7})}
	if _, err := s.InsertOrGet(context.Background(), again); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatalf("a denied key was answered: %v", err)
	}
	if st := filterStats(t, s); st.Ready || st.AuditHits != 1 {
		t.Fatalf("after a hit: %+v", st)
	}
	found, err := s.InsertOrGet(context.Background(), again)
	if err != nil || found[0].Record.AttemptID != (claim.AttemptID{1}) {
		t.Fatalf("without the filter: %+v, %v", found, err)
	}
}

func TestHashesDifferPerProcess(t *testing.T) {
	t.Parallel()
	a := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now})
	b := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now})
	if key := []byte("key"); maphash.Bytes(a.seed, key) == maphash.Bytes(b.seed, key) {
		t.Fatal("two stores hash alike: collisions can be crafted")
	}
}

// TestFilterFalsePositiveRate holds the figure that the constants promise.
func TestFilterFalsePositiveRate(t *testing.T) {
	t.Parallel()
	const n = 1 << 14
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now, FilterKeysMin: n})
	s.mu.Lock()
	defer s.mu.Unlock()
	var hits int
	rng := rand.New(rand.NewPCG(1, 1))
	for range n {
		s.filter.test(rng.Uint64())
	}
	for range n {
		if s.filter.current.Test(entry(rng.Uint64())) {
			hits++
		}
	}
	if rate := float64(hits) / n; rate > 0.01 {
		t.Fatalf("false positives %.4f, promised 0.0084", rate)
	}
}

// TestFilterIsSizedBeforeItsScan: a store that comes back with many keys needs
// one scan, not two.
func TestFilterIsSizedBeforeItsScan(t *testing.T) {
	t.Parallel()
	fs, clock := vfs.NewMem(), storagetest.NewClock(epoch)
	cfg := Config{FS: fs, Clock: clock.Now, FilterKeysMin: 64}
	s := mustOpen(t, cfg)
	insertMany(t, s, "a", 3000)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, cfg)
	if err := s.RebuildFilter(context.Background()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.filter.grow:
		t.Fatalf("full as soon as it was built: %+v", filterStats(t, s))
	default:
	}
}
