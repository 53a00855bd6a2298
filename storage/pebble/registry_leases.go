package pebble

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
	"github.com/warifu/warifu/storage/registry"
)

// Lease implements registry.Registry.
func (s adminStore) Lease(ctx context.Context, name, owner string, ttl time.Duration) (registry.Lease, bool, error) {
	if err := registry.CheckLease(name, owner, ttl); err != nil {
		return registry.Lease{}, false, err
	}
	held := false
	l, err := s.changeLease(ctx, name, func(l *registry.Lease, now claim.Time) bool {
		*l, held = l.Taken(name, owner, ttl, now)
		return held
	})
	if err != nil {
		return registry.Lease{}, false, err
	}
	return l, held, nil
}

// SaveCursor implements registry.Registry.
func (s adminStore) SaveCursor(ctx context.Context, name string, fence claim.Fence, cursor []byte) (saved bool, err error) {
	if err := registry.CheckCursor(name, cursor); err != nil {
		return false, err
	}
	_, err = s.changeLease(ctx, name, func(l *registry.Lease, _ claim.Time) bool {
		if saved = l.Name != "" && l.Fence == fence; saved {
			l.Cursor = cursor
		}
		return saved
	})
	return saved && err == nil, err
}

// Unlease implements registry.Registry.
func (s adminStore) Unlease(ctx context.Context, name string, fence claim.Fence) error {
	if err := registry.CheckLeaseName(name); err != nil {
		return err
	}
	_, err := s.changeLease(ctx, name, func(l *registry.Lease, now claim.Time) bool {
		if l.Name == "" || l.Fence != fence {
			return false
		}
		l.Owner, l.Until = "", min(l.Until, now)
		return true
	})
	return err
}

// changeLease stores what change makes of a lease, if it says that there is
// anything to store, and waits for the disk.
func (s adminStore) changeLease(ctx context.Context, name string, change func(*registry.Lease, claim.Time) bool) (registry.Lease, error) {
	l, wait, err := s.changeLeaseHeld(ctx, name, change)
	if err == nil {
		err = wait()
	}
	return l, err
}

func (s adminStore) changeLeaseHeld(ctx context.Context, name string, change func(*registry.Lease, claim.Time) bool) (l registry.Lease, wait func() error, err error) {
	end, err := s.begin(ctx)
	if err != nil {
		return l, nil, err
	}
	defer end()
	key := named(adminLease, name)
	payload, err := s.read(key)
	if err != nil {
		return l, nil, err
	}
	if payload != nil {
		if l, err = readLease(key, payload); err != nil {
			return l, nil, s.failed("read a lease", err)
		}
	}
	now, _ := s.clock.now()
	if !change(&l, now) {
		return l, func() error { return s.durable(ctx, s.latest(nil)) }, nil
	}
	wait, err = s.write(ctx, func(b *builder) { b.set(key, leasePayload(&l)) })
	return l, wait, err
}

// Leases implements registry.Registry.
func (s adminStore) Leases(ctx context.Context) (out registry.Leases, err error) {
	end, err := s.begin(ctx)
	if err != nil {
		return out, err
	}
	defer end()
	out.Now, _ = s.clock.now()
	prefix := adminKey(adminLease, 0)
	err = s.each(ctx, prefix, successor(prefix), func(key, payload []byte) (bool, error) {
		l, err := readLease(key, payload)
		out.Leases = append(out.Leases, l)
		return len(out.Leases) < registry.LeasesMax, err
	})
	if err == nil {
		err = s.durable(ctx, s.latest(nil))
	}
	if err != nil {
		return registry.Leases{}, err
	}
	return out, nil
}

// Seen implements registry.Registry.
func (s adminStore) Seen(ctx context.Context, used map[string]claim.Time) error {
	if err := registry.CheckSeen(len(used)); err != nil {
		return err
	}
	wait, err := s.seenHeld(ctx, used)
	if err != nil || wait == nil {
		return err
	}
	return wait()
}

func (s adminStore) seenHeld(ctx context.Context, used map[string]claim.Time) (wait func() error, err error) {
	end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	now, _ := s.clock.now()
	notes := map[string]claim.Time{}
	for id, at := range used {
		row, ok, err := s.row(registry.Ref{Kind: registry.KindKey, Name: id})
		if err != nil {
			return nil, err
		}
		if !ok || row.Deleted {
			continue
		}
		old, noted, err := s.seenAt(id)
		if err != nil {
			return nil, err
		}
		if at = min(at, now); !noted || at >= old.Add(registry.SeenGrain) {
			notes[id] = at
		}
	}
	if len(notes) == 0 {
		return nil, nil //nolint:nilnil // nothing was written, and there is nothing to wait for
	}
	return s.write(ctx, func(b *builder) {
		for id, at := range notes {
			b.set(named(adminSeen, id), binary.AppendVarint(nil, int64(at)))
		}
	})
}

func (s adminStore) seenAt(id string) (at claim.Time, noted bool, err error) {
	key := named(adminSeen, id)
	payload, err := s.read(key)
	if payload == nil || err != nil {
		return 0, false, err
	}
	r := codec.NewReader(payload)
	if at = claim.Time(r.Varint()); !r.Done() {
		return 0, false, s.failed("read the registry", badAdmin(key))
	}
	return at, true, nil
}

// Used implements registry.Registry.
func (s adminStore) Used(ctx context.Context, keys []string) (map[string]claim.Time, error) {
	if err := registry.CheckSeen(len(keys)); err != nil {
		return nil, err
	}
	end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	out := map[string]claim.Time{}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		at, noted, err := s.seenAt(id)
		if err != nil {
			return nil, err
		}
		if noted {
			out[id] = at
		}
	}
	return out, s.durable(ctx, s.latest(nil))
}
