package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

func TestBatchLimits(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.client("shop")
	items := func(n int) []*warifuv1.ClaimRequest {
		out := make([]*warifuv1.ClaimRequest, n)
		for i := range out {
			out[i] = request(fmt.Sprint(i), attemptA)
		}
		return out
	}
	for _, n := range []int{0, 501, 5000} {
		_, err := c.BatchClaim(t.Context(), &warifuv1.BatchClaimRequest{Items: items(n)})
		r.demandInvalid(fmt.Sprint(n, " claims"), err, "items", "1-500 items")
		_, err = c.BatchComplete(t.Context(), &warifuv1.BatchCompleteRequest{Items: make([]*warifuv1.CompleteRequest, n)})
		r.demandInvalid(fmt.Sprint(n, " completions"), err, "items", "1-500 items")
	}
	large := items(5)
	for i := range large {
		large[i].Record = success(strings.Repeat("x", claim.ResultBytesDefault-i))
	}
	_, err := c.BatchClaim(t.Context(), &warifuv1.BatchClaimRequest{Items: large})
	r.demandInvalid("1.25 MiB", err, "items", "at most 1048576 bytes")
	if r.store.Trips() != 0 {
		t.Fatal("the store was asked about a batch that is refused")
	}
	res, err := c.BatchClaim(t.Context(), &warifuv1.BatchClaimRequest{Items: items(500)})
	if err != nil || len(res.GetResults()) != 500 {
		t.Fatalf("500 claims: %d, %v", len(res.GetResults()), err)
	}
	for i, item := range res.GetResults() {
		if item.GetClaim().GetDecision() != warifuv1.Decision_DECISION_GRANTED || item.GetClaim().GetEventId() != fmt.Sprint(i) {
			t.Fatalf("item %d = %v", i, item)
		}
	}
	if n := r.store.Trips(); n != 1 {
		t.Errorf("500 fresh claims took %d trips, want 1", n)
	}
	if n := metric(t, r, `warifu_claims_total{consumer="declared",decision="granted",on_lease_loss="regrant"}`); n != 500 {
		t.Errorf("granted counted = %v", n)
	}
}

// TestBatchMixed: invalid items have errors of their own; the valid ones are
// served, in order, in one trip.
func TestBatchMixed(t *testing.T) {
	t.Parallel()
	r := setup(t)
	long := request("long", attemptA)
	long.EventId = strings.Repeat("x", 513)
	waiting := request("waiting", attemptA)
	wait(time.Second)(waiting)
	twice := request("twice", attemptA)
	digest("a", 1)(twice)
	digest("a", 1)(twice)
	res, err := r.client("shop").BatchClaim(t.Context(), &warifuv1.BatchClaimRequest{Items: []*warifuv1.ClaimRequest{
		long, request("first", attemptA), waiting, {}, request("second", attemptB), twice, nil,
	}})
	if err != nil {
		t.Fatal(err)
	}
	fields := map[int]string{0: "items[0].event_id", 2: "items[2].wait", 3: "items[3].consumer", 5: "items[5].digests[1].scheme", 6: "items[6].consumer"}
	for i, item := range res.GetResults() {
		field, invalid := fields[i]
		if !invalid {
			if item.GetClaim().GetDecision() != warifuv1.Decision_DECISION_GRANTED {
				t.Errorf("item %d = %v, want a grant", i, item)
			}
			continue
		}
		e := item.GetError()
		if e.GetInfo().GetField() != field || e.GetCode() != "invalid_argument" || !strings.HasPrefix(e.GetMessage(), field+": ") ||
			e.GetInfo().GetRequestId() == "" || !e.GetInfo().GetNotApplied() {
			t.Errorf("item %d = %v, want an error of %s", i, item, field)
		}
	}
	if n := r.store.Items(storagetest.InsertOrGet); n != 2 || r.store.Trips() != 1 {
		t.Errorf("the store saw %d items in %d trips, want the 2 valid ones in 1", n, r.store.Trips())
	}
	r.store.Reset()
	res, err = r.client("shop").BatchClaim(t.Context(), &warifuv1.BatchClaimRequest{Items: []*warifuv1.ClaimRequest{{}, {}}})
	if err != nil || len(res.GetResults()) != 2 || res.GetResults()[1].GetError() == nil || r.store.Trips() != 0 {
		t.Errorf("nothing valid: %v, %v, %d trips", res, err, r.store.Trips())
	}
}

// TestBatchFolding: an event that appears twice is answered in order.
func TestBatchFolding(t *testing.T) {
	t.Parallel()
	r := setup(t)
	recorded := request("b", attemptA)
	recorded.Record = success("once")
	res, err := r.client("shop").BatchClaim(t.Context(), &warifuv1.BatchClaimRequest{Items: []*warifuv1.ClaimRequest{
		request("a", attemptA), recorded, request("a", attemptB), request("b", attemptB), request("a", attemptA),
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []warifuv1.Decision{
		warifuv1.Decision_DECISION_GRANTED, warifuv1.Decision_DECISION_GRANTED, warifuv1.Decision_DECISION_IN_PROGRESS,
		warifuv1.Decision_DECISION_DUPLICATE, warifuv1.Decision_DECISION_GRANTED,
	}
	for i, item := range res.GetResults() {
		if item.GetClaim().GetDecision() != want[i] {
			t.Errorf("item %d = %v, want %v", i, item, want[i])
		}
	}
	if a, b := res.GetResults()[0].GetClaim().GetGrant(), res.GetResults()[4].GetClaim().GetGrant(); a.GetFence() != b.GetFence() {
		t.Errorf("the same attempt got fences %d and %d", a.GetFence(), b.GetFence())
	}
	if string(res.GetResults()[3].GetClaim().GetResult().GetResult()) != "once" {
		t.Errorf("duplicate in the same batch = %v", res.GetResults()[3])
	}
}

// TestBatchBudget: bodies beyond 1 MiB are left out, the outcome is not, and
// the event can be asked for alone.
func TestBatchBudget(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.client("shop")
	const n, size = 6, 200 << 10 // five of them fit
	items := make([]*warifuv1.ClaimRequest, 0, n+1)
	for i := range n {
		name := fmt.Sprint(i)
		r.complete(name, r.grant(request(name, attemptA)), success(strings.Repeat("x", size)))
		items = append(items, request(name, attemptB))
	}
	r.complete("tiny", r.grant(request("tiny", attemptA)), success("x"))
	items = append(items, request("tiny", attemptB))
	res, err := c.BatchClaim(t.Context(), &warifuv1.BatchClaimRequest{Items: items})
	if err != nil {
		t.Fatal(err)
	}
	for i, item := range res.GetResults() {
		got := item.GetClaim()
		left := i == 5
		if got.GetDecision() != warifuv1.Decision_DECISION_DUPLICATE || !got.GetAccepted() || got.GetResult().GetOutcome() != warifuv1.Outcome_OUTCOME_SUCCEEDED {
			t.Errorf("item %d = %v", i, got.GetDecision())
		}
		if (got.GetResult().GetResultOmitted() == warifuv1.ResultOmitted_RESULT_OMITTED_BATCH_BUDGET) != left || (len(got.GetResult().GetResult()) == 0) != left {
			t.Errorf("item %d: omitted %v, %d bytes", i, got.GetResult().GetResultOmitted(), len(got.GetResult().GetResult()))
		}
	}
	alone, err := c.Claim(t.Context(), request("5", attemptB))
	if err != nil || len(alone.GetResult().GetResult()) != size || alone.GetResult().GetResultOmitted() != 0 {
		t.Errorf("alone: %d bytes, %v", len(alone.GetResult().GetResult()), err)
	}
}

func TestBatchComplete(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a, b := r.grant(request("a", attemptA)), r.grant(request("b", attemptA))
	one := func(event string, fence int64, c *warifuv1.Completion) *warifuv1.CompleteRequest {
		return &warifuv1.CompleteRequest{Consumer: "orders", EventId: event, AttemptId: attemptA, Fence: fence, Completion: c}
	}
	res, err := r.client("shop").BatchComplete(t.Context(), &warifuv1.BatchCompleteRequest{Items: []*warifuv1.CompleteRequest{
		one("a", a.GetFence(), success("1")), one("b", b.GetFence(), nil), one("a", a.GetFence(), success("1")),
		one("a", a.GetFence(), success("2")), one("b", b.GetFence()+1, success("3")),
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := res.GetResults()
	want := map[int]warifuv1.Status{
		0: warifuv1.Status_STATUS_OK, 2: warifuv1.Status_STATUS_OK,
		3: warifuv1.Status_STATUS_RESULT_CONFLICT, 4: warifuv1.Status_STATUS_STALE,
	}
	for i, status := range want {
		if c := got[i].GetComplete(); c.GetStatus() != status || c.GetAccepted() != (status == warifuv1.Status_STATUS_OK) || c.Accepted == nil || c.GetProtocolVersion() != 1 {
			t.Errorf("item %d = %v, want %v", i, got[i], status)
		}
	}
	if f := got[1].GetError().GetInfo().GetField(); f != "items[1].completion.outcome" {
		t.Errorf("item 1: field %q", f)
	}
}
