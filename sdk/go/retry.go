package warifu

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// The retry budget: one token for each request that is sent again, a share of
// one back for each that succeeded. First tries are always free, so a budget
// that ran dry fills again as soon as anything succeeds.
const (
	budgetTokens = 10
	budgetRatio  = 0.1
)

type budget struct {
	mu struct {
		sync.Mutex
		spent float64
	}
}

// settle accounts for one request, however many calls it carried. It decides
// for those that failed whether they may be sent again, and when in the
// back-off: all at once, so that they meet in one batch again.
func (b *budget) settle(failed []*Error) {
	if len(failed) == 0 {
		b.mu.Lock()
		b.mu.spent = max(0, b.mu.spent-budgetRatio)
		b.mu.Unlock()
		return
	}
	if !slices.ContainsFunc(failed, func(e *Error) bool { return e.again }) {
		return
	}
	b.mu.Lock()
	granted := b.mu.spent+1 <= budgetTokens
	if granted {
		b.mu.spent++
	}
	b.mu.Unlock()
	spread := rand.Float64()
	for _, e := range failed {
		e.again, e.spread = e.again && granted, spread
	}
}

// persist tries until there is an answer, a refusal, or no more tries. After
// one send that is unknown the call stays unknown until it is answered.
func (c *Client) persist(ctx context.Context, once func(last bool) *Error) *Error {
	unknown := false
	for try := 1; ; try++ {
		err := once(try >= c.retry.Tries)
		if err == nil {
			return nil
		}
		unknown = unknown || !err.NotApplied
		if !err.again || !c.backOff(ctx, err, try) {
			err.NotApplied = !unknown
			return err
		}
	}
}

// backOff waits before the next try; false when there will be none, because the
// caller's time would be over or the server asks for more patience than a call
// has.
func (c *Client) backOff(ctx context.Context, err *Error, try int) bool {
	if err.RetryAfter > c.retry.DelayMax {
		return false
	}
	ceiling := min(c.retry.DelayMax, c.retry.DelayMin<<(try-1))
	d := err.RetryAfter + time.Duration(err.spread*float64(ceiling))
	if until, ok := ctx.Deadline(); ok && time.Until(until) <= d {
		return false
	}
	c.log.DebugContext(ctx, "warifu: sending again", "op", err.Op, "reason", err.Reason, "code", err.Code, "try", try+1, "after", d)
	if !sleep(ctx, d) {
		err.cause = errors.Join(err.cause, context.Cause(ctx))
		return false
	}
	return true
}

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
