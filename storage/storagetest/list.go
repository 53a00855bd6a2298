package storagetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var listCases = []testCase{
	{"list/empty", func(e *env) { e.wantList(storage.List{Tenant: testTenant}) }},
	{"list/order-is-of-bytes", func(e *env) {
		keys := oddKeys()
		for i, k := range keys {
			e.granted(requestFor(k, i+1))
		}
		slices.SortFunc(keys, compareKeys)
		e.wantList(storage.List{Tenant: testTenant}, keys...)
	}},
	{"list/order-spelt-out", func(e *env) {
		// As above, but without a comparison that could be wrong itself: upper
		// case before lower, a prefix before what it begins, bytes before any
		// language's alphabet, the consumer before the event.
		var keys []claim.Key
		for _, p := range [][2]string{
			{"B", "z"}, {"a", "B"}, {"a", "a"}, {"a", "a "}, {"a", "a-"}, {"a", "aa"}, {"a", "z"},
			{"a", "\u00e4"}, {"a", "\uffff"}, {"a", "\U00010000"}, {"a.", "a"}, {"a/", "a"}, {"a0", "a"}, {"aa", "A"}, {"b", "A"},
		} {
			keys = append(keys, claim.Key{Tenant: testTenant, Consumer: p[0], EventID: p[1]})
		}
		for i := range keys {
			e.granted(requestFor(keys[len(keys)-1-i], 1))
		}
		e.wantList(storage.List{Tenant: testTenant}, keys...)
	}},
	{"list/consumer-and-prefix", listPrefixes},
	{"list/states", listStates},
	{"list/expired-until-swept", func(e *env) {
		rec := e.must(e.transition(release(e.granted(request("a", 1)))))
		e.goTo(rec.ExpiresAt.Add(e.grace))
		e.wantList(storage.List{Tenant: testTenant}, rec.Key)
		e.wantSwept(1)
		e.wantList(storage.List{Tenant: testTenant})
	}},
	{"list/no-bodies", func(e *env) {
		done := e.must(e.transition(complete(e.granted(request("a", 1)), result("one"))))
		page := e.page(storage.List{Tenant: testTenant, Limit: 10})
		if len(page.Records) != 1 {
			e.Fatalf("%d records, want 1", len(page.Records))
		}
		e.wantRecord(page.Records[0], WithoutBody(done))
		e.wantStored(done)
	}},
	{"list/tenants-are-apart", listTenants},
	{"list/keys-that-stay-are-seen-once-while-others-come-and-go", listWhileWriting},
	{"list/refuses-what-it-cannot-mean", func(e *env) {
		e.granted(request("a", 1))
		for _, l := range []storage.List{
			{Tenant: testTenant, Limit: 0}, {Tenant: testTenant, Limit: -1}, {Tenant: testTenant, Limit: listLimitMax + 1},
			{Tenant: testTenant, Limit: 1, Prefix: "a"},
		} {
			if page, err := e.store.List(e.Context(), l); err == nil {
				e.Errorf("%+v was taken: %d records", l, len(page.Records))
			}
		}
		for _, garbage := range garbageCursors() {
			_, err := e.store.List(e.Context(), storage.List{Tenant: testTenant, Limit: 1, Cursor: garbage})
			if !errors.Is(err, storage.ErrCursor) {
				e.Errorf("cursor %q: error %v, want %v", garbage, err, storage.ErrCursor)
			}
		}
	}},
}

// page is one List that must not fail.
func (e *env) page(l storage.List) storage.Page {
	e.Helper()
	page, err := e.store.List(e.Context(), l)
	switch {
	case err != nil:
		e.Fatalf("List %+v: %v", l, err)
	case len(page.Records) > l.Limit:
		e.Fatalf("List of %d returned %d records", l.Limit, len(page.Records))
	case page.Now != e.now():
		e.Fatalf("List: store time is %v, want %v", page.Now.Std(), e.clock.Now())
	}
	return page
}

// pagesMax ends a list whose cursor makes no progress.
const pagesMax = 10_000

// list reads all pages of l, between pages calling meanwhile.
func (e *env) list(l storage.List, meanwhile func()) []claim.Record {
	e.Helper()
	var all []claim.Record
	for range pagesMax {
		page := e.page(l)
		all = append(all, page.Records...)
		if page.Cursor == nil {
			return all
		}
		l.Cursor = page.Cursor
		meanwhile()
	}
	e.Fatalf("List %+v does not end within %d pages", l, pagesMax)
	return nil
}

// wantList demands exactly keys, in this order, in pages of every size that
// matters.
func (e *env) wantList(l storage.List, keys ...claim.Key) {
	e.Helper()
	for _, limit := range []int{1, 2, 3, max(1, len(keys)-1), max(1, len(keys)), len(keys) + 1, listLimitMax} {
		l.Limit = limit
		var got []claim.Key
		for _, rec := range e.list(l, func() {}) {
			got = append(got, rec.Key)
		}
		if !slices.Equal(got, keys) {
			e.Fatalf("List %+v\ngot  %+v\nwant %+v", l, got, keys)
		}
	}
}

func listPrefixes(e *env) {
	events := []string{
		"", "a", "a%", "a%b", "a_", "a_b", "aXb", "ab", "a\u00ff", "a\uffff", "a\U0010ffff", "a\U0010ffffz", "b", "A", `a\`, "\U0010ffff",
	}
	var keys []claim.Key
	for _, consumer := range []string{"c", "c.d", "cc", "C"} {
		for _, event := range events[1:] {
			k := claim.Key{Tenant: testTenant, Consumer: consumer, EventID: event}
			keys = append(keys, k)
			e.granted(requestFor(k, len(keys)))
		}
	}
	slices.SortFunc(keys, compareKeys)
	for _, consumer := range []string{"c", "cc", "d"} {
		for _, prefix := range events {
			var want []claim.Key
			for _, k := range keys {
				if k.Consumer == consumer && strings.HasPrefix(k.EventID, prefix) {
					want = append(want, k)
				}
			}
			e.wantList(storage.List{Tenant: testTenant, Consumer: consumer, Prefix: prefix}, want...)
		}
	}
}

// listStates: the states that are asked for are those that decisions see. What
// lapsed under HOLD is in doubt, whatever is written.
func listStates(e *env) {
	recs := oneOfEach(e)
	slices.SortFunc(recs, func(a, b claim.Record) int { return compareKeys(a.Key, b.Key) })
	for _, states := range [][]claim.State{
		{claim.InProgress}, {claim.Released}, {claim.InDoubt}, {claim.Completed}, {claim.Forgotten},
		{claim.InDoubt, claim.Completed}, {claim.InProgress, claim.Released, claim.InDoubt, claim.Completed, claim.Forgotten}, nil,
	} {
		var want []claim.Key
		for _, rec := range recs {
			state := rec.State
			if strings.HasPrefix(rec.Key.EventID, "lapsing-hold") {
				state = claim.InDoubt
			}
			if states == nil || slices.Contains(states, state) {
				want = append(want, rec.Key)
			}
		}
		e.wantList(storage.List{Tenant: testTenant, States: states}, want...)
	}
	all := e.list(storage.List{Tenant: testTenant, Limit: 5}, func() {})
	for i, rec := range recs {
		e.wantRecord(all[i], WithoutBody(rec))
	}
}

// listTenants: not even a cursor of another tenant shows anything of it.
func listTenants(e *env) {
	tenants := []claim.TenantID{1, 2, 256}
	want := map[claim.TenantID][]claim.Key{}
	for _, tenant := range tenants {
		for i := range 5 {
			k := claim.Key{Tenant: tenant, Consumer: "c", EventID: fmt.Sprint(i)}
			e.granted(requestFor(k, i+1))
			want[tenant] = append(want[tenant], k)
		}
	}
	for _, tenant := range tenants {
		e.wantList(storage.List{Tenant: tenant}, want[tenant]...)
	}
	e.wantList(storage.List{Tenant: 3})
	for _, from := range tenants {
		cursor := e.page(storage.List{Tenant: from, Limit: 2}).Cursor
		for _, to := range []claim.TenantID{1, 2, 3, 256} {
			page, err := e.store.List(e.Context(), storage.List{Tenant: to, Limit: 10, Cursor: cursor})
			if err != nil && !errors.Is(err, storage.ErrCursor) {
				e.Errorf("cursor of tenant %d for %d: %v", from, to, err)
			}
			for _, rec := range page.Records {
				if rec.Key.Tenant != to {
					e.Errorf("tenant %d was shown %+v", to, rec.Key)
				}
			}
		}
	}
}

func listWhileWriting(e *env) {
	const n = 40
	var stay []claim.Key
	for i := range n {
		k := key(fmt.Sprintf("stays-%03d", i))
		stay = append(stay, k)
		req := requestFor(k, 1)
		req.Policy.Retention = 100 * testRetention
		e.granted(req)
		e.granted(request(fmt.Sprintf("stays-%03d-goes", i), 1))
	}
	e.clock.Advance(testRetention + e.grace)
	added := 0
	seen := map[claim.Key]int{}
	for _, rec := range e.list(storage.List{Tenant: testTenant, Limit: 3}, func() {
		added++
		e.granted(request(fmt.Sprintf("stays-%03d-new", added), 1))
		if added == 5 {
			e.wantSwept(n)
		}
	}) {
		seen[rec.Key]++
	}
	for _, k := range stay {
		if seen[k] != 1 {
			e.Errorf("%q was listed %d times", k.EventID, seen[k])
		}
	}
}
