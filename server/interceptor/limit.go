package interceptor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/overload"
)

// Limiter bounds the RPCs that are decoded, and those that ask the store, at
// the same time (package overload).
type Limiter struct {
	*overload.Limiter
	// refusals are made once: by when to come back, in steps of retryStep.
	refusals [overload.RetryAfterMax/retryStep + 1]*fault.Fault
	late     *fault.Fault
	streams  atomic.Int64
}

// streamsMax bounds streams, which only reflection has.
const streamsMax = 16

// retryStep is how exactly a refused caller is told when to come back.
const retryStep = 50 * time.Millisecond

// NewLimiter returns a limiter of at most maxInFlight calls that hold a body,
// 1 to overload.CeilingMax. How many of them may ask the store at once follows
// from how long it takes. A fifth of both is for calls that finish granted
// work.
func NewLimiter(maxInFlight int) (*Limiter, error) {
	return newLimiter(overload.Config{
		Ceiling: maxInFlight,
		Clock:   time.Now, //nolint:forbidigo // contexts end by the process clock, never by an injected one
	})
}

func newLimiter(cfg overload.Config) (*Limiter, error) {
	inner, err := overload.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("limit: %w", err)
	}
	l := &Limiter{Limiter: inner}
	overloaded := fault.New(warifuv1.Reason_REASON_OVERLOADED,
		"too many calls are in flight; nothing was applied, ask again after retry_after").WithCause(overload.ErrOverloaded)
	for i := range l.refusals {
		l.refusals[i] = overloaded.After(time.Duration(i) * retryStep)
	}
	l.late = fault.New(warifuv1.Reason_REASON_DEADLINE_EXCEEDED,
		"the time left is shorter than such a call takes now; nothing was applied, ask with a later deadline").WithCause(overload.ErrTooLate)
	return l, nil
}

// Shed is how many calls were refused so far, of all classes.
func (l *Limiter) Shed() int64 {
	total := int64(0)
	for c := range overload.Class(overload.Classes) {
		total += l.Limiter.Shed(c)
	}
	return total
}

// ShedOf is how many calls of one class were refused so far.
func (l *Limiter) ShedOf(c overload.Class) int64 { return l.Limiter.Shed(c) }

// Limit refuses calls that find no room before their body is read, and those
// that find no slot before their handler is called.
func Limit(l *Limiter) connect.ServerInterceptor {
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			call := CallFrom(ctx)
			if spec.StreamType != connect.StreamTypeUnary {
				// A stream may be silent for as long as it likes, and reads no
				// claims: a few are let in beside everything else.
				if l.streams.Add(1) > streamsMax {
					l.streams.Add(-1)
					return l.refusals[0]
				}
				defer l.streams.Add(-1)
				return next(ctx, spec, stream)
			}
			s := &call.slot
			if err := l.Enter(&s.ticket, call.Method.Class); err != nil {
				return l.refusal(err)
			}
			defer s.ticket.Leave() // also when the handler panics
			s.limiter, s.call, s.ServerStream = l, call, stream
			err := next(ctx, spec, s)
			s.ticket.Done(s.outcome(err), call.items)
			return err
		}
	}
}

// refusal is what a caller is told who got no room or no slot.
func (l *Limiter) refusal(err error) error {
	switch {
	case errors.Is(err, overload.ErrOverloaded):
		return l.refusals[l.RetryAfter()/retryStep]
	case errors.Is(err, overload.ErrTooLate):
		return l.late
	}
	return Ended(err)
}

// slot is the part of a Call that the limiter sees: the stream of a unary call,
// between whose request and answer the call is worked on. A body that drips in
// and an answer that nobody reads hold no slot.
type slot struct {
	connect.ServerStream
	limiter *Limiter
	call    *Call
	ticket  overload.Ticket
	asked   bool // the handler found the request valid, and asks the store
	failed  bool // a part of the call was not answered for want of a store
}

// Receive implements connect.ServerStream: a request that has come in waits for
// a slot.
func (s *slot) Receive(msg any) error {
	if err := s.ServerStream.Receive(msg); err != nil {
		return err
	}
	if err := s.ticket.Work(s.call); err != nil {
		return s.limiter.refusal(err)
	}
	return nil
}

// Send implements connect.ServerStream: when there is an answer the work is done.
func (s *slot) Send(msg any) error {
	s.ticket.Done(s.outcome(nil), s.call.items)
	return s.ServerStream.Send(msg)
}

// outcome is what the call tells about the store.
func (s *slot) outcome(err error) overload.Outcome {
	switch {
	case !s.asked:
		return overload.Silent
	case err != nil:
		return outcomeOf(fault.Of(err).Reason)
	case s.failed:
		return overload.Abandoned
	}
	return overload.Answered
}

// outcomeOf says which failures come of too many calls. A store that is away
// answers fast: that is no reason to ask it less often, unless it takes long.
func outcomeOf(r warifuv1.Reason) overload.Outcome {
	switch r {
	case warifuv1.Reason_REASON_OVERLOADED, warifuv1.Reason_REASON_OUTCOME_UNKNOWN:
		return overload.Dropped
	case warifuv1.Reason_REASON_DEADLINE_EXCEEDED, warifuv1.Reason_REASON_CANCELED,
		warifuv1.Reason_REASON_STORE_UNAVAILABLE:
		return overload.Abandoned
	default:
		return overload.Silent
	}
}
