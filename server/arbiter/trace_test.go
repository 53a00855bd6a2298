package arbiter

import (
	"context"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

type batchKey struct{}

// TestTraceSurroundsBatches: whoever traces hears of each batch with its calls,
// sees the store called within the context that it returns, and hears the end.
func TestTraceSurroundsBatches(t *testing.T) {
	t.Parallel()
	type told struct {
		action string
		calls  []context.Context
		items  int
		ended  bool
	}
	var mu sync.Mutex
	var batches []*told
	r := setup(t, func(c *Config) {
		c.Trace = func(ctx context.Context, action string, calls iter.Seq[context.Context], items int) (context.Context, func()) {
			b := &told{action: action, items: items}
			for call := range calls {
				b.calls = append(b.calls, call)
			}
			mu.Lock()
			defer mu.Unlock()
			batches = append(batches, b)
			return context.WithValue(ctx, batchKey{}, b), func() {
				mu.Lock()
				defer mu.Unlock()
				b.ended = true
			}
		}
	})
	within := make(chan *told, 8)
	r.store.onCall(func(ctx context.Context, _ string) error {
		if _, has := ctx.Deadline(); !has {
			t.Error("a store call without an end")
		}
		b, _ := ctx.Value(batchKey{}).(*told)
		within <- b
		return nil
	})
	ctx := context.WithValue(t.Context(), batchKey{}, "caller")
	reqs := []claim.Request{{Key: claim.Key{Tenant: 1, Consumer: "c", EventID: "a"}}, {Key: claim.Key{Tenant: 1, Consumer: "c", EventID: "b"}}}
	for i := range reqs {
		reqs[i].Attempt, reqs[i].InsertBefore, reqs[i].Lease = claim.AttemptID{1}, claim.Never, time.Minute
		reqs[i].Policy = claim.Policy{Window: time.Hour, Retention: time.Hour, HoldMax: time.Hour}
	}
	r.Claim(ctx, reqs)
	r.stop() // waits for the batch's end, which is beside the answer
	if len(batches) != 1 || batches[0] != <-within {
		t.Fatalf("%d batches, and the store was called within another", len(batches))
	}
	if b := batches[0]; b.action != "claim" || b.items != 2 || len(b.calls) != 1 || b.calls[0] != ctx || !b.ended {
		t.Errorf("told %+v", b)
	}
}
