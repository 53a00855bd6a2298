package sqlstore

import (
	"context"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storetime"
)

// scanPage is how many keys one statement of a scan reads.
const scanPage = 1000

// Scan implements storage.Store, a page at a time in the order of the primary
// key.
func (s *Store) Scan(ctx context.Context, each func(claim.Key) error) error {
	var last claim.Key
	shard := int16(-1)
	for {
		page, lastShard, err := s.scanPage(ctx, shard, last)
		if err != nil {
			return err
		}
		for _, k := range page {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := each(k); err != nil {
				return err
			}
		}
		if len(page) < scanPage {
			return nil
		}
		shard, last = lastShard, page[len(page)-1]
	}
}

// scanPage reads the keys behind one.
func (s *Store) scanPage(ctx context.Context, shard int16, after claim.Key) (page []claim.Key, last int16, err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer leave()
	err = s.trip(ctx, s.sweeps, reads, func(storetime.Bounds) []query {
		page = page[:0]
		return []query{{
			sql: sqlScan, args: []any{shard, int64(after.Tenant), after.Consumer, after.EventID, int64(scanPage)},
			row: func(r row) error {
				last = r.int2()
				page = append(page, claim.Key{Tenant: claim.TenantID(r.int8()), Consumer: r.text(), EventID: r.text()})
				return r.end()
			},
		}}
	})
	return page, last, err
}

// Stats implements storage.Store. CockroachDB says nothing of sizes without a
// scan.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return storage.Stats{}, err
	}
	defer leave()
	out := storage.Stats{
		Engine: string(s.dialect), Shards: shards, SweepGrace: s.cfg.SweepGrace, ClockSuspect: s.time.Suspect(),
		RecordsEstimate: -1, DiskBytes: -1,
	}
	if s.dialect != Postgres {
		return out, nil
	}
	err = s.trip(ctx, s.sweeps, reads, func(storetime.Bounds) []query {
		return []query{{sql: sqlSize, row: func(r row) error {
			out.RecordsEstimate, out.DiskBytes = max(r.int8(), -1), r.int8()
			return r.end()
		}}}
	})
	return out, err
}
