package server_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// noise is a tenant that asks at a rate and hears what it hears.
type noise struct {
	mu                     sync.Mutex
	answered, over, silent int   // silent: refused, and not told what or until when
	strange                error // another refusal
}

// begin makes noise until the returned function is called, which waits for it.
func (w *wire) begin(c warifuv1connect.ClaimServiceClient, perSecond int) (n *noise, end func()) {
	n = &noise{}
	ctx, cancel := context.WithCancel(w.t.Context())
	var calls sync.WaitGroup
	calls.Go(func() {
		for ctx.Err() == nil {
			calls.Go(func() { n.call(w, c) })
			time.Sleep(time.Second / time.Duration(perSecond))
		}
	})
	return n, func() {
		cancel()
		calls.Wait()
	}
}

func (n *noise) call(w *wire, c warifuv1connect.ClaimServiceClient) {
	_, err := c.Claim(w.t.Context(), request(uuid.NewString(), uuid.NewString()))
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		n.answered++
		return
	}
	switch i := info(w.t, err); {
	case i.GetReason() != warifuv1.Reason_REASON_QUOTA_EXCEEDED:
		n.strange = err
	case i.GetRetryAfter().AsDuration() <= 0 || !i.GetNotApplied() || i.GetField() == "" || retryInfo(w.t, err).AsDuration() <= 0:
		n.silent++
	default:
		n.over++
	}
}

// withQuota gives the tenant "other" a quota of items a second.
func withQuota(t *testing.T, items int64) option {
	t.Helper()
	return func(c *server.Config) {
		began := time.Now()
		var err error
		c.Quotas, err = quota.New(quota.Config{Monotonic: func() time.Duration { return time.Since(began) }})
		if err != nil {
			t.Fatal(err)
		}
		other, ok := c.Directory.Table().Tenant("other")
		if !ok {
			t.Fatal("there is no other tenant")
		}
		other.Limits = registry.Limits{ItemsPerSecond: items} // nobody has seen it yet
	}
}

// TestNoisyTenant: whatever one tenant does, the others' claims take what they
// took without it. Within its quota it is answered, beyond it is told so, and
// until when.
func TestNoisyTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// The others are enough to keep group commits going: who was alone with the
		// store would feel the first neighbour, however quiet.
		const most, quiet, length = 100, 250, 2 * time.Second
		w := overHTTP(t, &slowStore{batch: 4 * time.Millisecond, key: 20 * time.Microsecond, parallel: true}, withQuota(t, most))
		others, noisy := w.dial("shop", false), w.dial("other", true)
		alone := w.load(others, quiet, length)
		for _, tt := range []struct {
			name    string
			rate    int
			refused bool
		}{{"within its quota", most * 9 / 10, false}, {"ten times its quota", 10 * most, true}} {
			n, end := w.begin(noisy, tt.rate)
			beside := w.load(others, quiet, length)
			end()
			t.Logf("%s: others' p50 %v, alone %v; of its calls %d were answered and %d not", tt.name, beside.p50(), alone.p50(), n.answered, n.over)
			beside.mustBeHonest(t, tt.name)
			if beside.shed > 0 || beside.p50() > alone.p50()*6/5 {
				t.Errorf("%s: %d of the others' calls were refused, p50 %v; alone %v", tt.name, beside.shed, beside.p50(), alone.p50())
			}
			if n.strange != nil || n.silent > 0 || (n.over > 0) != tt.refused || n.answered < most {
				t.Errorf("%s: %+v", tt.name, n)
			}
			if most := most*int(length/time.Second+1) + claim.BatchItemsMax; n.answered > most { // a burst is a batch at least
				t.Errorf("%s: %d calls were answered, want %d at most", tt.name, n.answered, most)
			}
		}
	})
}
