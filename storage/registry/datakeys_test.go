package registry_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/warifu/warifu/storage/registry"
)

func aDataKey(id uint32) registry.DataKey {
	return registry.DataKey{ID: id, Wrapped: []byte{1, 2}, KEK: "kms/1", Created: 5}
}

// TestDataKeyDocuments pins what is on disk, in both rows.
func TestDataKeyDocuments(t *testing.T) {
	t.Parallel()
	gone := registry.DataKey{ID: 4294967295, KEK: "k", Created: 1, Shredded: 2}
	const want = `"data_keys":[{"id":3,"wrapped_key":"AQI=","kek":"kms/1","created_us":5},{"id":4294967295,"kek":"k","created_us":1,"shredded_us":2}]`
	for _, row := range []any{
		registry.Tenant{DataKeys: []registry.DataKey{aDataKey(3), gone}}, registry.Consumer{DataKeys: []registry.DataKey{aDataKey(3), gone}},
	} {
		if got, err := json.Marshal(row); err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%v, %s", err, got)
		}
	}
	if got, err := json.Marshal(registry.Consumer{}); err != nil || strings.Contains(string(got), "data_keys") {
		t.Errorf("without keys: %v, %s", err, got)
	}
}

func TestDataKeyLimits(t *testing.T) {
	t.Parallel()
	many := func(n int) (keys []registry.DataKey) {
		for i := range n {
			keys = append(keys, aDataKey(uint32(i+1)))
		}
		return keys
	}
	with := func(change func(*registry.DataKey)) []registry.DataKey {
		k := aDataKey(3)
		change(&k)
		return []registry.DataKey{k}
	}
	for name, c := range map[string]struct {
		keys []registry.DataKey
		ok   bool
	}{
		"at the limit":          {many(registry.DataKeysMax), true},
		"one over it":           {many(registry.DataKeysMax + 1), false},
		"ID 0":                  {with(func(k *registry.DataKey) { k.ID = 0 }), false},
		"an ID twice":           {[]registry.DataKey{aDataKey(3), aDataKey(3)}, false},
		"wrapped, at the limit": {with(func(k *registry.DataKey) { k.Wrapped = make([]byte, registry.WrappedBytesMax) }), true},
		"wrapped, one over":     {with(func(k *registry.DataKey) { k.Wrapped = make([]byte, registry.WrappedBytesMax+1) }), false},
		"nothing wrapped":       {with(func(k *registry.DataKey) { k.Wrapped = nil }), false},
		"no KEK":                {with(func(k *registry.DataKey) { k.KEK = "" }), false},
		"a long KEK":            {with(func(k *registry.DataKey) { k.KEK = strings.Repeat("k", registry.KindCharsMax+1) }), false},
		"a tombstone":           {with(func(k *registry.DataKey) { k.Wrapped, k.Shredded = nil, 9 }), true},
		"a bare tombstone":      {with(func(k *registry.DataKey) { k.Wrapped, k.KEK, k.Shredded = nil, "", 9 }), true},
		"shredded, still there": {with(func(k *registry.DataKey) { k.Shredded = 9 }), false},
		"before 1970":           {with(func(k *registry.DataKey) { k.Created = -1 }), false},
	} {
		for _, change := range []registry.Change{
			{Tenants: []registry.Write[registry.Tenant]{registry.Put(registry.Tenant{ID: 1, Name: "n", State: registry.TenantActive, DataKeys: c.keys})}},
			{Consumers: []registry.Write[registry.Consumer]{registry.Put(registry.Consumer{Tenant: 1, Name: "c", DataKeys: c.keys})}},
		} {
			change.ID, change.Audit = registry.ID{1}, []registry.AuditEntry{{Actor: "a", Action: "b"}}
			if _, err := change.Prepare(); (err == nil) != c.ok || err != nil && !errors.Is(err, registry.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestAuditNeverShowsWrappedKeys: Audited leaves them out, and an entry that
// shows one all the same is refused.
func TestAuditNeverShowsWrappedKeys(t *testing.T) {
	t.Parallel()
	tenant := registry.Tenant{ID: 1, Name: "n", State: registry.TenantActive, DataKeys: []registry.DataKey{aDataKey(3)}}
	consumer := registry.Consumer{Tenant: 1, Name: "c", Note: `"wrapped_key":"x"`, DataKeys: []registry.DataKey{aDataKey(3)}}
	for _, c := range []struct {
		row any
		ok  bool
	}{{tenant, false}, {consumer, false}, {tenant.Audited(), true}, {consumer.Audited(), true}, {registry.AuditedKeys(tenant.DataKeys), true}} {
		doc, err := json.MarshalIndent(c.row, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []registry.AuditEntry{{Before: doc}, {After: doc}} {
			e.Actor, e.Action = "a", "b"
			change := registry.Change{ID: registry.ID{1}, Audit: []registry.AuditEntry{e}}
			if _, err := change.Prepare(); (err == nil) != c.ok {
				t.Errorf("%s: %v", doc, err)
			}
		}
	}
	if string(tenant.DataKeys[0].Wrapped) != "\x01\x02" || string(consumer.DataKeys[0].Wrapped) != "\x01\x02" {
		t.Error("Audited has changed the row itself")
	}
}

func TestKeepsDataKeys(t *testing.T) {
	t.Parallel()
	live, gone, anew := aDataKey(3), aDataKey(3), aDataKey(3)
	gone.Wrapped, gone.Shredded = nil, 9
	anew.Wrapped, anew.KEK = []byte{7}, "other"
	stored := func(keys ...registry.DataKey) *registry.Stored {
		doc, err := json.Marshal(registry.Consumer{Tenant: 1, Name: "c", DataKeys: keys})
		if err != nil {
			t.Fatal(err)
		}
		return &registry.Stored{Ref: registry.ConsumerRef(1, "c"), Doc: doc}
	}
	tombstone := &registry.Stored{Ref: registry.ConsumerRef(1, "c"), Head: registry.Head{Deleted: true}}
	for name, c := range map[string]struct {
		old, next *registry.Stored
		ok        bool
	}{
		"new row": {nil, stored(live), true}, "after a tombstone": {tombstone, stored(), true}, "one more": {stored(live), stored(live, aDataKey(4)), true},
		"lost": {stored(live, aDataKey(4)), stored(aDataKey(4)), false}, "all lost": {stored(live), stored(), false},
		"shredded": {stored(live), stored(gone), true}, "dropped after that": {stored(gone), stored(), true}, "back": {stored(gone), stored(live), false},
		"wrapped anew": {stored(live), stored(anew), true}, "deleted": {stored(live), tombstone, true},
		"no document": {&registry.Stored{Ref: registry.ConsumerRef(1, "c"), Doc: []byte("{")}, stored(), false},
	} {
		if err := registry.KeepsDataKeys(c.old, c.next); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	key := registry.Stored{Ref: registry.Ref{Kind: registry.KindKey, Name: "k"}, Doc: []byte(`{"data_keys":[{"id":1}]}`)}
	if err := registry.KeepsDataKeys(&key, &registry.Stored{Ref: key.Ref, Doc: []byte(`{}`)}); err != nil {
		t.Errorf("a row of another kind: %v", err)
	}
}
