package interceptor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/overload"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/registry"
)

var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// gate is a directory with keys by name, and a method to call with them.
type gate struct {
	dir      *tenant.Directory
	keys     map[string]string
	throttle *Throttle
}

// newGate has a tenant in every state, each with a key for everything a tenant
// can do and one revoked, and two keys of the platform.
func newGate(t *testing.T) *gate {
	t.Helper()
	rows, err := tenant.NewRows(nil)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{keys: map[string]string{}, throttle: NewThrottle(0)}
	c := registry.Changes{Full: true, Revision: 1}
	add := func(name string, k registry.Key, scopes ...string) {
		text, made := tenant.NewKey("test")
		k.ID, k.Secret, k.Scopes = made.ID, made.SecretSHA256, scopes
		c.Keys, g.keys[name] = append(c.Keys, k), text
	}
	for _, row := range []registry.Tenant{
		{ID: 11, Name: "active", State: registry.TenantActive}, {ID: 12, Name: "suspended", State: registry.TenantSuspended},
		{ID: 13, Name: "deleting", State: registry.TenantDeleting}, {ID: 14, Name: "deleted", State: registry.TenantDeleted},
	} {
		c.Tenants = append(c.Tenants, row)
		add(row.Name, registry.Key{Tenant: row.ID}, "claim", "read", "resolve", "admin:tenant")
		add(row.Name+", read only", registry.Key{Tenant: row.ID}, "read")
		add(row.Name+", revoked", registry.Key{Tenant: row.ID, Revoked: 1}, "claim")
	}
	add("platform", registry.Key{}, "admin:tenant", "admin:platform")
	add("platform, all", registry.Key{}, "claim", "read", "resolve", "admin:tenant", "admin:platform")
	if faults := rows.Merge(&c); len(faults) > 0 {
		t.Fatal(faults)
	}
	g.dir = tenant.NewDirectory(rows.Table())
	return g
}

// ask calls a method of that kind, from an address.
func (g *gate) ask(ctx context.Context, m Method, credential, peer string, now time.Time) (*connect.CallInfo, error) {
	clock := func() time.Time { return now }
	s := connect.NewServer(RequestID(table(m), clock), Authenticate(g.dir, g.throttle))
	s.Register(connect.Method{Spec: connect.Spec{Procedure: procedure}, Handler: ok})
	info := &connect.CallInfo{PeerAddr: peer}
	info.RequestHeader().Set(RequestIDHeader, "fixed")
	if credential != "" {
		info.RequestHeader().Set("Authorization", "Bearer "+credential)
	}
	return info, s.Call(ctx, procedure, info, nil)
}

// TestWhoMayCall: every kind of key with every kind of method.
func TestWhoMayCall(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	methods := map[string]Method{
		"claim":    {Scope: tenant.ScopeClaim, Tenant: true, Class: overload.Claim},
		"complete": {Scope: tenant.ScopeClaim, Tenant: true, Class: overload.Finish},
		"policy":   {Scope: tenant.ScopeClaim, Tenant: true, Class: overload.Read},
		"lookup":   {Scope: tenant.ScopeRead, Tenant: true, Class: overload.Read},
		"resolve":  {Scope: tenant.ScopeResolve, Tenant: true, Class: overload.Console},
		"keys":     {Scope: tenant.ScopeAdminTenant},
		"tenants":  {Scope: tenant.ScopeAdminPlatform},
		"open":     {},
	}
	const (
		in        = warifuv1.Reason(-1)
		forbidden = warifuv1.Reason_REASON_PERMISSION_DENIED
		suspended = warifuv1.Reason_REASON_TENANT_SUSPENDED
		unknown   = warifuv1.Reason_REASON_UNAUTHENTICATED
	)
	order := []string{"claim", "complete", "policy", "lookup", "resolve", "keys", "tenants", "open"}
	for key, want := range map[string][]warifuv1.Reason{
		"active":               {in, in, in, in, in, in, forbidden, in},
		"active, read only":    {forbidden, forbidden, forbidden, in, forbidden, forbidden, forbidden, in},
		"suspended":            {suspended, in, in, in, in, in, forbidden, in},
		"suspended, read only": {forbidden, forbidden, forbidden, in, forbidden, forbidden, forbidden, in},
		"deleting":             slices.Repeat([]warifuv1.Reason{unknown}, 8),
		"deleted":              slices.Repeat([]warifuv1.Reason{unknown}, 8),
		"active, revoked":      slices.Repeat([]warifuv1.Reason{unknown}, 8),
		"platform":             {forbidden, forbidden, forbidden, forbidden, forbidden, in, in, in},
		"platform, all":        {forbidden, forbidden, forbidden, forbidden, forbidden, in, in, in},
	} {
		for i, name := range order {
			_, err := g.ask(t.Context(), methods[name], g.keys[key], "", noon)
			got := in
			if err != nil {
				got = fault.Of(err).Reason
			}
			if got != want[i] {
				t.Errorf("%s with the key %q: %v, want %v", name, key, got, want[i])
			}
		}
	}
}

// TestStrangersAreAlike: whoever is not let in gets the same answer.
func TestStrangersAreAlike(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	stranger, _ := tenant.NewKey("test")
	m := Method{Scope: tenant.ScopeClaim, Tenant: true, Class: overload.Claim}
	answer := func(credential string) string {
		info, err := g.ask(t.Context(), m, credential, "", noon)
		if err == nil {
			return "let in"
		}
		return fmt.Sprintf("%v %+v %v %v", err, fault.Of(err), info.ResponseHeader().Get("WWW-Authenticate"), info.ResponseHeader().Get(RequestIDHeader))
	}
	want := answer("")
	if !strings.Contains(want, "Bearer fixed") {
		t.Fatalf("the answer is %s", want)
	}
	for _, credential := range []string{
		stranger, "wf_x", g.keys["active"] + "x", g.keys["active, revoked"], g.keys["suspended, revoked"],
		g.keys["deleting"], g.keys["deleted"], g.keys["deleted, revoked"],
	} {
		if got := answer(credential); got != want {
			t.Errorf("%q:\n%s\nwant\n%s", credential, got, want)
		}
	}
}

// TestThrottle: an address that sends too many wrong keys in a minute is told
// so; its valid keys, other addresses and the next minute are served as ever.
func TestThrottle(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.throttle = NewThrottle(3)
	m := Method{Scope: tenant.ScopeClaim, Tenant: true, Class: overload.Claim}
	demand := func(when, credential, peer string, now time.Time, want warifuv1.Reason) {
		t.Helper()
		_, err := g.ask(t.Context(), m, credential, peer, now)
		got := reason(err)
		if got == warifuv1.Reason_REASON_UNAUTHENTICATED && fault.Of(err).RetryAfter() > 0 {
			got = -2
		}
		if got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	const refused, stop = warifuv1.Reason_REASON_UNAUTHENTICATED, warifuv1.Reason(-2) // the second says when to come back
	bad, good := g.keys["deleted"], g.keys["active"]
	for i := range 3 { // from whatever port
		demand("within", bad, fmt.Sprint("192.0.2.1:", 1000+i), noon, refused)
		demand("valid", good, "192.0.2.1:1", noon, -1)
		demand("forbidden is no failure", g.keys["active, read only"], "192.0.2.1:1", noon, warifuv1.Reason_REASON_PERMISSION_DENIED)
	}
	last := noon.Add(time.Minute - 1)
	for _, credential := range []string{bad, "", "wf_x", g.keys["active, revoked"]} {
		demand("beyond", credential, "192.0.2.1:9", last, stop)
	}
	demand("mapped", bad, "[::ffff:192.0.2.1]:9", last, stop)
	demand("valid, beyond", good, "192.0.2.1:9", last, -1)
	demand("suspended, beyond", g.keys["suspended"], "192.0.2.1:9", last, warifuv1.Reason_REASON_TENANT_SUSPENDED)
	demand("the next minute", bad, "192.0.2.1:9", noon.Add(time.Minute), refused)
	if n := g.throttle.Refused(); n != 5 {
		t.Errorf("%d were told to stop, want 5", n)
	}
	_, err := g.ask(t.Context(), m, bad, "192.0.2.1:9", noon)
	if connect.CodeOf(err) != connect.CodeUnauthenticated { // a clock that goes back begins another minute
		t.Errorf("a clock that went back: %v", err)
	}
}

func TestThrottledIsNotApplied(t *testing.T) {
	t.Parallel()
	if !errThrottled.NotApplied() || errThrottled.Code() != connect.CodeUnauthenticated || errThrottled.RetryAfter() != time.Minute {
		t.Errorf("%v %v %v", errThrottled.NotApplied(), errThrottled.Code(), errThrottled.RetryAfter())
	}
}

// TestAddress: what counts as one.
func TestAddress(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		same bool
		a, b string
	}{
		{true, "192.0.2.1:1", "192.0.2.1:65535"},
		{true, "192.0.2.1:1", "192.0.2.1"},
		{true, "192.0.2.1:1", "[::ffff:192.0.2.1]:2"},
		{false, "192.0.2.1:1", "192.0.2.2:1"},
		{true, "[2001:db8::1]:1", "[2001:db8::ffff:1:2:3]:1"},
		{false, "[2001:db8::1]:1", "[2001:db8:0:1::1]:1"},
		{true, "[fe80::1%eth0]:1", "[fe80::2%eth1]:1"},
		{true, "", "@"},
		{true, "bufconn", "/run/warifu.sock"},
		{false, "", "192.0.2.1:1"},
		{false, "", "[2001:db8::1]:1"},
	} {
		if got := address(row.a) == address(row.b); got != row.same {
			t.Errorf("%q and %q are one: %v", row.a, row.b, got)
		}
	}
}

// TestThrottleCounts exactly, also when all come at once.
func TestThrottleCounts(t *testing.T) {
	t.Parallel()
	throttle := NewThrottle(0)
	within := make(chan int, 8)
	var all sync.WaitGroup
	for range cap(within) {
		all.Go(func() {
			n := 0
			for range 100 {
				if throttle.Failed("192.0.2.1:1", noon) {
					n++
				}
			}
			within <- n
		})
	}
	all.Wait()
	close(within)
	sum := 0
	for n := range within {
		sum += n
	}
	if sum != FailuresPerMinute || throttle.Refused() != 800-FailuresPerMinute {
		t.Errorf("%d within, %d refused", sum, throttle.Refused())
	}
}

// TestFailuresAreCheap: they are what an attacker has most of.
func TestFailuresAreCheap(t *testing.T) {
	throttle := NewThrottle(0)
	if n := testing.AllocsPerRun(100, func() { throttle.Failed("[2001:db8::1]:1", noon) }); n != 0 {
		t.Errorf("a failure allocates %v times", n)
	}
}
