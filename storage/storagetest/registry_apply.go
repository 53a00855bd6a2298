package storagetest

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

func sortChanges(c *registry.Changes) {
	slices.SortFunc(c.Tenants, func(a, b registry.Tenant) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Consumers, func(a, b registry.Consumer) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(c.Keys, func(a, b registry.Key) int { return cmp.Compare(a.ID, b.ID) })
}

var registryApplyCases = []registryCase{
	{"apply/nothing-yet", func(e *registryEnv) {
		same(e, e.load(0), registry.Changes{Full: true})
	}},
	{"apply/rows-come-back-whole", registryRoundTrip},
	{"apply/rows-survive-a-restart", func(e *registryEnv) {
		registryRoundTrip(e)
		if _, _, err := e.Lease(e.Context(), "sweep/0", "me", time.Minute); err != nil {
			e.Fatalf("%v", err)
		}
		want, last := e.everything(), e.load(0).Revision
		e.Registry = e.Reopen(e.T)
		same(e, e.everything(), want)
		if l, err := e.Leases(e.Context()); err != nil || len(l.Leases) != 1 {
			e.Fatalf("leases after a restart: %+v, %v", l, err)
		}
		c := e.change()
		if a := e.apply(c); a.Revision != last+1 {
			e.Fatalf("revision %d follows %d", a.Revision, last)
		}
	}},
	{"apply/a-write-counts-version-and-revision", func(e *registryEnv) {
		t := e.tenant()
		e.clock.Advance(time.Second)
		first := t
		for n := range 3 {
			t.Note = strings.Repeat("n", n)
			c := e.change()
			c.Tenants = []registry.Write[registry.Tenant]{registry.Put(t)}
			a := e.apply(c)
			want := t
			want.Version, want.Revision, want.Change, want.Updated = t.Version+1, t.Revision+1, c.ID, a.At
			t = e.load(0).Tenants[0]
			same(e, t, want)
		}
		if t.Created != first.Created || t.Version != first.Version+3 {
			e.Fatalf("%+v", t)
		}
	}},
	{"apply/fields-of-other-versions-are-kept", func(e *registryEnv) {
		t := aTenant(7, "seven")
		t.Unknown = map[string]json.RawMessage{"made_up_later": json.RawMessage(`{"a":[1,2]}`)}
		c := e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(t)}
		e.apply(c)
		got := e.load(0).Tenants[0]
		same(e, got.Unknown, t.Unknown)
		got.Note = "written by a version that does not know the field"
		c = e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(got)}
		e.apply(c)
		same(e, e.load(0).Tenants[0].Unknown, t.Unknown)
	}},
	{"apply/time-does-not-run-backwards", func(e *registryEnv) {
		a := e.apply(e.change())
		e.clock.Advance(-time.Minute)
		for range 2 {
			b, err := e.Apply(e.Context(), e.change())
			if err != nil || b.At < a.At || b.Revision != a.Revision+1 {
				e.Fatalf("%+v follows %+v, %v", b, a, err)
			}
			a = b
			e.Registry = e.Reopen(e.T) // as another replica, which has not seen the time
		}
	}},
	{"apply/sent-again-it-is-made-once", func(e *registryEnv) {
		e.tenant()
		c := e.change()
		c.Consumers = []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Tenant: 7, Name: "a"})}
		c.Findings = []registry.Write[registry.Finding]{registry.Put(aFinding(1))}
		want := e.apply(c)
		e.clock.Advance(time.Minute)
		e.tombstone("a") // what was changed since does not matter
		before := e.everything()
		for range 2 {
			got, err := e.Apply(e.Context(), c)
			if err != nil || got != want {
				e.Fatalf("sent again: %+v, %v; want %+v", got, err, want)
			}
		}
		same(e, e.everything(), before)
		e.Registry = e.Reopen(e.T)
		if got, err := e.Apply(e.Context(), c); err != nil || got != want {
			e.Fatalf("sent again after a restart: %+v, %v; want %+v", got, err, want)
		}
	}},
	{"apply/sent-again-without-audit", func(e *registryEnv) {
		e.tenant()
		c := e.change()
		c.Audit = nil
		c.Jobs = []registry.Write[registry.Job]{registry.Put(aJob(1)), registry.Put(aJob(2))}
		want := e.apply(c)
		e.clock.Advance(time.Minute)
		if got, err := e.Apply(e.Context(), c); err != nil || got != want {
			e.Fatalf("sent again: %+v, %v; want %+v", got, err, want)
		}
		d := c
		d.ID = id(999)
		e.refused(d, &registry.Ref{Kind: registry.KindJob, Name: id(1).String()})
	}},
	{"apply/shares-no-memory", func(e *registryEnv) {
		e.tenant()
		f := aFinding(1)
		f.Details = json.RawMessage(`{"n":1}`)
		c := e.change()
		c.Findings = []registry.Write[registry.Finding]{registry.Put(f)}
		c.Audit[0].After = json.RawMessage(`{"n":1}`)
		e.apply(c)
		copy(f.Details, `{"n":2}`)
		copy(c.Audit[0].After, `{"n":2}`)
		got := e.everything()
		if string(got.Findings[0].Details) != `{"n":1}` || string(got.Audit[0].After) != `{"n":1}` {
			e.Fatalf("%s %s", got.Findings[0].Details, got.Audit[0].After)
		}
	}},
}

// tombstone deletes a consumer of tenant 7.
func (e *registryEnv) tombstone(name string) {
	e.Helper()
	for _, v := range e.load(0).Consumers {
		if v.Name == name {
			c := e.change()
			c.Consumers = []registry.Write[registry.Consumer]{registry.Delete(v)}
			e.apply(c)
			return
		}
	}
	e.Fatalf("no consumer %q", name)
}

// registryRoundTrip writes rows with all their fields in one change.
func registryRoundTrip(e *registryEnv) {
	t := registry.Tenant{
		ID: 7, Name: "Seven/7._-", State: registry.TenantSuspended, StrictConsumers: true, Note: "a \"note\" <&> ä",
		Limits: registry.Limits{RequestsPerSecond: 1, ItemsPerSecond: 2, LiveLeasesMax: 3, KeysMax: 4, BytesMax: 1 << 53, InDoubtMax: 6},
	}
	v := registry.Consumer{
		Tenant: 7, Name: "billing/webhook", Hold: true, AttemptsMax: 3, Window: time.Hour, Retention: 2*time.Hour + time.Nanosecond,
		HoldMax: 24 * time.Hour, ResultBytesMax: 1 << 18, Sliding: true,
		Raises:       []registry.Raise{{At: 5, From: time.Minute}, {At: 6, From: time.Hour}},
		LeaseDefault: time.Second, LeaseMax: time.Minute, OnUnavailable: registry.FailOpen, AcceptHoldFailOpen: true,
		DigestRequired: true, AcceptNoCommonScheme: true, Note: "n",
	}
	k := registry.Key{
		ID: "k1", Tenant: 7, Secret: registry.Hash{0: 1, 31: 255}, Scopes: []string{"claim", "admin:tenant"},
		ConsumerPrefix: "billing/", Expires: 1 << 50, Revoked: 7, Note: "n",
	}
	f := registry.Finding{
		ID: id(1), Tenant: 7, Kind: "ran-twice", State: registry.FindingAssigned, Consumer: "c", EventID: "é\U00010000", Assignee: "a",
		Details: json.RawMessage(`{"fence":9007199254740993}`),
	}
	j := registry.Job{
		ID: id(2), Tenant: 7, Kind: "purge", State: registry.JobFailed, Params: json.RawMessage(`[1]`), Cursor: []byte{0, 255},
		Done: 1, Total: 2, Error: "e",
	}
	a := registry.AuditEntry{
		Tenant: 7, Actor: "k0", Action: "tenant.create", Target: "7", Reason: "because", RequestID: "r",
		Before: json.RawMessage(`null`), After: json.RawMessage(`{"x":[1,2]}`),
	}
	c := e.change()
	c.Tenants, c.Consumers = []registry.Write[registry.Tenant]{registry.Put(t)}, []registry.Write[registry.Consumer]{registry.Put(v)}
	c.Keys, c.Findings = []registry.Write[registry.Key]{registry.Put(k)}, []registry.Write[registry.Finding]{registry.Put(f)}
	c.Jobs, c.Audit = []registry.Write[registry.Job]{registry.Put(j)}, []registry.AuditEntry{a}
	done := e.apply(c)
	head := registry.Head{Version: 1, Revision: done.Revision, Change: c.ID, Created: done.At, Updated: done.At}
	t.Head, v.Head, k.Head, f.Head, j.Head = head, head, head, head, head
	a.Change, a.Revision, a.At = c.ID, done.Revision, done.At
	same(e, e.everything(), everything{
		Changes: registry.Changes{
			Revision: done.Revision, Full: true, LastTenant: 7,
			Tenants: []registry.Tenant{t}, Consumers: []registry.Consumer{v}, Keys: []registry.Key{k},
		},
		Audit: []registry.AuditEntry{a}, Findings: []registry.Finding{f}, Jobs: []registry.Job{j},
	})
}

var registryGuardCases = []registryCase{
	{"guard/versions", func(e *registryEnv) {
		e.tenant()
		v, ref := e.consumer("a"), registry.ConsumerRef(7, "a")
		for _, version := range []int64{0, v.Version + 1, v.Version + 100} {
			w := v
			w.Version = version
			for _, write := range []registry.Write[registry.Consumer]{registry.Put(w), registry.Delete(w)} {
				if version == 0 && write.Delete {
					continue
				}
				c := e.change()
				c.Consumers = []registry.Write[registry.Consumer]{write}
				e.refused(c, &ref)
			}
		}
		absent := registry.ConsumerRef(7, "b")
		for _, write := range []registry.Write[registry.Consumer]{
			registry.Put(registry.Consumer{Tenant: 7, Name: "b", Head: registry.Head{Version: 1}}),
			registry.Delete(registry.Consumer{Tenant: 7, Name: "b", Head: registry.Head{Version: 1}}),
		} {
			c := e.change()
			c.Consumers = []registry.Write[registry.Consumer]{write}
			e.refused(c, &absent)
		}
	}},
	{"guard/all-or-nothing", func(e *registryEnv) {
		e.tenant()
		v, ref := e.consumer("z"), registry.ConsumerRef(7, "z")
		v.Version = 0
		c := e.change()
		c.Consumers = []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Tenant: 7, Name: "a"}), registry.Put(v)}
		c.Keys = []registry.Write[registry.Key]{registry.Put(aKey("k"))}
		c.Findings = []registry.Write[registry.Finding]{registry.Put(aFinding(1))}
		c.Jobs = []registry.Write[registry.Job]{registry.Put(aJob(1))}
		e.refused(c, &ref)
	}},
	{"guard/a-name-that-comes-back-counts-on", func(e *registryEnv) {
		e.tenant()
		old := e.consumer("a")
		e.tombstone("a")
		fresh := e.consumer("a")
		if fresh.Version != old.Version+2 || fresh.Created == 0 || fresh.Deleted {
			e.Fatalf("%+v follows %+v", fresh.Head, old.Head)
		}
		ref := registry.ConsumerRef(7, "a")
		c := e.change()
		c.Consumers = []registry.Write[registry.Consumer]{registry.Put(old)}
		e.refused(c, &ref)
	}},
	{"guard/key-ids-are-unique-over-tenants", func(e *registryEnv) {
		e.tenant()
		c := e.change()
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(8, "eight"))}
		c.Keys = []registry.Write[registry.Key]{registry.Put(aKey("k"))}
		c.Findings = []registry.Write[registry.Finding]{registry.Put(aFinding(1))}
		e.apply(c)
		ref, finding := registry.Ref{Kind: registry.KindKey, Name: "k"}, registry.Ref{Kind: registry.KindFinding, Name: id(1).String()}
		for _, version := range []int64{0, 1} {
			k, f := aKey("k"), aFinding(1)
			k.Tenant, k.Version, f.Tenant, f.Version = 8, version, 8, version
			c := e.change()
			c.Keys = []registry.Write[registry.Key]{registry.Put(k)}
			e.refused(c, &ref)
			c = e.change()
			c.Findings = []registry.Write[registry.Finding]{registry.Put(f)}
			e.refused(c, &finding)
		}
		k := aKey("k")
		k.Tenant, k.Version = 8, 1
		c = e.change()
		c.Keys = []registry.Write[registry.Key]{registry.Delete(k)}
		e.refused(c, &ref)
	}},
	{"guard/what-no-store-takes", registryInvalid},
}

// registryInvalid breaks each rule once.
func registryInvalid(e *registryEnv) {
	e.tenant()
	for name, spoil := range map[string]func(*registry.Change){
		"no ID": func(c *registry.Change) { c.ID = registry.ID{} },
		"empty": func(c *registry.Change) { c.Audit = nil },
		"no audit": func(c *registry.Change) {
			c.Audit, c.Keys = nil, []registry.Write[registry.Key]{registry.Put(aKey("k"))}
		},
		"no actor":        func(c *registry.Change) { c.Audit[0].Actor = "" },
		"no JSON":         func(c *registry.Change) { c.Audit[0].After = json.RawMessage(`{`) },
		"long text":       func(c *registry.Change) { c.Audit[0].Reason = strings.Repeat("r", registry.TextBytesMax+1) },
		"negative tenant": func(c *registry.Change) { c.Audit[0].Tenant = -1 },
		"row twice": func(c *registry.Change) {
			c.Keys = []registry.Write[registry.Key]{registry.Put(aKey("k")), registry.Put(aKey("k"))}
		},
		"name twice": func(c *registry.Change) {
			c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(8, "x")), registry.Put(aTenant(9, "x"))}
		},
		"tenant 0": func(c *registry.Change) { c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(0, "x"))} },
		"no name":  func(c *registry.Change) { c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(8, ""))} },
		"odd name": func(c *registry.Change) {
			c.Tenants = []registry.Write[registry.Tenant]{registry.Put(aTenant(8, "a b"))}
		},
		"no state": func(c *registry.Change) {
			c.Tenants = []registry.Write[registry.Tenant]{registry.Put(registry.Tenant{ID: 8, Name: "x"})}
		},
		"job no ID": func(c *registry.Change) {
			c.Jobs = []registry.Write[registry.Job]{registry.Put(registry.Job{Kind: "k", State: registry.JobPending})}
		},
		"delete of 0": func(c *registry.Change) { c.Keys = []registry.Write[registry.Key]{registry.Delete(aKey("k"))} },
		"delete of no name": func(c *registry.Change) {
			k := aKey("\x00")
			k.Version = 1
			c.Keys = []registry.Write[registry.Key]{registry.Delete(k)}
		},
		"text": func(c *registry.Change) { c.Audit[0].Actor = "\xff" },
		"raises": func(c *registry.Change) {
			c.Consumers = []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Tenant: 7, Name: "a", Raises: []registry.Raise{{At: 2}, {At: 1}}})}
		},
		"large document": func(c *registry.Change) {
			f := aFinding(1)
			f.Details = json.RawMessage(`"` + strings.Repeat("d", registry.DocumentMax) + `"`)
			c.Findings = []registry.Write[registry.Finding]{registry.Put(f)}
		},
		"large change": func(c *registry.Change) {
			for n := range 40 {
				f := aFinding(n + 1)
				f.Details = json.RawMessage(`"` + strings.Repeat("d", registry.DocumentMax-1000) + `"`)
				c.Findings = append(c.Findings, registry.Put(f))
			}
		},
		"many rows": func(c *registry.Change) {
			for n := range registry.ChangeRowsMax + 1 {
				c.Jobs = append(c.Jobs, registry.Put(aJob(n+1)))
			}
		},
		"many entries": func(c *registry.Change) {
			c.Audit = slices.Repeat(c.Audit, registry.ChangeAuditMax+1)
		},
	} {
		c := e.change()
		spoil(&c)
		if _, err := e.Apply(e.Context(), c); !errors.Is(err, registry.ErrInvalid) {
			e.Errorf("%s: error %v, want %v", name, err, registry.ErrInvalid)
		}
	}
	c := e.change()
	for n := range registry.ChangeRowsMax {
		c.Jobs = append(c.Jobs, registry.Put(aJob(n+1)))
	}
	c.Audit = slices.Repeat(c.Audit, registry.ChangeAuditMax)
	e.apply(c) // at the limit
	used := map[string]claim.Time{}
	for n := range registry.SeenMax + 1 {
		used[id(n).String()] = 1
	}
	if err := e.Seen(e.Context(), used); !errors.Is(err, registry.ErrInvalid) {
		e.Errorf("Seen of %d keys: %v", len(used), err)
	}
}
