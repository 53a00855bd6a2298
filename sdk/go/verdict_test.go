package warifu

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// What a Do for another event came to is no verdict on the event of the handler
// that called it: that one may have acted already.
func TestVerdictsBelongToTheirOwnDo(t *testing.T) {
	t.Parallel()
	passOn := func(err error) error { return fmt.Errorf("inner: %w", err) }
	const left, released, completed = warifuv1.State_STATE_IN_PROGRESS, warifuv1.State_STATE_RELEASED, warifuv1.State_STATE_COMPLETED
	for _, tt := range []struct {
		name  string
		inner error // of the inner handler
		outer func(error) error
		state warifuv1.State // of the outer event
		cause error          // of the outer error
	}{
		{"retryable", Retryable(errHandler), passOn, left, errHandler},
		{"retryable, as it is", Retryable(errHandler), func(err error) error { return err }, left, errHandler},
		{"retryable within", fmt.Errorf("within: %w", Retryable(errHandler)), passOn, left, errHandler},
		{"rejected", Reject(Completion{Body: []byte("inner")}), passOn, left, ErrRejected},
		{"rejected, as it is", Reject(Completion{}), func(err error) error { return err }, left, ErrRejected},
		{"neither", errHandler, passOn, left, errHandler},
		{"joined", Retryable(errHandler), func(err error) error { return errors.Join(err, errOuter) }, left, errOuter},
		{"own words: retryable", Retryable(errHandler), Retryable, released, errHandler},
		{"own words: retryable after a rejection", Reject(Completion{}), Retryable, released, ErrRejected},
		{"own words: retryable beside it", errHandler, func(err error) error { return errors.Join(err, Retryable(errOuter)) }, released, errOuter},
		{"own words: rejected", Retryable(errHandler), func(error) error { return Reject(Completion{Body: []byte("outer")}) }, completed, ErrRejected},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				r, err := c.Do(t.Context(), event("outer"), func(ctx context.Context, _ Grant) (Completion, error) {
					_, err := c.Do(ctx, event("inner"), returns(Completion{}, tt.inner))
					if IsRetryable(err) != IsRetryable(tt.inner) {
						t.Errorf("IsRetryable of what the inner handler returned is %v: %v", IsRetryable(err), err)
					}
					return Completion{}, tt.outer(err)
				})
				if got := f.record("outer").stateOf(); got != tt.state {
					t.Errorf("the outer event is %s, want %s", got, tt.state)
				}
				if r.Accepted != (tt.state == completed) || !errors.Is(err, tt.cause) || IsRetryable(err) != (tt.state == released) {
					t.Errorf("%+v, retryable %v: %v", r, IsRetryable(err), err)
				}
				if done := f.record("outer").done; done != nil && string(done.GetResult()) != "outer" {
					t.Errorf("stored %q", done.GetResult())
				}
			})
		})
	}
}

var errOuter = errors.New("outer handler failed")

// A duplicate of a rejected event is a rejection of that event only.
func TestReplayedRejectionIsNoVerdict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		if _, err := c.Record(t.Context(), event("inner"), Completion{Outcome: Rejected, Body: []byte("no")}); err != nil {
			t.Fatal(err)
		}
		r, err := c.Do(t.Context(), event("outer"), func(ctx context.Context, _ Grant) (Completion, error) {
			_, err := c.Do(ctx, event("inner"), mustNotRun(t))
			return Completion{}, err
		})
		rejected, ok := errors.AsType[*RejectedError](err)
		if r.Accepted || !ok || string(rejected.Stored.Body) != "no" {
			t.Errorf("%+v, %v", r, err)
		}
		if got := f.record("outer").stateOf(); got != warifuv1.State_STATE_IN_PROGRESS {
			t.Errorf("the outer event is %s", got)
		}
	})
}

// The cause that ended a caller's context may be the error of another Do.
func TestVerdictInACauseIsNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := setup(t)
		_, other := c.Do(t.Context(), event("other"), returns(Completion{}, Retryable(errHandler)))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(other)
		if _, err := c.Do(ctx, event("e"), mustNotRun(t)); !IsRetryable(other) || IsRetryable(err) || !errors.Is(err, errHandler) {
			t.Errorf("retryable %v: %v", IsRetryable(err), err)
		}
	})
}

// Errors without a verdict are returned as they are.
func TestPlainErrorsStayWhatTheyAre(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := setup(t)
		if _, err := c.Do(t.Context(), event("e"), returns(Completion{}, errHandler)); err != errHandler { //nolint:errorlint // the very error
			t.Errorf("%#v", err)
		}
	})
}
