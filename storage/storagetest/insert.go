package storagetest

import (
	"errors"
	"fmt"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var insertCases = []testCase{
	{"insert/fresh", func(e *env) {
		rec := e.granted(request("a", 1))
		e.wantStored(rec)
	}},
	{"insert/fresh-with-its-outcome", func(e *env) {
		req := request("a", 1)
		req.Record = result("one")
		rec := e.granted(req)
		if rec.State != claim.Completed || rec.Version != 1 {
			e.Fatalf("a one-shot claim is stored as %s", show(rec))
		}
		e.wantStored(rec)
	}},
	{"insert/taken", func(e *env) {
		first := e.granted(request("a", 1))
		e.clock.Advance(testLease / 2)
		other := request("a", 2)
		other.Digests, other.Record = nil, result("two")
		e.wantRecord(e.insert(other)[0].Record, first)
		e.wantStored(first)
	}},
	{"insert/resend", func(e *env) {
		first := e.granted(request("a", 1))
		e.clock.Advance(testLease / 2)
		e.wantRecord(e.insert(request("a", 1))[0].Record, first)
		e.wantStored(first)
	}},
	{"insert/taken-in-every-state", insertTakenInEveryState},
	{"insert/too-old-from-exactly-insert-before", insertTooOld},
	{"insert/too-old-counts-for-absent-keys-only", func(e *env) {
		first := e.granted(request("a", 1))
		late := request("a", 2)
		late.InsertBefore = 0
		e.wantRecord(e.insert(late)[0].Record, first)
	}},
	{"insert/order-of-the-batch", insertOrder},
	{"insert/repeated-key", func(e *env) {
		reqs := []claim.Request{request("a", 1), request("b", 1), request("a", 2)}
		refused(e, storage.ErrRepeatedKey, func() ([]storage.Found, error) { return e.store.InsertOrGet(e.Context(), reqs) })
		e.wantAbsent(key("a"), key("b"))
	}},
	{"insert/largest-batch", func(e *env) {
		found := e.insert(manyRequests(claim.BatchItemsMax)...)
		for i := range found {
			if found[i].Record.AttemptID != attempt(i) {
				e.Fatalf("item %d is not what was inserted: %s", i, show(found[i].Record))
			}
		}
	}},
	{"insert/batch-too-large", func(e *env) {
		reqs := manyRequests(claim.BatchItemsMax + 1)
		refused(e, storage.ErrBatchTooLarge, func() ([]storage.Found, error) { return e.store.InsertOrGet(e.Context(), reqs) })
		e.wantAbsent(reqs[0].Key, reqs[claim.BatchItemsMax].Key)
	}},
	{"insert/empty-batch", func(e *env) { e.insert() }},
}

func manyRequests(n int) []claim.Request {
	reqs := make([]claim.Request, n)
	for i := range reqs {
		reqs[i] = request(fmt.Sprintf("event-%04d", i), i)
	}
	return reqs
}

// refused demands that a whole call fails with the sentinel.
func refused(e *env, sentinel error, call func() ([]storage.Found, error)) {
	e.Helper()
	found, err := call()
	if !errors.Is(err, sentinel) {
		e.Fatalf("got %d items and error %v, want %v", len(found), err, sentinel)
	}
}

// insertTakenInEveryState: whatever is stored, expired or not, an insert never
// overwrites it.
func insertTakenInEveryState(e *env) {
	recs := oneOfEach(e)
	for _, at := range []claim.Time{e.now(), recs[0].ExpiresAt + 10*claim.Time(testRetention.Microseconds())} {
		e.goTo(at)
		for _, rec := range recs {
			found := e.insert(requestFor(rec.Key, 99))
			e.wantRecord(found[0].Record, rec)
			e.wantStored(rec)
		}
	}
}

func insertTooOld(e *env) {
	now := e.now()
	for _, c := range []struct {
		event        string
		insertBefore claim.Time
		stored       bool
	}{
		{"zero", 0, false},
		{"one before", now - 1, false},
		{"exactly", now, false},
		{"one after", now + 1, true},
		{"never", claim.Never, true},
	} {
		req := request(c.event, 1)
		req.InsertBefore = c.insertBefore
		found := e.insert(req)[0]
		if stored := found.Record.State != claim.Absent; stored != c.stored {
			e.Errorf("insert before %s: stored %t, want %t", c.event, stored, c.stored)
		}
		if stored := e.get(req.Key)[0].Record.State != claim.Absent; stored != c.stored {
			e.Errorf("insert before %s: %t is stored, want %t", c.event, stored, c.stored)
		}
	}
	// The instant comes while the same request is resent.
	req := request("resent", 1)
	req.InsertBefore = now + 5
	e.goTo(now + 5)
	if found := e.insert(req)[0]; found.Record.State != claim.Absent {
		e.Errorf("stored at its insert-before: %s", show(found.Record))
	}
}

func insertOrder(e *env) {
	old := e.granted(request("m", 1))
	tooOld := request("k", 2)
	tooOld.InsertBefore = e.now()
	reqs := []claim.Request{request("z", 2), tooOld, request("m", 2), request("a", 2)}
	found := e.insert(reqs...)
	e.wantGrant(found[0].Record, claim.Fresh(&reqs[0], e.now(), 0))
	if found[1].Record.State != claim.Absent {
		e.Errorf("too old, but stored: %s", show(found[1].Record))
	}
	e.wantRecord(found[2].Record, old)
	e.wantGrant(found[3].Record, claim.Fresh(&reqs[3], e.now(), 0))
}
