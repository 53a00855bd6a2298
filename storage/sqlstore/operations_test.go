package sqlstore_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

const (
	matrixGrace  = time.Minute
	matrixLease  = 30 * time.Second
	matrixWindow = time.Minute
)

// matrixKeys are all keys that an operation touches.
var matrixKeys = []claim.Key{
	{Tenant: 1, Consumer: "c", EventID: "a"}, {Tenant: 1, Consumer: "c", EventID: "b"}, {Tenant: 2, Consumer: "c", EventID: "a"},
}

// operation is a call that sends a statement. It runs on the store and on the
// model alike, and may be sent again.
type operation struct {
	reads   bool
	counts  bool // each application counts the version up and changes nothing else
	prepare func(ctx context.Context, t *testing.T, s storage.Store, clock *storagetest.Clock)
	// call returns the records it was answered with, and never those of a
	// failed call.
	// seen is the first key's record after the preparation.
	call call
	// after is what others do before a late delivery arrives.
	after func(ctx context.Context, t *testing.T, s storage.Store, clock *storagetest.Clock)
}

func attemptID(n byte) claim.AttemptID { return claim.AttemptID{1, 15: n} }

func matrixRequest(k claim.Key, attempt byte, change ...func(*claim.Request)) claim.Request {
	r := claim.Request{
		Key: k, Attempt: attemptID(attempt), InsertBefore: claim.Never, Lease: matrixLease,
		Digests: []claim.Digest{{Scheme: "s", Value: []byte("v")}},
		Policy:  claim.Policy{Window: matrixWindow, Retention: 2 * matrixWindow, HoldMax: time.Hour, ResultBytesMax: 1 << 20},
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func held(r *claim.Request) { r.Policy.Hold = true }

func small() *claim.Completion {
	c := claim.Completion{Outcome: claim.Succeeded, ContentType: "text/plain", Body: []byte("done")}.Summed()
	return &c
}

func large() *claim.Completion {
	c := claim.Completion{Outcome: claim.Succeeded, Body: bytes.Repeat([]byte("large "), 2000)}.Summed()
	return &c
}

// call is one call of a store.
type call = func(ctx context.Context, s storage.Store, seen claim.Record) ([]claim.Record, error)

type step = func(ctx context.Context, t *testing.T, s storage.Store, clock *storagetest.Clock)

// steps does one after the other.
func steps(all ...step) step {
	return func(ctx context.Context, t *testing.T, s storage.Store, clock *storagetest.Clock) {
		t.Helper()
		for _, do := range all {
			do(ctx, t, s, clock)
		}
	}
}

// claimed stores first claims of the first key and of a bystander.
func claimed(change ...func(*claim.Request)) step {
	return func(ctx context.Context, t *testing.T, s storage.Store, _ *storagetest.Clock) {
		t.Helper()
		must(ctx, t, s, []claim.Request{matrixRequest(matrixKeys[0], 1, change...), matrixRequest(matrixKeys[2], 9)}, storage.Store.InsertOrGet)
	}
}

func must[I any](ctx context.Context, t *testing.T, s storage.Store, items []I, call func(storage.Store, context.Context, []I) ([]storage.Found, error)) {
	t.Helper()
	found, err := call(s, ctx, items)
	if err != nil {
		t.Fatalf("prepare: %v", err)
	}
	for i := range found {
		if found[i].Err != nil {
			t.Fatalf("prepare, item %d: %v", i, found[i].Err)
		}
	}
}

// later moves the clock on.
func later(d time.Duration) step {
	return func(_ context.Context, _ *testing.T, _ storage.Store, clock *storagetest.Clock) {
		clock.Advance(d)
	}
}

// owner is what the first attempt does with its grant.
func owner(kind claim.TransitionKind, seen claim.Record, c *claim.Completion) []claim.Transition {
	return []claim.Transition{{
		Kind: kind, Key: matrixKeys[0], Attempt: attemptID(1), Fence: seen.Fence, Lease: time.Minute, Completion: c,
	}}
}

func moved(kind claim.TransitionKind, c *claim.Completion) step {
	return func(ctx context.Context, t *testing.T, s storage.Store, _ *storagetest.Clock) {
		t.Helper()
		must(ctx, t, s, owner(kind, records(t, s)[0], c), storage.Store.Transition)
	}
}

// transition is the call of the owner.
func transition(kind claim.TransitionKind, c *claim.Completion) call {
	return func(ctx context.Context, s storage.Store, seen claim.Record) ([]claim.Record, error) {
		return recordsOf(s.Transition(ctx, owner(kind, seen, c)))
	}
}

func recordsOf(found []storage.Found, err error) ([]claim.Record, error) {
	var out []claim.Record
	for i := range found {
		if found[i].Err != nil {
			return nil, found[i].Err
		}
		out = append(out, found[i].Record)
	}
	return out, err
}

// swapped is a swap on the record that was seen.
func swapped(kind claim.SwapKind, change ...func(*claim.Request)) call {
	return func(ctx context.Context, s storage.Store, seen claim.Record) ([]claim.Record, error) {
		attempt := byte(2)
		if kind == claim.Renew || kind == claim.RecordOwn {
			attempt = 1
		}
		req := matrixRequest(matrixKeys[0], attempt, change...)
		sw := claim.NewSwap(kind, &seen, &req)
		sw.Result = small()
		return recordsOf(s.Replace(ctx, []claim.Swap{sw}))
	}
}

// sweepAll sweeps every shard to its end.
func sweepAll(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
	stats, err := s.Stats(ctx)
	if err != nil {
		return nil, err
	}
	for shard := range stats.Shards {
		sw := storage.Sweep{Shard: shard, Limit: 10}
		for {
			swept, err := s.Sweep(ctx, sw)
			if err != nil {
				return nil, err
			}
			if sw.Cursor = swept.Cursor; sw.Cursor == nil {
				break
			}
		}
	}
	return nil, nil
}

func insertAll(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
	return recordsOf(s.InsertOrGet(ctx, []claim.Request{
		matrixRequest(matrixKeys[0], 1), matrixRequest(matrixKeys[1], 1, shot(large())), matrixRequest(matrixKeys[2], 1, shot(small())),
	}))
}

// insertAlike claims keys of one consumer, one of them by an event time.
func insertAlike(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
	timed := func(r *claim.Request) {
		r.EventTime = claim.FromTime(storagetest.Start)
	}
	return recordsOf(s.InsertOrGet(ctx, []claim.Request{matrixRequest(matrixKeys[1], 1, timed), matrixRequest(matrixKeys[0], 1)}))
}

func shot(c *claim.Completion) func(*claim.Request) { return func(r *claim.Request) { r.Record = c } }

func getAll(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
	return recordsOf(s.Get(ctx, matrixKeys))
}

func listInProgress(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
	page, err := s.List(ctx, storage.List{Tenant: 1, Limit: 10, States: []claim.State{claim.InProgress}})
	return page.Records, err
}

func scanAll(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
	keys := map[claim.Key]bool{}
	err := s.Scan(ctx, func(k claim.Key) error { keys[k] = true; return nil })
	var out []claim.Record
	for _, k := range matrixKeys {
		if keys[k] {
			out = append(out, claim.Record{Key: k})
		}
	}
	return out, err
}

// tallyAll counts all of the first tenant, a shard after the other at last, and
// shows the counts as if they were a record.
func tallyAll(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
	var sum storage.Counts
	step := storage.TenantStep{Tenant: matrixKeys[0].Tenant, Limit: 10}
	for {
		tallied, err := s.Tally(ctx, step)
		if err != nil {
			return nil, err
		}
		for _, c := range tallied.Counts {
			sum = sum.Plus(c)
		}
		if step.Cursor = tallied.Cursor; step.Cursor == nil {
			return []claim.Record{{Key: matrixKeys[0], Version: sum.Keys, Attempt: uint32(sum.InDoubt), Fence: claim.Fence(sum.Bytes)}}, nil
		}
	}
}

// purgeAll purges the first tenant; the third key is another's. One step takes
// all of it: whatever fails, fails before anything is gone.
func purgeAll(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
	purged, err := s.Purge(ctx, storage.TenantStep{Tenant: matrixKeys[0].Tenant, Limit: storage.TenantStepMax})
	if err == nil && (purged.Cursor != nil || purged.Deleted > 1) {
		err = fmt.Errorf("one record is purged by %+v", purged)
	}
	return nil, err
}

// othersGoOn is what others do behind a purge: another tenant completes its
// grant. For the purged one nobody acts any more.
func othersGoOn(ctx context.Context, t *testing.T, s storage.Store, _ *storagetest.Clock) {
	t.Helper()
	rec := records(t, s)[2]
	must(ctx, t, s, []claim.Transition{{
		Kind: claim.Complete, Key: rec.Key, Attempt: rec.AttemptID, Fence: rec.Fence, Completion: large(),
	}}, storage.Store.Transition)
}

// supersede ends the first attempt's grant and grants the key to a third, who
// completes it: a late packet of the first or second must change none of it.
func supersede(ctx context.Context, t *testing.T, s storage.Store, clock *storagetest.Clock) {
	t.Helper()
	clock.Advance(100 * time.Hour)
	req := matrixRequest(matrixKeys[0], 3)
	answers, err := storagetest.Claim(ctx, s, []claim.Request{req})
	if err != nil {
		t.Fatalf("supersede: %v", err)
	}
	if answers[0].Decision != claim.Granted {
		return // in doubt: only an operator ends that
	}
	clock.Advance(time.Second)
	replies, err := storagetest.Move(ctx, s, []claim.Transition{{
		Kind: claim.Complete, Key: req.Key, Attempt: req.Attempt, Fence: answers[0].Fence, Completion: small(),
	}})
	if err != nil || replies[0].Status != claim.OK {
		t.Fatalf("supersede: %+v, %v", replies, err)
	}
}

// operations are by the file of the statement that they are to send.
func operations() map[string]operation {
	lapsed, nothing := later(matrixLease), func(context.Context, *testing.T, storage.Store, *storagetest.Clock) {}
	doubtful := steps(claimed(held), lapsed)
	finished := func(c *claim.Completion) step { return steps(claimed(), moved(claim.Complete, c)) }
	return map[string]operation{
		"insert":           {prepare: nothing, call: insertAll, after: supersede},
		"insert_alike":     {prepare: nothing, call: insertAlike, after: supersede},
		"get":              {prepare: finished(small()), call: getAll, reads: true},
		"bodies":           {prepare: finished(large()), call: getAll, reads: true},
		"body_put":         {prepare: claimed(), call: transition(claim.Complete, large()), after: supersede},
		"body_delete":      {prepare: finished(large()), call: swapped(claim.Forget), after: supersede},
		"complete":         {prepare: claimed(), call: transition(claim.Complete, small()), after: supersede},
		"extend":           {prepare: claimed(), call: transition(claim.Extend, nil), after: supersede, counts: true},
		"release":          {prepare: claimed(), call: transition(claim.Release, nil), after: supersede},
		"begin_anew":       {prepare: steps(finished(large()), later(time.Hour)), call: swapped(claim.BeginAnew), after: supersede},
		"take_over":        {prepare: steps(claimed(), lapsed), call: swapped(claim.TakeOver), after: supersede},
		"renew":            {prepare: steps(claimed(), lapsed), call: swapped(claim.Renew), after: supersede},
		"record_own":       {prepare: claimed(), call: swapped(claim.RecordOwn, shot(small())), after: supersede},
		"put_in_doubt":     {prepare: doubtful, call: swapped(claim.PutInDoubt), after: supersede},
		"resolve_complete": {prepare: doubtful, call: swapped(claim.ResolveComplete), after: supersede},
		"resolve_retry":    {prepare: doubtful, call: swapped(claim.ResolveRetry), after: supersede},
		"forget":           {prepare: finished(small()), call: swapped(claim.Forget), after: supersede},
		"sweep_scan":       {prepare: steps(finished(small()), later(time.Hour)), call: sweepAll, reads: true},
		"sweep_oldest":     {prepare: steps(finished(small()), later(time.Hour)), call: sweepAll, reads: true},
		"ready": {prepare: claimed(), reads: true, call: func(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
			return nil, s.Ready(ctx)
		}},
		"sweep_delete": {prepare: steps(finished(large()), later(time.Hour)), call: sweepAll, after: supersede},
		"list":         {prepare: claimed(), call: listInProgress, reads: true},
		"list_horizon": {prepare: claimed(), call: listInProgress, reads: true},
		"tally":        {prepare: doubtful, call: tallyAll, reads: true},
		"purge":        {prepare: finished(large()), call: purgeAll, after: othersGoOn},
		"purge_bodies": {prepare: finished(large()), call: purgeAll, after: othersGoOn},
		"scan":         {prepare: claimed(), call: scanAll, reads: true},
		"clock":        {prepare: claimed(), call: listInProgress, reads: true},
		"size": {prepare: claimed(), reads: true, call: func(ctx context.Context, s storage.Store, _ claim.Record) ([]claim.Record, error) {
			_, err := s.Stats(ctx)
			return nil, err
		}},
	}
}
