package bloom

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// liar is a filter that answers as it likes.
type liar func(k claim.Key) bool

func (l liar) MaybeHas(k claim.Key) bool { return l(k) }
func (liar) Add(claim.Key)               {}

// stale learns of a key only when so many others were added after it.
type stale struct {
	mu struct {
		sync.Mutex
		known   map[claim.Key]bool
		waiting []claim.Key
	}
}

const staleBy = 3

func (s *stale) MaybeHas(k claim.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.known[k]
}

func (s *stale) Add(k claim.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.waiting = append(s.mu.waiting, k)
	if len(s.mu.waiting) > staleBy {
		s.mu.known[s.mu.waiting[0]] = true
		s.mu.waiting = s.mu.waiting[1:]
	}
}

func newStale() *stale {
	s := &stale{}
	s.mu.known = map[claim.Key]bool{}
	return s
}

// filters are the ways a filter can be right or wrong. The random one needs no
// seed in the log: its answers must not matter.
var filters = map[string]func() Filter{
	"says yes": func() Filter { return liar(func(claim.Key) bool { return true }) },
	"says no":  func() Filter { return liar(func(claim.Key) bool { return false }) },
	"random":   func() Filter { return liar(func(claim.Key) bool { return rand.IntN(2) == 0 }) },
	"stale":    func() Filter { return newStale() },
}

func opener(filter func() Filter) storagetest.Opener {
	return func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		t.Helper()
		s, err := New(Config{Store: storagetest.NewModel(clock.Now, grace), Filter: filter()})
		if err != nil {
			t.Fatalf("%v", err)
		}
		return s
	}
}

// openBuiltin opens a store whose filter is off (built never), or on: built,
// and so small that it is saturated and rebuilt by Run all the time.
func openBuiltin(on bool) storagetest.Opener {
	return func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		t.Helper()
		s, err := New(Config{Store: storagetest.NewModel(clock.Now, grace), Capacity: 4})
		if err != nil {
			t.Fatalf("%v", err)
		}
		if !on {
			return s
		}
		if err := s.builtin.rebuild(t.Context()); err != nil {
			t.Fatalf("%v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		})
		return s
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, filter := range filters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storagetest.Run(t, opener(filter))
		})
	}
	t.Run("off", func(t *testing.T) {
		t.Parallel()
		storagetest.Run(t, openBuiltin(false))
	})
	t.Run("on", func(t *testing.T) {
		t.Parallel()
		storagetest.Run(t, openBuiltin(true))
	})
}

// TestHistories is invariant I9: on, off, stale and lying, the same answers.
func TestHistories(t *testing.T) {
	t.Parallel()
	backends := map[string]storagetest.Backend{
		"off": {Open: openBuiltin(false), Reopen: reopen(nil)},
		"on":  {Open: openBuiltin(true)},
	}
	for name, filter := range filters {
		backends[name] = storagetest.Backend{Open: opener(filter), Reopen: reopen(filter)}
	}
	storagetest.Histories(t, backends)
}

// reopen restarts the store inside; the filter forgets everything.
func reopen(filter func() Filter) func(storagetest.T, storage.Store, *storagetest.Clock, time.Duration) storage.Store {
	return func(t storagetest.T, s storage.Store, _ *storagetest.Clock, _ time.Duration) storage.Store {
		t.Helper()
		c := Config{Store: s.(*Store).Store.(*storagetest.Model).Reopen()}
		if filter != nil {
			c.Filter = filter()
		}
		again, err := New(c)
		if err != nil {
			t.Fatalf("%v", err)
		}
		return again
	}
}

type bench struct {
	*Store
	model    *storagetest.Model
	counting *storagetest.Counting
	clock    *storagetest.Clock
}

// setup returns a store that counts its trips, with its filter built.
func setup(t *testing.T, change func(*Config)) *bench {
	t.Helper()
	b := &bench{clock: storagetest.NewClock(storagetest.Start)}
	b.model = storagetest.NewModel(b.clock.Now, time.Minute)
	b.counting = storagetest.NewCounting(b.model)
	c := Config{Store: b.counting, Capacity: 1000}
	if change != nil {
		change(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	b.Store = s
	if s.builtin != nil {
		if err := s.builtin.rebuild(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func request(tenant claim.TenantID, event int, attempt byte) claim.Request {
	return claim.Request{
		Key:     claim.Key{Tenant: tenant, Consumer: "c", EventID: fmt.Sprint(event)},
		Attempt: claim.AttemptID{1: attempt}, InsertBefore: claim.Never, Lease: time.Second,
		Policy: claim.Policy{Window: time.Second, Retention: time.Minute},
	}
}

func (b *bench) insert(t *testing.T, reqs ...claim.Request) []storage.Found {
	t.Helper()
	b.counting.Reset()
	found, err := b.InsertOrGet(t.Context(), reqs)
	if err != nil || len(found) != len(reqs) {
		t.Fatalf("%d items, error %v", len(found), err)
	}
	return found
}

func (b *bench) wantTrips(t *testing.T, inserts, gets int) {
	t.Helper()
	if i, g := b.counting.Calls(storagetest.InsertOrGet), b.counting.Calls(storagetest.Get); i != inserts || g != gets {
		t.Errorf("%d inserts and %d reads, want %d and %d", i, g, inserts, gets)
	}
}

func TestTrips(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, request(1, 1, 1), request(1, 2, 1))
	b.wantTrips(t, 1, 0) // fresh keys are not read
	b.insert(t, request(1, 1, 2), request(1, 2, 2))
	b.wantTrips(t, 0, 1) // known keys are not inserted
	found := b.insert(t, request(1, 2, 3), request(1, 3, 3), request(1, 1, 3))
	b.wantTrips(t, 1, 1)
	if b.counting.Items(storagetest.InsertOrGet) != 1 || b.counting.Items(storagetest.Get) != 2 {
		t.Errorf("%d inserted and %d read, want 1 and 2", b.counting.Items(storagetest.InsertOrGet), b.counting.Items(storagetest.Get))
	}
	for i, attempt := range []byte{1, 3, 1} {
		if found[i].Record.AttemptID[1] != attempt {
			t.Errorf("item %d is of attempt %d, want %d", i, found[i].Record.AttemptID[1], attempt)
		}
	}
	if got := b.FilterStats(); got.Skipped != 3 || got.Passed != 4 || got.FalsePositives != 0 || got.Keys != 3 || !got.Ready {
		t.Errorf("%+v", got)
	}
}

func TestTripsOfAWrongGuess(t *testing.T) {
	t.Parallel()
	yes := setup(t, func(c *Config) { c.Filter = filters["says yes"]() })
	yes.insert(t, request(1, 1, 1))
	yes.wantTrips(t, 1, 1)
	if got := yes.FilterStats(); got.FalsePositives != 1 || got.Passed != 1 {
		t.Errorf("%+v", got)
	}
	no := setup(t, func(c *Config) { c.Filter = filters["says no"]() })
	no.insert(t, request(1, 1, 1))
	no.insert(t, request(1, 1, 2))
	no.wantTrips(t, 1, 0) // the insert answers for a key that was there
}

func TestNothingIsKnownBeforeTheFirstBuild(t *testing.T) {
	t.Parallel()
	model := storagetest.NewModel(time.Now, time.Minute)
	s, err := New(Config{Store: model})
	if err != nil {
		t.Fatal(err)
	}
	if !s.filter.MaybeHas(request(1, 1, 1).Key) || s.FilterStats().Ready {
		t.Error("a filter that was never built says what is not stored")
	}
}

// TestKeysOfOthers: what another replica has written is not in this filter
// until the next rebuild, and answered right all the same.
func TestKeysOfOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	if _, err := b.model.InsertOrGet(t.Context(), []claim.Request{request(1, 1, 1)}); err != nil {
		t.Fatal(err)
	}
	found := b.insert(t, request(1, 1, 2))
	b.wantTrips(t, 1, 0)
	if found[0].Record.AttemptID[1] != 1 {
		t.Errorf("found %+v", found[0])
	}
	b.insert(t, request(1, 1, 2)) // learnt by meeting it
	b.wantTrips(t, 0, 1)
}

func TestARepeatedKeyIsRefusedHoweverItIsGuessed(t *testing.T) {
	t.Parallel()
	turn := 0
	b := setup(t, func(c *Config) { c.Filter = liar(func(claim.Key) bool { turn++; return turn%2 == 0 }) })
	_, err := b.InsertOrGet(t.Context(), []claim.Request{request(1, 1, 1), request(1, 1, 2)})
	if !errors.Is(err, storage.ErrRepeatedKey) || b.counting.Trips() != 0 {
		t.Errorf("error %v after %d trips", err, b.counting.Trips())
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	for _, m := range []storagetest.Method{storagetest.Get, storagetest.InsertOrGet} {
		for want, fault := range map[error]storagetest.Fault{
			storage.ErrUnavailable: {Before: storage.ErrUnavailable}, storage.ErrUnknown: {After: storage.ErrUnknown},
		} {
			b := setup(t, func(c *Config) {
				c.Store = storagetest.NewFaulty(c.Store, storagetest.FaultAt(m, 0, fault))
				c.Filter = filters["says yes"]()
			})
			found, err := b.InsertOrGet(t.Context(), []claim.Request{request(1, 1, 1)})
			if err == nil {
				err = found[0].Err
			}
			if !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", m, err, want)
			}
			failsAlone(t, m, fault, want)
		}
		b := setup(t, func(c *Config) {
			c.Store = storagetest.NewFaulty(c.Store, storagetest.FaultAt(m, 0, storagetest.Fault{
				Withhold: map[int]error{0: storage.ErrClockSuspect}, Lose: map[int]error{1: storage.ErrUnknown},
			}))
			c.Filter = filters["says yes"]()
		})
		found := b.insert(t, request(1, 1, 1), request(1, 2, 1), request(1, 3, 1))
		if !errors.Is(found[0].Err, storage.ErrClockSuspect) || !errors.Is(found[1].Err, storage.ErrUnknown) || found[2].Record.State != claim.InProgress {
			t.Errorf("%s: %+v", m, found)
		}
	}
}

// failsAlone: where a batch needs both trips, one that fails says nothing of the
// items of the other, which are answered and stored.
func failsAlone(t *testing.T, m storagetest.Method, fault storagetest.Fault, want error) {
	t.Helper()
	b := setup(t, func(c *Config) {
		c.Store = storagetest.NewFaulty(c.Store, storagetest.FaultAt(m, 0, fault))
		c.Filter = liar(func(k claim.Key) bool { return k.EventID == "2" })
	})
	if _, err := b.model.InsertOrGet(t.Context(), []claim.Request{request(1, 2, 1)}); err != nil {
		t.Fatal(err)
	}
	found := b.insert(t, request(1, 1, 2), request(1, 2, 2))
	failed, other := found[0], found[1]
	if m == storagetest.Get {
		failed, other = other, failed
	}
	if !errors.Is(failed.Err, want) || other.Err != nil || other.Record.State != claim.InProgress {
		t.Errorf("%s fails with %v: %+v", m, want, found)
	}
}

func TestRebuild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fails := 2
		b := setup(t, func(c *Config) {
			c.Capacity = 10
			c.Store = storagetest.NewFaulty(c.Store, func(_ context.Context, call storagetest.Call) storagetest.Fault {
				if call.Method == storagetest.Scan && call.Index > 0 && fails > 0 {
					fails--
					return storagetest.Fault{Before: storage.ErrUnavailable}
				}
				return storagetest.Fault{}
			})
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		synctest.Wait()
		if got := b.FilterStats(); got.Rebuilds != 1 { // by setup
			t.Fatalf("rebuilt though scans fail: %+v", got)
		}
		time.Sleep(2 * RetryAfterDefault) // the bubble's time
		synctest.Wait()
		if got := b.FilterStats(); got.Rebuilds != 2 || fails != 0 {
			t.Fatalf("not rebuilt after scans succeed: %+v", got)
		}
		for i := range 11 {
			b.insert(t, request(1, i, 1))
		}
		synctest.Wait()
		got := b.FilterStats()
		if got.Rebuilds != 3 || got.Keys < 10 || b.builtin.mu.current.capacity < 20 {
			t.Fatalf("not rebuilt, or not larger, once saturated: %+v", got)
		}
		// What is swept is forgotten by the next rebuild.
		b.clock.Advance(time.Hour)
		for shard := range 3 {
			if _, err := b.Sweep(t.Context(), storage.Sweep{Shard: shard, Limit: 100}); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.builtin.rebuild(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := b.FilterStats(); got.Keys != 0 || got.Fill != 0 {
			t.Fatalf("remembers what is gone: %+v", got)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}

// TestWritesDuringARebuildEnterBothGenerations: a key that is written when the
// scan has passed it must not be lost.
func TestWritesDuringARebuildEnterBothGenerations(t *testing.T) {
	t.Parallel()
	var b *bench
	b = setup(t, func(c *Config) {
		c.Store = storagetest.NewFaulty(c.Store, storagetest.FaultAt(storagetest.Scan, 1, storagetest.Fault{
			Then: func() { // the scan has ended, its generation does not answer yet
				if !b.filter.MaybeHas(request(1, 1, 1).Key) {
					t.Error("the filter forgot during a rebuild")
				}
				b.insert(t, request(1, 2, 1))
			},
		}))
	})
	b.insert(t, request(1, 1, 1))
	if err := b.builtin.rebuild(t.Context()); err != nil {
		t.Fatal(err)
	}
	for event := 1; event <= 2; event++ {
		if !b.filter.MaybeHas(request(1, event, 1).Key) {
			t.Errorf("event %d is not in the new generation", event)
		}
	}
}

func TestNoFalseNegativesUnderConcurrency(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 300
	b := setup(t, func(c *Config) { c.Capacity = 100 })
	ctx, cancel := context.WithCancel(t.Context())
	var rebuilding, writing sync.WaitGroup
	rebuilding.Go(func() {
		for ctx.Err() == nil {
			if err := b.builtin.rebuild(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				r := request(claim.TenantID(w), i, 1)
				if _, err := b.InsertOrGet(ctx, []claim.Request{r}); err != nil {
					t.Error(err)
				}
				if !b.filter.MaybeHas(r.Key) {
					t.Errorf("tenant %d, event %d is stored, but not seen", w, i)
				}
			}
		})
	}
	writing.Wait()
	cancel()
	rebuilding.Wait()
}

func TestFalsePositivesAndMemory(t *testing.T) {
	t.Parallel()
	const n, rate = 50_000, 0.01
	g := newGeneration(n, rate, 1, MemoryDefault)
	for i := range n {
		g.add(request(1, i, 1).Key)
	}
	wrong := 0
	for i := range n {
		if g.maybeHas(request(2, i, 1).Key) {
			wrong++
		}
	}
	if got := float64(wrong) / n; got > 1.5*rate || got == 0 {
		t.Errorf("%.4f false positives, want about %.2f", got, rate)
	}
	if g.bytes > 2*n || g.fill() < 0.4 || g.fill() > 0.6 {
		t.Errorf("%d bytes, fill %.2f", g.bytes, g.fill())
	}
	if small := newGeneration(1<<30, rate, 1, memoryMin/2); small.bytes > memoryMin/2 || small.capacity > 8*memoryMin {
		t.Errorf("%d bytes and capacity %d, want at most %d bytes", small.bytes, small.capacity, memoryMin/2)
	}
}

// TestMemoryBoundEndsRebuilding: where the memory does not allow for more keys
// a saturated filter is not rebuilt with every claim.
func TestMemoryBoundEndsRebuilding(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	r := b.builtin
	r.mu.current = newGeneration(100, 0.01, 1, MemoryDefault)
	r.mu.scanned = 200
	r.mu.current.keys.Store(200)
	for i := range 24 {
		r.Add(request(1, i, 1).Key)
	}
	if len(r.saturated) != 0 {
		t.Fatal("asked for a rebuild before a quarter of its capacity was added")
	}
	for i := range 10 { // a few may be false positives, which count as known
		r.Add(request(2, i, 1).Key)
	}
	if len(r.saturated) != 1 {
		t.Fatal("never asks for a rebuild")
	}
}

func TestTenantShare(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.Capacity, c.TenantShareMax = 100, 0.25 })
	for i := range 100 {
		b.insert(t, request(1, i, 1))
	}
	b.insert(t, request(2, 1, 1))
	if got := b.FilterStats().Keys; got != 26 {
		t.Errorf("%d keys, want 25 of the first tenant and 1 of the second", got)
	}
	if found := b.insert(t, request(1, 99, 2)); found[0].Record.AttemptID[1] != 1 {
		t.Errorf("a key beyond the share is granted again: %+v", found[0])
	}
}

func TestKeysAreNotMixedUp(t *testing.T) {
	t.Parallel()
	g := newGeneration(1000, 1e-9, 1, MemoryDefault)
	g.add(claim.Key{Tenant: 1, Consumer: "a", EventID: "b/c"})
	for _, other := range []claim.Key{
		{Tenant: 1, Consumer: "a/b", EventID: "c"}, {Tenant: 1, Consumer: "ab", EventID: "/c"}, {Tenant: 2, Consumer: "a", EventID: "b/c"},
	} {
		if g.maybeHas(other) {
			t.Errorf("%+v is taken for another key", other)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Capacity: -1, FalsePositives: 1, MemoryMaxBytes: 1, TenantShareMax: 2, RetryAfter: -1})
	for _, field := range []string{"Store", "Capacity", "FalsePositives", "MemoryMaxBytes", "TenantShareMax", "RetryAfter"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not reported: %v", field, err)
		}
	}
}

func TestRunWithAGivenFilterEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.Filter = newStale() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

func BenchmarkMaybeHas(b *testing.B) {
	g := newGeneration(1_000_000, 0.01, 1, MemoryDefault)
	for i := range 1_000_000 {
		g.add(request(1, i, 1).Key)
	}
	k := request(2, 1, 1).Key
	b.ReportAllocs()
	for b.Loop() {
		g.maybeHas(k)
	}
}

func BenchmarkAdd(b *testing.B) {
	g := newGeneration(1_000_000, 0.01, 1, MemoryDefault)
	keys := make([]claim.Key, 1<<16)
	for i := range keys {
		keys[i] = request(1, i, 1).Key
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		g.add(keys[i%len(keys)])
	}
}
