package sealed

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// KeysMax bounds the keys of one row that are not shredded. With as many
// tombstones a row is full: see registry.DataKeysMax.
const KeysMax = registry.DataKeysMax / 2

// shredRows is how many consumers one change shreds: with all their keys it is
// within registry.ChangeBytesMax.
const shredRows = 50

var (
	// ErrNoRow says that the registry has no such tenant or consumer. A consumer that was
	// not declared has no keys of its own: its results are sealed with its
	// tenant's.
	ErrNoRow = errors.New("no such tenant or declared consumer")
	// ErrKeysFull says that the row has KeysMax keys that were not shredded.
	ErrKeysFull = fmt.Errorf("there are %d data keys already; shred old ones first", KeysMax)
)

// errAgain: the row has changed since it was looked at.
var errAgain = errors.New("others keep changing the row")

// first makes the first key of whoever's keys a consumer's results are sealed
// with, and not again for a while where that fails. Where another server was
// faster, that one's is used.
func (r *Ring) first(ctx context.Context, tenant claim.TenantID, consumer string) error {
	none := secretID{owner{tenant, consumer}, 0}
	if r.rests(none, r.cfg.KEKs[0].ID()) {
		return errResting
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	err := r.tryFirst(ctx, tenant, consumer)
	if err != nil {
		r.rest(none, "", false)
		r.cfg.Logger.WarnContext(ctx, "no data key can be made, and no result be stored", slog.String("owner", none.String()), slog.Any("error", err))
	}
	return err
}

func (r *Ring) tryFirst(ctx context.Context, tenant claim.TenantID, consumer string) error {
	why := registry.AuditEntry{Actor: "warifu", Action: "data_key.create", Reason: "a result is sealed"}
	for range conflictsMax {
		o, keys, ok := r.table.Load().writer(tenant, consumer)
		if !ok || len(keys) == 0 { // what is missing may be there by now
			if err := r.look(ctx); err != nil {
				return err
			}
			o, keys, ok = r.table.Load().writer(tenant, consumer)
		}
		if !ok {
			return fmt.Errorf("%w: tenant %d", ErrNoRow, tenant)
		}
		if _, live := newest(keys); live {
			return nil
		}
		if _, err := r.add(ctx, o, why); !errors.Is(err, registry.ErrConflict) {
			return err
		}
		if err := r.look(ctx); err != nil {
			return err
		}
	}
	return errAgain
}

// Rotate has new results of a consumer, or with an empty name those of the
// tenant's undeclared consumers, sealed with a new key, and returns its ID. Old
// results keep theirs. The same why.Change makes one key, however often it is
// sent.
func (r *Ring) Rotate(ctx context.Context, tenant claim.TenantID, consumer string, why registry.AuditEntry) (uint32, error) {
	why = named(why, "data_key.rotate")
	o := owner{tenant, consumer}
	for range conflictsMax {
		if err := r.look(ctx); err != nil {
			return 0, fmt.Errorf("rotate a data key: %w", err)
		}
		id, err := r.add(ctx, o, why)
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, registry.ErrConflict) {
			return 0, fmt.Errorf("rotate a data key: %w", err)
		}
	}
	return 0, fmt.Errorf("rotate a data key: %w: %w", registry.ErrConflict, errAgain)
}

// add appends a new key to a row as it is known, and looks at the result.
func (r *Ring) add(ctx context.Context, o owner, why registry.AuditEntry) (uint32, error) {
	why = named(why, why.Action)
	t := r.table.Load()
	keys, ok := t.keys(o)
	if !ok {
		return 0, fmt.Errorf("%w: %s", ErrNoRow, o)
	}
	id := idOf(why.Change)
	if indexOf(keys, id) >= 0 {
		return id, nil // by the same change, sent before
	}
	keys, err := room(keys)
	if err != nil {
		return 0, err
	}
	dk := DataKey{ID: id, secret: newSecret()}
	k, err := r.wrap(ctx, r.cfg.KEKs[0], o, dk, claim.FromTime(r.cfg.Clock()))
	if err != nil {
		return 0, err
	}
	if err := r.write(ctx, t, o, append(keys, k), why, 0); err != nil {
		return 0, err
	}
	return id, nil
}

// room returns a copy of keys with room for one more. Tombstones make it, the
// oldest first: what they stand for is as gone without them. Those of the tenant's
// keys stay: without them what the consumer has under such a key could be read
// again.
func room(keys []registry.DataKey) ([]registry.DataKey, error) {
	live := 0
	for _, k := range keys {
		if k.Shredded == 0 {
			live++
		}
	}
	if live >= KeysMax {
		return nil, ErrKeysFull
	}
	return pruned(keys, registry.DataKeysMax-1)
}

// pruned returns a copy of keys without the oldest tombstones of the row's own,
// so that at most n are left.
func pruned(keys []registry.DataKey, n int) ([]registry.DataKey, error) {
	keys = slices.Clone(keys)
	for len(keys) > n {
		at := slices.IndexFunc(keys, func(k registry.DataKey) bool { return k.Shredded != 0 && k.KEK != "" })
		if at < 0 {
			return nil, ErrKeysFull
		}
		keys = slices.Delete(keys, at, at+1)
	}
	return keys, nil
}

// idOf is the ID of the key that a change makes: the same when it is sent again,
// and as random as the change's.
func idOf(change registry.ID) uint32 {
	sum := sha256.Sum256(append([]byte("warifu data key"), change[:]...))
	return max(1, binary.BigEndian.Uint32(sum[:]))
}

// named gives an entry what it does not say of itself.
func named(why registry.AuditEntry, action string) registry.AuditEntry {
	if why.Action == "" {
		why.Action = action
	}
	if why.Actor == "" {
		why.Actor = "warifu"
	}
	if why.Change == (registry.ID{}) {
		_, _ = rand.Read(why.Change[:]) // never fails: the process ends before
	}
	return why
}

// write puts a row's keys, at version, or at the one in t when 0, and looks at
// the result.
func (r *Ring) write(ctx context.Context, t *table, o owner, keys []registry.DataKey, why registry.AuditEntry, version int64) error {
	c := registry.Change{ID: why.Change}
	if err := t.into(&c, o, keys, why, version); err != nil {
		return err
	}
	if err := r.apply(ctx, c); err != nil {
		return err
	}
	return r.look(ctx)
}

// into adds to a change that a row has these keys, and its audit entry, which
// shows the keys without what is wrapped.
func (t *table) into(c *registry.Change, o owner, keys []registry.DataKey, why registry.AuditEntry, version int64) error {
	before, _ := t.keys(o)
	why.Tenant = o.tenant
	if why.Target == "" {
		why.Target = o.String()
	}
	var err error
	if why.Before, err = json.Marshal(registry.AuditedKeys(before)); err != nil {
		return fmt.Errorf("audit data keys: %w", err)
	}
	if why.After, err = json.Marshal(registry.AuditedKeys(keys)); err != nil {
		return fmt.Errorf("audit data keys: %w", err)
	}
	if o.consumer != "" {
		row := t.consumers[o]
		row.DataKeys = keys
		if version != 0 {
			row.Version = version
		}
		c.Consumers = append(c.Consumers, registry.Put(row))
	} else {
		row := t.tenants[o.tenant]
		row.DataKeys = keys
		if version != 0 {
			row.Version = version
		}
		c.Tenants = append(c.Tenants, registry.Put(row))
	}
	c.Audit = append(c.Audit, why)
	return nil
}

// apply sends a change until it is known what became of it.
func (r *Ring) apply(ctx context.Context, c registry.Change) (err error) {
	for range unknownsMax {
		sent, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
		_, err = r.cfg.Registry.Apply(sent, c)
		cancel()
		if !errors.Is(err, storage.ErrUnknown) {
			break
		}
	}
	return err
}
