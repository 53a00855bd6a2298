package interceptor

import (
	"context"
	"errors"
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
			if end, has := ctx.Deadline(); has && time.Until(end) <= longest { //nolint:forbidigo // contexts end by the process clock, never by an injected one
				return next(ctx, spec, stream)
			}
			ctx, cancel := context.WithTimeout(ctx, longest)
			defer cancel()
			return next(ctx, spec, stream)
		}
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
