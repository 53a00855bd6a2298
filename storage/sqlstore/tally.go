package sqlstore

import (
	"context"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
	"github.com/warifu/warifu/storage/storetime"
)

// span is the part of one shard that a step over a tenant's records looks at.
type span struct {
	shard int16
	after claim.Key // the zero key is before all
	limit int
}

// spans divides a step. One that goes on within a shard looks at that alone; one
// that begins a shard looks at all that are left, a little of each. So a tenant
// with few records is done in one step; where there are many, what is looked at
// behind the first shard that has more is looked at again, less than a step's
// worth for each shard.
func spans(kind byte, step storage.TenantStep) ([]span, error) {
	at, err := decodePosition(kind, step.Cursor)
	if err != nil {
		return nil, err
	}
	first := int16(at.expiry) // of a tenant's cursor it is the shard
	if len(step.Cursor) > 0 && at.key.Tenant != step.Tenant || first < 0 || first >= shards {
		return nil, storage.ErrCursor
	}
	if at.key.Consumer != "" || at.key.EventID != "" {
		return []span{{shard: first, after: at.key, limit: step.Limit}}, nil
	}
	each := max(1, step.Limit/int(shards-first))
	var out []span
	for shard := first; shard < shards && len(out) < step.Limit; shard++ {
		out = append(out, span{shard: shard, after: claim.Key{Tenant: step.Tenant}, limit: each})
	}
	return out, nil
}

// behind is the cursor of a step that goes on behind a key of a shard.
func behind(kind byte, shard int16, k claim.Key) []byte {
	return position{expiry: claim.Time(shard), key: k}.encode(kind)
}

// afterShard is the cursor of a step that begins the next shard; nil when there
// is none.
func afterShard(kind byte, shard int16, tenant claim.TenantID) []byte {
	if shard+1 >= shards {
		return nil
	}
	return behind(kind, shard+1, claim.Key{Tenant: tenant})
}

// The first bytes of the cursors; see listCursor.
const (
	tallyCursor = 'T'
	purgeCursor = 'P'
)

// Tally implements storage.Store. The database counts: a row for each consumer
// and shard is all that is sent.
func (s *Store) Tally(ctx context.Context, step storage.TenantStep) (storage.Tallied, error) {
	if err := step.Check("tally"); err != nil {
		return storage.Tallied{}, err
	}
	parts, err := spans(tallyCursor, step)
	if err != nil {
		return storage.Tallied{}, err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return storage.Tallied{}, err
	}
	defer leave()
	// What decisions see depends on the time, so that is read first.
	now, err := s.readClock(ctx)
	if err != nil {
		return storage.Tallied{}, err
	}
	counted := make([]tallied, len(parts))
	err = s.trip(ctx, s.sweeps, reads, func(storetime.Bounds) []query {
		queries := make([]query, len(parts))
		for i := range parts {
			counted[i] = tallied{counts: map[string]storage.Counts{}}
			queries[i] = parts[i].tally(now, &counted[i])
		}
		return queries
	})
	if err != nil {
		return storage.Tallied{}, err
	}
	return sumTally(step, parts, counted, now), nil
}

// tallied is what was counted of one span.
type tallied struct {
	counts map[string]storage.Counts
	keys   int64
	last   claim.Key
}

func (p *span) tally(now claim.Time, t *tallied) query {
	return query{
		sql: sqlTally,
		args: []any{
			p.shard, int64(p.after.Tenant), p.after.Consumer, p.after.EventID, int64(p.limit), int64(codec.RecordBytesFixed), floor(now),
		},
		row: func(r row) error {
			t.last = claim.Key{Tenant: p.after.Tenant, Consumer: r.text(), EventID: r.text()}
			c := storage.Counts{Keys: r.int8(), Live: r.int8(), Lapsed: r.int8(), InDoubt: r.int8(), Completed: r.int8(), Bytes: r.int8()}
			t.counts[t.last.Consumer] = c
			t.keys += c.Keys
			return r.end()
		},
	}
}

// sumTally sums the spans up to the first of which there may be more.
func sumTally(step storage.TenantStep, parts []span, counted []tallied, now claim.Time) storage.Tallied {
	out := storage.Tallied{Now: now, Counts: map[string]storage.Counts{}}
	for i := range parts {
		for consumer, c := range counted[i].counts {
			out.Counts[consumer] = out.Counts[consumer].Plus(c)
		}
		if counted[i].keys >= int64(parts[i].limit) {
			out.Cursor = behind(tallyCursor, parts[i].shard, counted[i].last)
			return out
		}
	}
	out.Cursor = afterShard(tallyCursor, parts[len(parts)-1].shard, step.Tenant)
	return out
}
