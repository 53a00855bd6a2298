package storagetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/warifu/warifu/storage/claim"
)

var errStop = errors.New("enough")

var scanCases = []testCase{
	{"scan/empty", func(e *env) { e.wantScan() }},
	{"scan/every-key-of-every-tenant", func(e *env) {
		keys := oddKeys()
		for _, tenant := range []claim.TenantID{1, 256, 1 << 40} {
			keys = append(keys, claim.Key{Tenant: tenant, Consumer: "c", EventID: "e"})
		}
		for i, k := range keys {
			e.granted(requestFor(k, i+1))
		}
		e.wantScan(keys...)
	}},
	{"scan/every-state-until-swept", func(e *env) {
		var keys, left []claim.Key
		recs := oneOfEach(e)
		end := e.now().Add(100 * testRetention)
		for _, rec := range recs {
			keys = append(keys, rec.Key)
			if !rec.Sweepable(end, e.grace) {
				left = append(left, rec.Key)
			}
		}
		e.wantScan(keys...)
		e.goTo(end)
		e.wantScan(keys...)
		e.wantSwept(len(keys) - len(left))
		e.wantScan(left...)
	}},
	{"scan/more-than-one-page", func(e *env) {
		var keys []claim.Key
		for round := range 3 {
			var reqs []claim.Request
			for i := range claim.BatchItemsMax {
				reqs = append(reqs, request(fmt.Sprintf("%d-%d", round, i), 1))
				keys = append(keys, reqs[i].Key)
			}
			e.insert(reqs...)
		}
		e.wantScan(keys...)
	}},
	{"scan/stops-at-the-first-error", func(e *env) {
		e.insert(manyRequests(10)...)
		calls := 0
		err := e.store.Scan(e.Context(), func(claim.Key) error {
			if calls++; calls == 3 {
				return errStop
			}
			return nil
		})
		if !errors.Is(err, errStop) || calls != 3 {
			e.Fatalf("%d calls and error %v, want 3 and %v", calls, err, errStop)
		}
	}},
	{"scan/ends-with-its-context", func(e *env) {
		e.insert(manyRequests(claim.BatchItemsMax)...)
		ctx, cancel := context.WithCancel(e.Context())
		defer cancel()
		calls := 0
		err := e.store.Scan(ctx, func(claim.Key) error {
			calls++
			cancel()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			e.Fatalf("%d calls after the end and error %v, want %v", calls, err, context.Canceled)
		}
	}},
	{"scan/while-others-write", func(e *env) {
		reqs := manyRequests(50)
		e.insert(reqs...)
		seen := map[claim.Key]bool{}
		err := e.store.Scan(e.Context(), func(k claim.Key) error {
			seen[k] = true
			found, err := e.store.InsertOrGet(e.Context(), []claim.Request{request("new beside "+k.EventID, 1)})
			if err != nil {
				return err
			}
			if len(found) != 1 || found[0].Err != nil || found[0].Record.State == claim.Absent {
				return fmt.Errorf("insert during a scan: %+v", found)
			}
			if len(seen) > 2*len(reqs) {
				return errStop // new keys may be seen, without end
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			e.Fatalf("Scan: %v", err)
		}
		for _, r := range reqs {
			if err == nil && !seen[r.Key] {
				e.Errorf("%q was not seen", r.Key.EventID)
			}
		}
	}},
}

// wantScan demands that a scan calls with exactly these keys.
func (e *env) wantScan(keys ...claim.Key) {
	e.Helper()
	seen := map[claim.Key]bool{}
	if err := e.store.Scan(e.Context(), func(k claim.Key) error { seen[k] = true; return nil }); err != nil {
		e.Fatalf("Scan: %v", err)
	}
	for _, k := range keys {
		if !seen[k] {
			e.Errorf("%+v was not seen", k)
		}
		delete(seen, k)
	}
	for k := range seen {
		e.Errorf("%+v was seen, but is not stored", k)
	}
}
