package sqlstore

import (
	"context"
	"fmt"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storetime"
)

// Sweep implements storage.Store. It reads candidates, on CockroachDB from a
// moment ago, and deletes those that still may go, in a trip of their own. Only
// what its grace has passed is looked at.
func (s *Store) Sweep(ctx context.Context, sw storage.Sweep) (storage.Swept, error) {
	if sw.Shard < 0 || sw.Shard >= shards {
		return storage.Swept{}, fmt.Errorf("sweep: no shard %d of %d", sw.Shard, shards)
	}
	if sw.Limit < 1 || sw.Limit > storage.SweepLimitMax {
		return storage.Swept{}, fmt.Errorf("sweep: limit %d is not in 1–%d", sw.Limit, storage.SweepLimitMax)
	}
	after, err := decodePosition(sweepCursor, sw.Cursor)
	if err != nil {
		return storage.Swept{}, err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return storage.Swept{}, err
	}
	defer leave()
	out, seen, err := s.candidates(ctx, sw, after)
	if err == nil && s.time.Suspect() {
		err = storage.ErrClockSuspect
	}
	if err != nil || len(seen) == 0 {
		return out, err
	}
	if len(seen) == sw.Limit {
		last := seen[len(seen)-1]
		out.Cursor = last.encode(sweepCursor)
	}
	if err := s.sweepDelete(ctx, seen, &out); err != nil {
		return storage.Swept{}, err
	}
	return out, nil
}

// readClock reads the store's time.
func (s *Store) readClock(ctx context.Context) (now claim.Time, err error) {
	err = s.trip(ctx, s.sweeps, reads, func(b storetime.Bounds) []query {
		return []query{{sql: sqlClock, row: func(r row) error {
			reading := r.time()
			s.saw(reading)
			now = b.Hold(reading)
			return r.end()
		}}}
	})
	return now, err
}

// candidates reads what a step looks at, with the store's time and the earliest
// expiry of what is left.
func (s *Store) candidates(ctx context.Context, sw storage.Sweep, after position) (out storage.Swept, seen []position, err error) {
	err = s.trip(ctx, s.sweeps, reads, func(b storetime.Bounds) []query {
		seen = seen[:0]
		return []query{{
			sql: sqlSweepScan[s.dialect],
			args: append(held(b), int16(sw.Shard), s.cfg.SweepGrace, floor(after.expiry),
				int64(after.key.Tenant), after.key.Consumer, after.key.EventID, int64(sw.Limit)),
			row: func(r row) error {
				reading := r.time()
				s.saw(reading)
				out = storage.Swept{Now: b.Hold(reading), OldestExpired: r.time()}
				if r.values[r.next] == nil {
					return nil // there is none
				}
				c := position{expiry: r.time()}
				c.key.Tenant, c.key.Consumer, c.key.EventID = claim.TenantID(r.int8()), r.text(), r.text()
				seen = append(seen, c)
				return r.end()
			},
		}}
	})
	out.Looked = len(seen)
	return out, seen, err
}

// sweepDelete deletes what may go, with its bodies.
func (s *Store) sweepDelete(ctx context.Context, seen []position, out *storage.Swept) error {
	k := sorted(len(seen), func(i int) *claim.Key { return &seen[i].key })
	return s.trip(ctx, s.sweeps, writes, func(storetime.Bounds) []query {
		return []query{
			{
				sql: sqlSweepDelete, args: append(append([]any{floor(out.Now)}, k.named()...), s.cfg.SweepGrace),
				tag: func(n int64) { out.Deleted = int(n) },
			},
			{sql: sqlBodyDelete, args: k.named()},
		}
	})
}
