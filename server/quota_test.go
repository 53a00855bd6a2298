package server_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/registry"
)

// TestOverQuota: at its quota of keys a tenant still hears what it has, each item
// in its place, and a look at the quotas that fails opens nothing.
func TestOverQuota(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *server.Config) {
		var err error
		if c.Quotas, err = quota.New(quota.Config{Monotonic: func() time.Duration { return 0 }}); err != nil {
			t.Fatal(err)
		}
		shop, _ := c.Directory.Table().Tenant("shop")
		shop.Limits = registry.Limits{KeysMax: 1} // nobody has seen it yet
	})
	r.grant(request("a", attemptA))
	batch := func(events ...string) (got []warifuv1.Reason) {
		t.Helper()
		m := &warifuv1.BatchClaimRequest{}
		for _, e := range events {
			m.Items = append(m.Items, request(e, attemptB))
		}
		res, err := r.client("shop").BatchClaim(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		for i, item := range res.GetResults() {
			if c := item.GetClaim(); c != nil && (c.GetEventId() != events[i] || c.GetDecision() != warifuv1.Decision_DECISION_IN_PROGRESS) {
				t.Errorf("%s is answered %v", events[i], c)
			}
			got = append(got, item.GetError().GetInfo().GetReason())
		}
		return got
	}
	const over, answered = warifuv1.Reason_REASON_QUOTA_EXCEEDED, warifuv1.Reason_REASON_UNSPECIFIED
	for _, row := range []struct {
		events []string
		want   []warifuv1.Reason
	}{
		{[]string{"b", "a", "c"}, []warifuv1.Reason{over, answered, over}},
		{[]string{"b", "c"}, []warifuv1.Reason{over, over}},
		{[]string{"a"}, []warifuv1.Reason{answered}},
	} {
		got := batch(row.events...)
		for i := range got {
			if got[i] != row.want[i] {
				t.Errorf("%v: %v, want %v", row.events, got, row.want)
			}
		}
	}
	r.failing(failAll(storage.ErrUnavailable))
	_, err := r.client("shop").Claim(t.Context(), &warifuv1.ClaimRequest{Consumer: "open", EventId: "d", AttemptId: uuid.NewString()})
	mustFail(t, err, warifuv1.Reason_REASON_STORE_UNAVAILABLE)
}
