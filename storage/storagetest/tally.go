package storagetest

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var tallyCases = []testCase{
	{"tally/empty", func(e *env) { e.wantTally(testTenant, nil) }},
	{"tally/every-state", tallyStates},
	{"tally/lease-is-half-open", func(e *env) {
		rec := e.granted(request("a", 1))
		e.goTo(rec.LeaseUntil - 1)
		e.wantOne(storage.Counts{Live: 1})
		e.goTo(rec.LeaseUntil)
		e.wantOne(storage.Counts{Lapsed: 1})
		e.goTo(rec.ExpiresAt - 1)
		e.wantOne(storage.Counts{Lapsed: 1})
		e.goTo(rec.ExpiresAt)
		e.wantOne(storage.Counts{})
	}},
	{"tally/lapsed-under-hold-is-in-doubt-and-stays", func(e *env) {
		req := request("a", 1)
		req.Policy.Hold = true
		rec := e.granted(req)
		e.goTo(rec.LeaseUntil - 1)
		e.wantOne(storage.Counts{Live: 1})
		e.goTo(rec.LeaseUntil)
		e.wantOne(storage.Counts{InDoubt: 1})
		e.goTo(rec.ExpiresAt.Add(testRetention))
		e.wantOne(storage.Counts{InDoubt: 1})
	}},
	{"tally/completed-until-expired", func(e *env) {
		rec := e.must(e.transition(complete(e.granted(request("a", 1)), result("one"))))
		e.goTo(rec.ExpiresAt - 1)
		e.wantOne(storage.Counts{Completed: 1})
		e.goTo(rec.ExpiresAt)
		e.wantOne(storage.Counts{})
	}},
	{"tally/bytes", tallyBytes},
	{"tally/steps-of-every-size", func(e *env) {
		want := map[string]storage.Counts{}
		for i, k := range oddKeys() {
			rec := e.granted(requestFor(k, i+1))
			want[k.Consumer] = want[k.Consumer].Plus(storage.Counts{Keys: 1, Live: 1, Bytes: recordBytes(&rec)})
		}
		e.wantTally(testTenant, want)
	}},
	{"tally/tenants-are-apart", tallyTenants},
	{"tally/bad-steps-are-refused", func(e *env) {
		e.refusesBadSteps(func(step storage.TenantStep) (cursor []byte, err error) {
			tallied, err := e.store.Tally(e.Context(), step)
			return tallied.Cursor, err
		})
	}},
	{"tally/while-others-write", func(e *env) {
		const n = 40
		for i := range n {
			e.granted(requestFor(claim.Key{Tenant: testTenant, Consumer: "stays", EventID: fmt.Sprint(i)}, 1))
		}
		added := 0
		got := e.tally(storage.TenantStep{Tenant: testTenant, Limit: 3}, func() {
			if added++; added > 2*n {
				return // what is added may be counted, without end
			}
			e.granted(requestFor(claim.Key{Tenant: testTenant, Consumer: "r", EventID: fmt.Sprint(added)}, 1))
			e.granted(requestFor(claim.Key{Tenant: testTenant, Consumer: "z", EventID: fmt.Sprint(added)}, 1))
		})
		if got["stays"].Keys != n || got["stays"].Live != n {
			e.Fatalf("%+v of %d records that were there all the time", got["stays"], n)
		}
	}},
}

// tally sums all steps, between steps calling meanwhile.
func (e *env) tally(step storage.TenantStep, meanwhile func()) map[string]storage.Counts {
	e.Helper()
	sum := map[string]storage.Counts{}
	for range pagesMax {
		tallied, err := e.store.Tally(e.Context(), step)
		if err != nil {
			e.Fatalf("Tally %+v: %v", step, err)
		}
		if tallied.Now != e.now() {
			e.Fatalf("Tally: store time is %v, want %v", tallied.Now.Std(), e.clock.Now())
		}
		looked := int64(0)
		for consumer, c := range tallied.Counts {
			sum[consumer] = sum[consumer].Plus(c)
			looked += c.Keys
		}
		if looked > int64(step.Limit) {
			e.Fatalf("Tally of %d counted %d records", step.Limit, looked)
		}
		if step.Cursor = tallied.Cursor; step.Cursor == nil {
			return sum
		}
		meanwhile()
	}
	e.Fatalf("Tally %+v does not end within %d steps", step, pagesMax)
	return nil
}

// wantTally demands these counts in steps of every size that matters.
func (e *env) wantTally(tenant claim.TenantID, want map[string]storage.Counts) {
	e.Helper()
	n := 0
	for _, c := range want {
		n += int(c.Keys)
	}
	for _, limit := range []int{1, 2, max(1, n-1), max(1, n), n + 1, storage.TenantStepMax} {
		got := e.tally(storage.TenantStep{Tenant: tenant, Limit: limit}, func() {})
		if len(got) != len(want) || !maps.Equal(got, want) && len(want) > 0 {
			e.Fatalf("Tally of tenant %d in steps of %d\ngot  %+v\nwant %+v", tenant, limit, got, want)
		}
	}
}

// wantOne demands that the only record is counted as want says.
func (e *env) wantOne(want storage.Counts) {
	e.Helper()
	rec := e.get(key("a"))[0].Record
	want.Keys, want.Bytes = 1, recordBytes(&rec)
	e.wantTally(testTenant, map[string]storage.Counts{rec.Key.Consumer: want})
}

// tallyStates: what decisions see, not what is written.
func tallyStates(e *env) {
	want := map[string]storage.Counts{}
	later := map[string]storage.Counts{}
	for i, recs := range statesOf(e, 3) {
		name := stateSpecs[i].name
		for _, rec := range recs {
			c := storage.Counts{Keys: 1, Bytes: recordBytes(&rec)}
			l := c
			switch {
			case name == "lapsing-hold", name == "in-doubt":
				c.InDoubt, l.InDoubt = 1, 1
			case name == "live-hold":
				c.Live, l.InDoubt = 1, 1
			case strings.HasPrefix(name, "live"), name == "renewed", name == "taken-over", name == "begun-anew":
				c.Live = 1
			case strings.HasPrefix(name, "lapsing"):
				c.Lapsed = 1
			case strings.HasPrefix(name, "completed"):
				c.Completed = 1
			case strings.HasPrefix(name, "released"), name == "forgotten":
			default:
				e.Fatalf("state %q is in no count", name)
			}
			want[rec.Key.Consumer] = want[rec.Key.Consumer].Plus(c)
			later[rec.Key.Consumer] = later[rec.Key.Consumer].Plus(l)
		}
	}
	e.wantTally(testTenant, want)
	e.clock.Advance(100 * testRetention) // only what is in doubt does not expire
	e.wantTally(testTenant, later)
}

// tallyBytes spells the unit out: 200, the key, digests with a byte for their
// number and for each length, the same of metadata, and the body as it is kept.
func tallyBytes(e *env) {
	grant := func(consumer string, ds ...claim.Digest) claim.Record {
		req := requestFor(claim.Key{Tenant: testTenant, Consumer: consumer, EventID: "0123456789"}, 1)
		req.Digests, req.Policy.ResultBytesMax = ds, 1<<20
		return e.granted(req)
	}
	done := func(consumer string, c claim.Completion) {
		e.must(e.transition(complete(grant(consumer), ptr(c.Summed()))))
	}
	grant("none")
	grant("two", claim.Digest{Scheme: "abc", Value: []byte("12345")}, claim.Digest{Scheme: "d", Value: []byte("1")})
	done("bare", claim.Completion{Outcome: claim.Rejected})
	done("all", claim.Completion{
		Outcome: claim.Succeeded, ContentType: "text/plain", Metadata: []claim.Pair{{Name: "ab", Value: "c"}}, Body: []byte("result"),
	})
	done("aside", claim.Completion{Outcome: claim.Succeeded, Body: pattern(50_000, 1)})
	e.must(e.transition(complete(grant("omitted"), claim.Completion{Outcome: claim.Succeeded, Body: pattern(50_000, 2)}.Summed().Without(claim.TooLarge))))
	forgotten := e.must(e.transition(complete(grant("forgotten", claim.Digest{Scheme: "s", Value: []byte("v")}), ptr(claim.Completion{
		Outcome: claim.Succeeded, ContentType: "x", Body: pattern(50_000, 3),
	}.Summed()))))
	e.must(e.replace(swapOf(claim.Forget, forgotten, nil)))

	const completed = 1 // metadata says how much there is of it
	want := map[string]storage.Counts{
		"none":      {Live: 1, Bytes: 200 + 4 + 10},
		"two":       {Live: 1, Bytes: 200 + 3 + 10 + 1 + (1 + 3 + 1 + 5) + (1 + 1 + 1 + 1)},
		"bare":      {Completed: 1, Bytes: 200 + 4 + 10 + completed},
		"all":       {Completed: 1, Bytes: 200 + 3 + 10 + completed + 10 + (1 + 2 + 1 + 1) + 6},
		"aside":     {Completed: 1, Bytes: 200 + 5 + 10 + completed + 50_000},
		"omitted":   {Completed: 1, Bytes: 200 + 7 + 10 + completed},
		"forgotten": {Bytes: 200 + 9 + 10},
	}
	for consumer, c := range want {
		c.Keys = 1
		want[consumer] = c
	}
	e.wantTally(testTenant, want)
}

func tallyTenants(e *env) {
	tenants := []claim.TenantID{1, 2, 255, 256, 257, 1 << 32}
	for n, tenant := range tenants {
		for i := range n + 1 {
			e.granted(requestFor(claim.Key{Tenant: tenant, Consumer: "c", EventID: fmt.Sprint(i)}, i+1))
		}
	}
	for n, tenant := range tenants {
		got := e.tally(storage.TenantStep{Tenant: tenant, Limit: 2}, func() {})
		if len(got) != 1 || got["c"].Keys != int64(n+1) {
			e.Errorf("tenant %d: %+v, want %d records", tenant, got, n+1)
		}
	}
	e.wantTally(3, nil)
}

// refusesBadSteps: limits out of bounds, and cursors that are none or another
// tenant's.
func (e *env) refusesBadSteps(call func(storage.TenantStep) (cursor []byte, err error)) {
	e.Helper()
	for i := range 3 {
		for _, tenant := range []claim.TenantID{1, 2} {
			e.granted(requestFor(claim.Key{Tenant: tenant, Consumer: "c", EventID: fmt.Sprint(i)}, 1))
		}
	}
	for _, limit := range []int{-1, 0, storage.TenantStepMax + 1} {
		if _, err := call(storage.TenantStep{Tenant: 1, Limit: limit}); err == nil {
			e.Errorf("limit %d was taken", limit)
		}
	}
	cursor, err := call(storage.TenantStep{Tenant: 1, Limit: 1})
	if err != nil || cursor == nil {
		e.Fatalf("one step of three: cursor %q, error %v", cursor, err)
	}
	for name, step := range map[string]storage.TenantStep{
		"another tenant's cursor": {Tenant: 2, Cursor: cursor, Limit: 1},
		"a cursor cut off":        {Tenant: 1, Cursor: cursor[:4], Limit: 1},
		"no cursor":               {Tenant: 1, Cursor: []byte("nonsense"), Limit: 1},
	} {
		if _, err := call(step); !errors.Is(err, storage.ErrCursor) {
			e.Errorf("%s: error %v, want %v", name, err, storage.ErrCursor)
		}
	}
	if n := len(e.list(storage.List{Tenant: 2, Limit: 10}, func() {})); n != 3 {
		e.Errorf("%d records of the other tenant are left, want 3", n)
	}
}
