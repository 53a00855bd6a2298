package pebble

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storagetest"
)

// paper is what was acknowledged of a registry: for each change, the revision.
type paper struct {
	mu      sync.Mutex
	applied map[int]registry.Applied
	lease   registry.Lease
}

func newPaper() *paper { return &paper{applied: map[int]registry.Applied{}} }

func (p *paper) ack(n int, a registry.Applied) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied[n] = a
}

func (p *paper) snapshot() *paper {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &paper{applied: maps.Clone(p.applied), lease: p.lease}
}

// numbered is the n-th change: a key, a finding and an audit entry that name it.
func numbered(n int) registry.Change {
	name := fmt.Sprintf("k%d", n)
	var id registry.ID
	copy(id[:], name)
	return registry.Change{
		ID:       id,
		Keys:     []registry.Write[registry.Key]{registry.Put(registry.Key{ID: name})},
		Findings: []registry.Write[registry.Finding]{registry.Put(registry.Finding{ID: id, Kind: name, State: registry.FindingOpen})},
		Audit:    []registry.AuditEntry{{Actor: "a", Action: "b", Target: name}},
	}
}

// administer makes changes from..to, beside claims, and notes what was
// acknowledged.
func administer(s *Store, p *paper, rng *rand.Rand, from, to int) error {
	ctx := context.Background()
	for n := from; n < to; n++ {
		a, err := s.Registry().Apply(ctx, numbered(n))
		if err != nil {
			return err
		}
		p.ack(n, a)
		if _, err := s.InsertOrGet(ctx, []claim.Request{testRequest(fmt.Sprintf("beside-%d", n), testAttempt(rng))}); err != nil {
			return err
		}
		l, held, err := s.Registry().Lease(ctx, "l", "me", registry.LeaseMax)
		if err != nil || !held {
			return errors.Join(err, fmt.Errorf("lease %+v", l))
		}
		p.mu.Lock()
		p.lease = l
		p.mu.Unlock()
	}
	return nil
}

// verifyRegistry demands all that was acknowledged, and that changes are there
// as a whole.
func verifyRegistry(s *Store, p *paper) error {
	ctx, r := context.Background(), s.Registry()
	c, err := r.Load(ctx, 0)
	if err != nil {
		return err
	}
	keys := map[string]registry.Revision{}
	for i := range c.Keys {
		keys[c.Keys[i].ID] = c.Keys[i].Revision
	}
	f, err := r.Findings(ctx, registry.FindingQuery{Scope: registry.Platform(), Limit: registry.PageMax})
	if err != nil {
		return err
	}
	findings := map[string]registry.Revision{}
	for i := range f.Findings {
		findings[f.Findings[i].Kind] = f.Findings[i].Revision
	}
	a, err := r.Audit(ctx, registry.AuditQuery{Scope: registry.Platform(), Limit: registry.PageMax})
	if err != nil {
		return err
	}
	audit := map[string]registry.Revision{}
	for i := range a.Entries {
		audit[a.Entries[i].Target] = a.Entries[i].Revision
	}
	if !maps.Equal(keys, findings) || !maps.Equal(keys, audit) {
		return fmt.Errorf("%w: a part of a change: %v %v %v", errLost, keys, findings, audit)
	}
	for n, done := range p.applied {
		if keys[fmt.Sprintf("k%d", n)] != done.Revision || c.Revision < done.Revision {
			return fmt.Errorf("%w: change %d, which was revision %d of %d", errLost, n, done.Revision, c.Revision)
		}
		if again, err := r.Apply(ctx, numbered(n)); err != nil || again != done {
			return errors.Join(err, fmt.Errorf("%w: the proof of change %d: %+v", errLost, n, again))
		}
	}
	l, err := r.Leases(ctx)
	if err == nil && p.lease.Fence != 0 && (len(l.Leases) != 1 || l.Leases[0].Fence != p.lease.Fence) {
		err = fmt.Errorf("%w: lease %+v of %+v", errLost, l.Leases, p.lease)
	}
	return err
}

// TestRegistryCrashes crashes a store at random points of its administration.
func TestRegistryCrashes(t *testing.T) {
	t.Parallel()
	const generations, each, writers, clones = 6, 6, 3, 8
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	clock, fs, p, next := storagetest.NewClock(epoch), vfs.NewCrashableMem(), newPaper(), 0
	for range generations {
		s := mustOpen(t, Config{FS: fs, Clock: clock.Now})
		if err := verifyRegistry(s, p); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range writers {
			from, wrng := next, rand.New(rand.NewPCG(rng.Uint64(), 2))
			next += each
			wg.Go(func() {
				if err := administer(s, p, wrng, from, from+each); err != nil {
					t.Error(err)
				}
			})
		}
		for range clones {
			acked := p.snapshot()
			left := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[rng.IntN(3)], RNG: rand.New(rand.NewPCG(rng.Uint64(), 3))})
			c, err := Open(small(Config{Dir: "store", FS: left, Clock: clock.Now}))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(verifyRegistry(c, acked), c.Close()); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
		fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(rng.Uint64(), 4))})
	}
}

// TestRegistryDamage flips, cuts and deletes as TestDamage does. Nothing of the
// registry may be lost without a word.
func TestRegistryDamage(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, crashed := range []bool{false, true} {
		t.Run(fmt.Sprintf("crashed=%v", crashed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 7))
			fs, p := vfs.NewCrashableMem(), newPaper()
			clock := storagetest.NewClock(epoch)
			for g := range 3 {
				s := mustOpen(t, Config{FS: fs, Clock: clock.Now})
				if err := administer(s, p, rng, 12*g, 12*g+12); err != nil {
					t.Fatal(err)
				}
				if crashed {
					fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
				} else if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			tally := map[string]int{}
			for _, file := range listFiles(t, fs, "store") {
				for _, d := range damages(t, fs, file, rng) {
					tally[class(file)+" "+d.kind+": "+judgeRegistry(t, d, fs, p)]++
				}
			}
			for _, what := range slices.Sorted(maps.Keys(tally)) {
				t.Logf("%4d %s", tally[what], what)
			}
		})
	}
}

func judgeRegistry(t *testing.T, d damage, base *vfs.MemFS, p *paper) string {
	t.Helper()
	fs := base.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: testRng()})
	d.apply(t, fs)
	s, err := Open(small(Config{Dir: "store", FS: fs, Clock: storagetest.NewClock(epoch).Now, Fatal: func(m string) { panic(m) }}))
	if errors.Is(err, storage.ErrDamaged) {
		return "refused"
	}
	if err != nil {
		t.Errorf("%s %s: refused without saying that it is damaged: %v", d.file, d.what, err)
		return "refused oddly"
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("%s %s: close: %v", d.file, d.what, err)
		}
	}()
	switch err := verifyRegistry(s, p); {
	case err == nil:
		return "intact"
	case errors.Is(err, storage.ErrDamaged):
		return "said damaged"
	default:
		t.Errorf("%s %s: %v", d.file, d.what, err)
		return "LOST"
	}
}

// TestRegistryValuesAreChecked: a value that is not what was written, or stands
// under another key, is damage for the whole store.
func TestRegistryValuesAreChecked(t *testing.T) {
	t.Parallel()
	row := rowKey(registry.Ref{Kind: registry.KindKey, Name: "k1"})
	other := rowKey(registry.Ref{Kind: registry.KindKey, Name: "k2"})
	for name, spoil := range map[string]func(key, payload []byte) []byte{
		"bit":       func(key, payload []byte) []byte { v := sealed(key, payload); v[len(v)-1] ^= 1; return v },
		"other key": func(_, payload []byte) []byte { return sealed(other, payload) },
		"format":    func(key, payload []byte) []byte { v := sealed(key, payload); v[0]++; return v },
		"short":     func([]byte, []byte) []byte { return []byte{adminFormat} },
		"no row":    func(key, _ []byte) []byte { return sealed(key, []byte("x")) },
		"cut row":   func(key, payload []byte) []byte { return sealed(key, payload[:len(payload)-1]) },
		"no document": func(key, payload []byte) []byte {
			p := slices.Clone(payload)
			p[len(p)-1] = '{'
			return sealed(key, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, Config{FS: vfs.NewCrashableMem(), Clock: storagetest.NewClock(epoch).Now})
			if err := administer(s, newPaper(), testRng(), 1, 2); err != nil {
				t.Fatal(err)
			}
			payload, err := adminStore{s}.read(row)
			if err != nil {
				t.Fatal(err)
			}
			wait, err := adminStore{s}.write(t.Context(), func(b *builder) {
				start := len(b.ops)
				b.ops = append(beginOp(b.ops, opBody, 0, row), spoil(row, payload)...)
				endOp(b.ops, start)
			})
			if err = errors.Join(err, wait()); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Registry().Load(t.Context(), 0); !errors.Is(err, storage.ErrDamaged) {
				t.Errorf("Load: %v, want %v", err, storage.ErrDamaged)
			}
			if err := s.Ready(t.Context()); !errors.Is(err, storage.ErrDamaged) {
				t.Errorf("Ready: %v, want %v", err, storage.ErrDamaged)
			}
		})
	}
}

// TestRegistryThroughFlushes: what has left memory is read from the engine, and
// what was deleted there stays deleted.
func TestRegistryThroughFlushes(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now})
	p, rng := newPaper(), testRng()
	if err := administer(s, p, rng, 0, 60); err != nil { // several memtables
		t.Fatal(err)
	}
	if s.db.Metrics().Total().TablesIngested == 0 {
		t.Fatal("nothing has been flushed: the test shows nothing")
	}
	f, err := s.Registry().Findings(t.Context(), registry.FindingQuery{Scope: registry.Platform(), Limit: registry.PageMax})
	if err != nil || len(f.Findings) != 60 {
		t.Fatalf("%d findings, %v", len(f.Findings), err)
	}
	c := registry.Change{ID: registry.ID{0xee}, Audit: []registry.AuditEntry{{Actor: "a", Action: "b", Target: "last"}}}
	for _, old := range f.Findings[1:] {
		c.Findings = append(c.Findings, registry.Delete(old))
	}
	if _, err := s.Registry().Apply(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		left, err := s.Registry().Findings(t.Context(), registry.FindingQuery{Scope: registry.Platform(), Limit: registry.PageMax})
		if err != nil || len(left.Findings) != 1 || left.Findings[0].ID != f.Findings[0].ID {
			t.Fatalf("%+v, %v", left, err)
		}
		for n := range 200 {
			claimOne(t, s, fmt.Sprintf("more-%d", n), rng)
		}
	}
}

// TestRegistryEnds: a closed store says so, and a caller whose time is up does
// not wait for the registry.
func TestRegistryEnds(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now})
	s.admin <- struct{}{} // somebody else is at it
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Registry().Apply(ctx, numbered(1))
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("Apply: %v, want %v", err, storage.ErrUnavailable)
	}
	<-s.admin
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r := s.Registry()
	_, apply := r.Apply(t.Context(), numbered(1))
	_, load := r.Load(t.Context(), 0)
	_, _, lease := r.Lease(t.Context(), "l", "me", registry.LeaseMax)
	for what, err := range map[string]error{"Apply": apply, "Load": load, "Lease": lease} {
		if !errors.Is(err, storage.ErrClosed) {
			t.Errorf("%s: %v, want %v", what, err, storage.ErrClosed)
		}
	}
}

// TestRegistryLoadsAreOfOneMoment: each change here adds a key, so a load of
// revision n has n keys, whatever is written and flushed meanwhile.
func TestRegistryLoadsAreOfOneMoment(t *testing.T) {
	t.Parallel()
	const writers, each = 4, 40
	cfg := Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now}
	var s *Store
	cfg.hooks.adminRead = func() {
		select {
		case s.admin <- struct{}{}:
			<-s.admin
			t.Error("a change could be made between the revision and the rows of a load")
		default:
		}
	}
	s = mustOpen(t, cfg)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := range each {
				if _, err := s.Registry().Apply(t.Context(), numbered(w*each+n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	defer func() { <-done }()
	var c registry.Changes
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		var err error
		c, err = s.Registry().Load(t.Context(), 0)
		if err != nil || len(c.Keys) != int(c.Revision) {
			t.Fatalf("revision %d has %d keys, %v", c.Revision, len(c.Keys), err)
		}
	}
	if len(c.Keys) != writers*each {
		t.Fatalf("%d keys of %d", len(c.Keys), writers*each)
	}
}
