package tenant

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

const (
	active    = registry.TenantActive
	suspended = registry.TenantSuspended
	deleting  = registry.TenantDeleting
	deleted   = registry.TenantDeleted
)

func team(id claim.TenantID, name string, s registry.TenantState) registry.Tenant {
	return registry.Tenant{ID: id, Name: name, State: s}
}

// stored returns a key as the registry has it, and its text.
func stored(tenant claim.TenantID, scopes ...string) (string, registry.Key) {
	text, k := NewKey("test")
	return text, registry.Key{ID: k.ID, Tenant: tenant, Secret: k.SecretSHA256, Scopes: scopes}
}

func tombstone(k registry.Key) registry.Key {
	return registry.Key{Head: registry.Head{Deleted: true}, ID: k.ID, Tenant: k.Tenant}
}

func newRows(t interface {
	Helper()
	Fatal(...any)
}, configured *Table,
) *Rows {
	t.Helper()
	r, err := NewRows(configured)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *Rows) let(credential string) (*Principal, bool) {
	return NewDirectory(r.Table()).Authenticate(credential, now)
}

func TestScopeNames(t *testing.T) {
	t.Parallel()
	if got := scopesKnown.Names(); !slices.Equal(got, []string{"claim", "read", "resolve", "admin:tenant", "admin:platform"}) {
		t.Errorf("all scopes are %v", got)
	}
	var all Scope
	for _, name := range scopesKnown.Names() {
		s, ok := ParseScope(name)
		if !ok || all.Has(s) || !slices.Equal(s.Names(), []string{name}) {
			t.Errorf("%q is %v, %v", name, s, ok)
		}
		all |= s
	}
	if all != scopesKnown || ScopeDefault != ScopeClaim|ScopeRead {
		t.Errorf("all = %b, default = %b", all, ScopeDefault)
	}
	for _, name := range []string{"", "Claim", "admin", "admin:", "all"} {
		if s, ok := ParseScope(name); ok || s != 0 {
			t.Errorf("%q is %v", name, s)
		}
	}
}

// TestStates: who is let in, and found, in each state of a tenant.
func TestStates(t *testing.T) {
	t.Parallel()
	for state, want := range map[registry.TenantState]struct{ in, found, suspended bool }{
		active: {true, true, false}, suspended: {true, true, true}, deleting: {false, true, false}, deleted: {}, 0: {}, 5: {},
	} {
		text, key := stored(7, "claim")
		r := newRows(t, nil)
		row := team(7, "shop", state)
		row.StrictConsumers, row.Version, row.KeysMax = true, 3, 9
		faults := r.Merge(&registry.Changes{Full: true, Revision: 1, Tenants: []registry.Tenant{row}, Keys: []registry.Key{key}})
		if bad := state == 0 || state == 5; bad != (len(faults) > 0) || bad != (r.Faulty() == 1) {
			t.Errorf("state %d: faults %v, %d", state, faults, r.Faulty())
		}
		p, in := r.let(text)
		if in != want.in {
			t.Errorf("state %d: let in = %v", state, in)
		}
		shop, found := r.Table().Tenant("shop")
		byID, _ := r.Table().TenantByID(7)
		if found != want.found || byID != shop || found && shop.Suspended() != want.suspended {
			t.Errorf("state %d: found %v, %+v", state, found, shop)
		}
		if in && (p.Tenant != shop || !shop.Strict || shop.Version != 3 || shop.Limits.KeysMax != 9 || shop.State != state || p.Scopes != ScopeClaim) {
			t.Errorf("state %d: %+v of %+v", state, p, shop)
		}
	}
}

// TestFaultyConsumer: its claims get an error and not the default policy; the
// others go on, and it does when it is repaired.
func TestFaultyConsumer(t *testing.T) {
	t.Parallel()
	r := newRows(t, nil)
	bad := registry.Consumer{Tenant: 7, Name: "bad", Window: time.Hour, Retention: time.Minute}
	faults := r.Merge(&registry.Changes{
		Full: true, Revision: 1, Tenants: []registry.Tenant{team(7, "shop", active)},
		Consumers: []registry.Consumer{bad, {Tenant: 7, Name: "good", Hold: true}},
	})
	if err := errors.Join(faults...); err == nil || !strings.Contains(err.Error(), "bad: retention 1m0s is shorter") || r.Faulty() != 1 {
		t.Errorf("faults = %v, %d", err, r.Faulty())
	}
	shop, _ := r.Table().Tenant("shop")
	if c, declared, err := shop.Consumer("bad"); c != nil || !declared || !errors.Is(err, ErrFaultyConsumer) {
		t.Errorf("bad = %+v, %v, %v", c, declared, err)
	}
	if c, declared, err := shop.Consumer("good"); err != nil || !declared || !c.Policy.Hold {
		t.Errorf("good = %+v, %v, %v", c, declared, err)
	}
	if c, declared, err := shop.Consumer("other"); err != nil || declared || c.Policy != claim.DefaultPolicy() {
		t.Errorf("other = %+v, %v, %v", c, declared, err)
	}
	bad.Retention = 0
	r.Merge(&registry.Changes{Revision: 2, Consumers: []registry.Consumer{bad}})
	shop, _ = r.Table().Tenant("shop")
	if c, _, err := shop.Consumer("bad"); err != nil || c.Policy.Retention != 2*time.Hour || r.Faulty() != 0 {
		t.Errorf("repaired = %+v, %v, %d faulty", c, err, r.Faulty())
	}
	r.Merge(&registry.Changes{Revision: 3, Consumers: []registry.Consumer{{Head: registry.Head{Deleted: true}, Tenant: 7, Name: "bad"}}})
	shop, _ = r.Table().Tenant("shop")
	if _, declared, err := shop.Consumer("bad"); declared || err != nil {
		t.Errorf("deleted = %v, %v", declared, err)
	}
}

// TestKeyRows: what a row of a key leads to.
func TestKeyRows(t *testing.T) {
	t.Parallel()
	configuredText, configuredKey := NewKey("test")
	configured, err := NewTable([]Config{{ID: 1, Name: "own", Keys: []Key{configuredKey}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		edit  func(*registry.Key)
		in    bool
		says  string
		check func(*Principal) bool
	}{
		"plain":       {func(*registry.Key) {}, true, "", func(p *Principal) bool { return p.Tenant.ID == 7 && p.Scopes == ScopeClaim|ScopeResolve }},
		"no scope":    {func(k *registry.Key) { k.Scopes = nil }, true, "", func(p *Principal) bool { return p.Scopes == 0 }},
		"later scope": {func(k *registry.Key) { k.Scopes = []string{"claim", "fly"} }, true, `scope "fly" is unknown`, func(p *Principal) bool { return p.Scopes == ScopeClaim }},
		"prefix": {func(k *registry.Key) { k.ConsumerPrefix = "eu/" }, true, "", func(p *Principal) bool {
			return p.Consumer("eu/orders") && !p.Consumer("us/orders") && !p.Consumer("eu")
		}},
		"revoked":        {func(k *registry.Key) { k.Revoked = 1 }, false, "", nil},
		"expired":        {func(k *registry.Key) { k.Expires = claim.FromTime(now) }, false, "", nil},
		"not expired":    {func(k *registry.Key) { k.Expires = claim.FromTime(now) + 1 }, true, "", nil},
		"of nobody":      {func(k *registry.Key) { k.Tenant = 8 }, false, "", nil},
		"of a config's":  {func(k *registry.Key) { k.Tenant = 1 }, false, "", nil},
		"no secret":      {func(k *registry.Key) { k.Secret = registry.Hash{} }, false, "the SHA-256", nil},
		"odd ID":         {func(k *registry.Key) { k.ID = "a/b" }, false, "key ID is not", nil},
		"platform scope": {func(k *registry.Key) { k.Scopes = []string{"claim", "admin:platform"} }, false, "not for keys of tenants", nil},
		"platform": {
			func(k *registry.Key) { k.Tenant, k.Scopes = 0, []string{"admin:platform"} },
			true, "", func(p *Principal) bool {
				return p.Tenant == nil && p.Scopes == ScopeAdminPlatform && p.TenantName() == ""
			},
		},
		"negative": {func(k *registry.Key) { k.Tenant = -1 }, false, "its tenant is negative", nil},
	} {
		text, key := stored(7, "claim", "resolve")
		row.edit(&key)
		r := newRows(t, configured)
		faults := errors.Join(r.Merge(&registry.Changes{Revision: 1, Tenants: []registry.Tenant{team(7, "shop", active)}, Keys: []registry.Key{key}})...)
		if row.says == "" && faults != nil || row.says != "" && (faults == nil || !strings.Contains(faults.Error(), row.says)) {
			t.Errorf("%s: faults %v, want %q", name, faults, row.says)
		}
		p, in := r.let(text)
		if in != row.in || in && row.check != nil && !row.check(p) {
			t.Errorf("%s: let in = %v, %+v", name, in, p)
		}
		if p, in := r.let(configuredText); !in || p.Tenant.Name != "own" || p.Scopes != ScopeDefault {
			t.Errorf("%s: the configured key: %v, %+v", name, in, p)
		}
	}
}

// TestConfiguredGoesFirst: a row with an ID, a name or a key of the
// configuration changes nothing there, also when it is deleted again.
func TestConfiguredGoesFirst(t *testing.T) {
	t.Parallel()
	text, key := NewKey("test")
	configured, err := NewTable([]Config{{ID: 1, Name: "own", Keys: []Key{key}, Consumers: []ConsumerConfig{{Name: "c"}}}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRows(t, configured)
	own, _ := configured.Tenant("own")
	hold := func(when string) {
		t.Helper()
		p, in := r.let(text)
		if found, _ := r.Table().Tenant("own"); !in || p.Tenant != own || found != own {
			t.Errorf("%s: %+v, %v", when, p, in)
		}
		if _, found := r.Table().Tenant("thief"); found {
			t.Errorf("%s: a second tenant has ID 1", when)
		}
	}
	intruder := registry.Key{ID: key.ID, Tenant: 9, Secret: sha256.Sum256([]byte("another"))}
	faults := r.Merge(&registry.Changes{
		Full: true, Revision: 1, Tenants: []registry.Tenant{team(1, "thief", active), team(9, "own", active)},
		Keys: []registry.Key{intruder}, Consumers: []registry.Consumer{{Tenant: 1, Name: "c", Hold: true}},
	})
	if len(faults) != 3 {
		t.Errorf("faults = %v", faults)
	}
	hold("merged")
	if c, _, err := own.Consumer("c"); err != nil || c.Policy.Hold {
		t.Errorf("its consumer = %+v, %v", c, err)
	}
	gone := registry.Head{Deleted: true}
	r.Merge(&registry.Changes{
		Revision: 2, Tenants: []registry.Tenant{{Head: gone, ID: 1}, {Head: gone, ID: 9}}, Keys: []registry.Key{tombstone(intruder)},
	})
	hold("deleted")
	r.Merge(&registry.Changes{Full: true, Revision: 1})
	hold("restored")
}

// TestOnlyWhatChangedIsNew: an untouched tenant is the same value before and
// after, and a table without changes is the same table.
func TestOnlyWhatChangedIsNew(t *testing.T) {
	t.Parallel()
	r := newRows(t, nil)
	text, key := stored(2, "claim")
	r.Merge(&registry.Changes{
		Full: true, Revision: 1, Tenants: []registry.Tenant{team(1, "a", active), team(2, "b", active)},
		Consumers: []registry.Consumer{{Tenant: 1, Name: "x"}, {Tenant: 2, Name: "x"}, {Tenant: 2, Name: "y"}}, Keys: []registry.Key{key},
	})
	first := r.Table()
	r.Merge(&registry.Changes{Revision: 1})
	if r.Table() != first {
		t.Error("a Load without changes makes another table")
	}
	r.Merge(&registry.Changes{Revision: 2, Consumers: []registry.Consumer{{Tenant: 2, Name: "y", Hold: true}}})
	second := r.Table()
	if first.byID[1] != second.byID[1] || first.byID[2] == second.byID[2] || first.byID[2].consumers["x"] != second.byID[2].consumers["x"] {
		t.Error("what changed is not what is new")
	}
	if p, in := r.let(text); !in || p.Tenant != second.byID[2] {
		t.Error("a key leads to the tenant as it was")
	}
	if first.byID[2].consumers["y"].Policy.Hold {
		t.Error("a table in force was changed")
	}
	key.Revoked = 1
	r.Merge(&registry.Changes{Revision: 3, Keys: []registry.Key{key}})
	third := r.Table()
	if _, in := r.let(text); in || third.byID[2] != second.byID[2] {
		t.Error("a revoked key is let in, or made its tenant anew")
	}
	if _, in := NewDirectory(second).Authenticate(text, now); !in {
		t.Error("a table in force was changed")
	}
}

// image is all that a table says.
func image(t *Table) string {
	var lines []string
	for name, x := range t.tenants {
		lines = append(lines, fmt.Sprint("tenant ", name, x.ID, x.Name, x.State, x.Strict, x.Version, t.byID[x.ID] == x))
		for c, p := range x.consumers {
			version := "faulty"
			if p != nil {
				version = p.Version
			}
			lines = append(lines, fmt.Sprint("consumer ", x.ID, c, version))
		}
	}
	lines = append(lines, fmt.Sprint(len(t.tenants), len(t.byID)))
	for id, k := range t.keys {
		lines = append(lines, fmt.Sprint("key ", id, k.revoked, k.principal.Scopes, k.principal.KeyID, k.principal.TenantName()))
		if o := k.principal.Tenant; o != nil && t.byID[o.ID] != o {
			lines = append(lines, "which leads to a tenant that is not the table's")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestStepsAreTheWhole: however changes come, in whatever steps, the table is
// the one that a Load of everything makes.
func TestStepsAreTheWhole(t *testing.T) {
	t.Parallel()
	configured, err := NewTable([]Config{{ID: 2, Name: "b", Keys: []Key{{ID: "k2", SecretSHA256: registry.Hash{2}}}}})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		r := newRows(t, configured)
		tenants, consumers, keys := map[string]registry.Tenant{}, map[string]registry.Consumer{}, map[string]registry.Key{}
		for step := range rapid.IntRange(1, 12).Draw(t, "steps") {
			c := registry.Changes{Revision: registry.Revision(step + 1)}
			gone := func(what string) registry.Head {
				return registry.Head{Deleted: rapid.IntRange(0, 3).Draw(t, what+" deleted") == 0, Version: int64(step)}
			}
			for range rapid.IntRange(0, 3).Draw(t, "tenants") {
				row := team(claim.TenantID(rapid.IntRange(1, 4).Draw(t, "ID")), rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name"),
					registry.TenantState(rapid.IntRange(0, 4).Draw(t, "state")))
				row.Head = gone("tenant")
				taken := slices.ContainsFunc(slices.Collect(maps.Values(tenants)), func(o registry.Tenant) bool {
					return o.Name == row.Name && o.ID != row.ID && o.State != deleted
				})
				if ref := fmt.Sprint(row.ID); !taken || row.Deleted {
					c.Tenants = append(c.Tenants, row)
					settle(tenants, ref, row, row.Deleted)
				}
			}
			for range rapid.IntRange(0, 3).Draw(t, "consumers") {
				row := registry.Consumer{
					Head: gone("consumer"), Tenant: claim.TenantID(rapid.IntRange(1, 4).Draw(t, "of")), Name: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "consumer"),
					Window: rapid.SampledFrom([]time.Duration{0, 1, time.Hour}).Draw(t, "window"),
				}
				c.Consumers = append(c.Consumers, row)
				settle(consumers, fmt.Sprint(row.Tenant, row.Name), row, row.Deleted)
			}
			for range rapid.IntRange(0, 3).Draw(t, "keys") {
				row := registry.Key{
					Head: gone("key"), Tenant: claim.TenantID(rapid.IntRange(0, 4).Draw(t, "whose")), ID: rapid.SampledFrom([]string{"k1", "k2", "k3", "k_4"}).Draw(t, "key"),
					Secret: registry.Hash{1}, Revoked: claim.Time(rapid.IntRange(0, 1).Draw(t, "revoked")), Scopes: []string{"read"},
				}
				c.Keys = append(c.Keys, row)
				settle(keys, row.ID, row, row.Deleted)
			}
			r.Merge(&c)
			if rapid.Bool().Draw(t, "look") {
				r.Table()
			}
			if rapid.IntRange(0, 5).Draw(t, "restore") == 0 {
				r.Merge(all(registry.Revision(step), tenants, consumers, keys))
			}
		}
		whole := newRows(t, configured)
		whole.Merge(all(1, tenants, consumers, keys))
		if got, want := image(r.Table()), image(whole.Table()); got != want || r.Faulty() != whole.Faulty() {
			t.Fatalf("step by step (%d faulty):\n%s\nat once (%d faulty):\n%s", r.Faulty(), got, whole.Faulty(), want)
		}
	})
}

func settle[R any](rows map[string]R, ref string, row R, gone bool) {
	if rows[ref] = row; gone {
		delete(rows, ref)
	}
}

func all(at registry.Revision, t map[string]registry.Tenant, c map[string]registry.Consumer, k map[string]registry.Key) *registry.Changes {
	return &registry.Changes{
		Full: true, Revision: at, Tenants: slices.Collect(maps.Values(t)),
		Consumers: slices.Collect(maps.Values(c)), Keys: slices.Collect(maps.Values(k)),
	}
}

// TestConsumerRow: every field of a row that is policy comes through, and what
// the administration asks about a row is what requests will meet.
func TestConsumerRow(t *testing.T) {
	t.Parallel()
	row := registry.Consumer{
		Tenant: 1, Name: "c", Hold: true, AttemptsMax: 3, Window: time.Hour, Retention: 5 * time.Hour, HoldMax: 30 * time.Hour,
		ResultBytesMax: 9, Raises: []registry.Raise{{At: 5, From: time.Hour}, {At: 9, From: 6 * time.Hour}},
		LeaseDefault: time.Minute, LeaseMax: time.Hour, OnUnavailable: registry.FailOpen, AcceptHoldFailOpen: true,
		DigestRequired: true, AcceptNoCommonScheme: true,
	}
	c, faults := rowConsumer(&row)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	want := Consumer{
		Policy:       row.Policy(),
		LeaseDefault: time.Minute, LeaseMax: time.Hour, OnUnavailable: FailOpen, DigestRequired: true, AcceptNoCommonScheme: true,
		History: claim.History{Retention: 5 * time.Hour, Raises: []claim.Raise{{At: 5, From: time.Hour}, {At: 9, From: 6 * time.Hour}}},
		Skew:    5 * time.Minute, Version: PolicyVersion(&row),
	}
	if !reflect.DeepEqual(*c, want) {
		t.Errorf("%+v\nwant\n%+v", *c, want)
	}
	if CheckConsumer(&row) != nil || EffectiveRetention(&row) != 5*time.Hour || EffectiveRetention(&registry.Consumer{Window: time.Hour}) != 2*time.Hour {
		t.Errorf("%v, %v", CheckConsumer(&row), EffectiveRetention(&row))
	}
	for name, edit := range map[string]func(*registry.Consumer){
		"name": func(c *registry.Consumer) { c.Name = "a b" }, "raise": func(c *registry.Consumer) { c.Raises[1].At = 0 },
		"raised from": func(c *registry.Consumer) { c.Raises[0].From = -1 }, "failure policy": func(c *registry.Consumer) { c.OnUnavailable = 7 },
		"hold": func(c *registry.Consumer) { c.AcceptHoldFailOpen = false },
	} {
		bad := row
		bad.Raises = slices.Clone(row.Raises)
		edit(&bad)
		if CheckConsumer(&bad) == nil || PolicyVersion(&bad) != "" && name != "name" {
			t.Errorf("%s: %v, %q", name, CheckConsumer(&bad), PolicyVersion(&bad))
		}
	}
}

// TestConfiguredPlatformScope: a file cannot give one tenant's key the others.
func TestConfiguredPlatformScope(t *testing.T) {
	t.Parallel()
	_, key := NewKey("test")
	key.Scopes = ScopeClaim | ScopeAdminPlatform
	if _, err := NewTable([]Config{{ID: 1, Name: "shop", Keys: []Key{key}}}); err == nil || !strings.Contains(err.Error(), "admin:platform is not for keys of tenants") {
		t.Errorf("err = %v", err)
	}
}

// TestUsed: each key once in a minute, whatever tables it went through.
func TestUsed(t *testing.T) {
	t.Parallel()
	own, ownKey := NewKey("test")
	configured, err := NewTable([]Config{{ID: 1, Name: "own", Keys: []Key{ownKey}}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRows(t, configured)
	text, key := stored(7, "claim")
	_, idle := stored(7, "claim")
	change := &registry.Changes{Full: true, Revision: 1, Tenants: []registry.Tenant{team(7, "shop", active)}, Keys: []registry.Key{key, idle}}
	r.Merge(change)
	d := NewDirectory(r.Table())
	use := func(text string, after time.Duration) {
		t.Helper()
		if _, ok := d.Authenticate(text, now.Add(after)); !ok {
			t.Fatal("refused")
		}
	}
	demand := func(when string, want map[string]claim.Time) {
		t.Helper()
		if got := d.Used(); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	at := func(after time.Duration) map[string]claim.Time {
		return map[string]claim.Time{key.ID: claim.FromTime(now.Add(after))}
	}
	demand("never used", map[string]claim.Time{})
	use(own, 0)
	use(text, 0)
	if _, ok := d.Authenticate(text[:len(text)-1], now.Add(30*time.Second)); ok {
		t.Fatal("let in")
	}
	demand("first use", at(0))
	use(text, time.Minute-time.Microsecond)
	demand("less than a minute later", map[string]claim.Time{})
	r.Merge(&registry.Changes{Revision: 2, Keys: []registry.Key{key}})
	d.Swap(r.Table())
	r.Merge(change) // all again, as after a restore
	d.Swap(r.Table())
	use(text, time.Minute-time.Microsecond)
	demand("through two tables", map[string]claim.Time{})
	use(text, time.Minute-time.Microsecond+time.Second)
	demand("a minute later", at(time.Minute-time.Microsecond+time.Second))
	demand("again", map[string]claim.Time{})
}
