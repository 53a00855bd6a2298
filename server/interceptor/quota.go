package interceptor

import (
	"context"
	"strconv"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/overload"
	"github.com/warifu/warifu/server/quota"
)

// Quota charges each call to its tenant, and keeps tenants from each other's
// share of the slots. Calls that finish granted work are charged and never
// refused; those of the platform are neither. It comes before Limit: what a
// tenant has queued counts as its.
func Quota(q *quota.Quotas, defaults quota.Limits, l *Limiter) connect.ServerInterceptor {
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			call := CallFrom(ctx)
			t := call.Principal.Tenant
			if t == nil {
				return next(ctx, spec, stream)
			}
			limits, finishes := defaults.Resolve(t.Limits), call.Method.Class == overload.Finish
			if finishes {
				q.ChargeRequest(t.ID, &limits)
			} else if e := q.TakeRequest(t.ID, &limits); e.Over() {
				return QuotaFault(e)
			}
			var entered bool
			if call.share, entered = q.Enter(t.ID, int64(l.Limit()), finishes); !entered {
				return QuotaFault(quota.ShareExceeded())
			}
			defer call.share.Leave() // also when the handler panics
			return next(ctx, spec, stream)
		}
	}
}

// QuotaFault is what a caller is told who is over a quota.
func QuotaFault(e quota.Exceeded) *fault.Fault {
	f := fault.New(warifuv1.Reason_REASON_QUOTA_EXCEEDED, e.Error())
	f.Field, f.Limit = e.What.String(), strconv.FormatInt(e.Limit, 10)
	return f.After(max(e.RetryAfter, quotaRetryMin))
}

// quotaRetryMin keeps callers who are over a quota from asking again at once: a
// refusal costs nearly as much as an answer.
const quotaRetryMin = 100 * time.Millisecond
