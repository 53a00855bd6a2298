package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

const (
	// callTriesMax bounds how often one request is sent.
	callTriesMax = 3
	// callPause is the pause before the second try, and doubles; a server that
	// asks for a longer one is obeyed up to callPauseMax.
	callPause    = 200 * time.Millisecond
	callPauseMax = 2 * time.Second
)

// call makes one call of an administrator and sends it again where the server
// could not answer: reads change nothing, and changes carry an ID that makes
// them one. Its error has an exit code.
func call[Q, A any](ctx context.Context, f *clientFlags, do func(context.Context, *Q) (*A, error), request *Q) (*A, error) {
	return callAgain(ctx, f, do, request, func(error) bool { return true })
}

// callOnce is call for what has no such ID: it is sent again only when the
// server says that nothing was applied.
func callOnce[Q, A any](ctx context.Context, f *clientFlags, do func(context.Context, *Q) (*A, error), request *Q) (*A, error) {
	return callAgain(ctx, f, do, request, notApplied)
}

func callAgain[Q, A any](
	ctx context.Context, f *clientFlags, do func(context.Context, *Q) (*A, error), request *Q, harmless func(error) bool,
) (*A, error) {
	pause := callPause
	for try := 1; ; try++ {
		answer, err := do(ctx, request)
		if err == nil {
			return answer, nil
		}
		if try == callTriesMax || !worthAnotherTry(err) || !harmless(err) || !wait(ctx, max(pause, asked(err))) {
			return nil, f.failedCall(err)
		}
		pause *= 2
	}
}

// wait reports false when the context ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func worthAnotherTry(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded:
		return true
	case connect.CodeResourceExhausted:
		return infoOf(err).GetReason() == warifuv1.Reason_REASON_OVERLOADED
	default:
		return false
	}
}

// notApplied reports whether an error says that nothing was changed.
func notApplied(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true // nothing was sent
	}
	return infoOf(err).GetNotApplied()
}

// asked is how long the server wants to be left alone.
func asked(err error) time.Duration {
	return min(infoOf(err).GetRetryAfter().AsDuration(), callPauseMax)
}

// infoOf returns the detail that errors of this API carry; an empty one where an
// error is somebody else's.
func infoOf(err error) *warifuv1.ErrorInfo {
	info := &warifuv1.ErrorInfo{}
	failed, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return info
	}
	for _, d := range failed.Details() {
		if d.Type != string(info.ProtoReflect().Descriptor().FullName()) {
			continue
		}
		if proto.Unmarshal(d.Value, info) != nil {
			proto.Reset(info)
		}
	}
	return info
}

// failedCall gives the error of a call its exit code and says which server it
// was that did not answer.
func (f *clientFlags) failedCall(err error) error {
	info := infoOf(err)
	switch info.GetReason() { //nolint:exhaustive // the others have the code of their kind, below
	case warifuv1.Reason_REASON_NOT_FOUND:
		return exit(exitNotFound, err)
	case warifuv1.Reason_REASON_CONFLICT, warifuv1.Reason_REASON_ALREADY_EXISTS:
		return exit(exitConflict, err)
	case warifuv1.Reason_REASON_QUOTA_EXCEEDED:
		return exit(exitQuota, err)
	case warifuv1.Reason_REASON_PRECONDITION, warifuv1.Reason_REASON_TENANT_SUSPENDED:
		return exit(exitPrecondition, err)
	case warifuv1.Reason_REASON_INTERNAL:
		return exit(exitFailed, fmt.Errorf("%s: %w (request %s)", f.server(), err, info.GetRequestId()))
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted:
		return exit(exitUnavailable, fmt.Errorf("%s: %w", f.server(), err))
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		return exit(exitDenied, err)
	case connect.CodeInvalidArgument, connect.CodeNotFound:
		return exit(exitUsage, err)
	default:
		return exit(exitFailed, fmt.Errorf("%s: %w", f.server(), err))
	}
}
