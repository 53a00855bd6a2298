package sealed

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// Shred destroys all data keys of a consumer, or with an empty name those of the
// whole tenant, at the version of that row; 0 is whatever it is. Duplicates of
// what was sealed with them are answered SHREDDED from then on, here at once and
// on other servers with their next Update. It cannot be taken back. why.Reason is
// required; the same why.Change, sent again, goes on where it stopped.
//
// What a consumer has under the tenant's key, from before it was declared, is
// refused from then on, but that key stays, for the others: whoever has it and an
// old copy of the store can read those results until the tenant is shredded.
//
// The wrapped keys are gone from the rows; from the store's own files with its
// compaction, and from backups when those are. Who needs it at once also changes
// the key-encryption key: Rewrap, and then destroy the old one.
func (r *Ring) Shred(ctx context.Context, tenant claim.TenantID, consumer string, version int64, why registry.AuditEntry) error {
	if why.Reason == "" {
		return fmt.Errorf("shred: %w", &registry.InvalidError{Field: "reason", Rule: "is missing"})
	}
	why = named(why, "data_key.shred")
	o := owner{tenant, consumer}
	if err := r.shredRow(ctx, o, version, why); err != nil {
		return fmt.Errorf("shred: %w", err)
	}
	if consumer != "" {
		return nil
	}
	if err := r.shredConsumers(ctx, tenant, why); err != nil {
		return fmt.Errorf("shred: %w", err)
	}
	return nil
}

func (r *Ring) shredRow(ctx context.Context, o owner, version int64, why registry.AuditEntry) error {
	for range conflictsMax {
		if err := r.look(ctx); err != nil {
			return err
		}
		t := r.table.Load()
		if _, ok := t.keys(o); !ok {
			return fmt.Errorf("%w: %s", ErrNoRow, o)
		}
		keys, err := t.tombstones(o, claim.FromTime(r.cfg.Clock()))
		if err != nil {
			return err
		}
		err = r.write(ctx, t, o, keys, why, version)
		if version != 0 || !errors.Is(err, registry.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", registry.ErrConflict, errAgain)
}

// shredConsumers shreds the keys that the tenant's consumers have now. Those
// that are made meanwhile seal what comes later, and stay.
func (r *Ring) shredConsumers(ctx context.Context, tenant claim.TenantID, why registry.AuditEntry) error {
	left := r.table.Load().liveOf(tenant)
	for conflicts := 0; len(left) > 0; {
		t := r.table.Load()
		left = slices.DeleteFunc(left, func(id secretID) bool { return !t.live(id) })
		var owners []owner
		for _, id := range left {
			if len(owners) < shredRows && !slices.Contains(owners, id.owner) {
				owners = append(owners, id.owner)
			}
		}
		if len(owners) == 0 {
			return nil
		}
		err := r.shredSome(ctx, t, owners, left, why)
		if err != nil && !errors.Is(err, registry.ErrConflict) {
			return err
		}
		if err != nil {
			if conflicts++; conflicts == conflictsMax {
				return fmt.Errorf("%w: %w", registry.ErrConflict, errAgain)
			}
		}
		if err := r.look(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *Ring) shredSome(ctx context.Context, t *table, owners []owner, ids []secretID, why registry.AuditEntry) error {
	why.Change, why.Target = registry.ID{}, "" // of the tenant's row
	why = named(why, why.Action)
	c := registry.Change{ID: why.Change}
	now := claim.FromTime(r.cfg.Clock())
	for _, o := range owners {
		keys, _ := t.keys(o)
		keys = slices.Clone(keys)
		for i := range keys {
			if slices.Contains(ids, secretID{o, keys[i].ID}) {
				keys[i].Wrapped, keys[i].Shredded = nil, now
			}
		}
		if err := t.into(&c, o, keys, why, 0); err != nil {
			return err
		}
	}
	return r.apply(ctx, c)
}

// tombstones are the keys of a row when all are shredded. A consumer's also name
// those of its tenant's.
func (t *table) tombstones(o owner, now claim.Time) ([]registry.DataKey, error) {
	own, _ := t.keys(o)
	keys := slices.Clone(own)
	for i := range keys {
		if keys[i].Shredded == 0 {
			keys[i].Wrapped, keys[i].Shredded = nil, now
		}
	}
	if o.consumer == "" {
		return keys, nil
	}
	shared := t.tenants[o.tenant].DataKeys
	// Of a tenant's key that is shredded itself nobody need know here.
	keys = slices.DeleteFunc(keys, func(k registry.DataKey) bool {
		return k.KEK == "" && !slices.ContainsFunc(shared, func(s registry.DataKey) bool { return s.ID == k.ID && s.Shredded == 0 })
	})
	for _, k := range shared {
		if k.Shredded == 0 && indexOf(keys, k.ID) < 0 {
			keys = append(keys, registry.DataKey{ID: k.ID, Created: k.Created, Shredded: now})
		}
	}
	return pruned(keys, registry.DataKeysMax)
}

// liveOf returns the keys of a tenant's consumers that were not shredded.
func (t *table) liveOf(tenant claim.TenantID) []secretID {
	var ids []secretID
	for o, c := range t.consumers {
		for _, k := range c.DataKeys {
			if o.tenant == tenant && k.Shredded == 0 {
				ids = append(ids, secretID{o, k.ID})
			}
		}
	}
	return ids
}

// Rewrapped says what a Rewrap has done.
type Rewrapped struct{ Rows, Keys int }

// Rewrap wraps all data keys anew with the key-encryption key of that ID, so that
// the others can be taken away. Results are not touched. What fails is left as it
// is and reported, and the next call goes on with it.
func (r *Ring) Rewrap(ctx context.Context, kek string, why registry.AuditEntry) (done Rewrapped, err error) {
	to := r.keks[kek]
	if to == nil {
		return done, fmt.Errorf("rewrap: %w", &registry.InvalidError{Field: "kek", Rule: fmt.Sprintf("%q is not configured", kek)})
	}
	if err := r.look(ctx); err != nil {
		return done, fmt.Errorf("rewrap: %w", err)
	}
	var failed []error
	for _, o := range r.table.Load().wrappedOtherwise(kek) {
		if err := ctx.Err(); err != nil {
			return done, errors.Join(append(failed, fmt.Errorf("rewrap: %w", err))...)
		}
		n, err := r.rewrapRow(ctx, to, o, why)
		if err != nil {
			failed = append(failed, fmt.Errorf("rewrap: %s: %w", o, err))
			continue
		}
		done.Keys += n
		done.Rows++
	}
	return done, errors.Join(failed...)
}

func (r *Ring) rewrapRow(ctx context.Context, to KEK, o owner, why registry.AuditEntry) (n int, err error) {
	why.Change = registry.ID{} // each row is a change of its own
	for range conflictsMax {
		t := r.table.Load()
		old, _ := t.keys(o)
		keys := slices.Clone(old)
		n = 0
		for i, k := range keys {
			if k.Shredded != 0 || k.KEK == to.ID() {
				continue
			}
			dk, err := r.secret(ctx, o, k)
			if err != nil {
				return 0, err
			}
			if keys[i], err = r.wrap(ctx, to, o, dk, k.Created); err != nil {
				return 0, err
			}
			n++
		}
		if n == 0 {
			return 0, nil
		}
		err = r.write(ctx, t, o, keys, named(why, "data_key.rewrap"), 0)
		if !errors.Is(err, registry.ErrConflict) {
			return n, err
		}
		if err := r.look(ctx); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("%w: %w", registry.ErrConflict, errAgain)
}

// wrappedOtherwise returns the owners of live keys that another KEK has wrapped.
func (t *table) wrappedOtherwise(kek string) []owner {
	var owners []owner
	other := func(k registry.DataKey) bool { return k.Shredded == 0 && k.KEK != kek }
	for id, row := range t.tenants {
		if slices.ContainsFunc(row.DataKeys, other) {
			owners = append(owners, owner{tenant: id})
		}
	}
	for o, row := range t.consumers {
		if slices.ContainsFunc(row.DataKeys, other) {
			owners = append(owners, o)
		}
	}
	return owners
}
