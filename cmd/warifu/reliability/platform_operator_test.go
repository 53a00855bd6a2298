package reliability_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// TestOperator is the first day of an installation, by its commands alone: from
// nothing to two tenants at work, a key that changes under load, a tenant that is
// suspended, and a log of all of it.
func TestOperator(t *testing.T) {
	t.Parallel()
	t.Run("Embedded", func(t *testing.T) {
		t.Parallel()
		firstDay(t, newSite(t, "", 1))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		firstDay(t, newSite(t, newDatabase(t).url, 1))
	})
}

func firstDay(t *testing.T, s *site) {
	t.Helper()
	server := s.open()[0]
	s.change("tenants", "create", "acme")
	s.change("tenants", "create", "globex")
	s.change("consumers", "put", "orders.eu", "--tenant", "acme", "--on-unavailable", "FAIL_OPEN", "--redelivery-window", "4h")
	s.change("consumers", "put", "payments", "--tenant", "globex", "--on-unavailable", "FAIL_CLOSED", "--redelivery-window", "4h")
	acmeKey := s.key("create", "--tenant", "acme", "--scope", "claim,read", "--consumer-prefix", "orders.")
	acme := server.team(keyOf(acmeKey.Secret))
	globex := server.team(keyOf(s.key("create", "--tenant", "globex", "--scope", "claim,read").Secret))

	for consumer, m := range map[string]*team{"orders.eu": acme, "payments": globex} {
		want := warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_OPEN
		if m == globex {
			want = warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_CLOSED
		}
		p, err := m.GetPolicy(t.Context(), &warifuv1.GetPolicyRequest{Consumer: consumer})
		if err != nil || !p.GetDeclared() || p.GetPolicy().GetOnUnavailable() != want || p.GetPolicy().GetRedeliveryWindow().AsDuration() != 4*time.Hour {
			t.Errorf("policy of %s: %v, %v", consumer, p, err)
		}
	}
	if _, err := acme.claim("payments"); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a consumer that the key is not for: %v", err)
	}

	atWork, neighbours := newCrew("orders.eu", acme), newCrew("payments", globex)
	atWork.task()
	neighbours.task()
	if n := granted(t, server.metrics()); n < crewTask/2 {
		t.Errorf("metrics show %v grants", n)
	}
	next := s.key("rotate", acmeKey.Key.ID, "--tenant", "acme", "--overlap", "1h")
	atWork.task() // with the old one
	acme.key.Store(&next.Secret)
	atWork.task()
	s.change("keys", "revoke", acmeKey.Key.ID, "--tenant", "acme")
	revoked := time.Now()
	old := server.team(keyOf(acmeKey.Secret))
	within(t, revoked, "the old key is refused", func() bool {
		_, err := old.claim("orders.eu")
		return connect.CodeOf(err) == connect.CodeUnauthenticated
	})
	atWork.task()
	if err := atWork.end(); err != nil {
		t.Errorf("of %d calls while the key changed one failed: %v", atWork.calls.Load(), err)
	}

	suspend(t, s, acme)
	neighbours.task()
	if err := neighbours.end(); err != nil {
		t.Errorf("the other tenant: %v", err)
	}
	readLog(t, s, acmeKey.Key.ID, []string{acmeKey.Secret, next.Secret})
}

// suspend suspends the tenant acme while it works.
func suspend(t *testing.T, s *site, acme *team) {
	t.Helper()
	var begun []op
	for range 3 {
		o, err := acme.claim("orders.eu")
		if err != nil {
			t.Fatal(err)
		}
		begun = append(begun, o)
	}
	s.change("tenants", "suspend", "acme")
	suspended := time.Now()
	within(t, suspended, "nothing new is granted", func() bool {
		_, err := acme.claim("orders.eu")
		return connect.CodeOf(err) == connect.CodePermissionDenied || connect.CodeOf(err) == connect.CodeFailedPrecondition
	})
	ctx := t.Context()
	res, err := acme.Extend(ctx, &warifuv1.ExtendRequest{Items: []*warifuv1.ExtendItem{begun[0].extend()}})
	if err != nil || len(res.GetResults()) != 1 || res.GetResults()[0].GetExtend().GetStatus() != warifuv1.Status_STATUS_OK {
		t.Errorf("what was granted cannot be extended: %v, %v", res, err)
	}
	for _, o := range begun[:2] {
		if err := acme.complete(o); err != nil {
			t.Errorf("what was granted cannot be completed: %v", err)
		}
	}
	o := begun[2]
	if res, err := acme.Release(ctx, &warifuv1.ReleaseRequest{
		Consumer: o.consumer, EventId: o.event, AttemptId: o.attempt, Fence: o.fence,
	}); err != nil || res.GetStatus() != warifuv1.Status_STATUS_OK {
		t.Errorf("what was granted cannot be released: %v, %v", res, err)
	}
}

// readLog reads all of the day back.
func readLog(t *testing.T, s *site, key string, secrets []string) {
	t.Helper()
	var log []struct {
		Action, Actor, Target, Reason, RequestID string
		At                                       time.Time
	}
	s.read(&log, "audit", "list", "--tenant", "acme")
	var actions []string
	for _, e := range log {
		actions = append(actions, e.Action)
		if e.Reason != "a test" || e.Actor == "" || e.RequestID == "" || e.At.IsZero() {
			t.Errorf("an entry says too little: %+v", e)
		}
		if strings.HasPrefix(e.Action, "key.re") && e.Target != key {
			t.Errorf("%s of %s, want %s", e.Action, e.Target, key)
		}
	}
	want := []string{"tenant.suspend", "key.revoke", "key.rotate", "key.create", "consumer.put", "tenant.create"}
	if !slices.Equal(actions, want) {
		t.Errorf("the log of acme: %v, want %v", actions, want)
	}
	all := string(s.run("", "audit", "list", "--limit", "0", "-o", "json"))
	for _, want := range []string{`"bootstrap"`, `"globex"`, `"payments"`} {
		if !strings.Contains(all, want) {
			t.Errorf("the log of everything has no %s", want)
		}
	}
	for _, text := range secrets {
		if secret := strings.Split(text, "_")[3]; strings.Contains(all, secret) {
			t.Error("the log has a secret")
		}
	}
}

var grants = regexp.MustCompile(`(?m)^warifu_claims_total\{[^}]*decision="granted"[^}]*\} (\S+)$`)

// granted is how many grants metrics show.
func granted(t *testing.T, metrics string) (n float64) {
	t.Helper()
	for _, m := range grants.FindAllStringSubmatch(metrics, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		n += v
	}
	return n
}
