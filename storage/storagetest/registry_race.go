package storagetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/warifu/warifu/storage/registry"
)

const (
	raceRounds  = 8
	raceWriters = 4
)

// atOnce runs n functions at once and waits for all.
func atOnce(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() { <-start; f(i) })
	}
	close(start)
	wg.Wait()
}

var registryRaceCases = []registryCase{
	{"race/one-of-several-writers-wins", func(e *registryEnv) {
		e.tenant()
		v := e.consumer("a")
		for round := range raceRounds {
			changes, errs := make([]registry.Change, raceWriters), make([]error, raceWriters)
			for i := range changes {
				w := v
				w.Note = fmt.Sprintf("round %d, writer %d", round, i)
				changes[i] = e.change()
				changes[i].Consumers = []registry.Write[registry.Consumer]{registry.Put(w)}
			}
			atOnce(raceWriters, func(i int) { _, errs[i] = e.Apply(e.Context(), changes[i]) })
			got := e.load(0).Consumers[0]
			won := 0
			for i, err := range errs {
				switch {
				case err == nil:
					won++
					if got.Note != changes[i].Consumers[0].Row.Note || got.Change != changes[i].ID {
						e.Fatalf("writer %d won, and stored is %q", i, got.Note)
					}
				case !errors.Is(err, registry.ErrConflict):
					e.Fatalf("writer %d: %v", i, err)
				}
			}
			if won != 1 || got.Version != v.Version+1 {
				e.Fatalf("%d writers won; version %d follows %d", won, got.Version, v.Version)
			}
			v = got
		}
	}},
	{"race/the-same-change-at-once", func(e *registryEnv) {
		e.tenant()
		for range raceRounds {
			c := e.change()
			c.Findings = []registry.Write[registry.Finding]{registry.Put(aFinding(e.changes))}
			answers, errs := make([]registry.Applied, raceWriters), make([]error, raceWriters)
			atOnce(raceWriters, func(i int) { answers[i], errs[i] = e.Apply(e.Context(), c) })
			for i := range errs {
				if errs[i] != nil || answers[i] != answers[0] {
					e.Fatalf("%+v and %+v, %v", answers[i], answers[0], errs[i])
				}
			}
		}
	}},
	{"race/a-reader-sees-every-revision-once", registryReader},
	{"race/one-of-several-takers-holds", func(e *registryEnv) {
		last := registry.Lease{}
		for round := range raceRounds {
			name, held := "sweep/1", make([]bool, raceWriters)
			leases, errs := make([]registry.Lease, raceWriters), make([]error, raceWriters)
			atOnce(raceWriters, func(i int) {
				leases[i], held[i], errs[i] = e.Lease(e.Context(), name, fmt.Sprintf("owner-%d-%d", round, i), time.Minute)
			})
			won := -1
			for i := range errs {
				switch {
				case errs[i] != nil:
					e.Fatalf("taker %d: %v", i, errs[i])
				case held[i] && won >= 0:
					e.Fatalf("takers %d and %d hold it", won, i)
				case held[i]:
					won = i
				}
			}
			if won < 0 || leases[won].Fence <= last.Fence {
				e.Fatalf("taker %d has %+v after %+v", won, leases, last)
			}
			last = leases[won]
			e.clock.Advance(time.Minute)
		}
	}},
}

// registryReader lets writers write while a reader follows. Each change writes
// two rows with one note: the reader must never see one without the other.
func registryReader(e *registryEnv) {
	e.tenant()
	start := e.load(0).Revision
	var mu sync.Mutex
	applied := map[registry.Revision]bool{}
	changes := make([][]registry.Change, raceWriters)
	for i := range changes {
		for n := range raceRounds {
			c := e.change()
			for _, half := range []string{"x", "y"} {
				c.Consumers = append(c.Consumers, registry.Put(registry.Consumer{
					Tenant: 7, Name: fmt.Sprintf("%d-%d-%s", i, n, half), Note: fmt.Sprint(n),
				}))
			}
			changes[i] = append(changes[i], c)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		atOnce(raceWriters, func(i int) {
			for _, c := range changes[i] {
				a, err := e.Apply(e.Context(), c)
				mu.Lock()
				if err != nil || applied[a.Revision] {
					e.Errorf("writer %d: %+v, %v", i, a, err)
				}
				applied[a.Revision] = true
				mu.Unlock()
			}
		})
	}()
	defer func() { <-done }()
	seen := map[registry.Revision]int{}
	follow := func() {
		c := e.load(start)
		for _, v := range c.Consumers {
			if v.Revision <= start || v.Revision > c.Revision {
				e.Fatalf("a load from %d to %d has revision %d", start, c.Revision, v.Revision)
			}
			seen[v.Revision]++
		}
		for r := start + 1; r <= c.Revision; r++ {
			if seen[r] != 2 {
				e.Fatalf("%d rows of revision %d were seen in a load up to %d, want 2", seen[r], r, c.Revision)
			}
		}
		start = c.Revision
	}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		follow()
	}
	follow()
	if len(seen) != len(applied) || len(applied) != raceWriters*raceRounds {
		e.Fatalf("%d revisions were applied, %d were seen", len(applied), len(seen))
	}
}
