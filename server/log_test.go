package server_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/storagetest"
)

// TestLogCanary: what callers send does not reach logs or metrics, at the
// finest level and however a call ends.
func TestLogCanary(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.client("shop")
	const canary = "CANARY"
	m := request(canary+"-event", attemptA)
	m.Digests = []*warifuv1.Digest{{Scheme: "raw", Value: []byte(canary + "-digest")}}
	result := &warifuv1.Completion{
		Outcome: warifuv1.Outcome_OUTCOME_SUCCEEDED, Result: []byte(canary + "-result"),
		ContentType: canary + "/type", Metadata: map[string]string{canary + "-name": canary + "-value"},
	}
	g := r.grant(m)
	ctx := t.Context()
	calls := func() {
		// Their answers are tested elsewhere; here only the log counts.
		_, _ = c.Complete(ctx, &warifuv1.CompleteRequest{Consumer: "orders", EventId: m.GetEventId(), AttemptId: attemptA, Fence: g.GetFence(), Completion: result})
		_, _ = c.Claim(ctx, request(canary+"-event", attemptB))
		_, _ = c.Claim(ctx, request(canary+"-event\x00", attemptB))
		_, _ = c.Claim(ctx, request(canary+"-event", canary+"-attempt"))
		_, _ = c.Claim(ctx, &warifuv1.ClaimRequest{Consumer: canary + " bad", EventId: "e"})
		_, _ = c.BatchClaim(ctx, &warifuv1.BatchClaimRequest{Items: []*warifuv1.ClaimRequest{m, {EventId: canary}}})
		_, _ = c.Lookup(ctx, &warifuv1.LookupRequest{Consumer: "orders", EventId: m.GetEventId()})
		_, _ = c.Extend(ctx, &warifuv1.ExtendRequest{Items: []*warifuv1.ExtendItem{{EventId: canary}}})
		_, _ = c.Release(ctx, &warifuv1.ReleaseRequest{EventId: canary})
		_, _ = r.adminClient("shop").ListClaims(ctx, &warifuv1.ListClaimsRequest{PageToken: canary})
		r.post("shop", "Claim", `{"consumer":"orders","eventId":"`+canary+`","lease":"`+canary+`"}`)
		r.post("shop", "Claim", canary)
		r.post("shop", canary, "{}")
	}
	calls()
	for _, err := range []error{storage.ErrUnknown, storage.ErrFull, storage.ErrDamaged} {
		r.failing(failAll(err))
		calls()
	}
	r.failing(func(context.Context, storagetest.Call) storagetest.Fault { return storagetest.Fault{} })
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/warifu.v1.ClaimService/Claim?"+canary, strings.NewReader(canary))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+canary)
	req.Header.Set("X-Request-Id", canary+" with spaces")
	r.server.Handler().ServeHTTP(httptest.NewRecorder(), req)

	log := r.log.String()
	for where, text := range map[string]string{"log": log, "metrics": scrape(t, r)} {
		for _, secret := range append([]string{canary, "Q0FOQVJZ"}, secrets(r)...) { // Q0FO… is base64 of the canary
			if strings.Contains(text, secret) {
				t.Errorf("the %s shows %q", where, secret)
			}
		}
	}
	for _, want := range []string{
		`"msg":"call served"`, `"msg":"call failed"`, `"method":"Claim"`, `"tenant":"shop"`, `"consumer":"orders"`, `"event":"`,
		`"request_id":"`, `"reason":"REASON_INVALID_FIELD"`, `"field":"event_id"`, `"items":2`, `"reason":"REASON_OUTCOME_UNKNOWN"`, `"cause":"`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

// secrets are the parts of credentials that must not be shown; key IDs may.
func secrets(r *rig) (out []string) {
	for _, key := range r.keys {
		out = append(out, strings.Split(key, "_")[3])
	}
	return out
}

// TestLogStorm: a storm of refusals does not fill the log, and says how many
// lines it left out.
func TestLogStorm(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.client("shop")
	for range 500 {
		_, _ = c.Claim(t.Context(), request("", attemptA))
	}
	failed := func() int { return strings.Count(r.log.String(), `"msg":"call failed"`) }
	if n := failed(); n != 50 {
		t.Errorf("500 refusals within a second wrote %d lines, want 50", n)
	}
	r.clock.Advance(1_000_000_000)
	_, _ = c.Claim(t.Context(), request("", attemptA))
	if n := failed(); n != 51 || !strings.Contains(r.log.String(), fmt.Sprintf(`"lines_left_out":%d`, 450)) {
		t.Errorf("a second later: %d lines, and what was left out is not said", n)
	}
	if lines := strings.Count(r.log.String(), "\n"); lines > 60 {
		t.Errorf("%d lines", lines)
	}
}
