package sqlstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storetime"
)

// Lease implements registry.Registry: one trip. Resent, the owner's own lease
// answers, so nothing is unknown about it that matters.
func (s registryStore) Lease(ctx context.Context, name, owner string, ttl time.Duration) (l registry.Lease, held bool, err error) {
	if err := registry.CheckLease(name, owner, ttl); err != nil {
		return l, false, err
	}
	err = s.leaseTrip(ctx, func(b storetime.Bounds) []query {
		l = registry.Lease{}
		return []query{
			{sql: sqlRegistryLease, args: leaseArgs(b, name, owner, ttl)},
			{sql: sqlRegistryLeaseGet, args: []any{name}, row: func(r row) (err error) {
				l, _, err = r.lease()
				return err
			}},
		}
	})
	if err != nil {
		return registry.Lease{}, false, err
	}
	return l, l.Owner == owner, nil
}

func leaseArgs(b storetime.Bounds, args ...any) []any { return append(held(b), args...) }

// leaseTrip is a trip of one call on leases.
func (s registryStore) leaseTrip(ctx context.Context, build func(storetime.Bounds) []query) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return s.trip(ctx, s.sweeps, writes, build)
}

// lease reads the columns of a lease in the order of registry_lease_get.sql.
func (r *row) lease() (l registry.Lease, reading claim.Time, err error) {
	reading = r.time()
	l.Name, l.Owner, l.Fence = r.text(), r.text(), claim.Fence(r.int8())
	l.Until, l.Cursor = r.time(), r.bytes()
	return l, reading, r.end()
}

// SaveCursor implements registry.Registry.
func (s registryStore) SaveCursor(ctx context.Context, name string, fence claim.Fence, cursor []byte) (saved bool, err error) {
	if err := registry.CheckCursor(name, cursor); err != nil {
		return false, err
	}
	err = s.leaseTrip(ctx, func(storetime.Bounds) []query {
		saved = false
		return []query{{
			sql: sqlRegistryLeaseSave, args: []any{name, int64(fence), append([]byte{}, cursor...)},
			tag: func(n int64) { saved = n == 1 },
		}}
	})
	return saved && err == nil, err
}

// Unlease implements registry.Registry.
func (s registryStore) Unlease(ctx context.Context, name string, fence claim.Fence) error {
	if err := registry.CheckLeaseName(name); err != nil {
		return err
	}
	return s.leaseTrip(ctx, func(b storetime.Bounds) []query {
		return []query{{sql: sqlRegistryLeaseEnd, args: leaseArgs(b, name, int64(fence))}}
	})
}

// Leases implements registry.Registry.
func (s registryStore) Leases(ctx context.Context) (out registry.Leases, err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return out, err
	}
	defer leave()
	err = s.trip(ctx, s.sweeps, reads, func(b storetime.Bounds) []query {
		out = registry.Leases{}
		return []query{{sql: sqlRegistryLeases, args: []any{int64(registry.LeasesMax)}, row: func(r row) error {
			none := len(r.values) > 1 && r.values[1] == nil
			if none {
				out.Now = b.Hold(r.time())
				return nil
			}
			l, reading, err := r.lease()
			out.Now, out.Leases = b.Hold(reading), append(out.Leases, l)
			return err
		}}}
	})
	if err != nil {
		return registry.Leases{}, err
	}
	return out, nil
}

// Seen implements registry.Registry.
func (s registryStore) Seen(ctx context.Context, used map[string]claim.Time) error {
	if err := registry.CheckSeen(len(used)); err != nil || len(used) == 0 {
		return err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ids, times := make([]string, 0, len(used)), make([]pgtype.Timestamptz, 0, len(used))
	for id, at := range used {
		if registry.IsKeyID(id) { // a text that the database does not take would fail all of them
			ids, times = append(ids, id), append(times, floor(max(at, 0)))
		}
	}
	return s.trip(ctx, s.sweeps, writes, func(b storetime.Bounds) []query {
		return []query{{sql: sqlRegistrySeenPut, args: leaseArgs(b, ids, times)}}
	})
}

// Used implements registry.Registry.
func (s registryStore) Used(ctx context.Context, keys []string) (used map[string]claim.Time, err error) {
	if err := registry.CheckSeen(len(keys)); err != nil {
		return nil, err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	ids := make([]string, 0, len(keys))
	for _, id := range keys {
		if registry.IsKeyID(id) {
			ids = append(ids, id)
		}
	}
	err = s.trip(ctx, s.traffic, reads, func(storetime.Bounds) []query {
		used = map[string]claim.Time{}
		return []query{{sql: sqlRegistrySeen, args: []any{ids}, row: func(r row) error {
			id, at := r.text(), r.time()
			used[id] = at
			return r.end()
		}}}
	})
	if err != nil {
		return nil, err
	}
	return used, nil
}
