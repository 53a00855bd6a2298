package interceptor

import (
	"context"
	"sync/atomic"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
)

// keptShare is the part of all slots (one in keptShare) that only Kept calls
// may use.
const keptShare = 5

// Limiter bounds the RPCs that are decoded or worked on at the same time, and
// with them the memory that bodies take. Nothing queues here: what does not
// fit is refused at once and told when to come back.
type Limiter struct {
	inFlight atomic.Int64
	shed     atomic.Int64
	max      int64
}

// NewLimiter returns a limiter of max concurrent calls, max ≥ 1. A fifth of
// them is reserved for calls that finish granted work.
func NewLimiter(maxInFlight int) *Limiter { return &Limiter{max: int64(maxInFlight)} }

// InFlight is how many calls hold a slot now.
func (l *Limiter) InFlight() int64 { return l.inFlight.Load() }

// Shed is how many calls were refused so far.
func (l *Limiter) Shed() int64 { return l.shed.Load() }

// Limit refuses calls that find no slot.
func Limit(l *Limiter) connect.ServerInterceptor {
	overloaded := fault.New(warifuv1.Reason_REASON_OVERLOADED, "too many calls are in flight; ask again after retry_after")
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			call := CallFrom(ctx)
			if !l.enter(call.Method.Kept) {
				l.shed.Add(1)
				return overloaded
			}
			call.slot = l
			defer call.Park()
			return next(ctx, spec, stream)
		}
	}
}

func (l *Limiter) enter(kept bool) bool {
	limit := l.max
	if !kept {
		limit = max(1, limit-limit/keptShare)
	}
	if l.inFlight.Add(1) > limit {
		l.inFlight.Add(-1)
		return false
	}
	return true
}
