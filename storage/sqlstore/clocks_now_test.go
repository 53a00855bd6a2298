package sqlstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
)

// behindOf returns keys that statements take after k.
func behindOf(k claim.Key, n int) []claim.Key {
	var out []claim.Key
	for i := 0; len(out) < n; i++ {
		next := claim.Key{Tenant: k.Tenant, Consumer: k.Consumer, EventID: fmt.Sprintf("%s-%d", k.EventID, i)}
		if sqlstore.ShardOf(next) > sqlstore.ShardOf(k) {
			out = append(out, next)
		}
	}
	return out
}

// TestNowIsNotBeforeTheRecord has the transaction of a batch wait for its first
// key, while another server grants its second key and completes its third: the
// database's time in the batch is older than that of what it reads. The batch is
// of claims that are not alike: others see nothing that is committed while they wait.
func TestNowIsNotBeforeTheRecord(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	s, other := open(t, url, nil, time.Hour, nil), open(t, url, nil, time.Hour, nil)
	first := matrixKeys[0]
	rest := behindOf(first, 2)
	must(t.Context(), t, other, []claim.Request{matrixRequest(first, 1), matrixRequest(rest[1], 1)}, storage.Store.InsertOrGet)
	found, err := other.Get(t.Context(), rest[1:])
	if err != nil {
		t.Fatal(err)
	}

	w := waitsFor(t, url, first, func(ctx context.Context) ([]storage.Found, error) {
		return s.InsertOrGet(ctx, []claim.Request{matrixRequest(first, 2), matrixRequest(rest[0], 2), matrixRequest(rest[1], 2, longer)})
	})
	must(t.Context(), t, other, []claim.Request{matrixRequest(rest[0], 3)}, storage.Store.InsertOrGet)
	must(t.Context(), t, other, []claim.Transition{{
		Kind: claim.Complete, Key: rest[1], Attempt: attemptID(1), Fence: found[0].Record.Fence, Completion: small(),
	}}, storage.Store.Transition)
	out := w.free()
	began := out[0].Now // what the batch itself has granted
	for i, at := range map[int]claim.Time{1: out[1].Record.GrantedAt, 2: out[2].Record.EndedAt} {
		if at <= began {
			t.Fatalf("item %d was written at %d, before the batch began at %d: nothing is tested", i, at, began)
		}
		if out[i].Now < at {
			t.Errorf("item %d: now is %v before the record was written", i, at.Sub(out[i].Now))
		}
	}
}

func longer(r *claim.Request) { r.Lease *= 2 }

// TestNowDoesNotRunBackwards: what a store has answered while a transaction
// waited, it answers in that transaction too. Nobody sees a lease lapse and
// then live.
func TestNowDoesNotRunBackwards(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*claim.Request){"alike": func(*claim.Request) {}, "not alike": longer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			neverBackwards(t, change)
		})
	}
}

func neverBackwards(t *testing.T, change func(*claim.Request)) {
	t.Helper()
	url := cleanSchema(t)
	s := open(t, url, nil, time.Hour, nil)
	first := matrixKeys[0]
	second := behindOf(first, 1)[0]
	must(t.Context(), t, s, []claim.Request{matrixRequest(first, 1)}, storage.Store.InsertOrGet)
	w := waitsFor(t, url, first, func(ctx context.Context) ([]storage.Found, error) {
		return s.InsertOrGet(ctx, []claim.Request{matrixRequest(first, 2), matrixRequest(second, 2, change)})
	})
	short := matrixRequest(second, 2)
	short.Lease = time.Microsecond // the same attempt, sent again elsewhere
	must(t.Context(), t, s, []claim.Request{short}, storage.Store.InsertOrGet)
	seen, err := s.Get(t.Context(), []claim.Key{second})
	if err != nil || !seen[0].Record.Lapsed(seen[0].Now) {
		t.Fatalf("%+v %v", seen, err)
	}
	out := w.free()
	if out[1].Now < seen[0].Now || out[1].Record.Live(out[1].Now) {
		t.Errorf("now runs back by %v; the lease lives: %v", seen[0].Now.Sub(out[1].Now), out[1].Record.Live(out[1].Now))
	}
}

// waiter is a call on several keys that waits for the first one's record.
type waiter struct {
	holder *session
	found  chan []storage.Found
}

func waitsFor(t *testing.T, url string, k claim.Key, call func(context.Context) ([]storage.Found, error)) *waiter {
	t.Helper()
	w := &waiter{holder: newSession(t, url), found: make(chan []storage.Found, 1)}
	w.holder.run("BEGIN", fmt.Sprintf("DELETE FROM claims WHERE event_id = '%s'", k.EventID))
	go func() {
		found, err := call(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Errorf("the call that waits: %v", err)
		}
		w.found <- found
	}()
	newSession(t, url).waited(w.holder)
	return w
}

func (w *waiter) free() []storage.Found {
	w.holder.t.Helper()
	w.holder.run("COMMIT")
	found := <-w.found
	for i := range found {
		if found[i].Err != nil {
			w.holder.t.Fatalf("item %d: %v", i, found[i].Err)
		}
	}
	if len(found) == 0 {
		w.holder.t.FailNow()
	}
	return found
}
