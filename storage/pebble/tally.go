package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
)

// tallyBodyBytesMax ends a step of a tally early: the size of a body that is
// stored aside is known only by reading it.
const tallyBodyBytesMax = 32 << 20

// Tally implements storage.Store. The cursor is the last key looked at.
func (s *Store) Tally(ctx context.Context, step storage.TenantStep) (storage.Tallied, error) {
	out := storage.Tallied{Counts: map[string]storage.Counts{}}
	bodies := int64(0)
	cursor, err := s.walkTenant(ctx, "tally", step, func(v *view) (enough bool, err error) {
		aside, err := s.tallyOne(v, &out)
		bodies += aside
		return bodies >= tallyBodyBytesMax, err
	}, func() { out.Now, _ = s.clock.now() })
	if err != nil {
		return storage.Tallied{}, err
	}
	out.Cursor = cursor
	return out, nil
}

// tallyOne counts the record on which v stands and returns the size of a body
// that is stored aside.
func (s *Store) tallyOne(v *view, out *storage.Tallied) (aside int64, err error) {
	key, err := parseRecordKey(v.key)
	if err != nil {
		return 0, err
	}
	var rec claim.Record
	isAside, err := decodeRecord(&rec, key, v.value)
	if err != nil {
		return 0, err
	}
	inline := int64(0)
	switch {
	case isAside:
		if aside, err = s.bodyBytes(v.key); err != nil {
			return 0, err
		}
	case rec.Completion != nil:
		inline = int64(len(rec.Completion.Body))
	}
	counts := out.Counts[key.Consumer]
	counts.Count(&rec, out.Now, codec.RecordBytes(&rec, inline+aside))
	out.Counts[key.Consumer] = counts
	return aside, nil
}

// bodyBytes is the size of a body that is stored aside; 0 when it is gone by
// now. Memory is asked first: what leaves it is in the engine by then.
func (s *Store) bodyBytes(recordKey []byte) (int64, error) {
	bodyKey := appendBodyKey(nil, recordKey)
	s.mu.Lock()
	value := s.memory(maphash.Bytes(s.seed, bodyKey), bodyKey)
	s.mu.Unlock()
	if value != nil {
		return int64(len(value)), nil
	}
	value, closer, err := s.db.Get(bodyKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n := int64(len(value))
	return n, closer.Close()
}

// walkTenant calls each with the records of one step until there are enough,
// and returns where the next step begins; nil at the tenant's end. begins is
// called before the records are looked at.
func (s *Store) walkTenant(ctx context.Context, action string, step storage.TenantStep,
	each func(v *view) (enough bool, err error), begins func(),
) (cursor []byte, err error) {
	lower, upper, err := tenantBounds(action, step)
	if err != nil {
		return nil, err
	}
	if err := s.enter(ctx, 0); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	begins()
	v, err := s.view(ctx, lower, upper)
	if err != nil {
		return nil, s.failed(action, err)
	}
	defer func() { err = errors.Join(err, s.failed(action, v.close())) }()
	enough := false
	for looked := 0; v.next(); looked++ {
		if enough || looked == step.Limit {
			return cursor, s.durable(ctx, s.latest(nil))
		}
		if enough, err = each(v); err != nil {
			return nil, s.failed(action, err)
		}
		cursor = append(cursor[:0], v.key...)
	}
	return nil, s.durable(ctx, s.latest(nil))
}

// tenantBounds is the range of record keys that a step looks at.
func tenantBounds(action string, step storage.TenantStep) (lower, upper []byte, err error) {
	if err := step.Check(action); err != nil {
		return nil, nil, err
	}
	lower = binary.BigEndian.AppendUint64([]byte{recordPrefix}, uint64(step.Tenant))
	upper = successor(lower)
	if step.Cursor == nil {
		return lower, upper, nil
	}
	if _, err := parseRecordKey(step.Cursor); err != nil || !bytes.HasPrefix(step.Cursor, lower) {
		return nil, nil, storage.ErrCursor
	}
	return append(slices.Clone(step.Cursor), 0), upper, nil
}
