package warifu

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"connectrpc.com/connect/v2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// failedCall turns the error of an RPC, which may have carried many items,
// into the Error of each.
func failedCall(op string, err error) *Error {
	e := &Error{Op: op, cause: err}
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		e.setKind(false, ErrReply) // connect codes every failure it knows
		return e
	}
	e.Code, e.Message, e.cause = ce.Code().String(), ce.Message(), ce.Unwrap()
	info := &warifuv1.ErrorInfo{}
	for _, d := range ce.Details() {
		readDetail(e, info, d)
	}
	e.describe(info, ce.Code())
	if errors.Is(e.kind, ErrReply) && brokenOff(err) {
		e.kind, e.again = ErrUnavailable, true
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		e.NotApplied = true // nothing was sent
	}
	return e
}

// brokenOff reports whether the connection ended within the reply, as it does
// when a server dies while it answers: the reply is lost rather than wrong.
func brokenOff(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.ErrUnexpectedEOF)
}

// readDetail takes what is known of one detail; details of others, or damaged
// ones, say nothing.
func readDetail(e *Error, info *warifuv1.ErrorInfo, d *connect.ErrorDetail) {
	switch d.Type[strings.LastIndexByte(d.Type, '/')+1:] {
	case "warifu.v1.ErrorInfo":
		if proto.Unmarshal(d.Value, info) != nil {
			proto.Reset(info)
		}
	case "google.rpc.RetryInfo":
		var r errdetails.RetryInfo
		if proto.Unmarshal(d.Value, &r) == nil {
			e.RetryAfter = r.GetRetryDelay().AsDuration()
		}
	}
}

// failedItem turns the error of one item of a batch into an Error.
func failedItem(op string, item *warifuv1.ItemError) *Error {
	e := &Error{Op: op, Code: item.GetCode(), Message: item.GetMessage()}
	var code connect.Code
	if err := code.UnmarshalText([]byte(item.GetCode())); err != nil {
		code = connect.CodeUnknown
	}
	e.describe(item.GetInfo(), code)
	return e
}

func (e *Error) describe(info *warifuv1.ErrorInfo, code connect.Code) {
	if r := info.GetReason(); r != warifuv1.Reason_REASON_UNSPECIFIED {
		e.Reason = strings.TrimPrefix(r.String(), "REASON_")
	}
	e.Field, e.Limit, e.RequestID = info.GetField(), info.GetLimit(), info.GetRequestId()
	e.NotApplied = info.GetNotApplied()
	if d := info.GetRetryAfter(); d != nil {
		e.RetryAfter = d.AsDuration()
	}
	e.setKind(meaning(info.GetReason(), code))
}

// setKind sets what the error means. A completion comes after the effect: unless it
// was refused, it is worth another send where any other call would be given up.
func (e *Error) setKind(again bool, kind error) {
	e.kind = kind
	e.again = again || e.Op == opComplete && (errors.Is(kind, ErrInternal) || errors.Is(kind, ErrReply))
}

// open reports whether the error leaves open what became of the call: nobody
// could be asked, or nobody could say.
func (e *Error) open() bool {
	return errors.Is(e.kind, ErrUnavailable) || errors.Is(e.kind, ErrOverloaded) ||
		errors.Is(e.kind, ErrQuotaExceeded) || errors.Is(e.kind, ErrInternal) || errors.Is(e.kind, ErrReply)
}

// meaning is the one table from the server's reasons to sentinels; again says
// that sending the same request soon can help. Errors without a reason come
// from what stands between us and the server, and mean what their code says.
func meaning(reason warifuv1.Reason, code connect.Code) (again bool, kind error) {
	switch reason {
	case warifuv1.Reason_REASON_INVALID_FIELD, warifuv1.Reason_REASON_INVALID_PAGE_TOKEN,
		warifuv1.Reason_REASON_NOT_FOUND, warifuv1.Reason_REASON_ALREADY_EXISTS, warifuv1.Reason_REASON_CONFLICT:
		return false, ErrInvalid // the last three are answers to administrators
	case warifuv1.Reason_REASON_QUOTA_EXCEEDED:
		return false, ErrQuotaExceeded // a burst is over soon, a level is not: RetryAfter says
	case warifuv1.Reason_REASON_UNAUTHENTICATED:
		return false, ErrUnauthenticated
	case warifuv1.Reason_REASON_PERMISSION_DENIED, warifuv1.Reason_REASON_TENANT_SUSPENDED,
		warifuv1.Reason_REASON_PRECONDITION:
		return false, ErrPermissionDenied
	case warifuv1.Reason_REASON_UNKNOWN_CONSUMER:
		return false, ErrUnknownConsumer
	case warifuv1.Reason_REASON_ATTEMPT_ENDED:
		return false, ErrAttemptEnded
	case warifuv1.Reason_REASON_STORE_UNAVAILABLE, warifuv1.Reason_REASON_OUTCOME_UNKNOWN,
		warifuv1.Reason_REASON_SHUTTING_DOWN, warifuv1.Reason_REASON_DEADLINE_EXCEEDED,
		warifuv1.Reason_REASON_CANCELED:
		return true, ErrUnavailable
	case warifuv1.Reason_REASON_CLOCK_SUSPECT, warifuv1.Reason_REASON_RESTORED,
		warifuv1.Reason_REASON_STORE_FULL:
		return false, ErrUnavailable // lasts longer than a call
	case warifuv1.Reason_REASON_OVERLOADED:
		return true, ErrOverloaded
	case warifuv1.Reason_REASON_INTERNAL:
		return false, ErrInternal
	case warifuv1.Reason_REASON_UNSPECIFIED:
	}
	return meaningOfCode(code)
}

func meaningOfCode(code connect.Code) (again bool, kind error) {
	switch code {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeAborted:
		return true, ErrUnavailable
	case connect.CodeResourceExhausted:
		return true, ErrOverloaded
	case connect.CodeUnauthenticated:
		return false, ErrUnauthenticated
	case connect.CodePermissionDenied:
		return false, ErrPermissionDenied
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeOutOfRange:
		return false, ErrInvalid
	case connect.CodeInternal, connect.CodeDataLoss:
		return false, ErrInternal
	case connect.CodeUnknown, connect.CodeUnimplemented, connect.CodeNotFound, connect.CodeAlreadyExists:
	}
	return false, ErrReply
}

// ended is the error of a caller whose context ended. Only a deadline leaves
// the question open; a caller that cancels does not want it answered.
func ended(ctx context.Context, op string, sent bool) *Error {
	e := &Error{Op: op, cause: context.Cause(ctx), NotApplied: !sent}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.kind = ErrUnavailable
	}
	return e
}

// answered is the error of an answer: the server was asked and changed nothing.
func answered(op string, kind error) *Error { return &Error{Op: op, kind: kind, NotApplied: true} }

// distrust refuses a reply.
func distrust(op, why string) *Error { return &Error{Op: op, kind: ErrReply, Message: why} }
