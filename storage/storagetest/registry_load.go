package storagetest

import (
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

var registryLoadCases = []registryCase{
	{"load/what-changed-since", func(e *registryEnv) {
		e.tenant()
		start := e.load(0)
		if got := e.load(start.Revision); got.Full || got.Revision != start.Revision || got.LastTenant != 7 || size(got) != 0 {
			e.Fatalf("nothing has changed, and got %+v", got)
		}
		a, b := e.consumer("a"), e.consumer("b")
		got := e.load(start.Revision)
		if got.Full || got.Revision != start.Revision+2 || len(got.Consumers) != 2 || size(got) != 2 {
			e.Fatalf("%+v", got)
		}
		same(e, got.Consumers, []registry.Consumer{a, b})
		a.Note = "changed"
		c := e.change()
		c.Consumers = []registry.Write[registry.Consumer]{registry.Put(a)}
		e.apply(c)
		if got := e.load(b.Revision); size(got) != 1 || got.Consumers[0].Note != "changed" {
			e.Fatalf("%+v", got)
		}
	}},
	{"load/says-what-is-gone", func(e *registryEnv) {
		e.tenant()
		a := e.consumer("a")
		c := e.change()
		c.Keys = []registry.Write[registry.Key]{registry.Put(aKey("k"))}
		e.apply(c)
		k := e.load(0).Keys[0]
		e.tombstone("a")
		c = e.change()
		c.Keys = []registry.Write[registry.Key]{registry.Delete(k)}
		e.apply(c)
		got := e.load(k.Revision)
		if size(got) != 2 || len(got.Consumers) != 1 || len(got.Keys) != 1 {
			e.Fatalf("%+v", got)
		}
		gone, key := got.Consumers[0], got.Keys[0]
		if !gone.Deleted || gone.Tenant != 7 || gone.Name != "a" || gone.Version != a.Version+1 || gone.Window != 0 {
			e.Fatalf("%+v", gone)
		}
		if !key.Deleted || key.ID != "k" || key.Tenant != 7 || key.Secret != (registry.Hash{}) {
			e.Fatalf("%+v", key)
		}
		if got := e.load(0); !got.Full || size(got) != 1 {
			e.Fatalf("a full load has tombstones: %+v", got)
		}
		before := got.Revision
		e.dropTenant()
		if got := e.load(before); len(got.Tenants) != 1 || !got.Tenants[0].Deleted || got.Tenants[0].ID != 7 || size(got) != 1 {
			e.Fatalf("%+v", got)
		}
	}},
	{"load/from-ahead-is-full", func(e *registryEnv) {
		e.tenant()
		want := e.load(0)
		same(e, e.load(want.Revision+1), want)
		same(e, e.load(1<<60), want)
		same(e, e.load(-1), want)
	}},
	{"load/findings-and-jobs-are-not-in-it", func(e *registryEnv) {
		e.tenant()
		start := e.load(0)
		c := e.change()
		c.Findings = []registry.Write[registry.Finding]{registry.Put(aFinding(1))}
		c.Jobs = []registry.Write[registry.Job]{registry.Put(aJob(1))}
		e.apply(c)
		if got := e.load(start.Revision); got.Revision != start.Revision+1 || size(got) != 0 {
			e.Fatalf("%+v", got)
		}
	}},
	{"seen/is-coalesced-and-no-change", func(e *registryEnv) {
		e.tenant()
		c := e.change()
		c.Keys = []registry.Write[registry.Key]{registry.Put(aKey("k")), registry.Put(aKey("l"))}
		e.apply(c)
		before, t0 := e.everything(), e.now()
		see := func(key string, at, want claim.Time) {
			e.Helper()
			if err := e.Seen(e.Context(), map[string]claim.Time{key: at, "unknown": at, "\x00": at, "\xff": at}); err != nil {
				e.Fatalf("Seen: %v", err)
			}
			got, err := e.Used(e.Context(), []string{"k", "l", "unknown", "\x00", "\xff", "k"})
			if err != nil || got[key] != want || got["unknown"] != 0 {
				e.Fatalf("after %d: %v, %v; want %d", at, got, err, want)
			}
		}
		e.clock.Advance(time.Hour)
		see("k", t0, t0)
		see("k", t0.Add(registry.SeenGrain-time.Microsecond), t0)
		see("k", t0.Add(registry.SeenGrain), t0.Add(registry.SeenGrain))
		see("k", t0, t0.Add(registry.SeenGrain))
		see("l", e.now().Add(time.Hour), e.now()) // not in the future
		same(e, e.everything(), before)
		if err := e.Seen(e.Context(), nil); err != nil {
			e.Fatalf("Seen of nothing: %v", err)
		}
		e.Registry = e.Reopen(e.T)
		if got, err := e.Used(e.Context(), []string{"k"}); err != nil || got["k"] != t0.Add(registry.SeenGrain) {
			e.Fatalf("after a restart: %v, %v", got, err)
		}
	}},
}

// size counts rows.
func size(c registry.Changes) int { return len(c.Tenants) + len(c.Consumers) + len(c.Keys) }
