package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// workers are goroutines that are meant to run until they are told to end.
type workers struct {
	ctx    context.Context //nolint:containedctx // it is what end cancels
	cancel context.CancelFunc
	group  sync.WaitGroup
	ended  chan<- error // told about one that ended by itself
	mu     struct {
		sync.Mutex
		faults []error
	}
}

// endingsMax bounds how many endings wait to be heard of; one is enough to end
// the process.
const endingsMax = 1

func newWorkers(ended chan<- error) *workers {
	w := &workers{ended: ended}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// start runs f. That f returns before end is called is a fault, whatever it
// returns.
func (w *workers) start(name string, f func(context.Context) error) {
	w.group.Go(func() {
		err := f(w.ctx)
		switch {
		case errors.Is(err, http.ErrServerClosed), w.ctx.Err() != nil && errors.Is(err, context.Canceled):
			err = nil
		case err != nil:
			err = fmt.Errorf("%s: %w", name, err)
			w.mu.Lock()
			w.mu.faults = append(w.mu.faults, err)
			w.mu.Unlock()
		}
		if w.ctx.Err() != nil {
			return
		}
		if err == nil {
			err = fmt.Errorf("%s ended by itself", name)
		}
		select {
		case w.ended <- err:
		default: // somebody has been told already
		}
	})
}

// end tells all of them to end, waits, and returns what went wrong.
func (w *workers) end() error {
	w.cancel()
	w.group.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.mu.faults...)
}
