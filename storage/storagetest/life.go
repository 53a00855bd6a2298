package storagetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var lifeCases = []testCase{
	{"life/stats-and-ready", func(e *env) {
		stats, err := e.store.Stats(e.Context())
		switch {
		case err != nil:
			e.Fatalf("Stats: %v", err)
		case stats.Engine == "" || stats.Shards < 1 || stats.SweepGrace != e.grace || stats.ClockSuspect:
			e.Errorf("Stats: %+v", stats)
		}
		if err := e.store.Ready(e.Context()); err != nil {
			e.Errorf("Ready: %v", err)
		}
	}},
	{"life/closed", func(e *env) {
		rec := e.granted(request("a", 1))
		if err := e.store.Close(); err != nil {
			e.Fatalf("Close: %v", err)
		}
		for name, call := range everyMethod(e.store, rec) {
			if err := call(e.Context()); !errors.Is(err, storage.ErrClosed) {
				e.Errorf("%s after Close: error %v, want %v", name, err, storage.ErrClosed)
			}
		}
		if err := e.store.Close(); err != nil && !errors.Is(err, storage.ErrClosed) {
			e.Errorf("second Close: %v", err)
		}
	}},
	{"life/context-ended-before-the-call", func(e *env) {
		rec := e.granted(request("a", 1))
		ctx, cancel := context.WithCancel(e.Context())
		cancel()
		for name, call := range everyMethod(e.store, rec) {
			if name == "Stats" || name == "Ready" {
				continue // may answer from memory
			}
			if err := call(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, storage.ErrUnavailable) {
				e.Errorf("%s after its context ended: error %v", name, err)
			}
		}
		e.wantStored(rec)
		e.wantAbsent(key("new"))
	}},
	{"life/closed-while-called", closedWhileCalled},
	{"life/time-never-runs-backwards", func(e *env) {
		first := e.granted(request("a", 1))
		high := e.now()
		e.clock.Advance(-time.Hour)
		found, err := e.store.Get(e.Context(), []claim.Key{first.Key})
		if err != nil || found[0].Now < high {
			e.Fatalf("store time went back to %+v, error %v", found, err)
		}
		found, err = e.store.Transition(e.Context(), []claim.Transition{extend(first, time.Minute)})
		if err != nil || !found[0].Applied || found[0].Record.LeaseUntil < high.Add(time.Minute) || found[0].Now < high {
			e.Fatalf("extended with the clock behind: %+v, error %v", found, err)
		}
	}},
}

// everyMethod is one call of each method, by its name.
func everyMethod(s storage.Store, rec claim.Record) map[string]func(context.Context) error {
	other := requestFor(rec.Key, 2)
	return map[string]func(context.Context) error{
		"InsertOrGet": func(ctx context.Context) error {
			_, err := s.InsertOrGet(ctx, []claim.Request{request("new", 1)})
			return err
		},
		"Get": func(ctx context.Context) error {
			_, err := s.Get(ctx, []claim.Key{rec.Key})
			return err
		},
		"Transition": func(ctx context.Context) error {
			_, err := s.Transition(ctx, []claim.Transition{release(rec)})
			return err
		},
		"Replace": func(ctx context.Context) error {
			_, err := s.Replace(ctx, []claim.Swap{swapOf(claim.ResolveRetry, rec, &other)})
			return err
		},
		"Sweep": func(ctx context.Context) error {
			_, err := s.Sweep(ctx, storage.Sweep{Limit: 1})
			return err
		},
		"List": func(ctx context.Context) error {
			_, err := s.List(ctx, storage.List{Tenant: rec.Key.Tenant, Limit: 1})
			return err
		},
		"Scan": func(ctx context.Context) error {
			return s.Scan(ctx, func(claim.Key) error { return nil })
		},
		"Stats": func(ctx context.Context) error {
			_, err := s.Stats(ctx)
			return err
		},
		"Ready": s.Ready,
	}
}

// closedWhileCalled: calls under way finish or fail with a sentinel; nothing
// hangs and nothing is half done.
func closedWhileCalled(e *env) {
	const callers, calls = 8, 50
	errs := make([]error, callers)
	begun := make(chan struct{}, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for n := range calls {
				found, err := e.store.InsertOrGet(e.Context(), []claim.Request{request(fmt.Sprintf("%d-%d", i, n), 1)})
				if n == 0 {
					begun <- struct{}{}
				}
				if err == nil && len(found) == 1 {
					err = found[0].Err
				}
				switch {
				case errors.Is(err, storage.ErrClosed), errors.Is(err, storage.ErrUnavailable), errors.Is(err, storage.ErrUnknown):
					return
				case err != nil:
					errs[i] = err
					return
				}
			}
		})
	}
	for range callers {
		<-begun
	}
	if err := e.store.Close(); err != nil {
		e.Fatalf("Close: %v", err)
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		e.Fatalf("%v", err)
	}
}
