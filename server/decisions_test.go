package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// decisionRow brings the event "e" of a consumer into a state and says what
// the next claim, by attempt B, is answered.
type decisionRow struct {
	name     string
	consumer string
	claim    string // further fields of the claim, as JSON
	prepare  func(*testing.T, *rig)
	// want is parts of the compacted JSON reply.
	want, never []string
	check       func(*testing.T, *warifuv1.ClaimResponse)
}

func grantTo(consumer, attempt string) func(*testing.T, *rig) {
	return func(_ *testing.T, r *rig) {
		r.grant(&warifuv1.ClaimRequest{Consumer: consumer, EventId: "e", AttemptId: attempt})
	}
}

func thenAdvance(prepare func(*testing.T, *rig), d time.Duration) func(*testing.T, *rig) {
	return func(t *testing.T, r *rig) {
		t.Helper()
		prepare(t, r)
		r.clock.Advance(d)
	}
}

func completed(attempt string) func(*testing.T, *rig) {
	return func(_ *testing.T, r *rig) {
		g := r.grant(request("e", attempt))
		c := success("receipt 7")
		c.ContentType, c.Metadata = "text/plain", map[string]string{"b": "2", "a": "1"}
		r.complete("e", g, c)
	}
}

func released(_ *testing.T, r *rig) {
	g := r.grant(request("e", attemptA))
	res, err := r.client("shop").Release(r.t.Context(), &warifuv1.ReleaseRequest{Consumer: "orders", EventId: "e", AttemptId: attemptA, Fence: g.GetFence()})
	if err != nil || res.GetStatus() != warifuv1.Status_STATUS_OK || res.GetState() != warifuv1.State_STATE_RELEASED {
		r.t.Fatalf("release = %v, %v", res, err)
	}
}

func nothing(*testing.T, *rig) {}

func decisionRows() []decisionRow {
	const past = `"eventTime":"2026-01-01T00:00:00Z"`
	return []decisionRow{
		{
			name: "absent", consumer: "orders", prepare: nothing,
			want: []string{
				`"decision":"DECISION_GRANTED"`, `"accepted":false`, `"protocolVersion":1`, `"consumer":"orders"`, `"eventId":"e"`,
				`"fence":"1772366400000000"`, `"attempt":1`, `"leaseRemaining":"30s"`, `"attemptId":"` + attemptB + `"`, `"expiresAt":"2026-03-03T12:00:00Z"`,
			},
			never: []string{"takeover", "recorded", "retryAfter", "result"},
		},
		{
			name: "released", consumer: "orders", prepare: released,
			want: []string{`"decision":"DECISION_GRANTED"`, `"takeover":"TAKEOVER_RELEASED"`, `"attempt":2`, `"accepted":false`},
		},
		{
			name: "lapsed", consumer: "orders", prepare: thenAdvance(grantTo("orders", attemptA), 30*time.Second),
			want: []string{`"decision":"DECISION_GRANTED"`, `"takeover":"TAKEOVER_LEASE_LAPSED"`, `"attempt":2`},
		},
		{
			name: "own, live", consumer: "orders", prepare: thenAdvance(grantTo("orders", attemptB), 10*time.Second),
			want: []string{`"decision":"DECISION_GRANTED"`, `"leaseRemaining":"20s"`, `"attempt":1`}, never: []string{"takeover"},
		},
		{
			name: "record", consumer: "orders", prepare: nothing, claim: `,"record":{"outcome":"OUTCOME_REJECTED"}`,
			want:  []string{`"decision":"DECISION_GRANTED"`, `"accepted":true`, `"recorded":true`},
			never: []string{"leaseRemaining"},
		},
		{
			name: "completed", consumer: "orders", prepare: completed(attemptA),
			want: []string{
				`"decision":"DECISION_DUPLICATE"`, `"accepted":true`, `"outcome":"OUTCOME_SUCCEEDED"`, `"result":"cmVjZWlwdCA3"`,
				`"contentType":"text/plain"`, `"completedAt":"2026-03-01T12:00:00Z"`, `"expiresAt":`,
			},
			never: []string{"grant", "ownAttempt", "resultOmitted", "retryAfter"},
			check: func(t *testing.T, res *warifuv1.ClaimResponse) {
				t.Helper()
				if m := res.GetResult().GetMetadata(); len(m) != 2 || m["a"] != "1" || m["b"] != "2" {
					t.Errorf("metadata = %v", m)
				}
			},
		},
		{
			name: "completed by itself", consumer: "orders", prepare: completed(attemptB),
			want: []string{`"decision":"DECISION_DUPLICATE"`, `"accepted":true`, `"ownAttempt":true`},
		},
		{
			name: "live, other", consumer: "orders", prepare: grantTo("orders", attemptA),
			want: []string{`"decision":"DECISION_IN_PROGRESS"`, `"accepted":false`, `"retryAfter":"`}, never: []string{"grant", "fence"},
			check: func(t *testing.T, res *warifuv1.ClaimResponse) {
				t.Helper()
				if d := res.GetRetryAfter().AsDuration(); d < 5*time.Second || d > 6*time.Second {
					t.Errorf("retry_after = %v, want 5 s and up to a fifth more", d)
				}
			},
		},
		{
			name: "live, other, nearly lapsed", consumer: "orders", prepare: thenAdvance(grantTo("orders", attemptA), 29*time.Second),
			want: []string{`"decision":"DECISION_IN_PROGRESS"`},
			check: func(t *testing.T, res *warifuv1.ClaimResponse) {
				t.Helper()
				if d := res.GetRetryAfter().AsDuration(); d < time.Second || d > 1200*time.Millisecond {
					t.Errorf("retry_after = %v, want 1 s and up to a fifth more", d)
				}
			},
		},
		{
			name: "other content", consumer: "orders", claim: `,"digests":[{"scheme":"raw","value":"AQ=="}]`,
			prepare: func(_ *testing.T, r *rig) {
				m := request("e", attemptA)
				m.Digests = []*warifuv1.Digest{{Scheme: "raw", Value: []byte{2}}}
				r.complete("e", r.grant(m), success("secret of another"))
			},
			want:  []string{`"decision":"DECISION_MISMATCH"`, `"accepted":false`},
			never: []string{"result", "grant", "expiresAt", "retryAfter", "ownAttempt", "raw"},
		},
		{
			name: "no common scheme", consumer: "orders", claim: `,"digests":[{"scheme":"raw","value":"AQ=="}]`, prepare: grantTo("orders", attemptA),
			want: []string{`"decision":"DECISION_MISMATCH"`},
		},
		{
			name: "no common scheme, accepted", consumer: "loose", claim: `,"digests":[{"scheme":"raw","value":"AQ=="}]`, prepare: grantTo("loose", attemptA),
			want: []string{`"decision":"DECISION_IN_PROGRESS"`},
		},
		{
			name: "lapsed, HOLD", consumer: "held", prepare: thenAdvance(grantTo("held", attemptA), 30*time.Second),
			want: []string{`"decision":"DECISION_IN_DOUBT"`, `"accepted":false`, `"retryAfter":"60s"`}, never: []string{"grant", "expiresAt"},
		},
		{
			name: "at the cap", consumer: "capped", prepare: thenAdvance(grantTo("capped", attemptA), 30*time.Second),
			want: []string{`"decision":"DECISION_IN_DOUBT"`},
		},
		{
			name: "too old", consumer: "orders", prepare: nothing, claim: "," + past,
			want: []string{`"decision":"DECISION_TOO_OLD"`, `"accepted":false`}, never: []string{"grant", "expiresAt", "retryAfter"},
		},
		{
			name: "store away, FAIL_OPEN", consumer: "open",
			prepare: func(_ *testing.T, r *rig) { r.failing(failAll(storage.ErrUnavailable)) },
			want:    []string{`"decision":"DECISION_UNPROTECTED"`, `"accepted":false`, `"consumer":"open"`, `"eventId":"e"`}, never: []string{"grant", "expiresAt"},
		},
	}
}

// TestDecisions asks every question twice: over HTTP as JSON, byte for byte
// what curl shows, and in process. The attempt is the same, so that the second
// answer is that of a resend and equals the first.
func TestDecisions(t *testing.T) {
	t.Parallel()
	for _, row := range decisionRows() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			row.prepare(t, r)
			status, body := r.post("shop", "Claim", fmt.Sprintf(`{"consumer":%q,"eventId":"e","attemptId":%q%s}`, row.consumer, attemptB, row.claim))
			if status != 200 {
				t.Fatalf("status %d: %s", status, body)
			}
			got := compact(t, body)
			for _, part := range row.want {
				if !strings.Contains(got, part) {
					t.Errorf("%s\nlacks %s", got, part)
				}
			}
			for _, part := range row.never {
				if strings.Contains(got, part) {
					t.Errorf("%s\nhas %s", got, part)
				}
			}
			if row.claim != "" {
				return
			}
			res, err := r.client("shop").Claim(t.Context(), &warifuv1.ClaimRequest{Consumer: row.consumer, EventId: "e", AttemptId: attemptB})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(got, `"decision":"`+res.GetDecision().String()+`"`) || res.Accepted == nil || res.GetProtocolVersion() != 1 {
				t.Errorf("in process: %v", res)
			}
			if row.check != nil {
				row.check(t, res)
			}
		})
	}
}

func TestAttemptEnded(t *testing.T) {
	t.Parallel()
	r := setup(t)
	released(t, r)
	_, err := r.client("shop").Claim(t.Context(), request("e", attemptA))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || info(t, err).GetReason() != warifuv1.Reason_REASON_ATTEMPT_ENDED || !info(t, err).GetNotApplied() {
		t.Errorf("own released attempt: %v", err)
	}
}

// TestFailurePolicy: only claims of FAIL_OPEN consumers, and only when the
// store cannot answer, are UNPROTECTED.
func TestFailurePolicy(t *testing.T) {
	t.Parallel()
	rows := []struct {
		err    error
		open   bool
		code   connect.Code
		reason warifuv1.Reason
		known  bool // not applied, for certain
		retry  bool
	}{
		{storage.ErrUnavailable, true, connect.CodeUnavailable, warifuv1.Reason_REASON_STORE_UNAVAILABLE, true, true},
		{storage.ErrUnknown, true, connect.CodeUnavailable, warifuv1.Reason_REASON_OUTCOME_UNKNOWN, false, true},
		{storage.ErrFull, true, connect.CodeResourceExhausted, warifuv1.Reason_REASON_STORE_FULL, true, true},
		{storage.ErrClockSuspect, true, connect.CodeUnavailable, warifuv1.Reason_REASON_CLOCK_SUSPECT, true, true},
		{storage.ErrDamaged, true, connect.CodeInternal, warifuv1.Reason_REASON_INTERNAL, false, false},
		{storage.ErrClosed, false, connect.CodeUnavailable, warifuv1.Reason_REASON_SHUTTING_DOWN, true, true},
	}
	for _, row := range rows {
		t.Run(row.err.Error(), func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			c := r.client("shop")
			g := r.grant(request("mine", attemptA))
			r.failing(failAll(fmt.Errorf("driver detail 4711: %w", row.err)))
			demand := func(what string, err error) {
				t.Helper()
				i := info(t, err)
				if connect.CodeOf(err) != row.code || i.GetReason() != row.reason || i.GetNotApplied() != row.known {
					t.Errorf("%s: %v %v, want %v %v", what, err, i, row.code, row.reason)
				}
				if (i.GetRetryAfter() != nil) != row.retry || (retryInfo(t, err) != nil) != row.retry {
					t.Errorf("%s: retry_after %v, RetryInfo %v", what, i.GetRetryAfter(), retryInfo(t, err))
				}
				if strings.Contains(err.Error(), "4711") {
					t.Errorf("%s leaks its cause: %v", what, err)
				}
			}
			_, err := c.Claim(t.Context(), request("e", attemptA))
			demand("claim", err)
			res, err := c.Claim(t.Context(), &warifuv1.ClaimRequest{Consumer: "open", EventId: "e", AttemptId: attemptA, Record: success("x")})
			if row.open {
				if err != nil || res.GetDecision() != warifuv1.Decision_DECISION_UNPROTECTED || res.GetAccepted() || res.GetGrant() != nil {
					t.Errorf("FAIL_OPEN claim = %v, %v", res, err)
				}
			} else {
				demand("FAIL_OPEN claim", err)
			}
			_, err = c.Complete(t.Context(), &warifuv1.CompleteRequest{Consumer: "open", EventId: "mine", AttemptId: attemptA, Fence: g.GetFence(), Completion: success("")})
			demand("complete", err)
			_, err = c.Release(t.Context(), &warifuv1.ReleaseRequest{Consumer: "open", EventId: "mine", AttemptId: attemptA, Fence: g.GetFence()})
			demand("release", err)
			ext, err := c.Extend(t.Context(), &warifuv1.ExtendRequest{Items: []*warifuv1.ExtendItem{{Consumer: "open", EventId: "mine", AttemptId: attemptA, Fence: g.GetFence()}}})
			if err != nil || ext.GetResults()[0].GetError().GetInfo().GetReason() != row.reason {
				t.Errorf("extend = %v, %v", ext, err)
			}
			batch, err := c.BatchClaim(t.Context(), &warifuv1.BatchClaimRequest{Items: []*warifuv1.ClaimRequest{
				request("f", attemptA), {Consumer: "open", EventId: "g", AttemptId: attemptA},
			}})
			if err != nil {
				t.Fatal(err)
			}
			closed, open := batch.GetResults()[0], batch.GetResults()[1]
			if closed.GetError().GetInfo().GetReason() != row.reason || closed.GetError().GetCode() != row.code.String() {
				t.Errorf("batch, FAIL_CLOSED = %v", closed)
			}
			if got := open.GetClaim().GetDecision() == warifuv1.Decision_DECISION_UNPROTECTED; got != row.open {
				t.Errorf("batch, FAIL_OPEN = %v", open)
			}
		})
	}
}

// TestLookupUnknown: a read whose answer was lost has changed nothing.
func TestLookupUnknown(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.failing(failAll(storage.ErrUnknown))
	_, err := r.client("shop").Lookup(t.Context(), &warifuv1.LookupRequest{Consumer: "orders", EventId: "e"})
	if i := info(t, err); i.GetReason() != warifuv1.Reason_REASON_STORE_UNAVAILABLE || !i.GetNotApplied() {
		t.Errorf("info = %v", i)
	}
	_, err = r.adminClient("shop").ListClaims(t.Context(), &warifuv1.ListClaimsRequest{})
	if i := info(t, err); i.GetReason() != warifuv1.Reason_REASON_STORE_UNAVAILABLE || !i.GetNotApplied() {
		t.Errorf("info = %v", i)
	}
}

// TestWait: a claim that waits is answered when the other attempt ends, with
// its result.
func TestWait(t *testing.T) {
	t.Parallel()
	r := setup(t)
	g := r.grant(request("e", attemptA))
	answer := make(chan *warifuv1.ClaimResponse, 1)
	go func() {
		m := request("e", attemptB)
		wait(30 * time.Second)(m)
		res, err := r.client("shop").Claim(r.t.Context(), m)
		if err != nil {
			t.Error(err)
		}
		answer <- res
	}()
	r.until(func() bool { return metric(t, r, "warifu_waiters") == 1 })
	if n := metric(t, r, "warifu_rpc_in_flight"); n != 0 {
		t.Errorf("%v calls in flight while one waits, want 0: it gave its slot back", n)
	}
	r.complete("e", g, success("done"))
	res := <-answer
	if res.GetDecision() != warifuv1.Decision_DECISION_DUPLICATE || string(res.GetResult().GetResult()) != "done" {
		t.Errorf("after the wait: %v", res)
	}
}

// TestWaitIsToldWithTheGrant: a grant says how long its call had waited, so
// that the client does not count the wait as part of the lease.
func TestWaitIsToldWithTheGrant(t *testing.T) {
	t.Parallel()
	r := setup(t)
	g := r.grant(request("e", attemptA))
	answer := make(chan *warifuv1.ClaimResponse, 1)
	go func() {
		m := request("e", attemptB)
		wait(30 * time.Second)(m)
		res, err := r.client("shop").Claim(r.t.Context(), m)
		if err != nil {
			t.Error(err)
		}
		answer <- res
	}()
	r.until(func() bool { return metric(t, r, "warifu_waiters") == 1 })
	r.clock.Advance(12 * time.Second)
	if _, err := r.client("shop").Release(t.Context(), &warifuv1.ReleaseRequest{
		Consumer: "orders", EventId: "e", AttemptId: attemptA, Fence: g.GetFence(),
	}); err != nil {
		t.Fatal(err)
	}
	late := (<-answer).GetGrant()
	if late.GetWaited().AsDuration() != 12*time.Second || late.GetLeaseRemaining().AsDuration() != claim.LeaseDefault {
		t.Errorf("after the wait: %v", late)
	}
	if g.GetWaited() != nil {
		t.Errorf("without a wait: %v", g)
	}
	m := request("unheld", attemptA)
	wait(time.Second)(m)
	if res, err := r.client("shop").Claim(t.Context(), m); err != nil || res.GetGrant().GetWaited() != nil {
		t.Errorf("with nobody to wait for: %v, %v", res, err)
	}
}

func TestMadeAttempt(t *testing.T) {
	t.Parallel()
	r := setup(t)
	g := r.grant(request("e", ""))
	if len(g.GetAttemptId()) != 36 || g.GetAttemptId()[14] != '4' {
		t.Fatalf("made attempt ID %q is no version 4 UUID", g.GetAttemptId())
	}
	r.complete("e", g, success("x"))
	upper := r.grant(request("f", strings.ToUpper(attemptA)))
	if upper.GetAttemptId() != attemptA {
		t.Errorf("attempt ID = %q, want it as 8-4-4-4-12 in lower case", upper.GetAttemptId())
	}
	bare := r.grant(request("f", strings.ReplaceAll(attemptA, "-", "")))
	if bare.GetAttemptId() != attemptA || bare.GetFence() != upper.GetFence() {
		t.Errorf("the same attempt written otherwise = %v, want %v", bare, upper)
	}
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.client("shop")
	g := r.grant(request("e", attemptA))
	r.clock.Advance(10 * time.Second)
	ext, err := c.Extend(t.Context(), &warifuv1.ExtendRequest{Items: []*warifuv1.ExtendItem{
		{Consumer: "orders", EventId: "e", AttemptId: attemptA, Fence: g.GetFence()},
		{Consumer: "orders", EventId: "e", AttemptId: attemptB, Fence: g.GetFence()},
		{Consumer: "orders", EventId: "e", AttemptId: "nonsense", Fence: g.GetFence()},
		{Consumer: "orders", EventId: "none", AttemptId: attemptA, Fence: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := ext.GetResults()
	if a := got[0].GetExtend(); a.GetStatus() != warifuv1.Status_STATUS_OK || a.GetLeaseRemaining().AsDuration() != 30*time.Second || a.GetState() != warifuv1.State_STATE_IN_PROGRESS {
		t.Errorf("extend by the owner = %v", a)
	}
	if a := got[1].GetExtend(); a.GetStatus() != warifuv1.Status_STATUS_STALE || a.GetLeaseRemaining() != nil {
		t.Errorf("extend by another = %v", a)
	}
	if e := got[2].GetError(); e.GetInfo().GetField() != "items[2].attempt_id" || e.GetCode() != "invalid_argument" {
		t.Errorf("extend, invalid = %v", e)
	}
	if a := got[3].GetExtend(); a.GetStatus() != warifuv1.Status_STATUS_STALE || a.GetState() != warifuv1.State_STATE_ABSENT {
		t.Errorf("extend of nothing = %v", a)
	}
	r.complete("e", g, success("one"))
	r.complete("e", g, success("one")) // its reply was lost
	res, err := c.Complete(t.Context(), &warifuv1.CompleteRequest{Consumer: "orders", EventId: "e", AttemptId: attemptA, Fence: g.GetFence(), Completion: success("two")})
	if err != nil || res.GetStatus() != warifuv1.Status_STATUS_RESULT_CONFLICT || res.GetAccepted() || res.Accepted == nil || res.GetState() != warifuv1.State_STATE_COMPLETED {
		t.Errorf("another result = %v, %v", res, err)
	}
	if n := metric(t, r, `warifu_transitions_total{kind="complete",status="ok"}`); n != 2 {
		t.Errorf("completions counted = %v", n)
	}
}

// TestLookup shows a record as decisions see it.
func TestLookup(t *testing.T) {
	t.Parallel()
	r := setup(t)
	look := func(consumer, event string) *warifuv1.ClaimRecord {
		t.Helper()
		res, err := r.client("shop").Lookup(t.Context(), &warifuv1.LookupRequest{Consumer: consumer, EventId: event})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetRecord()
	}
	if rec := look("orders", "e"); rec.GetState() != warifuv1.State_STATE_ABSENT || rec.GetEventId() != "e" || rec.GetClaimedAt() != nil {
		t.Errorf("absent = %v", rec)
	}
	m := &warifuv1.ClaimRequest{Consumer: "held", EventId: "e", AttemptId: attemptA}
	digest("raw", 4)(m)
	made(storagetest.Start.Add(-time.Minute))(m)
	r.grant(m)
	rec := look("held", "e")
	if rec.GetState() != warifuv1.State_STATE_IN_PROGRESS || rec.GetLeaseUntil().AsTime() != storagetest.Start.Add(30*time.Second) ||
		rec.GetDigestSchemes()[0] != "raw" || rec.GetEventTime().AsTime() != storagetest.Start.Add(-time.Minute) || rec.GetOnLeaseLoss() != warifuv1.OnLeaseLoss_ON_LEASE_LOSS_HOLD {
		t.Errorf("in progress = %v", rec)
	}
	r.clock.Advance(30 * time.Second)
	if rec := look("held", "e"); rec.GetState() != warifuv1.State_STATE_IN_DOUBT || rec.GetExpiresAt() != nil {
		t.Errorf("lapsed under HOLD = %v", rec)
	}
	r.complete("f", r.grant(request("f", attemptA)), success("body"))
	if rec := look("orders", "f"); string(rec.GetResult().GetResult()) != "body" || rec.GetState() != warifuv1.State_STATE_COMPLETED {
		t.Errorf("completed = %v", rec)
	}
	r.clock.Advance(claim.RetentionDefault)
	if rec := look("orders", "f"); rec.GetState() != warifuv1.State_STATE_ABSENT || rec.GetResult() != nil {
		t.Errorf("expired = %v", rec)
	}
}

func TestGetPolicy(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.client("shop")
	res, err := c.GetPolicy(t.Context(), &warifuv1.GetPolicyRequest{Consumer: "open"})
	if err != nil || !res.GetDeclared() || res.GetPolicy().GetOnUnavailable() != warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_OPEN || res.GetProtocolVersion() != 1 {
		t.Errorf("declared = %v, %v", res, err)
	}
	res, err = c.GetPolicy(t.Context(), &warifuv1.GetPolicyRequest{Consumer: "made-up"})
	p := res.GetPolicy()
	if err != nil || res.GetDeclared() || p.GetRedeliveryWindow().AsDuration() != 24*time.Hour || p.GetRetention().AsDuration() != 48*time.Hour ||
		p.GetLeaseDefault().AsDuration() != 30*time.Second || p.GetOnLeaseLoss() != warifuv1.OnLeaseLoss_ON_LEASE_LOSS_REGRANT ||
		p.GetOnUnavailable() != warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_CLOSED || p.GetResultBytesMax() != 256<<10 || len(res.GetVersion()) != 16 {
		t.Errorf("undeclared = %v, %v", res, err)
	}
	_, err = r.client("strict").GetPolicy(t.Context(), &warifuv1.GetPolicyRequest{Consumer: "made-up"})
	if connect.CodeOf(err) != connect.CodeNotFound || info(t, err).GetReason() != warifuv1.Reason_REASON_UNKNOWN_CONSUMER {
		t.Errorf("strict = %v", err)
	}
	// What is not declared any more cannot begin, and what began can end.
	began, err := r.client("strict").Claim(t.Context(), &warifuv1.ClaimRequest{Consumer: "known", EventId: "e", AttemptId: attemptA})
	if err != nil {
		t.Fatal(err)
	}
	r.dir.Swap(r.undeclared)
	done, err := r.client("strict").Complete(t.Context(), &warifuv1.CompleteRequest{
		Consumer: "known", EventId: "e", AttemptId: attemptA, Fence: began.GetGrant().GetFence(), Completion: success(""),
	})
	if err != nil || done.GetStatus() != warifuv1.Status_STATUS_OK {
		t.Errorf("completion for a consumer that is declared no longer = %v, %v", done, err)
	}
	if res, err := r.client("strict").Lookup(t.Context(), &warifuv1.LookupRequest{Consumer: "known", EventId: "e"}); err != nil || res.GetRecord().GetState() != warifuv1.State_STATE_COMPLETED {
		t.Errorf("its look-up = %v, %v", res, err)
	}
	r.store.Reset()
	_, err = r.client("strict").Claim(t.Context(), request("e", attemptA))
	if info(t, err).GetReason() != warifuv1.Reason_REASON_UNKNOWN_CONSUMER || r.store.Trips() != 0 {
		t.Errorf("strict claim = %v", err)
	}
}
