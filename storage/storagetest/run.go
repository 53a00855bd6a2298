package storagetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
)

// T is the part of *testing.T that the suite needs, so that it also runs
// outside `go test`; see RunCases.
type T interface {
	Helper()
	Name() string
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(func())
	TempDir() string
}

// Opener opens a fresh, empty store whose time is clock's, jumps included, and
// which sweeps nothing within grace of its expiry. It ends the test where it
// cannot, and registers the store's end with t.Cleanup: Close twice must do no
// harm.
type Opener func(t T, clock *Clock, grace time.Duration) storage.Store

// Option changes a run of the suite.
type Option func(*options)

type options struct{ except map[string]string }

// Except leaves out the named case. The reason is printed: an exception is
// part of what a driver says about itself. A name that no case has fails the
// run.
func Except(name, reason string) Option {
	return func(o *options) { o.except[name] = reason }
}

// testCase is one rule, or a few that share their setting. It gets a store of
// its own.
type testCase struct {
	name string
	run  func(*env)
}

func allCases() []testCase {
	var all []testCase
	for _, subject := range [][]testCase{
		insertCases, keyCases, raceCases, getCases, transitionCases, replaceCases,
		sweepCases, sweepRaceCases, listCases, scanCases, tallyCases, purgeCases, roundTripCases, lifeCases,
	} {
		all = append(all, subject...)
	}
	return all
}

// Run runs the conformance suite, each case in parallel on its own store.
func Run(t *testing.T, open Opener, opts ...Option) {
	t.Helper()
	o, err := configure(opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range allCases() {
		if reason, ok := o.except[c.name]; ok {
			t.Logf("EXCEPT %s: %s", c.name, reason)
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newEnv(t, open))
		})
	}
}

func configure(opts []Option) (*options, error) {
	o := &options{except: map[string]string{}}
	for _, opt := range opts {
		opt(o)
	}
	left := make(map[string]bool, len(o.except))
	for name, reason := range o.except {
		if reason == "" {
			return nil, fmt.Errorf("exception %q gives no reason", name)
		}
		left[name] = true
	}
	for _, c := range allCases() {
		delete(left, c.name)
	}
	for name := range left {
		return nil, fmt.Errorf("exception %q names no case", name)
	}
	return o, nil
}

// ErrFailed is returned by RunCases when a case failed.
var ErrFailed = errors.New("the store does not conform")

// RunCases runs the conformance suite outside `go test`, one case after the
// other, and writes a PASS, FAIL or EXCEPT line for each to w. It returns
// ErrFailed when a case failed, and ctx's error when ctx ended first.
func RunCases(ctx context.Context, w io.Writer, open Opener, opts ...Option) error {
	o, err := configure(opts)
	if err != nil {
		return err
	}
	failed := 0
	for _, c := range allCases() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if reason, ok := o.except[c.name]; ok {
			if _, err := fmt.Fprintf(w, "EXCEPT %s: %s\n", c.name, reason); err != nil {
				return err
			}
			continue
		}
		p := runPlain(ctx, c, open)
		verdict := "PASS"
		if p.failed {
			verdict = "FAIL"
			failed++
		}
		if _, err := fmt.Fprintf(w, "%s %s\n%s", verdict, c.name, p.log.String()); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%w: %d of %d cases failed", ErrFailed, failed, len(allCases()))
	}
	return nil
}

// plain is the T of RunCases. The suite reports from the goroutine of the case
// only, so nothing here is locked.
type plain struct {
	ctx     context.Context //nolint:containedctx // what Context returns
	name    string
	log     strings.Builder
	failed  bool
	cleanup []func()
}

func runPlain(ctx context.Context, c testCase, open Opener) *plain {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &plain{ctx: ctx, name: c.name}
	p.guarded(func() { c.run(newEnv(p, open)) })
	for len(p.cleanup) > 0 {
		last := p.cleanup[len(p.cleanup)-1]
		p.cleanup = p.cleanup[:len(p.cleanup)-1]
		p.guarded(last)
	}
	return p
}

// guarded runs f so that Fatalf can end it, and a panic fails the case only.
func (p *plain) guarded(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				p.Errorf("panic: %v\n%s", r, debug.Stack())
			}
		}()
		f()
	}()
	<-done
}

func (p *plain) Helper()                  {}
func (p *plain) Name() string             { return p.name }
func (p *plain) Context() context.Context { return p.ctx }
func (p *plain) Failed() bool             { return p.failed }
func (p *plain) Cleanup(f func())         { p.cleanup = append(p.cleanup, f) }

func (p *plain) Logf(format string, args ...any) {
	fmt.Fprintf(&p.log, "    "+format+"\n", args...)
}

func (p *plain) Errorf(format string, args ...any) {
	p.failed = true
	p.Logf(format, args...)
}

func (p *plain) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	runtime.Goexit()
}

func (p *plain) TempDir() string {
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		p.Fatalf("temporary folder: %v", err)
	}
	p.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			p.Errorf("remove temporary folder: %v", err)
		}
	})
	return dir
}
