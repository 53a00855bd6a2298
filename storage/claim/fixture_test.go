package claim

import (
	"testing"
	"time"
)

// The scene of the rule tables: one key, granted at t0 to mine for 30 seconds,
// remembered for two hours, redelivered for one.
const (
	t0       Time = 1_700_000_000_000_000
	lease         = 30 * time.Second
	window        = time.Hour
	kept          = 2 * time.Hour // retention
	holdMax       = 10 * time.Minute
	leaseEnd      = t0 + Time(lease/time.Microsecond)
	holdEnd       = t0 + Time(holdMax/time.Microsecond)
	expiry        = t0 + Time(kept/time.Microsecond)
	tick          = time.Microsecond
)

var (
	key   = Key{Tenant: 7, Consumer: "inventory", EventID: "order-1"}
	mine  = AttemptID{15: 1} // the record's last attempt: "own"
	other = AttemptID{15: 2}

	content = []Digest{{Scheme: "raw", Value: []byte("three snacks")}}
	changed = []Digest{{Scheme: "raw", Value: []byte("four snacks")}}
	foreign = []Digest{{Scheme: "jcs", Value: []byte("three snacks")}}

	sold    = result("sold")
	soldOut = result("sold out")
)

func result(body string) *Completion {
	c := Completion{
		Outcome: Succeeded, ContentType: "text/plain",
		Metadata: []Pair{{"order", "1"}}, Body: []byte(body),
	}.Summed()
	return &c
}

func policy() Policy {
	return Policy{Window: window, Retention: kept, HoldMax: holdMax, ResultBytesMax: 1 << 10}
}

// live is what the first grant leaves behind, spelled out so that the tables
// do not lean on Fresh.
func live() Record {
	return Record{
		Key: key, Version: 7, State: InProgress, Attempt: 1, AttemptID: mine, Fence: Fence(t0),
		Digests: content, ClaimedAt: t0, GrantedAt: t0,
		LeaseUntil: leaseEnd, HoldUntil: holdEnd, ExpiresAt: expiry, Policy: policy(),
	}
}

func with(rec Record, changes ...func(*Record)) Record {
	for _, change := range changes {
		change(&rec)
	}
	return rec
}

func hold(r *Record)      { r.Policy.Hold = true }
func atCap(r *Record)     { r.Policy.AttemptsMax, r.Attempt = 3, 3 }
func belowCap(r *Record)  { r.Policy.AttemptsMax, r.Attempt = 3, 2 }
func released(r *Record)  { r.State, r.EndedAt = Released, t0+1 }
func inDoubt(r *Record)   { r.State, r.EndedAt = InDoubt, leaseEnd }
func completed(r *Record) { r.State, r.EndedAt, r.Completion = Completed, t0+1, sold }
func forgotten(r *Record) {
	r.State, r.EndedAt, r.Digests = Forgotten, t0+1, nil
}

// ask is a claim of the key with the same content, without an event time.
func ask(who AttemptID, changes ...func(*Request)) Request {
	r := Request{
		Key: key, Attempt: who, Digests: content, InsertBefore: Never, Lease: lease, Policy: policy(),
	}
	for _, change := range changes {
		change(&r)
	}
	return r
}

func tooOldFrom(at Time) func(*Request)      { return func(r *Request) { r.InsertBefore = at } }
func digests(ds []Digest) func(*Request)     { return func(r *Request) { r.Digests = ds } }
func recording(c *Completion) func(*Request) { return func(r *Request) { r.Record = c } }
func lenient(r *Request)                     { r.AcceptNoCommonScheme = true }

// settle carries a claim through at one instant, as the arbiter does: first
// trip, decision, second trip where one is needed, decision.
func settle(t *testing.T, rec Record, r *Request, now Time) (via string, after Record, a Answer) {
	t.Helper()
	step := Decide(&rec, r, now)
	switch {
	case step.Insert:
		via, after = "insert", Fresh(r, now, 0)
	case step.Swap.Kind != NoSwap:
		var ok bool
		if after, ok = step.Swap.Apply(&rec, now, 0); !ok {
			t.Fatalf("%+v: the guard refuses what Decide has just asked for", step.Swap)
		}
		via = swapNames[step.Swap.Kind]
	default:
		return "", rec, step.Answer
	}
	last := Decide(&after, r, now)
	if last.Insert || last.Swap.Kind != NoSwap {
		t.Fatalf("no answer after %s: %+v", via, last)
	}
	return via, after, last.Answer
}

var swapNames = map[SwapKind]string{
	BeginAnew: "begin anew", TakeOver: "take over", Renew: "renew", RecordOwn: "record own",
	PutInDoubt: "put in doubt", ResolveComplete: "resolve complete", ResolveRetry: "resolve retry", Forget: "forget",
}
