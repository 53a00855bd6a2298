package storagetest

import (
	"fmt"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

var getCases = []testCase{
	{"get/absent", func(e *env) { e.wantAbsent(key("a"), key("b")) }},
	{"get/order-of-the-batch", func(e *env) {
		b, z := e.granted(request("b", 1)), e.granted(request("z", 1))
		found := e.get(key("z"), key("x"), key("b"))
		e.wantRecord(found[0].Record, z)
		e.wantRecord(found[1].Record, claim.Record{})
		e.wantRecord(found[2].Record, b)
	}},
	{"get/every-state", func(e *env) {
		for _, rec := range oneOfEach(e) {
			e.wantStored(rec)
		}
	}},
	{"get/expired-is-still-there", func(e *env) {
		rec := e.must(e.transition(complete(e.granted(request("a", 1)), result("one"))))
		e.goTo(rec.ExpiresAt + 100*claim.Time(testRetention.Microseconds()))
		e.wantStored(rec)
	}},
	{"get/repeated-key", func(e *env) {
		refused(e, storage.ErrRepeatedKey, func() ([]storage.Found, error) {
			return e.store.Get(e.Context(), []claim.Key{key("a"), key("b"), key("a")})
		})
	}},
	{"get/batch-too-large", func(e *env) {
		keys := make([]claim.Key, claim.BatchItemsMax+1)
		for i := range keys {
			keys[i] = key(fmt.Sprint(i))
		}
		refused(e, storage.ErrBatchTooLarge, func() ([]storage.Found, error) { return e.store.Get(e.Context(), keys) })
		e.wantAbsent(keys[:claim.BatchItemsMax]...)
	}},
	{"get/empty-batch", func(e *env) { e.get() }},
}
