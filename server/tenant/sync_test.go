package tenant

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storagetest"
)

// slowRegistry is the model behind a line that takes its time and breaks.
type slowRegistry struct {
	*storagetest.RegistryModel
	mu struct {
		sync.Mutex
		before, after time.Duration // of the instant that a Load sees
		broken        error
		loads         int
		seen          []map[string]claim.Time
		seenBroken    error
		restored      *registry.Changes
	}
}

func (s *slowRegistry) set(edit func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit()
}

// notes are those that were taken, and asked how many Loads began.
func (s *slowRegistry) notes() []map[string]claim.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.seen)
}

func (s *slowRegistry) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.loads
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (s *slowRegistry) Load(ctx context.Context, since registry.Revision) (registry.Changes, error) {
	s.mu.Lock()
	s.mu.loads++
	before, after, broken, restored := s.mu.before, s.mu.after, s.mu.broken, s.mu.restored
	s.mu.Unlock()
	if err := pause(ctx, before); err != nil {
		return registry.Changes{}, err
	}
	c, err := s.RegistryModel.Load(ctx, since)
	if restored != nil {
		c = *restored
	}
	if waited := pause(ctx, after); waited != nil {
		return registry.Changes{}, waited
	}
	if broken != nil {
		return registry.Changes{}, broken
	}
	return c, err
}

func (s *slowRegistry) Seen(_ context.Context, used map[string]claim.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.seenBroken != nil {
		return s.mu.seenBroken
	}
	s.mu.seen = append(s.mu.seen, maps.Clone(used))
	return nil
}

// world is a Syncer that runs, in virtual time.
type world struct {
	*testing.T
	registry *slowRegistry
	dir      *Directory
	sync     *Syncer
	log      bytes.Buffer
	stop     func()
	changes  byte
}

// inWorld runs f beside a Syncer; edit may change its configuration.
func inWorld(t *testing.T, edit func(*world, *SyncConfig), f func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, registry: &slowRegistry{RegistryModel: storagetest.NewRegistryModel(time.Now)}, dir: NewDirectory(&Table{})}
		cfg := SyncConfig{
			Registry: w.registry, Directory: w.dir, Clock: time.Now, Rand: func() float64 { return 0.5 },
			Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
		}
		if edit != nil {
			edit(w, &cfg)
		}
		var err error
		if w.sync, err = NewSyncer(cfg); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() {
			if err := w.sync.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		w.stop = func() { cancel(); run.Wait() }
		defer w.stop()
		f(w)
	})
}

func (w *world) apply(c registry.Change) {
	w.Helper()
	w.changes++
	c.ID = registry.ID{w.changes}
	c.Audit = []registry.AuditEntry{{Actor: "test", Action: "test"}}
	if _, err := w.registry.Apply(w.Context(), c); err != nil {
		w.Fatal(err)
	}
}

// shop adds a tenant with a key, and returns the key's text and row.
func (w *world) shop() (string, registry.Key) {
	w.Helper()
	text, key := stored(1, "claim")
	w.apply(registry.Change{
		Tenants: []registry.Write[registry.Tenant]{registry.Put(team(1, "shop", active))},
		Keys:    []registry.Write[registry.Key]{registry.Put(key)},
	})
	key.Version = 1
	return text, key
}

func (w *world) revoke(key registry.Key) {
	w.Helper()
	key.Revoked = claim.FromTime(time.Now())
	w.apply(registry.Change{Keys: []registry.Write[registry.Key]{registry.Put(key)}})
}

func (w *world) in(text string) bool {
	_, ok := w.dir.Authenticate(text, time.Now())
	return ok
}

// wait lets virtual time pass, and everybody do what is due.
func (w *world) wait(d time.Duration) {
	w.Helper()
	if err := pause(w.Context(), d); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

// TestRevocationWithin5s: at whatever moment of a Load that takes as long as it
// may, and at the longest interval.
func TestRevocationWithin5s(t *testing.T) {
	t.Parallel()
	slowest := LoadTimeout - time.Millisecond
	for _, split := range []time.Duration{0, slowest / 2, slowest} {
		for phase := range 25 {
			t.Run(fmt.Sprintf("%v/%d", split, phase), func(t *testing.T) {
				t.Parallel()
				inWorld(t, func(_ *world, cfg *SyncConfig) {
					cfg.Interval, cfg.Rand = IntervalMax, func() float64 { return 0.999 }
				}, func(w *world) {
					text, key := w.shop()
					w.registry.set(func() { w.registry.mu.before, w.registry.mu.after = split, slowest-split })
					if err := w.sync.Refresh(w.Context()); err != nil || !w.in(text) {
						t.Fatalf("%v, let in = %v", err, w.in(text))
					}
					w.wait(10*time.Second + time.Duration(phase)*100*time.Millisecond)
					w.revoke(key)
					w.wait(5 * time.Second)
					if w.in(text) {
						t.Error("a revoked key is let in after 5 s")
					}
				})
			})
		}
	}
}

// TestRefresh: it is answered by a Load that began after it, one for all.
func TestRefresh(t *testing.T) {
	t.Parallel()
	inWorld(t, nil, func(w *world) {
		text, key := w.shop()
		if err := w.sync.Refresh(w.Context()); err != nil || !w.in(text) {
			t.Fatalf("%v, let in = %v", err, w.in(text))
		}
		// A Load that has already looked does not count.
		w.registry.set(func() { w.registry.mu.after = time.Second / 2 })
		w.wait(1250 * time.Millisecond)
		w.registry.set(func() { w.registry.mu.loads = 0 })
		w.revoke(key)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := w.sync.Refresh(w.Context()); err != nil || w.in(text) {
					t.Errorf("refreshed: %v, let in = %v", err, w.in(text))
				}
			})
		}
		all.Wait()
		if n := w.registry.asked(); n != 1 {
			t.Errorf("%d Loads for 100 who wait", n)
		}
	})
}

// TestRefreshEnds with its context, with a Load that fails, and with Run.
func TestRefreshEnds(t *testing.T) {
	t.Parallel()
	inWorld(t, nil, func(w *world) {
		w.registry.set(func() { w.registry.mu.broken = storage.ErrUnavailable })
		if err := w.sync.Refresh(w.Context()); !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("a Load that fails: %v", err)
		}
		w.registry.set(func() { w.registry.mu.before = time.Hour })
		short, cancel := context.WithTimeout(w.Context(), time.Millisecond)
		defer cancel()
		w.wait(time.Second)
		if err := w.sync.Refresh(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its own end: %v", err)
		}
		ended := make(chan error, 1)
		go func() { ended <- w.sync.Refresh(w.Context()) }()
		synctest.Wait()
		w.stop()
		if err := <-ended; !errors.Is(err, ErrStopped) {
			t.Errorf("Run ended: %v", err)
		}
		if err := w.sync.Refresh(w.Context()); !errors.Is(err, ErrStopped) {
			t.Errorf("afterwards: %v", err)
		}
		if err := w.sync.Run(w.Context()); err == nil {
			t.Error("it runs twice")
		}
	})
}

// TestLoadsThatFail leave the table in force; they are counted, logged once, and
// Age tells how old it is.
func TestLoadsThatFail(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world, _ *SyncConfig) { w.registry.mu.broken = storage.ErrUnavailable }, func(w *world) {
		text, key := w.shop()
		w.wait(4500 * time.Millisecond)
		if s := w.sync.Stats(); !errors.Is(w.sync.Ready(), ErrNotLoaded) || w.sync.Age() != 4500*time.Millisecond || s.LoadFailures != 5 || s.Loads != 5 {
			t.Errorf("before the first: ready %v, age %v, %+v", w.sync.Ready(), w.sync.Age(), s)
		}
		w.registry.set(func() { w.registry.mu.broken = nil })
		w.wait(time.Second)
		if s := w.sync.Stats(); w.sync.Ready() != nil || !w.in(text) || w.sync.Age() != 500*time.Millisecond || s.Revision != 1 {
			t.Errorf("after it: ready %v, let in %v, age %v, %+v", w.sync.Ready(), w.in(text), w.sync.Age(), s)
		}
		w.registry.set(func() { w.registry.mu.broken = storage.ErrUnavailable })
		w.revoke(key)
		w.wait(time.Minute)
		if !w.in(text) || w.sync.Ready() != nil || w.sync.Age() != time.Minute+500*time.Millisecond {
			t.Errorf("while they fail: let in %v, ready %v, age %v", w.in(text), w.sync.Ready(), w.sync.Age())
		}
		w.registry.set(func() { w.registry.mu.broken = nil })
		w.wait(time.Second)
		if w.in(text) {
			t.Error("not up to date again")
		}
		w.stop()
		if n := strings.Count(w.log.String(), "cannot be brought up to date"); n != 2 || strings.Count(w.log.String(), "up to date again") != 2 {
			t.Errorf("%d lines for two times:\n%s", n, &w.log)
		}
	})
}

// TestLargeLoads are given more time when they did not fit: the first Load of a
// large installation succeeds in the end. A short one is not waited for longer
// afterwards.
func TestLargeLoads(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world, _ *SyncConfig) { w.registry.mu.before = 9 * time.Second }, func(w *world) {
		text, _ := w.shop()
		w.wait((2 + 4 + 8 + 9 + 1) * time.Second)
		if s := w.sync.Stats(); !w.in(text) || s.LoadFailures != 3 || w.sync.Age() != 10*time.Second { // since it began
			t.Errorf("let in %v, age %v, %+v", w.in(text), w.sync.Age(), s)
		}
		w.wait(LoadTimeout)
		if s := w.sync.Stats(); s.LoadFailures != 4 {
			t.Errorf("the next was given more than %v: %+v", LoadTimeout, s)
		}
	})
}

// TestRestore: a registry that went back is taken as it is now.
func TestRestore(t *testing.T) {
	t.Parallel()
	inWorld(t, nil, func(w *world) {
		text, key := w.shop()
		other, otherKey := stored(2, "read")
		w.apply(registry.Change{
			Tenants: []registry.Write[registry.Tenant]{registry.Put(team(2, "late", active))},
			Keys:    []registry.Write[registry.Key]{registry.Put(otherKey)},
		})
		if err := w.sync.Refresh(w.Context()); err != nil || !w.in(text) || !w.in(other) {
			t.Fatal(err)
		}
		w.registry.set(func() {
			w.registry.mu.restored = &registry.Changes{
				Full: true, Revision: 1, LastTenant: 1, Tenants: []registry.Tenant{team(1, "shop", active)}, Keys: []registry.Key{key},
			}
		})
		if err := w.sync.Refresh(w.Context()); err != nil || !w.in(text) || w.in(other) || w.sync.Stats().Revision != 1 {
			t.Errorf("restored: %v, %v, %v, %+v", err, w.in(text), w.in(other), w.sync.Stats())
		}
		w.stop()
		if !strings.Contains(w.log.String(), "gone back") {
			t.Errorf("the log says nothing:\n%s", &w.log)
		}
	})
}

// TestOnChange is told before requests can meet the change, of changes alone.
func TestOnChange(t *testing.T) {
	t.Parallel()
	var told []registry.Revision
	inWorld(t, func(w *world, cfg *SyncConfig) {
		cfg.OnChange = func(c *registry.Changes) {
			told = append(told, c.Revision)
			for _, row := range c.Tenants {
				if _, there := w.dir.Tenant(row.Name); there {
					w.Errorf("tenant %q is in force already", row.Name)
				}
			}
		}
	}, func(w *world) {
		w.wait(5 * time.Second)
		w.shop()
		w.wait(5 * time.Second)
		w.stop()
		if fmt.Sprint(told) != "[0 1]" {
			t.Errorf("told of %v", told)
		}
	})
}

// TestFaultyRowsAreLogged, at most so many lines for a Load, and the others are
// in force.
func TestFaultyRowsAreLogged(t *testing.T) {
	t.Parallel()
	inWorld(t, nil, func(w *world) {
		text, _ := w.shop()
		var c registry.Change
		for i := range 2 * faultLinesMax {
			c.Consumers = append(c.Consumers, registry.Put(registry.Consumer{Tenant: 1, Name: fmt.Sprint("c", i), Window: 1}))
		}
		w.apply(c)
		w.wait(2 * time.Second)
		shop, _ := w.dir.Tenant("shop")
		if _, _, err := shop.Consumer("c0"); !w.in(text) || w.sync.Stats().FaultyRows != 2*faultLinesMax || !errors.Is(err, ErrFaultyConsumer) {
			t.Errorf("let in %v, %+v, %v", w.in(text), w.sync.Stats(), err)
		}
		w.stop()
		if n := strings.Count(w.log.String(), "left out"); n != faultLinesMax || !strings.Contains(w.log.String(), "rows=10") {
			t.Errorf("%d lines:\n%s", n, &w.log)
		}
	})
}

// TestUsesAreNoted every minute, SeenMax at a time; what is not taken is told
// again.
func TestUsesAreNoted(t *testing.T) {
	t.Parallel()
	const many = registry.SeenMax + 5
	inWorld(t, nil, func(w *world) {
		w.shop()
		var texts []string
		for len(texts) < many {
			var c registry.Change
			for range registry.ChangeRowsMax {
				text, key := stored(1, "claim")
				texts, c.Keys = append(texts, text), append(c.Keys, registry.Put(key))
			}
			w.apply(c)
		}
		w.wait(2 * time.Second)
		began := time.Now()
		for _, text := range texts[:many] {
			if !w.in(text) {
				t.Fatal("refused")
			}
		}
		w.registry.set(func() { w.registry.mu.seenBroken = storage.ErrUnavailable })
		w.wait(time.Minute)
		w.registry.set(func() { w.registry.mu.seenBroken = nil })
		if s := w.sync.Stats(); s.SeenFailures != 1 || len(w.registry.notes()) != 0 {
			t.Errorf("%+v, %d taken", s, len(w.registry.notes()))
		}
		w.wait(2 * time.Minute)
		seen := w.registry.notes()
		if len(seen) != 2 || len(seen[0]) != registry.SeenMax || len(seen[1]) != many-registry.SeenMax {
			t.Fatalf("%d notes", len(seen))
		}
		for id, at := range seen[1] {
			if _, twice := seen[0][id]; twice || at != claim.FromTime(began) {
				t.Errorf("%s: %v, twice %v", id, at, twice)
			}
		}
	})
}

func TestNewSyncerReportsAllFaults(t *testing.T) {
	t.Parallel()
	s, err := NewSyncer(SyncConfig{Interval: IntervalMax + 1})
	if s != nil || err == nil {
		t.Fatal("a Syncer of nothing was made")
	}
	for _, want := range []string{"Registry", "Directory", "Clock", "Interval is not within 0-2s"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}
