package storagetest

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// The grace and the policy of the suite. They differ from the defaults, so
// that a driver that uses a default where it was told something is noticed.
const (
	testGrace     = 7 * time.Minute
	testLease     = 40 * time.Second
	testWindow    = 2 * time.Hour
	testRetention = 5 * time.Hour
	testTenant    = claim.TenantID(7)
)

// env is one case with its store: what is asked through it must be answered,
// for the right keys, in the right order, at the store's time.
type env struct {
	T
	clock *Clock
	store storage.Store
	grace time.Duration
}

func newEnv(t T, open Opener) *env {
	t.Helper()
	e := &env{T: t, clock: NewClock(Start), grace: testGrace}
	e.store = open(t, e.clock, e.grace)
	return e
}

func (e *env) now() claim.Time { return claim.FromTime(e.clock.Now()) }

// goTo sets the clock to the instant at.
func (e *env) goTo(at claim.Time) { e.clock.Set(at.Std()) }

// testPolicy is the policy of requests that no case cares about.
func testPolicy() claim.Policy {
	return claim.Policy{
		Window: testWindow, Retention: testRetention, HoldMax: 3 * time.Hour, ResultBytesMax: 64 << 10,
	}
}

// attempt returns the n-th of many attempt IDs.
func attempt(n int) claim.AttemptID {
	var a claim.AttemptID
	a[0] = 0xa7
	binary.BigEndian.PutUint64(a[8:], uint64(n))
	return a
}

func key(event string) claim.Key {
	return claim.Key{Tenant: testTenant, Consumer: "inventory", EventID: event}
}

// request is a claim of event by the n-th attempt.
func request(event string, n int) claim.Request {
	return requestFor(key(event), n)
}

func requestFor(k claim.Key, n int) claim.Request {
	return claim.Request{
		Key: k, Attempt: attempt(n), InsertBefore: claim.Never, Lease: testLease, Policy: testPolicy(),
		Digests: []claim.Digest{{Scheme: "raw-sha256", Value: []byte("digest of " + k.EventID)}},
	}
}

// result returns a small completion that names itself.
func result(name string) *claim.Completion {
	c := claim.Completion{
		Outcome: claim.Succeeded, ContentType: "text/plain",
		Metadata: []claim.Pair{{Name: "name", Value: name}}, Body: []byte("result " + name),
	}.Summed()
	return &c
}

func (e *env) insert(reqs ...claim.Request) []storage.Found {
	e.Helper()
	found, err := e.store.InsertOrGet(e.Context(), reqs)
	return checked(e, "InsertOrGet", reqs, func(r *claim.Request) claim.Key { return r.Key }, found, err)
}

func (e *env) get(keys ...claim.Key) []storage.Found {
	e.Helper()
	found, err := e.store.Get(e.Context(), keys)
	return checked(e, "Get", keys, func(k *claim.Key) claim.Key { return *k }, found, err)
}

func (e *env) transition(ts ...claim.Transition) []storage.Found {
	e.Helper()
	found, err := e.store.Transition(e.Context(), ts)
	return checked(e, "Transition", ts, func(t *claim.Transition) claim.Key { return t.Key }, found, err)
}

func (e *env) replace(swaps ...claim.Swap) []storage.Found {
	e.Helper()
	found, err := e.store.Replace(e.Context(), swaps)
	return checked(e, "Replace", swaps, func(s *claim.Swap) claim.Key { return s.Key }, found, err)
}

// checked demands what every answer owes, whatever the call: one item for each
// asked, of its key, at the store's time, without an error.
func checked[I any](e *env, method string, items []I, key func(*I) claim.Key, found []storage.Found, err error) []storage.Found {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: %v", method, err)
	}
	if len(found) != len(items) {
		e.Fatalf("%s answered %d items of %d", method, len(found), len(items))
	}
	for i := range found {
		f := &found[i]
		switch {
		case f.Err != nil:
			e.Fatalf("%s, item %d: %v", method, i, f.Err)
		case f.Now != e.now():
			e.Fatalf("%s, item %d: store time is %v, want %v", method, i, f.Now.Std(), e.clock.Now())
		case f.Record.State != claim.Absent && f.Record.Key != key(&items[i]):
			e.Fatalf("%s, item %d answers %+v instead of %+v", method, i, f.Record.Key, key(&items[i]))
		case f.Record.State == claim.Absent && !reflect.ValueOf(f.Record).IsZero():
			e.Fatalf("%s, item %d: absent, but the record is not zero: %+v", method, i, f.Record)
		case f.Applied && (method == "Get" || method == "InsertOrGet"):
			e.Fatalf("%s, item %d: says applied", method, i)
		}
	}
	return found
}

// granted inserts a request that must be stored as fresh, and returns the
// record.
func (e *env) granted(req claim.Request) claim.Record {
	e.Helper()
	found := e.insert(req)[0]
	e.wantGrant(found.Record, claim.Fresh(&req, e.now(), 0))
	return found.Record
}

// must applies transitions and swaps that the rules allow.
func (e *env) must(found []storage.Found) claim.Record {
	e.Helper()
	for i := range found {
		if !found[i].Applied {
			e.Fatalf("item %d was not applied; stored is %s", i, show(found[i].Record))
		}
	}
	return found[0].Record
}

// wantRecord demands exactly want.
func (e *env) wantRecord(got, want claim.Record) {
	e.Helper()
	if !SameRecord(got, want) {
		e.Fatalf("got  %s\nwant %s", show(got), show(want))
	}
}

// wantGrant demands want, but takes a larger fence: stores may know a floor.
func (e *env) wantGrant(got, want claim.Record) {
	e.Helper()
	if got.Fence < want.Fence {
		e.Fatalf("fence %d is below %d", got.Fence, want.Fence)
	}
	want.Fence = got.Fence
	e.wantRecord(got, want)
}

// wantStored demands that the store holds exactly want of its key.
func (e *env) wantStored(want claim.Record) {
	e.Helper()
	e.wantRecord(e.get(want.Key)[0].Record, want)
}

func (e *env) wantAbsent(keys ...claim.Key) {
	e.Helper()
	for i, f := range e.get(keys...) {
		if f.Record.State != claim.Absent {
			e.Fatalf("%+v should be absent, is %s", keys[i], show(f.Record))
		}
	}
}

func complete(rec claim.Record, c *claim.Completion) claim.Transition {
	return claim.Transition{Kind: claim.Complete, Key: rec.Key, Attempt: rec.AttemptID, Fence: rec.Fence, Completion: c}
}

func release(rec claim.Record) claim.Transition {
	return claim.Transition{Kind: claim.Release, Key: rec.Key, Attempt: rec.AttemptID, Fence: rec.Fence}
}

func extend(rec claim.Record, by time.Duration) claim.Transition {
	return claim.Transition{Kind: claim.Extend, Key: rec.Key, Attempt: rec.AttemptID, Fence: rec.Fence, Lease: by}
}

func swapOf(kind claim.SwapKind, rec claim.Record, req *claim.Request) claim.Swap {
	return claim.NewSwap(kind, &rec, req)
}

// SameRecord reports whether two records are the same in every field. No bytes
// and an empty slice of them are the same.
func SameRecord(a, b claim.Record) bool {
	return reflect.DeepEqual(canonical(a), canonical(b))
}

func canonical(r claim.Record) claim.Record {
	ds := make([]claim.Digest, len(r.Digests))
	for i, d := range r.Digests {
		ds[i] = claim.Digest{Scheme: d.Scheme, Value: append([]byte{}, d.Value...)}
	}
	r.Digests = ds
	if r.Completion != nil {
		c := *r.Completion
		c.Body = append([]byte{}, c.Body...)
		c.Metadata = append([]claim.Pair{}, c.Metadata...)
		r.Completion = &c
	}
	return r
}

// show prints a record without drowning the reader in its body.
func show(r claim.Record) string {
	if r.State == claim.Absent {
		return "ABSENT"
	}
	completion := "none"
	if c := r.Completion; c != nil {
		completion = fmt.Sprintf("{outcome %d, omitted %d, %q, %q, %d bytes, sum %x}",
			c.Outcome, c.Omitted, c.ContentType, c.Metadata, len(c.Body), c.Sum[:4])
	}
	r.Completion = nil
	return fmt.Sprintf("%s %+v completion %s", r.State, r, completion)
}
