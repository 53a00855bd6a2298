package sqlstore

import (
	"context"
	"slices"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storetime"
)

// Purge implements storage.Store. It measures how far the step's records reach,
// and deletes what lies there in a trip of its own: ranges of the primary key,
// so that no keys travel. What others write into a range in between goes too.
func (s *Store) Purge(ctx context.Context, step storage.TenantStep) (storage.Purged, error) {
	if err := step.Check("purge"); err != nil {
		return storage.Purged{}, err
	}
	parts, err := spans(purgeCursor, step)
	if err != nil {
		return storage.Purged{}, err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return storage.Purged{}, err
	}
	defer leave()
	ends, err := s.measure(ctx, parts)
	if err != nil {
		return storage.Purged{}, err
	}
	var out storage.Purged
	out.Cursor = afterShard(purgeCursor, parts[len(parts)-1].shard, step.Tenant)
	// Further shards lose their part too; they are looked at again anyway.
	if i := slices.IndexFunc(ends, func(end *claim.Key) bool { return end != nil }); i >= 0 {
		out.Cursor = behind(purgeCursor, parts[i].shard, *ends[i])
	}
	out.Deleted, err = s.deleteSpans(ctx, parts, ends)
	if err != nil {
		return storage.Purged{}, err
	}
	out.Looked = out.Deleted
	return out, nil
}

// measure returns the last key of each span; nil where it ends with its shard.
func (s *Store) measure(ctx context.Context, parts []span) ([]*claim.Key, error) {
	ends := make([]*claim.Key, len(parts))
	err := s.trip(ctx, s.sweeps, reads, func(storetime.Bounds) []query {
		queries := make([]query, len(parts))
		for i := range parts {
			ends[i] = nil
			queries[i] = query{
				sql: sqlListHorizon, args: append(parts[i].upTo(nil), int64(parts[i].limit-1)),
				row: func(r row) error {
					ends[i] = &claim.Key{Tenant: parts[i].after.Tenant, Consumer: r.text(), EventID: r.text()}
					return r.end()
				},
			}
		}
		return queries
	})
	return ends, err
}

// upTo are the arguments that name a range: from the span's beginning up to end
// and with it, or to the end of the shard.
func (p *span) upTo(end *claim.Key) []any {
	if end == nil {
		end = &claim.Key{Consumer: highest}
	}
	return []any{p.shard, int64(p.after.Tenant), p.after.Consumer, p.after.EventID, end.Consumer, end.EventID}
}

// deleteSpans deletes records and bodies up to the ends, all or nothing, and
// returns how many records went.
func (s *Store) deleteSpans(ctx context.Context, parts []span, ends []*claim.Key) (deleted int, err error) {
	err = s.trip(ctx, s.sweeps, writes, func(storetime.Bounds) []query {
		deleted = 0
		var queries []query
		for i := range parts {
			where := parts[i].upTo(ends[i])
			queries = append(queries,
				query{sql: sqlPurge, args: where, tag: func(n int64) { deleted += int(n) }},
				query{sql: sqlPurgeBodies, args: where})
		}
		return queries
	})
	return deleted, err
}
