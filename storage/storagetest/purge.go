package storagetest

import (
	"context"
	"fmt"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// otherTenants lie around testTenant in every order of keys.
var otherTenants = []claim.TenantID{testTenant - 1, testTenant + 1, testTenant << 8, 1 << 40}

var purgeCases = []testCase{
	{"purge/nothing", func(e *env) { e.wantPurged(storage.TenantStep{Tenant: testTenant, Limit: 10}, 0) }},
	{"purge/every-state", func(e *env) { purgeStates(e, storage.TenantStepMax) }},
	{"purge/every-state-in-small-steps", func(e *env) { purgeStates(e, 3) }},
	{"purge/every-state-one-by-one", func(e *env) { purgeStates(e, 1) }},
	{"purge/odd-keys", func(e *env) {
		keys := oddKeys()
		for i, k := range keys {
			e.granted(requestFor(k, i+1))
		}
		others := bystanders(e)
		e.wantPurged(storage.TenantStep{Tenant: testTenant, Limit: 7}, len(keys))
		e.wantGone(keys)
		e.wantScan(keysOfRecords(others)...)
	}},
	{"purge/results-go-too", func(e *env) {
		// A record of the same key afterwards has its own result or none.
		rec := e.must(e.transition(complete(e.granted(request("a", 1)), ptr(claim.Completion{
			Outcome: claim.Succeeded, Body: pattern(50_000, 1),
		}.Summed()))))
		e.wantPurged(storage.TenantStep{Tenant: testTenant, Limit: 10}, 1)
		e.clock.Advance(testLease)
		again := e.granted(request("a", 2))
		if again.Fence <= rec.Fence {
			e.Fatalf("fence %d follows %d over a purge", again.Fence, rec.Fence)
		}
		e.wantStored(e.must(e.transition(complete(again, ptr(claim.Completion{
			Outcome: claim.Succeeded, Body: pattern(40_000, 2),
		}.Summed())))))
	}},
	{"purge/cursor-lost", func(e *env) {
		keys := purgeKeys(e, 40)
		step := storage.TenantStep{Tenant: testTenant, Limit: 3}
		for range 4 {
			purged := e.purgeStep(step)
			e.purgeStep(step) // its answer was lost
			if step.Cursor = purged.Cursor; step.Cursor == nil {
				e.Fatalf("%d records went in steps of %d", len(keys), step.Limit)
			}
		}
		step.Cursor = nil
		e.purge(step, func() {})
		e.wantGone(keys)
		e.wantPurged(step, 0)
	}},
	{"purge/what-expired-or-was-swept-meanwhile", func(e *env) {
		keys := purgeKeys(e, 20)
		steps := 0
		e.purge(storage.TenantStep{Tenant: testTenant, Limit: 3}, func() {
			if steps++; steps == 2 {
				e.clock.Advance(2 * testRetention)
				e.sweepAll(5, func() {})
			}
		})
		e.wantGone(keys)
	}},
	{"purge/bad-steps-are-refused", func(e *env) {
		e.refusesBadSteps(func(step storage.TenantStep) (cursor []byte, err error) {
			purged, err := e.store.Purge(e.Context(), step)
			return purged.Cursor, err
		})
	}},
	{"purge/beside-claims-of-others", purgeBesideClaims},
}

func (e *env) purgeStep(step storage.TenantStep) storage.Purged {
	e.Helper()
	purged, err := e.store.Purge(e.Context(), step)
	if err != nil {
		e.Fatalf("Purge %+v: %v", step, err)
	}
	if purged.Looked > step.Limit || purged.Deleted > purged.Looked {
		e.Fatalf("Purge of %d: %+v", step.Limit, purged)
	}
	return purged
}

// purge runs all steps, between steps calling meanwhile, and returns how many
// records went.
func (e *env) purge(step storage.TenantStep, meanwhile func()) (deleted int) {
	e.Helper()
	for range pagesMax {
		purged := e.purgeStep(step)
		deleted += purged.Deleted
		if step.Cursor = purged.Cursor; step.Cursor == nil {
			return deleted
		}
		meanwhile()
	}
	e.Fatalf("Purge %+v does not end within %d steps", step, pagesMax)
	return 0
}

func (e *env) wantPurged(step storage.TenantStep, want int) {
	e.Helper()
	if got := e.purge(step, func() {}); got != want {
		e.Fatalf("Purge %+v deleted %d records, want %d", step, got, want)
	}
}

// wantGone: nothing of the tenant is found in any way.
func (e *env) wantGone(keys []claim.Key) {
	e.Helper()
	for len(keys) > 0 {
		n := min(len(keys), claim.BatchItemsMax)
		e.wantAbsent(keys[:n]...)
		keys = keys[n:]
	}
	e.wantList(storage.List{Tenant: testTenant})
	e.wantTally(testTenant, nil)
	err := e.store.Scan(e.Context(), func(k claim.Key) error {
		if k.Tenant == testTenant {
			return fmt.Errorf("%+v is still there", k)
		}
		return nil
	})
	if err != nil {
		e.Fatalf("Scan: %v", err)
	}
}

// bystanders are records of other tenants, with the same consumer and events.
func bystanders(e *env) []claim.Record {
	e.Helper()
	var recs []claim.Record
	for _, tenant := range otherTenants {
		for i := range 5 {
			k := claim.Key{Tenant: tenant, Consumer: "inventory", EventID: fmt.Sprintf("completed-%d", i)}
			rec := e.granted(requestFor(k, i+1))
			if i%2 == 0 {
				rec = e.must(e.transition(complete(rec, ptr(claim.Completion{
					Outcome: claim.Succeeded, Body: pattern(i*3000, i),
				}.Summed()))))
			}
			recs = append(recs, rec)
		}
	}
	return recs
}

func keysOfRecords(recs []claim.Record) []claim.Key {
	keys := make([]claim.Key, len(recs))
	for i := range recs {
		keys[i] = recs[i].Key
	}
	return keys
}

func purgeKeys(e *env, n int) []claim.Key {
	e.Helper()
	reqs := manyRequests(n)
	keys := make([]claim.Key, n)
	for i, f := range e.insert(reqs...) {
		keys[i] = f.Record.Key
	}
	return keys
}

// purgeStates: whatever the state, also what no sweep ever deletes; and nothing
// of others.
func purgeStates(e *env, limit int) {
	others := bystanders(e)
	var keys []claim.Key
	for _, recs := range statesOf(e, 2) {
		keys = append(keys, keysOfRecords(recs)...)
	}
	e.wantPurged(storage.TenantStep{Tenant: testTenant, Limit: limit}, len(keys))
	e.wantGone(keys)
	for _, rec := range others {
		e.wantStored(rec)
	}
	e.wantScan(keysOfRecords(others)...)
}

// purgeBesideClaims: others are answered as if nothing happened, and keep all
// they were granted.
func purgeBesideClaims(e *env) {
	const rounds = 30
	keys := purgeKeys(e, 100)
	type answer struct {
		found []storage.Found
		err   error
	}
	answers := make(chan answer, rounds)
	ctx := e.Context()
	go func() {
		defer close(answers)
		for i := range rounds {
			var reqs []claim.Request
			for _, tenant := range otherTenants {
				reqs = append(reqs, requestFor(claim.Key{Tenant: tenant, Consumer: "inventory", EventID: fmt.Sprint(i)}, i+1))
			}
			found, err := claimAndComplete(ctx, e.store, reqs)
			answers <- answer{found, err}
		}
	}()
	deleted := e.purge(storage.TenantStep{Tenant: testTenant, Limit: 5}, func() {})
	for a := range answers {
		if a.err != nil {
			e.Fatalf("claim beside a purge: %v", a.err)
		}
		for _, f := range a.found {
			if f.Err != nil || !f.Applied {
				e.Fatalf("completion beside a purge: %+v", f)
			}
			e.wantStored(f.Record)
		}
	}
	if deleted != len(keys) {
		e.Errorf("%d records were deleted, want %d", deleted, len(keys))
	}
	e.wantGone(keys)
}

func claimAndComplete(ctx context.Context, store storage.Store, reqs []claim.Request) ([]storage.Found, error) {
	found, err := store.InsertOrGet(ctx, reqs)
	if err != nil {
		return nil, err
	}
	var ts []claim.Transition
	for i := range found {
		if found[i].Err != nil {
			return nil, found[i].Err
		}
		ts = append(ts, complete(found[i].Record, result(found[i].Record.Key.EventID)))
	}
	return store.Transition(ctx, ts)
}
