package interceptor

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
)

// Deadline gives every call an end: the caller's, at most longest from now. A
// call whose deadline has passed is refused before its body is read.
func Deadline(longest time.Duration) connect.ServerInterceptor {
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			if err := ctx.Err(); err != nil {
				return Ended(err)
			}
			latest := time.Now().Add(longest) //nolint:forbidigo // contexts end by the process clock, never by an injected one
			if end, has := ctx.Deadline(); has && !end.After(latest) {
				return next(ctx, spec, stream)
			}
			bounded := &bounded{Context: ctx, end: latest}
			defer bounded.stop()
			return next(bounded, spec, stream)
		}
	}
}

// bounded is a context that ends with its parent, at a deadline, or when it is
// stopped: context.WithDeadline, except that the timer, the channel and the
// parent's entry for them are made when somebody first asks for the channel.
// Most calls are answered before anybody does.
type bounded struct {
	context.Context //nolint:containedctx // it is a context
	end             time.Time
	making          sync.Mutex
	made            atomic.Pointer[timed] // nil until the channel is asked for
	stopped         atomic.Bool
}

// timed is a context with its cancel function.
type timed struct {
	context.Context //nolint:containedctx // it is a context
	cancel          context.CancelFunc
}

// Deadline implements context.Context.
func (b *bounded) Deadline() (time.Time, bool) { return b.end, true }

// Done implements context.Context.
func (b *bounded) Done() <-chan struct{} { return b.timed().Done() }

// Err implements context.Context.
func (b *bounded) Err() error {
	if b.made.Load() == nil && b.Context.Err() == nil && !b.stopped.Load() && time.Until(b.end) > 0 { //nolint:forbidigo // as above
		return nil
	}
	return b.timed().Err() // the first error stays
}

func (b *bounded) timed() *timed {
	if t := b.made.Load(); t != nil {
		return t
	}
	b.making.Lock()
	defer b.making.Unlock()
	t := b.made.Load()
	if t == nil {
		t = &timed{}
		t.Context, t.cancel = context.WithDeadline(b.Context, b.end)
		b.made.Store(t)
		if b.stopped.Load() { // stop may have looked before
			t.cancel()
		}
	}
	return t
}

func (b *bounded) stop() {
	b.stopped.Store(true)
	if t := b.made.Load(); t != nil {
		t.cancel()
	}
}

// Ended is the fault of a call whose context ended before anything was asked
// of the store.
func Ended(cause error) *fault.Fault {
	if errors.Is(cause, context.DeadlineExceeded) {
		return fault.New(warifuv1.Reason_REASON_DEADLINE_EXCEEDED,
			"the deadline ended before the work began; nothing was applied").WithCause(cause)
	}
	return fault.New(warifuv1.Reason_REASON_CANCELED, "the caller went away; nothing was applied").WithCause(cause)
}
