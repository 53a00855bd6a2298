package sealed

import (
	"testing"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

func (b *bench) load(since registry.Revision) registry.Changes {
	b.t.Helper()
	c, err := b.reg.Load(b.t.Context(), since)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// TestUpdateKeepsTheNewer: what a sync loaded before the ring looked itself, all
// of it or only what had changed, does not take back what that has found.
func TestUpdateKeepsTheNewer(t *testing.T) {
	t.Parallel()
	for name, full := range map[string]bool{"all": true, "changes": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			late := func(c registry.Changes) {
				c.Full = full
				b.ring.Update(c)
			}
			first := b.load(0)
			k, c := key(1, "own", "e"), result("a result")
			b.completed(b.Store, k, c)
			sealedOnce := b.load(0)
			late(first)
			if _, own, ok := b.ring.table.Load().writer(1, "own"); !ok || len(own) != 1 {
				t.Errorf("the first key is forgotten: %+v", own)
			}
			if err := b.ring.Shred(t.Context(), 1, "own", 0, why()); err != nil {
				t.Fatal(err)
			}
			late(sealedOnce)
			b.wantGone(b.Store, k, c) // and not back
			if len(b.ring.mu.secrets) != 0 {
				t.Error("a shredded key is in memory again")
			}
			later := key(1, "x", "later")
			b.completed(b.Store, later, c)
			late(sealedOnce)
			b.want(b.Store, later, c)
		})
	}
}

// TestLateUpdateRevivesNobody: a row that was deleted stays so, and one that was
// declared meanwhile is not forgotten.
func TestLateUpdateRevivesNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.completed(b.Store, key(1, "own", "e"), result("a result"))
	late := b.load(0)
	row := b.ring.table.Load().consumers[owner{1, "own"}]
	b.apply(registry.Change{
		ID: registry.ID{2}, Audit: []registry.AuditEntry{{Actor: "test", Action: "change"}},
		Consumers: []registry.Write[registry.Consumer]{registry.Delete(row), registry.Put(registry.Consumer{Tenant: 1, Name: "new"})},
	})
	if err := b.ring.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.ring.Update(late)
	table := b.ring.table.Load()
	if _, ok := table.keys(owner{1, "own"}); ok {
		t.Error("a deleted consumer is back")
	}
	if o, _, ok := table.writer(1, "own"); !ok || o != (owner{tenant: 1}) {
		t.Errorf("its results are sealed with the keys of %s", o)
	}
	if _, ok := table.keys(owner{1, "new"}); !ok {
		t.Error("a new consumer is forgotten")
	}
	// Everything, as of now, has no tombstones, and none is kept for it.
	b.ring.Update(b.load(0))
	if n := len(b.ring.table.Load().consumers); n != 2+1-1 {
		t.Errorf("%d rows are kept", n)
	}
}

// TestTheRegistryGoesBack to a backup: what it does not know any more is gone
// here too, whether the loop or the ring itself is the first to find out.
func TestTheRegistryGoesBack(t *testing.T) {
	t.Parallel()
	look := func(b *bench) {
		b.t.Helper()
		if err := b.ring.look(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
	}
	for name, find := range map[string]func(*bench, registry.Changes){
		"the loop":                  func(b *bench, back registry.Changes) { b.ring.Update(back) },
		"a look":                    func(b *bench, _ registry.Changes) { look(b) },
		"a look, and then the loop": func(b *bench, back registry.Changes) { look(b); b.ring.Update(back) },
		"the loop, and then a look": func(b *bench, back registry.Changes) { b.ring.Update(back); look(b) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			gone := &switchable{Registry: b.reg}
			b.reg = gone
			b.ring = b.newRing(b.kms)
			b.Store = b.over(b.ring)
			b.completed(b.Store, key(1, "own", "e"), result("a result"))
			b.completed(b.Store, key(1, "x", "e"), result("a result"))
			now := b.load(0)
			b.ring.Update(now)
			gone.Registry = setup(t).reg // as it was before any key
			back := b.load(now.Revision)
			if !back.Full || back.Revision >= now.Revision {
				t.Fatalf("%+v did not go back from %d", back, now.Revision)
			}
			find(b, back)
			table := b.ring.table.Load()
			if _, own, ok := table.writer(1, "own"); !ok || len(own) != 0 {
				t.Errorf("a consumer still has %+v", own)
			}
			if _, shared, ok := table.writer(1, "x"); !ok || len(shared) != 0 || table.revision >= now.Revision {
				t.Errorf("a tenant still has %+v, at revision %d", shared, table.revision)
			}
			k, c := key(1, "own", "after"), result("a result") // with a key that is stored where the registry is now
			b.completed(b.Store, k, c)
			b.want(b.over(b.newRing(b.kms)), k, c)
			if b.ring.Update(back); name != "the loop" { // which is one, and hears of it once
				if _, own, _ := b.ring.table.Load().writer(1, "own"); len(own) != 1 {
					t.Errorf("what was found before the loop had heard of it is lost: %+v", own)
				}
			}
		})
	}
}

// switchable is a registry in whose place another can be put.
type switchable struct{ registry.Registry }

// TestTenantsThatGo: a tenant that is gone has no keys, and its
// completions are stored without bytes.
func TestTenantsThatGo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := b.ring.table.Load().revision + 1
	b.ring.Update(registry.Changes{Revision: at, Tenants: []registry.Tenant{{Head: registry.Head{Revision: at, Deleted: true}, ID: 2}}})
	if _, _, ok := b.ring.table.Load().writer(2, "x"); ok {
		t.Error("there is still somebody to make a key for")
	}
	shot := request(key(2, "x", "e"), 1)
	shot.Record = result("a result")
	rec := b.one(b.InsertOrGet(t.Context(), []claim.Request{shot}))
	if raw := b.get(b.inner, shot.Key).Record; rec.Completion.Omitted != claim.Unreadable || len(raw.Completion.Body) != 0 {
		t.Errorf("%+v, stored %+v", rec.Completion, raw.Completion)
	}
}
