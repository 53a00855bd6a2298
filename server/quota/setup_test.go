package quota

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warifu/warifu/storage/claim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hand is a clock that is moved by hand.
type hand struct{ now time.Duration }

func setup(t testing.TB) (*Quotas, *hand) {
	t.Helper()
	clock := &hand{now: time.Hour}
	q, err := New(Config{Monotonic: func() time.Duration { return clock.now }})
	if err != nil {
		t.Fatal(err)
	}
	return q, clock
}

const shop = claim.TenantID(7)

func request(event string) claim.Request {
	return claim.Request{
		Key:     claim.Key{Tenant: shop, Consumer: "mail", EventID: event},
		Attempt: claim.AttemptID{1}, InsertBefore: claim.Never, Lease: 30 * time.Second, Policy: claim.DefaultPolicy(),
	}
}
