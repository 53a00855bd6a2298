package reliability_test

import (
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// TestChangesReachEveryServer: two servers share a database and a load. What is
// changed through one of them is in force on the other within 5 s: a new key, a
// policy, a rotation without one failed call, a revocation, a suspension.
func TestChangesReachEveryServer(t *testing.T) {
	t.Parallel()
	s := newSite(t, newDatabase(t).url, 2)
	servers := s.open()
	s.change("tenants", "create", "acme")
	s.change("tenants", "create", "globex")
	first := s.key("create", "--tenant", "acme", "--scope", "claim,read")
	key, made := keyOf(first.Secret), time.Now()
	here, there := servers[0].team(key), servers[1].team(key)
	within(t, made, "a new key works", func() bool {
		_, err := there.claim("orders")
		return err == nil
	})
	beside := servers[1].team(keyOf(s.key("create", "--tenant", "globex", "--scope", "claim").Secret))
	within(t, time.Now(), "and one of another tenant", func() bool {
		_, err := beside.claim("orders")
		return err == nil
	})
	neighbours, atWork := newCrew("orders", beside), newCrew("orders", here, there)
	atWork.task()
	changePolicy(t, s, here, there)
	second := s.key("rotate", first.Key.ID, "--tenant", "acme", "--overlap", "1h")
	rotated := time.Now()
	probe := servers[1].team(keyOf(second.Secret))
	within(t, rotated, "the key after a rotation works", func() bool {
		_, err := probe.claim("orders")
		return err == nil
	})
	atWork.task() // with the old one
	key.Store(&second.Secret)
	atWork.task()
	if err := atWork.end(); err != nil {
		t.Errorf("of %d calls while the key changed one failed: %v", atWork.calls.Load(), err)
	}
	revoke(t, s, first, servers)
	stopTenant(t, s, here, there)
	neighbours.task()
	if err := neighbours.end(); err != nil {
		t.Errorf("the other tenant: %v", err)
	}
}

// changePolicy declares a consumer, and then another policy of it.
func changePolicy(t *testing.T, s *site, teams ...*team) {
	t.Helper()
	for _, lease := range []string{"40s", "20s"} {
		s.change("consumers", "put", "orders", "--tenant", "acme", "--lease-default", lease)
		changed, want := time.Now(), lease
		version := map[string]bool{}
		for _, m := range teams {
			within(t, changed, "a default lease of "+lease, func() bool {
				p, err := m.GetPolicy(t.Context(), &warifuv1.GetPolicyRequest{Consumer: "orders"})
				if err != nil {
					t.Fatal(err)
				}
				is := p.GetDeclared() && p.GetPolicy().GetLeaseDefault().AsDuration().String() == want
				if is {
					version[p.GetVersion()] = true
				}
				return is
			})
		}
		if len(version) != 1 {
			t.Errorf("one policy has the versions %v", version)
		}
	}
}

// revoke ends a key that is in use on all servers.
func revoke(t *testing.T, s *site, old made, servers []*process) {
	t.Helper()
	var crews []*crew
	for _, p := range servers {
		c := newCrew("orders", p.team(keyOf(old.Secret)))
		c.task()
		crews = append(crews, c)
	}
	s.change("keys", "revoke", old.Key.ID, "--tenant", "acme")
	revoked := time.Now()
	for _, c := range crews {
		within(t, revoked, "a revoked key stops", func() bool { return c.fault.Load() != nil })
		if err := c.end(); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("a revoked key: %v", err)
		}
	}
	for _, p := range servers { // and stays so
		if _, err := p.team(keyOf(old.Secret)).claim("orders"); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("a revoked key: %v", err)
		}
	}
}

// stopTenant suspends a tenant that works on all servers: within 5 s none grants
// anything, and what was granted can be completed on any.
func stopTenant(t *testing.T, s *site, teams ...*team) {
	t.Helper()
	var begun []op
	for _, m := range teams {
		o, err := m.claim("orders")
		if err != nil {
			t.Fatal(err)
		}
		begun = append(begun, o)
	}
	s.change("tenants", "suspend", "acme")
	suspended := time.Now()
	for i, m := range teams {
		within(t, suspended, "a suspended tenant stops", func() bool {
			_, err := m.claim("orders")
			reason := reasonOf(err)
			if err != nil && reason != warifuv1.Reason_REASON_TENANT_SUSPENDED {
				t.Fatalf("a suspended tenant: %v", err)
			}
			return err != nil
		})
		if err := m.complete(begun[len(begun)-1-i]); err != nil { // granted by the other server
			t.Errorf("what was granted before cannot be completed: %v", err)
		}
	}
}
