package warifu

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestCloseWaitsForHandlersAndTheirCompletions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		running, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := c.Do(t.Context(), event("e"), func(context.Context, Grant) (Completion, error) {
				close(running)
				<-finish
				return Completion{}, nil
			})
			done <- err
		}()
		<-running
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("Close did not wait: %v", err)
		default:
		}
		// New calls are refused meanwhile, and certainly not applied.
		g := Grant{Consumer: "c", EventID: "x"}
		for name, err := range map[string]error{
			"claim": second(c.Claim(t.Context(), event("x"))), "record": second(c.Record(t.Context(), event("x"), Completion{})),
			"do":       second(c.Do(t.Context(), event("x"), mustNotRun(t))),
			"complete": c.Complete(t.Context(), g, Completion{}), "extend": second(c.Extend(t.Context(), g, 0)),
			"release": c.Release(t.Context(), g), "lookup": second(c.Lookup(t.Context(), "c", "x")),
		} {
			if !errors.Is(err, ErrClosed) || errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("%s: %v", name, err)
			}
		}
		close(finish)
		if err := errors.Join(<-done, <-closed); err != nil {
			t.Error(err)
		}
		if got := f.record("e").stateOf(); got.String() != "STATE_COMPLETED" {
			t.Errorf("the event is %s", got)
		}
	})
}

func TestCloseWaitsForSendersOfCallersThatLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		letGo := hold(f)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- second(c.Claim(ctx, event("e"))) }()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("Close left a request behind: %v", err)
		default:
		}
		letGo()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if f.rpcs("Release") != 1 {
			t.Error("the grant nobody waited for was not given back")
		}
	})
}

func TestCloseTwice(t *testing.T) {
	t.Parallel()
	c, _ := setup(t)
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
}
