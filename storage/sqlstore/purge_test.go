package sqlstore_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// stepsMax bounds the steps over a tenant: one that goes on is wrong.
const stepsMax = 4000

// tallied returns the sum of all steps, and how many there were.
func tallied(ctx context.Context, s storage.Store, step storage.TenantStep) (map[string]storage.Counts, int, error) {
	sum := map[string]storage.Counts{}
	for n := range stepsMax {
		out, err := s.Tally(ctx, step)
		if err != nil {
			return nil, 0, err
		}
		keys := int64(0)
		for consumer, c := range out.Counts {
			sum[consumer] = sum[consumer].Plus(c)
			keys += c.Keys
		}
		if keys > int64(step.Limit) {
			return nil, 0, fmt.Errorf("a step of %d counted %d", step.Limit, keys)
		}
		if step.Cursor = out.Cursor; step.Cursor == nil {
			return sum, n + 1, nil
		}
	}
	return nil, 0, fmt.Errorf("no end after %d steps", stepsMax)
}

// purged returns how many records went in all steps, and how many there were.
func purged(ctx context.Context, s storage.Store, step storage.TenantStep) (deleted, n int, err error) {
	for n := range stepsMax {
		out, err := s.Purge(ctx, step)
		if err != nil {
			return 0, 0, err
		}
		if out.Deleted > step.Limit {
			return 0, 0, fmt.Errorf("a step of %d deleted %d", step.Limit, out.Deleted)
		}
		deleted += out.Deleted
		if step.Cursor = out.Cursor; step.Cursor == nil {
			return deleted, n + 1, nil
		}
	}
	return 0, 0, fmt.Errorf("no end after %d steps", stepsMax)
}

// uneven makes records of tenant 1 that lie in two shards, besides those of
// fillList: more than a step of any shard, and not as many in both.
const uneven = `
INSERT INTO claims
SELECT other.*
FROM claims AS c CROSS JOIN generate_series(1, $1::INT4) AS g
  CROSS JOIN LATERAL jsonb_populate_record(c, jsonb_build_object('shard', CASE g % 3 WHEN 0 THEN 15 ELSE 0 END, 'event_id', 'm' || lpad(g::TEXT, 6, '0'))) AS other
WHERE c.tenant_id = 1 AND c.event_id = 'a'`

const unevenKeys = 1400

// fillUneven stores records of two tenants in every state and in uneven shards,
// and returns the counts of tenant 1 and of tenant 2.
func fillUneven(t *testing.T, url string, s storage.Store, clock *storagetest.Clock) (one, two map[string]storage.Counts) {
	t.Helper()
	model := storagetest.NewModel(clock.Now, time.Hour)
	for _, each := range []storage.Store{s, model} {
		clock.Set(storagetest.Start)
		must(t.Context(), t, each, []claim.Request{matrixRequest(claim.Key{Tenant: 1, Consumer: "c", EventID: "a"}, 1)}, storage.Store.InsertOrGet)
		fillList(t, each, clock)
	}
	var err error
	if one, _, err = tallied(t.Context(), model, storage.TenantStep{Tenant: 1, Limit: 10}); err != nil {
		t.Fatal(err)
	}
	if two, _, err = tallied(t.Context(), model, storage.TenantStep{Tenant: 2, Limit: 10}); err != nil {
		t.Fatal(err)
	}
	if _, err := newSession(t, url).Exec(t.Context(), uneven, unevenKeys); err != nil {
		t.Fatal(err)
	}
	c := one["c"] // one record, and its copies, whose event IDs are longer by 6
	one["c"] = storage.Counts{
		Keys: c.Keys * (unevenKeys + 1), Live: c.Live * (unevenKeys + 1), Lapsed: c.Lapsed * (unevenKeys + 1),
		Bytes: c.Bytes*(unevenKeys+1) + 6*unevenKeys,
	}
	return one, two
}

// TestTallyOfUnevenShards: whatever the steps, all is counted once, and a tenant
// with few records takes one step.
func TestTallyOfUnevenShards(t *testing.T) {
	t.Parallel()
	url, clock := cleanSchema(t), storagetest.NewClock(storagetest.Start)
	s := open(t, url, clock, time.Hour, nil)
	one, two := fillUneven(t, url, s, clock)
	for _, limit := range []int{3, 15, 16, 17, 40, 333, storage.TenantStepMax} {
		got, _, err := tallied(t.Context(), s, storage.TenantStep{Tenant: 1, Limit: limit})
		if err != nil || !maps.Equal(got, one) {
			t.Fatalf("in steps of %d: %v\ngot  %+v\nwant %+v", limit, err, got, one)
		}
	}
	got, n, err := tallied(t.Context(), s, storage.TenantStep{Tenant: 2, Limit: storage.TenantStepMax})
	if err != nil || n != 1 || !maps.Equal(got, two) {
		t.Fatalf("few records took %d steps: %v\ngot  %+v\nwant %+v", n, err, got, two)
	}
}

// TestPurgeOfUnevenShards: whatever the steps, all goes, bodies too, also those
// that no record names; and nothing of others.
func TestPurgeOfUnevenShards(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{7, 40, storage.TenantStepMax} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			url, clock := cleanSchema(t), storagetest.NewClock(storagetest.Start)
			s := open(t, url, clock, time.Hour, nil)
			one, two := fillUneven(t, url, s, clock)
			watch := newSession(t, url)
			watch.run("INSERT INTO claim_results SELECT shard, tenant_id, consumer, event_id, fence - 1, body FROM claim_results",
				"INSERT INTO claim_results VALUES (3, 1, 'a', 'nobody''s', 1, 'x'), (3, 2, 'a', 'nobody''s', 1, 'x')")
			bodies := watch.number("SELECT count(*) FROM claim_results WHERE tenant_id = 2")
			want := int64(0)
			for _, c := range one {
				want += c.Keys
			}
			deleted, _, err := purged(t.Context(), s, storage.TenantStep{Tenant: 1, Limit: limit})
			if err != nil || int64(deleted) != want {
				t.Errorf("%d records went, want %d: %v", deleted, want, err)
			}
			if n := watch.number("SELECT (SELECT count(*) FROM claims WHERE tenant_id = 1) + (SELECT count(*) FROM claim_results WHERE tenant_id = 1)"); n != 0 {
				t.Errorf("%d rows are left", n)
			}
			got, _, err := tallied(t.Context(), s, storage.TenantStep{Tenant: 2, Limit: 10})
			if err != nil || !maps.Equal(got, two) {
				t.Errorf("the other tenant: %v\ngot  %+v\nwant %+v", err, got, two)
			}
			if n := watch.number("SELECT count(*) FROM claim_results WHERE tenant_id = 2"); n != bodies {
				t.Errorf("the other tenant has %d bodies, want %d", n, bodies)
			}
		})
	}
}

// TestPurgeMeetsCompletion: completions that are under way while their records
// are purged leave no body behind, and a purge survives them.
func TestPurgeMeetsCompletion(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	s := open(t, url, nil, time.Hour, nil)
	watch := newSession(t, url)
	for round := range 10 {
		var reqs []claim.Request
		for i := range 40 {
			reqs = append(reqs, matrixRequest(claim.Key{Tenant: 1, Consumer: "c", EventID: fmt.Sprintf("%d-%d", round, i)}, 1))
		}
		found, err := s.InsertOrGet(t.Context(), reqs)
		if err != nil {
			t.Fatal(err)
		}
		var owners sync.WaitGroup
		for i := range found {
			owners.Go(func() {
				_, err := s.Transition(t.Context(), []claim.Transition{{
					Kind: claim.Complete, Key: reqs[i].Key, Attempt: reqs[i].Attempt, Fence: found[i].Record.Fence, Completion: large(),
				}})
				if err != nil {
					t.Errorf("completion: %v", err)
				}
			})
		}
		if deleted, _, err := purged(t.Context(), s, storage.TenantStep{Tenant: 1, Limit: 5}); err != nil || deleted != len(reqs) {
			t.Errorf("round %d: %d records went, want %d: %v", round, deleted, len(reqs), err)
		}
		owners.Wait()
		if n := watch.number("SELECT (SELECT count(*) FROM claims) + (SELECT count(*) FROM claim_results)"); n != 0 {
			t.Fatalf("round %d: %d rows are left", round, n)
		}
	}
}
