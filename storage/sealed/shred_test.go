package sealed

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// TestShredConsumer: its results are gone, on every server, and nobody else's.
func TestShredConsumer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := result("a result")
	mine, others := key(1, "own", "e"), []claim.Key{key(1, "x", "e"), key(2, "own", "e")}
	for _, k := range append(others, mine) {
		b.completed(b.Store, k, c)
	}
	replica := b.newRing(b.kms)
	b.want(b.over(replica), mine, c)
	if err := b.ring.Shred(t.Context(), 1, "own", 0, registry.AuditEntry{}); !errors.Is(err, registry.ErrInvalid) {
		t.Fatalf("without a reason: %v", err)
	}
	b.want(b.Store, mine, c)
	if err := b.ring.Shred(t.Context(), 1, "own", 0, why()); err != nil {
		t.Fatal(err)
	}
	b.wantGone(b.Store, mine, c)
	b.sync(replica)
	b.wantGone(b.over(replica), mine, c)
	for _, k := range others {
		b.want(b.Store, k, c)
	}
	if _, own := b.rows(1); own[0].Wrapped != nil || own[0].Shredded == 0 {
		t.Errorf("stored: %+v", own)
	}
	if e := b.audited()[0]; e.Action != "data_key.shred" || e.Actor != "key-1" || e.Reason != "because" || e.Tenant != 1 ||
		!strings.Contains(string(e.After), `"shredded_us"`) {
		t.Errorf("%+v", e)
	}
	page, err := b.List(t.Context(), listOf(1))
	if err != nil || page.Records[0].Completion.Omitted != claim.Shredded || page.Records[0].Completion.ContentType != c.ContentType {
		t.Errorf("listed: %v, %+v", err, page.Records[0].Completion)
	}
	later := key(1, "own", "later")
	b.completed(b.Store, later, c)
	b.want(b.Store, later, c)
	if s := b.SealStats(); s.Sealed != 4 || s.Shredded == 0 || s.Damaged+s.Unavailable != 0 || s.StoredBytes != s.PlainBytes+4*Overhead {
		t.Errorf("%+v", s)
	}
}

// TestOwnersAreBelieved: after shredding, the owner's resend is what it was.
func TestOwnersAreBelieved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k, c := key(1, "own", "e"), result("a result")
	rec := b.completed(b.Store, k, c)
	if err := b.ring.Shred(t.Context(), 1, "own", 0, why()); err != nil {
		t.Fatal(err)
	}
	again := completion(&rec, c)
	found := b.one(b.Transition(t.Context(), []claim.Transition{again}))
	if reply, more := again.Explain(&found, claim.FromTime(b.clock.Now())); more || reply.Status != claim.OK {
		t.Errorf("completed again: %+v", reply)
	}
	stranger := again
	stranger.Attempt = attempt(2)
	found = b.one(b.Transition(t.Context(), []claim.Transition{stranger}))
	if reply, _ := stranger.Explain(&found, claim.FromTime(b.clock.Now())); reply.Status != claim.Stale {
		t.Errorf("a stranger: %+v", reply)
	}
	shot := request(k, 1)
	shot.Record = c
	found = b.one(b.InsertOrGet(t.Context(), []claim.Request{shot}))
	if a := claim.Decide(&found, &shot, claim.FromTime(b.clock.Now())).Answer; a.Decision != claim.Granted || !a.Recorded {
		t.Errorf("claimed again: %+v", a)
	}
}

// TestShredWhatWasShared: what a consumer has from before it was declared is under
// its tenant's key; it is refused, and the others' is not.
func TestShredWhatWasShared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := result("a result")
	mine, other := key(1, "x", "before"), key(1, "y", "e")
	b.completed(b.Store, mine, c)
	b.completed(b.Store, other, c)
	if err := b.ring.Shred(t.Context(), 1, "x", 0, why()); !errors.Is(err, ErrNoRow) {
		t.Fatalf("undeclared: %v", err)
	}
	b.apply(registry.Change{
		ID: registry.ID{2}, Audit: []registry.AuditEntry{{Actor: "test", Action: "declare"}},
		Consumers: []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Tenant: 1, Name: "x"})},
	})
	b.sync(b.ring)
	b.want(b.Store, mine, c)
	b.completed(b.Store, key(1, "x", "after"), c)
	if err := b.ring.Shred(t.Context(), 1, "x", 0, why()); err != nil {
		t.Fatal(err)
	}
	b.wantGone(b.Store, mine, c)
	b.wantGone(b.Store, key(1, "x", "after"), c)
	b.want(b.Store, other, c)
	// However often keys come and go, that stays: its tombstone makes no room.
	for range 3 * registry.DataKeysMax {
		if _, err := b.ring.Rotate(t.Context(), 1, "x", why()); err != nil {
			t.Fatal(err)
		}
		b.wantGone(b.Store, mine, c)
		if err := b.ring.Shred(t.Context(), 1, "x", 0, why()); err != nil {
			t.Fatal(err)
		}
	}
	b.wantGone(b.Store, mine, c)
	b.wantGone(b.Store, key(1, "x", "after"), c) // its tombstone is gone too
	b.want(b.Store, other, c)
}

// TestShredTenant shreds more consumers than go into one change.
func TestShredTenant(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const consumers = 2*shredRows + 3
	change := registry.Change{ID: registry.ID{2}, Audit: []registry.AuditEntry{{Actor: "test", Action: "declare"}}}
	for i := range consumers {
		change.Consumers = append(change.Consumers, registry.Put(registry.Consumer{Tenant: 1, Name: fmt.Sprint("c", i)}))
	}
	b.apply(change)
	b.sync(b.ring)
	c := result("a result")
	for i := range consumers {
		b.completed(b.Store, key(1, fmt.Sprint("c", i), "e"), c)
	}
	b.completed(b.Store, key(1, "x", "e"), c)
	b.completed(b.Store, key(2, "own", "e"), c)
	w := why()
	w.Change = registry.ID{3}
	version := b.ring.table.Load().tenants[1].Version
	if err := b.ring.Shred(t.Context(), 1, "", version-1, why()); !errors.Is(err, registry.ErrConflict) {
		t.Fatalf("at an old version: %v", err)
	}
	b.want(b.Store, key(1, "c0", "e"), c)
	for range 2 { // and sent again
		if err := b.ring.Shred(t.Context(), 1, "", version, w); err != nil {
			t.Fatal(err)
		}
	}
	for i := range consumers {
		b.wantGone(b.Store, key(1, fmt.Sprint("c", i), "e"), c)
	}
	b.wantGone(b.Store, key(1, "x", "e"), c)
	b.want(b.Store, key(2, "own", "e"), c)
}

// TestRowsThatGo: the results of a consumer that was deleted are gone, and do not
// come back with its name.
func TestRowsThatGo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k, c := key(1, "own", "e"), result("a result")
	b.completed(b.Store, k, c)
	row := b.ring.table.Load().consumers[owner{1, "own"}]
	b.apply(registry.Change{
		ID: registry.ID{2}, Audit: []registry.AuditEntry{{Actor: "test", Action: "delete"}},
		Consumers: []registry.Write[registry.Consumer]{registry.Delete(row)},
	})
	loaded, err := b.reg.Load(t.Context(), row.Revision)
	if err != nil {
		t.Fatal(err)
	}
	b.ring.Update(loaded)
	b.wantGone(b.Store, k, c)
	b.apply(registry.Change{
		ID: registry.ID{3}, Audit: []registry.AuditEntry{{Actor: "test", Action: "declare"}},
		Consumers: []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Tenant: 1, Name: "own"})},
	})
	b.sync(b.ring)
	b.wantGone(b.Store, k, c)
}

// TestShreddedSecretsLeaveMemory: not only the row forgets a key.
func TestShreddedSecretsLeaveMemory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.completed(b.Store, key(1, "own", "e"), result("a result"))
	if len(b.ring.mu.secrets) != 1 {
		t.Fatalf("%d keys are unwrapped", len(b.ring.mu.secrets))
	}
	id := secretID{owner{1, "own"}, newestID(t, b)}
	k := b.ring.table.Load().consumers[id.owner].DataKeys[0]
	if err := b.ring.Shred(t.Context(), 1, "own", 0, why()); err != nil {
		t.Fatal(err)
	}
	if len(b.ring.mu.secrets) != 0 {
		t.Error("a shredded key is in memory")
	}
	if _, err := b.ring.secret(t.Context(), id.owner, k); err == nil { // it was being unwrapped meanwhile
		t.Error("a shredded key is given out")
	}
}

func newestID(t *testing.T, b *bench) uint32 {
	t.Helper()
	k, err := b.ring.DataKey(t.Context(), 1, "own")
	if err != nil {
		t.Fatal(err)
	}
	return k.ID
}

// TestRowsFit: a row with all keys at their limits is one that a registry takes.
func TestRowsFit(t *testing.T) {
	t.Parallel()
	row := registry.Consumer{Tenant: 1, Name: strings.Repeat("n", registry.NameCharsMax), Note: strings.Repeat("\"", registry.TextBytesMax)}
	for i := range registry.RaisesMax {
		row.Raises = append(row.Raises, registry.Raise{At: claim.Never - 1000 + claim.Time(i), From: 1 << 60})
	}
	for i := range registry.DataKeysMax {
		row.DataKeys = append(row.DataKeys, registry.DataKey{
			ID: 1<<32 - 1 - uint32(i), Wrapped: make([]byte, registry.WrappedBytesMax), KEK: strings.Repeat("k", registry.KindCharsMax), Created: claim.Never,
		})
	}
	c := registry.Change{ID: registry.ID{1}, Consumers: []registry.Write[registry.Consumer]{registry.Put(row)}, Audit: []registry.AuditEntry{{Actor: "a", Action: "b"}}}
	if _, err := c.Prepare(); err != nil {
		doc, _ := json.Marshal(row)
		t.Errorf("%v (%d bytes)", err, len(doc))
	}
}
