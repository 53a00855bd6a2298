package interceptor

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"connectrpc.com/connect/v2"

	"github.com/warifu/warifu/server/fault"
)

// Recover turns a panic into an internal error. The process lives, the stack
// goes to the log, and the caller learns only the request ID: whether its
// change was applied is unknown.
func Recover(logger *slog.Logger) connect.ServerInterceptor {
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) (err error) {
			defer func() {
				cause := recover()
				if cause == nil {
					return
				}
				logger.LogAttrs(ctx, slog.LevelError, "panic while serving",
					slog.String("method", spec.Procedure), slog.String("request_id", CallFrom(ctx).RequestID),
					slog.Any("panic", cause), slog.String("stack", string(debug.Stack())))
				err = fault.Internal(fmt.Errorf("panic: %v", cause))
			}()
			return next(ctx, spec, stream)
		}
	}
}
