package storagetest

import (
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

var registryTenantCases = []registryCase{
	{"tenants/numbers-only-grow", func(e *registryEnv) {
		e.tenant()
		for _, n := range []claim.TenantID{1, 6} {
			ref := registry.TenantRef(n)
			c := e.change()
			c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(n, "other"))}
			e.refused(c, &ref)
		}
		e.dropTenant()
		if got := e.load(0); got.LastTenant != 7 || len(got.Tenants) != 0 {
			e.Fatalf("%+v", got)
		}
		ref := registry.TenantRef(7)
		c := e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(7, "seven"))}
		e.refused(c, &ref)
		e.Registry = e.Reopen(e.T)
		e.refused(c, &ref)
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(8, "seven"))} // the name is free
		e.apply(c)
	}},
	{"tenants/names-are-unique-while-they-live", func(e *registryEnv) {
		t := e.tenant()
		ref := registry.TenantRef(7)
		c := e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(8, "seven"))}
		e.refused(c, &ref)
		for _, s := range []registry.TenantState{registry.TenantSuspended, registry.TenantDeleting} {
			t = e.toState(t, s)
			e.refused(c, &ref)
		}
		e.toState(t, registry.TenantDeleted)
		e.apply(c)
		if got := e.load(0).Tenants; len(got) != 2 || got[0].Name != "seven" || got[1].Name != "seven" {
			e.Fatalf("%+v", got)
		}
	}},
	{"tenants/names-may-be-exchanged", func(e *registryEnv) {
		t := e.tenant()
		t.Name = "was-seven"
		c := e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(t), registry.Put(aTenant(8, "seven"))}
		e.apply(c)
		got := e.load(0).Tenants
		got[0].Name, got[1].Name = got[1].Name, got[0].Name
		c = e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(got[0]), registry.Put(got[1])}
		e.apply(c)
		ref := registry.TenantRef(8)
		c = e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(9, "was-seven"))}
		e.refused(c, &ref)
		c.Tenants[0].Row.Name = "nine"
		e.apply(c)
	}},
	{"tenants/deletion-is-not-taken-back", func(e *registryEnv) {
		t := e.toState(e.tenant(), registry.TenantDeleting)
		for _, s := range []registry.TenantState{registry.TenantActive, registry.TenantSuspended} {
			back := t
			back.State = s
			c := e.change()
			c.Tenants = []registry.Write[registry.Tenant]{registry.Put(back)}
			e.refused(c, nil)
		}
		c := e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Delete(t)} // too early
		e.refused(c, nil)
		t = e.toState(t, registry.TenantDeleted)
		c = e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(t)}
		e.refused(c, nil)
	}},
	{"tenants/nothing-is-made-for-one-that-is-gone", func(e *registryEnv) {
		e.wantNothingMade(registry.TenantRef(7))
		t := e.tenant()
		v := e.consumer("a")
		t = e.toState(t, registry.TenantDeleting)
		e.consumer("b") // not yet
		e.toState(t, registry.TenantDeleted)
		e.wantNothingMade(registry.TenantRef(7))
		ref := registry.TenantRef(7)
		c := e.change()
		c.Consumers = []registry.Write[registry.Consumer]{registry.Put(v)}
		e.refused(c, &ref)
		c.Consumers = []registry.Write[registry.Consumer]{registry.Delete(v)} // the purge may
		c.Jobs = []registry.Write[registry.Job]{registry.Put(aJob(1))}
		e.apply(c)
	}},
	{"tenants/are-made-and-filled-in-one-change", func(e *registryEnv) {
		c := e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(7, "seven"))}
		c.Consumers = []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Tenant: 7, Name: "a"})}
		c.Keys = []registry.Write[registry.Key]{registry.Put(aKey("k"))}
		e.apply(c)
		t := e.load(0).Tenants[0]
		t.State = registry.TenantDeleted
		ref := registry.TenantRef(7)
		c = e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(t)}
		c.Keys = []registry.Write[registry.Key]{registry.Put(aKey("k2"))}
		e.refused(c, &ref)
	}},
}

// toState writes the tenant with another state and returns it as it was read.
func (e *registryEnv) toState(t registry.Tenant, s registry.TenantState) registry.Tenant {
	e.Helper()
	t.State = s
	c := e.change()
	c.Tenants = []registry.Write[registry.Tenant]{registry.Put(t)}
	e.apply(c)
	for _, got := range e.load(0).Tenants {
		if got.ID == t.ID {
			return got
		}
	}
	e.Fatalf("tenant %d is gone", t.ID)
	return t
}

// dropTenant takes tenant 7 to its end.
func (e *registryEnv) dropTenant() {
	e.Helper()
	t := e.toState(e.load(0).Tenants[0], registry.TenantDeleted)
	c := e.change()
	c.Tenants = []registry.Write[registry.Tenant]{registry.Delete(t)}
	e.apply(c)
}

// wantNothingMade tries to make something for tenant 7.
func (e *registryEnv) wantNothingMade(ref registry.Ref) {
	e.Helper()
	for _, fill := range []func(*registry.Change){
		func(c *registry.Change) {
			c.Consumers = []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Tenant: 7, Name: "new"})}
		},
		func(c *registry.Change) { c.Keys = []registry.Write[registry.Key]{registry.Put(aKey("new"))} },
		func(c *registry.Change) { c.Findings = []registry.Write[registry.Finding]{registry.Put(aFinding(77))} },
	} {
		c := e.change()
		fill(&c)
		e.refused(c, &ref)
	}
}
