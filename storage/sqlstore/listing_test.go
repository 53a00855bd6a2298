package sqlstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

const (
	listedKeys = 240
	// listedPages bounds a list: one that goes on is wrong.
	listedPages = 400
)

// listed returns all that a list finds, page by page.
func listed(ctx context.Context, s storage.Store, l storage.List) ([]claim.Record, error) {
	var all []claim.Record
	for range listedPages {
		page, err := s.List(ctx, l)
		if err != nil {
			return nil, err
		}
		if len(page.Records) > l.Limit {
			return nil, fmt.Errorf("a page of %d has %d records", l.Limit, len(page.Records))
		}
		all = append(all, page.Records...)
		if l.Cursor = page.Cursor; l.Cursor == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("no end after %d pages with %d records", listedPages, len(all))
}

// sameList demands what the model lists, in its order.
func sameList(t *testing.T, s, model storage.Store, l storage.List) {
	t.Helper()
	got, err := listed(t.Context(), s, l)
	if err != nil {
		t.Fatalf("%#v: %v", l, err)
	}
	want, err := listed(t.Context(), model, l)
	if err != nil {
		t.Fatalf("%#v: the model: %v", l, err)
	}
	for i := range min(len(got), len(want)) {
		if !storagetest.SameRecord(got[i], want[i]) {
			t.Fatalf("%#v: record %d is %+v\nwant %+v", l, i, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%#v: %d records, want %d", l, len(got), len(want))
	}
}

// listedKey spreads keys over tenants, consumers and beginnings of different
// lengths in bytes.
func listedKey(i int) claim.Key {
	consumers := []string{"a", "ab", "b", "b", "b", "é"}
	begins := []string{"", "x", "x/", "é", "éa", "日", "\U0001F600"}
	k := claim.Key{Tenant: 1, Consumer: consumers[i%len(consumers)], EventID: fmt.Sprintf("%s%d", begins[i%len(begins)], i*7919%1000)}
	if i%16 == 0 {
		k.Tenant = 2
	}
	return k
}

// fillList stores records in every state.
func fillList(t *testing.T, s storage.Store, clock *storagetest.Clock) {
	t.Helper()
	ctx := t.Context()
	var reqs []claim.Request
	for i := range listedKeys {
		r := matrixRequest(listedKey(i), 1)
		r.Policy.Hold = i%5 == 4
		reqs = append(reqs, r)
	}
	must(ctx, t, s, reqs, storage.Store.InsertOrGet)
	clock.Advance(time.Second)
	var ids []claim.Key
	for i := range reqs {
		ids = append(ids, reqs[i].Key)
	}
	found, err := s.Get(ctx, ids)
	if err != nil {
		t.Fatal(err)
	}
	var ts []claim.Transition
	var swaps []claim.Swap
	for i := range found {
		rec := &found[i].Record
		tr := claim.Transition{Kind: claim.Complete, Key: rec.Key, Attempt: rec.AttemptID, Fence: rec.Fence, Completion: small()}
		switch i % 5 {
		case 0:
			tr.Completion = large()
			ts = append(ts, tr)
		case 1, 2:
			tr.Kind = claim.Release
			ts = append(ts, tr)
			if i%5 == 2 {
				sw := claim.NewSwap(claim.Forget, rec, nil)
				sw.Version++ // as it is after the release
				swaps = append(swaps, sw)
			}
		}
	}
	must(ctx, t, s, ts, storage.Store.Transition)
	must(ctx, t, s, swaps, storage.Store.Replace)
	clock.Advance(matrixLease) // now those under HOLD are in doubt
}

// TestListsLikeTheModel: every list, in pages of every size, is the model's.
func TestListsLikeTheModel(t *testing.T) {
	t.Parallel()
	clock := storagetest.NewClock(storagetest.Start)
	s, model := open(t, cleanSchema(t), clock, time.Hour, nil), storagetest.NewModel(clock.Now, time.Hour)
	for _, each := range []storage.Store{s, model} {
		clock.Set(storagetest.Start)
		fillList(t, each, clock)
	}
	all, err := listed(t.Context(), model, storage.List{Tenant: 1, Limit: storage.ListLimitMax})
	if err != nil {
		t.Fatal(err)
	}
	states := map[claim.State]int{}
	for i := range all {
		states[all[i].Effective(claim.FromTime(clock.Now()))]++
	}
	if len(states) != 5 {
		t.Fatalf("the records are in the states %v", states)
	}
	for limit := 1; limit <= 20; limit++ {
		for _, l := range []storage.List{
			{},
			{States: []claim.State{claim.InDoubt}},
			{States: []claim.State{claim.Released, claim.Forgotten}},
			{Consumer: "b"},
			{Consumer: "b", Prefix: "é", States: []claim.State{claim.InProgress, claim.Completed}},
			{Consumer: "é", Prefix: "x"},
			{Consumer: "a", Prefix: "\xe6\x97"},
		} {
			l.Tenant, l.Limit = 1, limit
			sameList(t, s, model, l)
		}
	}
}

const (
	// crowdedKeys are records of the same consumer that no prefix or filter here
	// finds: in each of two shards more than one page looks at, and not as many in both.
	crowdedKeys  = 1400
	prefixedKeys = 40 // that begin alike
	crowded      = `
INSERT INTO claims
SELECT other.*
FROM claims AS c CROSS JOIN generate_series(1, $1::INT4) AS g
  CROSS JOIN LATERAL jsonb_populate_record(c, jsonb_build_object('shard', CASE g % 3 WHEN 0 THEN 7 ELSE 0 END, 'event_id', 'm' || lpad(g::TEXT, 6, '0'))) AS other
WHERE c.event_id = 'a0'`
)

// TestPrefixWithinACharacter: a prefix is bytes. One that ends within a
// character finds what begins with it, however much else is looked at before.
func TestPrefixWithinACharacter(t *testing.T) {
	t.Parallel()
	url, clock := cleanSchema(t), storagetest.NewClock(storagetest.Start)
	s, model := open(t, url, clock, time.Hour, nil), storagetest.NewModel(clock.Now, time.Hour)
	for _, each := range []storage.Store{s, model} {
		for _, begin := range []string{"a%d", "zé%d", "é%d", "è%d", "日%d", "ÿ%d"} {
			var reqs []claim.Request
			for i := range prefixedKeys {
				r := matrixRequest(claim.Key{Tenant: 1, Consumer: "c", EventID: fmt.Sprintf(begin, i)}, 1)
				if i%3 == 1 {
					r.Record = small()
				}
				reqs = append(reqs, r)
			}
			must(t.Context(), t, each, reqs, storage.Store.InsertOrGet)
		}
	}
	if _, err := newSession(t, url).Exec(t.Context(), crowded, crowdedKeys); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"\xc3", "z\xc3", "\xe6", "\xe6\x97", "\xe6\x97\xa5", "\xff", "é\xc3", "a1\xf0\x9f"} {
		for _, limit := range []int{1, 7, storage.ListLimitMax} {
			sameList(t, s, model, storage.List{Tenant: 1, Consumer: "c", Prefix: prefix, Limit: limit})
		}
	}
	sameList(t, s, model, storage.List{Tenant: 1, States: []claim.State{claim.Completed}, Limit: 7})
	sameList(t, s, model, storage.List{Tenant: 1, Consumer: "c", Prefix: "é", States: []claim.State{claim.Completed}, Limit: 7})
	for _, limit := range []int{100, storage.ListLimitMax} {
		wholeList(t, s, storage.List{Tenant: 1, Limit: limit}, crowdedKeys+6*prefixedKeys)
	}
}

// wholeList demands so many records, each once and in order, of a list over
// shards that are not even.
func wholeList(t *testing.T, s storage.Store, l storage.List, want int) {
	t.Helper()
	all, err := listed(t.Context(), s, l)
	if err != nil || len(all) != want {
		t.Fatalf("%#v: %d records, want %d (%v)", l, len(all), want, err)
	}
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1].Key, all[i].Key; a.Consumer > b.Consumer || a.Consumer == b.Consumer && a.EventID >= b.EventID {
			t.Fatalf("%#v: %v comes before %v", l, a, b)
		}
	}
}
