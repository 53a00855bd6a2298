package warifu

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Handler acts on one event. Its context ends when the caller's does and when
// the lease is lost; then context.Cause says ErrLeaseLost, and the handler must
// change nothing more. What it returns decides the event:
//
//   - a Completion and no error: stored, and replayed to every duplicate;
//   - [Reject]: refused for good; stored and replayed likewise;
//   - [Retryable]: nothing happened; the grant is given back at once;
//   - any other error, or a panic: nobody knows how far it came; the lease is
//     left to the consumer's policy (granted again, or in doubt).
//
// Reject and Retryable count only where the handler says so itself. What it had
// from a Do for another event is any other error, also when that event was
// rejected or given back: this handler may have acted already.
type Handler func(ctx context.Context, g Grant) (Completion, error)

// Result is how an event ended.
type Result struct {
	Stored
	// Applied: this call ran the handler to its end.
	Applied bool
	// Replayed: an earlier attempt had completed; Stored is what it left.
	Replayed bool
	// Accepted: the event is done for good, and its sender may stop sending it.
	Accepted bool
}

// Bounds of Do.
const (
	// releaseTimeout bounds giving a grant back.
	releaseTimeout = 5 * time.Second
	// completeTimeout bounds a completion whose lease is already over.
	completeTimeout = 10 * time.Second
	// completePause is the longest pause between two rounds of a completion.
	completePause = 2 * time.Second
)

// Do runs handler at most once at a time for the event, and not again once it
// has completed. It claims, keeps the lease while the handler runs, and
// completes. Ack the message when Result.Accepted is true, whatever the error:
//
//   - nil: done, by this call (Applied) or before (Replayed);
//   - ErrRejected: refused for good, now or before; a [*RejectedError];
//   - ErrInProgress, ErrInDoubt, ErrMismatch, ErrTooOld, ErrUnprotected: the
//     handler did not run; each sentinel says what to do;
//   - ErrStale, ErrResultConflict: the handler ran, and its outcome was not
//     stored, because the event had moved on;
//   - ErrUnavailable and others about the call: nack. With Applied set the
//     handler ran and the completion is unknown;
//   - otherwise the handler's own error. Where the handler made calls of its
//     own, it may match the sentinels above for another event's sake; Result
//     speaks of this one only.
//
// A completion does not end with ctx: a caller that goes away cannot lose it.
// While the server cannot be reached, or cannot say what it did, the completion
// is sent again until the lease is over.
func (c *Client) Do(ctx context.Context, e Event, handler Handler, opts ...ClaimOption) (Result, error) {
	if !c.open.enter() {
		return Result{}, closed(opDo)
	}
	defer c.open.exit()
	s := settings(opts)
	answer, err := c.claim(ctx, &e, s, nil)
	if err != nil {
		return Result{}, settled(err, false)
	}
	switch answer.Decision {
	case Granted:
		return c.run(ctx, answer.Grant, s.lease, handler)
	case Duplicate:
		return Result{Stored: answer.Stored, Replayed: true, Accepted: answer.Accepted}, answer.Err()
	case InProgress, Mismatch, InDoubt, TooOld, Unprotected, Undecided:
	}
	return Result{Accepted: answer.Accepted}, answer.Err()
}

// run has the handler act under the grant and settles what it returns.
func (c *Client) run(ctx context.Context, g Grant, lease time.Duration, handler Handler) (Result, error) {
	k := c.keep(ctx, g, lease)
	defer k.stop() // also when the handler panics: then the lease is left
	if cause := context.Cause(k.ctx); cause != nil {
		// The answer came too late to begin, so nothing has happened.
		k.stop()
		return Result{}, settled(errors.Join(cause, c.giveBack(ctx, &g)), false)
	}
	done, err := handler(k.ctx, g)
	until := k.stop() // no extension may overtake what follows
	if rejected, ok := verdict[*rejection](err); ok {
		done, err = rejected.refused.completion(), nil
	}
	if err == nil {
		return c.finish(ctx, &g, &done, until)
	}
	if _, ok := verdict[*retryableError](err); ok {
		return Result{}, settled(errors.Join(err, c.giveBack(ctx, &g)), true)
	}
	if lost := k.lost(); lost != nil {
		err = fmt.Errorf("%w (%w)", err, lost)
	}
	return Result{}, settled(err, false)
}

// finish completes, if need be until the lease is over: after the effect, a
// completion that is lost costs a second effect or an operator. Only an answer
// of the server ends it, not its bug and not what a proxy makes up. Resends
// within a round are bounded by the retry policy and its budget; rounds follow
// each other at completePause.
func (c *Client) finish(ctx context.Context, g *Grant, done *Completion, until time.Time) (Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(time.Until(until), completeTimeout))
	defer cancel()
	result := Result{Stored: done.stored(), Applied: true}
	omitted, err := c.complete(ctx, g, done)
	unknown := false
	for err != nil && err.open() {
		unknown = unknown || !err.NotApplied
		pause := max(err.RetryAfter, completePause/2+rand.N(completePause/2))
		if time.Until(until) <= pause || !sleep(ctx, pause) {
			break
		}
		c.log.WarnContext(ctx, "warifu: completing again", "consumer", g.Consumer, "fence", g.Fence, "error", err)
		omitted, err = c.complete(ctx, g, done)
	}
	if err != nil {
		if unknown && err.State == StateUnknown { // an answer would have told the state
			err.NotApplied = false
		}
		return result, err
	}
	result.Omitted, result.Accepted = omitted, true
	if result.Outcome == Rejected {
		return result, &RejectedError{Stored: result.Stored}
	}
	return result, nil
}

// giveBack releases a grant under which nothing happened. When that fails, the
// lease ends by itself.
func (c *Client) giveBack(ctx context.Context, g *Grant) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := c.release(ctx, g)
	if err != nil {
		c.log.WarnContext(ctx, "warifu: a grant was not given back", "consumer", g.Consumer, "fence", g.Fence, "error", err)
	}
	return err.std()
}

// completion is what a refusal asks to be stored.
func (e *RejectedError) completion() Completion {
	s := &e.Stored
	return Completion{Outcome: Rejected, Body: s.Body, ContentType: s.ContentType, Metadata: s.Metadata}
}
