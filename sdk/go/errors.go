package warifu

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Sentinels for errors.Is. Every error of this package is an [*Error], and
// matches exactly one of them, or the error of the caller's own context; apart
// from that, [ErrOutcomeUnknown] says of any of them whether the call may have
// been applied.
//
// "The server said no" and "nobody could be asked" never mix: only
// [ErrUnavailable] and [ErrOverloaded] mean that the question is still open and
// may be asked again as it is.
var (
	// ErrUnavailable: the server or its store could not be asked, or its answer
	// was lost. Do not act; nack the message and let it come again, not before
	// RetryAfter.
	ErrUnavailable = errors.New("no answer could be had; try again later")
	// ErrOverloaded: the server, or this client's own queue, has too much to do
	// already. As ErrUnavailable, and send less.
	ErrOverloaded = errors.New("too much at once; slow down")
	// ErrQuotaExceeded: the tenant is over a quota, which Field names. Do not act;
	// nack the message and let it come again, not before RetryAfter. Completions
	// are never refused for it.
	ErrQuotaExceeded = errors.New("the tenant is over a quota; try again later")
	// ErrOutcomeUnknown matches every error after which the call may or may not
	// have been applied. Sending it again with the same attempt ID is safe and
	// finds out.
	ErrOutcomeUnknown = errors.New("the call may or may not have been applied; send it again with the same attempt ID")

	// ErrUnauthenticated: no API key, a wrong one, or a revoked one.
	ErrUnauthenticated = errors.New("the API key is missing, wrong or revoked")
	// ErrPermissionDenied: the API key is not allowed to do this, the tenant is
	// suspended, or its administrator has to put something right first. The
	// message says which.
	ErrPermissionDenied = errors.New("the API key does not allow this")
	// ErrInvalid: the request breaks a limit or a rule; Field and Limit name
	// both. The same request will never succeed.
	ErrInvalid = errors.New("invalid request")
	// ErrUnknownConsumer: the tenant accepts declared consumers only.
	ErrUnknownConsumer = errors.New("the consumer is not declared")

	// ErrInProgress: another attempt holds a live lease. Nack with a delay of
	// RetryAfter, or claim with [WithWait].
	ErrInProgress = errors.New("another attempt is in progress")
	// ErrMismatch: the event ID is known with other content: somebody reuses an
	// ID. Dead-letter the message.
	ErrMismatch = errors.New("the event ID is known with other content")
	// ErrInDoubt: nobody knows whether the effect happened. Do not act; park the
	// message until an operator has resolved the event.
	ErrInDoubt = errors.New("the event is in doubt until an operator resolves it")
	// ErrTooOld: the event is older than what is remembered. It may have been
	// handled: route it to review, do not treat it as new.
	ErrTooOld = errors.New("the event is older than what is remembered")
	// ErrUnprotected: the store cannot be asked and the consumer's policy is
	// FAIL_OPEN. Do does not run handlers unprotected; callers of Claim may,
	// and reconcile afterwards.
	ErrUnprotected = errors.New("the store cannot be asked and the policy is to fail open; the handler was not run")
	// ErrRejected: the event was refused for good, by this attempt or an
	// earlier one; the [*RejectedError] carries what was stored. Ack the message.
	ErrRejected = errors.New("the event was rejected for good")

	// ErrStale: this attempt no longer owns the event, or it is too late;
	// nothing was changed. State says what is so.
	ErrStale = errors.New("this attempt no longer owns the event")
	// ErrResultConflict: this attempt completed before with another result; the
	// first one stays. A bug, or a handler that is not deterministic.
	ErrResultConflict = errors.New("this attempt completed before with another result")
	// ErrAttemptEnded: this attempt was released or forgotten. Claim again with
	// a new attempt ID.
	ErrAttemptEnded = errors.New("this attempt was released or forgotten; make a new one")
	// ErrLeaseLost is the cause that ends a handler's context: its lease is over
	// or somebody else owns the event. Stop, and change nothing more.
	ErrLeaseLost = errors.New("the lease is lost")

	// ErrReply: something answered, but not about this event, or not a Warifu
	// server of this protocol. Check the URL and what stands before it.
	ErrReply = errors.New("the reply cannot be trusted")
	// ErrInternal: a bug of the server; RequestID leads to its log.
	ErrInternal = errors.New("internal error of the server")
	// ErrClosed: the client was closed before the call began.
	ErrClosed = errors.New("the client is closed")
)

// Error is the failure of one call, as precise as it is known.
type Error struct {
	// Op is the call that failed: "claim", "complete", "extend", "release",
	// "lookup".
	Op string
	// Code is the Connect code as a word ("invalid_argument"); empty where no
	// error came from the server or the transport.
	Code string
	// Reason is the server's reason without its prefix ("INVALID_FIELD"), or
	// empty.
	Reason string
	// Message is the text for people that came with the error.
	Message string
	// Field and Limit name what was wrong with the request ("event_id",
	// "1-512 bytes").
	Field, Limit string
	// RequestID leads to the server's log.
	RequestID string
	// RetryAfter is when asking again may help; 0 when nobody said.
	RetryAfter time.Duration
	// State is the event's state, where the answer told it (ErrStale,
	// ErrResultConflict).
	State State
	// NotApplied: this call certainly changed nothing, on none of its tries.
	// When false the outcome is unknown: see ErrOutcomeUnknown.
	NotApplied bool

	kind  error // the sentinel; nil when the caller's context ended
	cause error

	again  bool    // may be sent again, as it is
	spread float64 // in [0,1): where in the back-off interval; one value for a whole batch
}

// Error says what happened and whether anything may have been changed.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("warifu: " + e.Op)
	for _, part := range []string{e.kindText(), e.Reason, e.Message} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	if e.Field != "" {
		fmt.Fprintf(&b, ": field %s must be %s", e.Field, e.Limit)
	}
	if e.State != StateUnknown {
		fmt.Fprintf(&b, ": state is %s", e.State)
	}
	if e.cause != nil && e.Message == "" { // the message was made from it
		b.WriteString(": " + e.cause.Error())
	}
	if !e.NotApplied && !errors.Is(e.kind, ErrReply) {
		b.WriteString("; outcome unknown")
	}
	if e.RetryAfter > 0 {
		fmt.Fprintf(&b, "; retry after %s", e.RetryAfter)
	}
	if e.RequestID != "" {
		b.WriteString("; request " + e.RequestID)
	}
	return b.String()
}

func (e *Error) kindText() string {
	if e.kind == nil {
		return ""
	}
	return e.kind.Error()
}

// Is reports ErrOutcomeUnknown; the other sentinels are found by unwrapping.
func (e *Error) Is(target error) bool { return target == ErrOutcomeUnknown && !e.NotApplied }

// Unwrap returns the sentinel and the cause.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.kind != nil {
		errs = append(errs, e.kind)
	}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	return errs
}

// std returns e as an error that is nil when e is.
func (e *Error) std() error {
	if e == nil {
		return nil
	}
	return e
}

// RejectedError is a final business refusal: made by a handler with [Reject],
// stored, and returned again to every duplicate. A handler that returns one
// which it had from a Do of its own rejects nothing: that was another event.
type RejectedError struct {
	// Stored is what the refusing attempt left.
	Stored Stored
}

// Error says that the event was rejected; details are in Stored.
func (e *RejectedError) Error() string { return "warifu: " + ErrRejected.Error() }

// Unwrap returns ErrRejected.
func (e *RejectedError) Unwrap() error { return ErrRejected }
