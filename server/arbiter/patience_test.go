package arbiter

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// listened is a context that counts who asks for its channel.
type listened struct {
	context.Context //nolint:containedctx // it is a context
	asked           atomic.Int64
}

func (l *listened) Done() <-chan struct{} {
	l.asked.Add(1)
	return l.Context.Done()
}

// TestPatience: a call that is answered soon never makes its context's channel,
// and one that is not hears of its caller's leaving at most patience late.
func TestPatience(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name             string
		store, stay, end time.Duration // how long the store takes, the caller stays, the call takes
		asked            int64
		decision         claim.Decision
	}{
		{"soon", patience - 1, time.Hour, patience - 1, 0, claim.Granted},
		{"late", patience + 1, time.Hour, patience + 1, 1, claim.Granted},
		{"left early", time.Second, patience / 2, patience, 1, claim.Undecided},
		{"left late", time.Second, 3 * patience, 3 * patience, 1, claim.Undecided},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := setup(t)
			r.store.onCall(func(context.Context, string) error { time.Sleep(row.store); return nil })
			caller, leave := context.WithTimeout(t.Context(), row.stay)
			defer leave()
			ctx := &listened{Context: caller}
			began := time.Now()
			got := r.ClaimOne(ctx, request("order", 1))
			if took := time.Since(began); took != row.end || got.Decision != row.decision || got.Failed() != (row.decision == claim.Undecided) {
				t.Errorf("%s: %+v after %v, want %v after %v", row.name, got, took, row.decision, row.end)
			}
			if n := ctx.asked.Load(); n != row.asked {
				t.Errorf("%s: the channel was asked for %d times, want %d", row.name, n, row.asked)
			}
		})
	}
}
