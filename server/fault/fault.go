// Package fault is the one shape of every failure that a caller of this API
// can meet: a reason from one registry, text that says what happened and what
// to do, and whether anything may have been applied. Interceptors and handlers
// make faults; the outermost interceptor turns them into wire errors. Causes
// stay on this side.
package fault

import (
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// Fault is one failure of a call or of an item of a batch. It is immutable
// once returned.
//
//nolint:errname // "fault" is the word of this code base: an error is what Go returns
type Fault struct {
	Reason  warifuv1.Reason
	Message string
	Field   string // INVALID_FIELD: the field, as a path within the request
	Limit   string // INVALID_FIELD: the limit or rule
	cause   error
	after   time.Duration // 0: as the reason says
}

// kind is what a reason means for the caller.
type kind struct {
	code       connect.Code
	notApplied bool          // the call certainly changed nothing
	retryAfter time.Duration // 0: asking again does not help
}

// kinds says for every reason how it goes over the wire. NotApplied is a
// promise: where it is false, the same attempt ID must be resent to find out.
var kinds = [...]kind{
	warifuv1.Reason_REASON_UNSPECIFIED:        {connect.CodeUnimplemented, true, 0},
	warifuv1.Reason_REASON_INVALID_FIELD:      {connect.CodeInvalidArgument, true, 0},
	warifuv1.Reason_REASON_UNAUTHENTICATED:    {connect.CodeUnauthenticated, true, 0},
	warifuv1.Reason_REASON_PERMISSION_DENIED:  {connect.CodePermissionDenied, true, 0},
	warifuv1.Reason_REASON_UNKNOWN_CONSUMER:   {connect.CodeNotFound, true, 0},
	warifuv1.Reason_REASON_ATTEMPT_ENDED:      {connect.CodeFailedPrecondition, true, 0},
	warifuv1.Reason_REASON_STORE_UNAVAILABLE:  {connect.CodeUnavailable, true, 500 * time.Millisecond},
	warifuv1.Reason_REASON_OUTCOME_UNKNOWN:    {connect.CodeUnavailable, false, 100 * time.Millisecond},
	warifuv1.Reason_REASON_CLOCK_SUSPECT:      {connect.CodeUnavailable, true, 30 * time.Second},
	warifuv1.Reason_REASON_RESTORED:           {connect.CodeUnavailable, true, 30 * time.Second},
	warifuv1.Reason_REASON_STORE_FULL:         {connect.CodeResourceExhausted, true, 30 * time.Second},
	warifuv1.Reason_REASON_OVERLOADED:         {connect.CodeResourceExhausted, true, 200 * time.Millisecond},
	warifuv1.Reason_REASON_SHUTTING_DOWN:      {connect.CodeUnavailable, true, 200 * time.Millisecond},
	warifuv1.Reason_REASON_DEADLINE_EXCEEDED:  {connect.CodeDeadlineExceeded, true, 0},
	warifuv1.Reason_REASON_INVALID_PAGE_TOKEN: {connect.CodeInvalidArgument, true, 0},
	warifuv1.Reason_REASON_INTERNAL:           {connect.CodeInternal, false, 0},
	warifuv1.Reason_REASON_CANCELED:           {connect.CodeCanceled, true, 0},
	warifuv1.Reason_REASON_TENANT_SUSPENDED:   {connect.CodePermissionDenied, true, 0},
	warifuv1.Reason_REASON_QUOTA_EXCEEDED:     {connect.CodeResourceExhausted, true, time.Second},
	warifuv1.Reason_REASON_NOT_FOUND:          {connect.CodeNotFound, true, 0},
	warifuv1.Reason_REASON_ALREADY_EXISTS:     {connect.CodeAlreadyExists, true, 0},
	warifuv1.Reason_REASON_CONFLICT:           {connect.CodeFailedPrecondition, true, 0},
	warifuv1.Reason_REASON_PRECONDITION:       {connect.CodeFailedPrecondition, true, 0},
}

// New returns a fault with text for the caller.
func New(reason warifuv1.Reason, message string) *Fault {
	return &Fault{Reason: reason, Message: message}
}

// Invalid returns the fault of a field that breaks a limit or rule.
func Invalid(field, limit string) *Fault {
	return &Fault{
		Reason: warifuv1.Reason_REASON_INVALID_FIELD, Message: field + ": " + limit,
		Field: field, Limit: limit,
	}
}

// Within returns f with its field named inside an outer one: "items[3]".
func (f *Fault) Within(outer string) *Fault {
	if f.Field == "" {
		return f
	}
	inner := *f
	inner.Field = outer + "." + f.Field
	inner.Message = inner.Field + ": " + f.Limit
	return &inner
}

// WithCause returns f with an error that is logged and never sent.
func (f *Fault) WithCause(err error) *Fault {
	with := *f
	with.cause = err
	return &with
}

// After returns f with another time after which asking again may help.
func (f *Fault) After(d time.Duration) *Fault {
	with := *f
	with.after = d
	return &with
}

// Error returns the text for the caller and the cause: it is for logs.
func (f *Fault) Error() string {
	if f.cause == nil {
		return f.Message
	}
	return f.Message + ": " + f.cause.Error()
}

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.cause }

// Code returns the wire code of the fault's reason.
func (f *Fault) Code() connect.Code { return f.kind().code }

// NotApplied reports whether the call certainly changed nothing.
func (f *Fault) NotApplied() bool { return f.kind().notApplied }

// RetryAfter is when asking again may help; 0 when it does not.
func (f *Fault) RetryAfter() time.Duration {
	if f.after > 0 {
		return f.after
	}
	return f.kind().retryAfter
}

func (f *Fault) kind() kind {
	if f.Reason < 0 || int(f.Reason) >= len(kinds) {
		return kinds[warifuv1.Reason_REASON_INTERNAL]
	}
	return kinds[f.Reason]
}

// Info returns the detail that every error of this API carries.
func (f *Fault) Info(requestID string) *warifuv1.ErrorInfo {
	info := &warifuv1.ErrorInfo{
		Reason: f.Reason, Field: f.Field, Limit: f.Limit,
		RequestId: requestID, NotApplied: f.NotApplied(),
	}
	if after := f.RetryAfter(); after > 0 {
		info.RetryAfter = durationpb.New(after)
	}
	return info
}

// Item returns the fault as the answer to one item of a batch.
func (f *Fault) Item(requestID string) *warifuv1.ItemError {
	return &warifuv1.ItemError{Code: f.Code().String(), Message: f.Message, Info: f.Info(requestID)}
}

// Wire returns the fault as the error of a whole call: with ErrorInfo, and with
// google.rpc.RetryInfo where asking again may help.
func (f *Fault) Wire(requestID string) *connect.Error {
	err := attach(connect.NewError(f.Code(), f.Message), f.Info(requestID))
	if after := f.RetryAfter(); after > 0 {
		err = attach(err, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	}
	return err.WithCause(f)
}

// attach adds a detail. Marshalling our own messages cannot fail; if it did,
// the error would go out without its detail rather than not at all.
func attach(err *connect.Error, detail proto.Message) *connect.Error {
	packed, packErr := connectproto.NewErrorDetail(detail)
	if packErr != nil {
		return err.WithCause(packErr)
	}
	return err.WithDetail(packed)
}

// Of returns err as a fault. Errors that the transport made while it read the
// request keep their text, which is written for callers; everything else that
// nobody turned into a fault is a bug and says nothing.
func Of(err error) *Fault {
	var f *Fault
	if errors.As(err, &f) {
		return f
	}
	var authored *connect.Error
	if !errors.As(err, &authored) || authored.IsRemote() {
		return Internal(err)
	}
	switch authored.Code() {
	case connect.CodeInvalidArgument:
		return &Fault{Reason: warifuv1.Reason_REASON_INVALID_FIELD, Message: oneLine(authored.Message()), cause: err}
	case connect.CodeResourceExhausted: // the transport's read limit
		return Invalid("request", "at most 1 MiB").WithCause(err)
	case connect.CodeCanceled:
		return New(warifuv1.Reason_REASON_CANCELED, "the caller went away").WithCause(err)
	case connect.CodeDeadlineExceeded:
		return New(warifuv1.Reason_REASON_DEADLINE_EXCEEDED, "the deadline ended before the request was read").WithCause(err)
	case connect.CodeUnimplemented:
		return New(warifuv1.Reason_REASON_UNSPECIFIED, oneLine(authored.Message())).WithCause(err)
	default:
		return Internal(err)
	}
}

// Internal is the fault of a bug on our side: it says nothing but where to look.
func Internal(cause error) *Fault {
	return New(warifuv1.Reason_REASON_INTERNAL,
		"a bug on our side; whether anything was applied is unknown: resend with the same attempt ID, and report the request ID").WithCause(cause)
}

// messageBytesMax bounds foreign text in an error.
const messageBytesMax = 300

func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > messageBytesMax {
		s = strings.ToValidUTF8(s[:messageBytesMax], "") + "..."
	}
	return s
}
