// Package measure runs one operation from many callers for a while and says
// how often it was done, how long it took, and what it cost in CPU time, in
// this process and in the server's.
package measure

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/loadtest/process"
)

// Plan says how an operation is run.
type Plan struct {
	Callers int
	// Warm passes before anything is counted, so that connections are open and
	// queues are filled.
	Warm time.Duration
	// Window is how long operations are counted.
	Window time.Duration
	// ServerPID is the process that answers; 0 when it is this one.
	ServerPID int
	// DatabasePID is the process behind the server, whose children work for it
	// too; 0 when there is none. It counts as part of the server.
	DatabasePID int
}

// Op does one operation, or a batch of n, for a caller: 0 to Callers-1.
type Op func(ctx context.Context, caller int) (n int, err error)

// Sample is what one window showed.
type Sample struct {
	Ops     int64   `json:"ops"`
	Seconds float64 `json:"seconds"`
	// P50 and P99 are of calls of Op, in microseconds.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	// ClientCPU and ServerCPU are CPU seconds spent within the window.
	ClientCPU float64 `json:"client_cpu_s"`
	ServerCPU float64 `json:"server_cpu_s"`
	// DatabaseCPU is what of ServerCPU the database used.
	DatabaseCPU float64 `json:"database_cpu_s,omitempty"`
	// ServerCPUAfter is what the server spent after the window until it was
	// quiet: compactions, for one, that the window left to be done.
	ServerCPUAfter float64 `json:"server_cpu_after_s"`
	// Extra holds what only this side knows.
	Extra map[string]float64 `json:"extra,omitempty"`
}

// Rate is operations per second.
func (s *Sample) Rate() float64 { return float64(s.Ops) / s.Seconds }

// CPUPerOp is what one operation cost both processes within the window, in CPU
// seconds.
func (s *Sample) CPUPerOp() float64 { return (s.ClientCPU + s.ServerCPU) / float64(s.Ops) }

// The phases of a run. Callers look at them after every operation.
const (
	warming int32 = iota
	counting
	over
)

// caller is what one caller did. The padding keeps callers off each other's
// cache lines.
type caller struct {
	ops       int64
	latencies []float32 // microseconds
	_         [32]byte
}

type loop struct {
	plan    Plan
	op      Op
	phase   atomic.Int32
	callers []caller
	cancel  context.CancelCauseFunc
}

// Loop runs op from plan.Callers goroutines and returns when all of them have.
// The first error ends the run.
func Loop(ctx context.Context, plan Plan, op Op) (Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := &loop{plan: plan, op: op, callers: make([]caller, plan.Callers), cancel: cancel}
	var wg sync.WaitGroup
	for i := range l.callers {
		wg.Go(func() { l.call(ctx, i) })
	}
	s, err := l.window(ctx)
	l.phase.Store(over)
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return Sample{}, cause
	}
	if err != nil {
		return Sample{}, err
	}
	l.collect(&s)
	return s, l.after(ctx, &s)
}

func (l *loop) call(ctx context.Context, i int) {
	c := &l.callers[i]
	for l.phase.Load() != over && ctx.Err() == nil {
		began := time.Now()
		n, err := l.op(ctx, i)
		if err != nil {
			l.cancel(fmt.Errorf("caller %d: %w", i, err))
			return
		}
		if l.phase.Load() == counting {
			c.ops += int64(n)
			c.latencies = append(c.latencies, float32(time.Since(began).Microseconds()))
		}
	}
}

// window waits for the warm-up and the window to pass and takes the times.
func (l *loop) window(ctx context.Context) (Sample, error) {
	if err := pause(ctx, l.plan.Warm); err != nil {
		return Sample{}, err
	}
	before, err := l.cpu()
	if err != nil {
		return Sample{}, err
	}
	began := time.Now()
	l.phase.Store(counting)
	if err := pause(ctx, l.plan.Window); err != nil {
		return Sample{}, err
	}
	l.phase.Store(over)
	took := time.Since(began)
	after, err := l.cpu()
	return Sample{
		Seconds: took.Seconds(), ClientCPU: after.client - before.client,
		ServerCPU: after.server - before.server, DatabaseCPU: after.database - before.database,
	}, err
}

// spent is CPU seconds: of this process, of server and database together, and
// of the database alone.
type spent struct{ client, server, database float64 }

func (l *loop) cpu() (s spent, err error) {
	if s.client, err = process.CPUSeconds(os.Getpid()); err != nil {
		return s, err
	}
	if l.plan.DatabasePID != 0 {
		if s.database, err = process.FamilyCPUSeconds(l.plan.DatabasePID); err != nil {
			return s, err
		}
	}
	if l.plan.ServerPID != 0 {
		s.server, err = process.CPUSeconds(l.plan.ServerPID)
	}
	s.server += s.database
	return s, err
}

func (l *loop) collect(s *Sample) {
	var all []float32
	for i := range l.callers {
		s.Ops += l.callers[i].ops
		all = append(all, l.callers[i].latencies...)
	}
	slices.Sort(all)
	if n := len(all); n > 0 {
		s.P50, s.P99 = float64(all[n/2]), float64(all[n*99/100])
	}
}

// after waits until the server is quiet, so that what it still has to do is
// neither lost from its account nor charged to whoever is measured next.
func (l *loop) after(ctx context.Context, s *Sample) error {
	if l.plan.ServerPID == 0 && l.plan.DatabasePID == 0 {
		return nil
	}
	spent, err := process.Settle(ctx, func() (float64, error) {
		s, err := l.cpu()
		return s.server, err
	})
	s.ServerCPUAfter = spent
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
