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
	if out.Now, err = s.readClock(ctx); err != nil {
		return out, nil, err
	}
	if s.time.Suspect() {
		return out, nil, storage.ErrClockSuspect
	}
	shard, cut := int16(sw.Shard), out.Now.Add(-s.cfg.SweepGrace)
	oldest := query{sql: sqlSweepOldest, args: []any{shard, floor(cut), floor(out.Now)}, row: func(r row) error {
		out.OldestExpired = r.time()
		return r.end()
	}}
	scan := query{
		sql:  sqlSweepScan,
		args: []any{shard, floor(cut), floor(after.expiry), int64(after.key.Tenant), after.key.Consumer, after.key.EventID, int64(sw.Limit)},
		row: func(r row) error {
			c := position{expiry: r.time()}
			c.key.Tenant, c.key.Consumer, c.key.EventID = claim.TenantID(r.int8()), r.text(), r.text()
			seen = append(seen, c)
			return r.end()
		},
	}
	trips := [][]query{{oldest, scan}}
	switch {
	case s.dialect == Cockroach && s.cfg.Clock != nil:
		trips[0][1].sql.cockroach = scan.sql.postgres // the time of a suite knows no past
	case s.dialect == Cockroach:
		trips = [][]query{{oldest}, {scan}} // a statement about the past is alone
	}
	for _, queries := range trips {
		err = s.trip(ctx, s.sweeps, reads, func(storetime.Bounds) []query { seen = seen[:0]; return queries })
		if err != nil {
			return out, nil, err
		}
	}
	out.Looked = len(seen)
	return out, seen, nil
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
