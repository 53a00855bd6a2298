package sqlstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/storagetest"
)

// TestReplicas: servers with filters of their own, of every kind, on one
// database. What one stores the others have not heard of, and each answers
// right: of all who claim a key one is granted it, and once it is completed all
// are told so.
func TestReplicas(t *testing.T) {
	t.Parallel()
	for _, isolation := range []sqlstore.Isolation{sqlstore.ReadCommitted, sqlstore.Serializable} {
		t.Run(string(isolation), func(t *testing.T) {
			t.Parallel()
			url := cleanSchema(t)
			change := func(c *sqlstore.Config) { c.Isolation = isolation }
			var all []storage.Store
			for _, filter := range []func(storagetest.T, storage.Store) storage.Store{filterOn, filterOn, filterStale, filterLies} {
				all = append(all, filter(t, open(t, url, nil, time.Hour, change)))
			}
			for round := range 5 {
				replicasRound(t, all, round)
			}
		})
	}
}

// replicasKeys is prime, so that every step through them visits all.
const replicasKeys = 61

func replicasRound(t *testing.T, all []storage.Store, round int) {
	t.Helper()
	ids := make([]claim.Key, replicasKeys)
	for i := range ids {
		ids[i] = claim.Key{Tenant: 5, Consumer: "replicas", EventID: fmt.Sprintf("%d-%d", round, i)}
	}
	// Twice as many callers as stores, each with the keys in an order of its
	// own.
	answers := everyone(t, all, func(caller int, s storage.Store) ([]claim.Answer, error) {
		reqs := make([]claim.Request, len(ids))
		for i := range ids {
			reqs[i] = matrixRequest(ids[(i*(2*caller+1)+caller)%len(ids)], byte(caller+1))
		}
		return storagetest.Claim(t.Context(), s, reqs)
	})
	granted := map[claim.Key]claim.Transition{}
	for caller, as := range answers {
		for i, a := range as {
			k := ids[(i*(2*caller+1)+caller)%len(ids)]
			switch {
			case a.Decision == claim.Granted && granted[k].Fence != 0:
				t.Fatalf("%v is granted twice", k)
			case a.Decision == claim.Granted:
				granted[k] = claim.Transition{Kind: claim.Complete, Key: k, Attempt: attemptID(byte(caller + 1)), Fence: a.Fence, Completion: small()}
			case a.Decision != claim.HeldByOther:
				t.Fatalf("%v: %s", k, a.Decision)
			}
		}
	}
	if len(granted) != len(ids) {
		t.Fatalf("%d of %d keys are granted", len(granted), len(ids))
	}
	var ts []claim.Transition
	for _, tr := range granted {
		ts = append(ts, tr)
	}
	if _, err := storagetest.Move(t.Context(), all[round%len(all)], ts); err != nil {
		t.Fatal(err)
	}
	for caller, as := range everyone(t, all, func(caller int, s storage.Store) ([]claim.Answer, error) {
		reqs := make([]claim.Request, len(ids))
		for i := range ids {
			reqs[i] = matrixRequest(ids[i], byte(caller+100))
		}
		return storagetest.Claim(t.Context(), s, reqs)
	}) {
		for i, a := range as {
			if a.Decision != claim.Duplicate || !a.Completion.Same(small()) {
				t.Fatalf("caller %d is told %s of %v, which is completed", caller, a.Decision, ids[i])
			}
		}
	}
}

// everyone lets two callers of each store ask at once.
func everyone(t *testing.T, all []storage.Store, ask func(caller int, s storage.Store) ([]claim.Answer, error)) [][]claim.Answer {
	t.Helper()
	out := make([][]claim.Answer, 2*len(all))
	errs := make([]error, len(out))
	var wg sync.WaitGroup
	for caller := range out {
		wg.Go(func() { out[caller], errs[caller] = ask(caller, all[caller%len(all)]) })
	}
	wg.Wait()
	for caller, err := range errs {
		if err != nil {
			t.Fatalf("caller %d: %v", caller, err)
		}
	}
	return out
}
