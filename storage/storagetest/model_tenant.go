package storagetest

import (
	"context"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
)

// Tally implements storage.Store, in the order of keys.
func (m *Model) Tally(ctx context.Context, step storage.TenantStep) (storage.Tallied, error) {
	out := storage.Tallied{Counts: map[string]storage.Counts{}}
	var err error
	out.Cursor, out.Now, err = m.tenantStep(ctx, "tally", step, func(rec claim.Record, now claim.Time) {
		counts := out.Counts[rec.Key.Consumer]
		counts.Count(&rec, now, recordBytes(&rec))
		out.Counts[rec.Key.Consumer] = counts
	})
	if err != nil {
		return storage.Tallied{}, err
	}
	return out, nil
}

// recordBytes is the size of a record that has its body.
func recordBytes(rec *claim.Record) int64 {
	var body int64
	if rec.Completion != nil {
		body = int64(len(rec.Completion.Body))
	}
	return codec.RecordBytes(rec, body)
}

// Purge implements storage.Store, in the order of keys.
func (m *Model) Purge(ctx context.Context, step storage.TenantStep) (storage.Purged, error) {
	var out storage.Purged
	var err error
	out.Cursor, _, err = m.tenantStep(ctx, "purge", step, func(rec claim.Record, _ claim.Time) {
		delete(m.mu.records, rec.Key)
		out.Looked++
		out.Deleted++
	})
	return out, err
}

// tenantStep calls do with each record of a step, under the mutex.
func (m *Model) tenantStep(ctx context.Context, action string, step storage.TenantStep, do func(claim.Record, claim.Time)) ([]byte, claim.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, err := m.begin(ctx)
	if err != nil {
		return nil, 0, err
	}
	if err := step.Check(action); err != nil {
		return nil, 0, err
	}
	after, err := decodeCursor(step.Cursor)
	if err != nil {
		return nil, 0, err
	}
	begins := len(step.Cursor) == 0
	if !begins && after.Tenant != step.Tenant {
		return nil, 0, storage.ErrCursor
	}
	looked := 0
	for _, key := range m.sorted() {
		if key.Tenant != step.Tenant || (!begins && compareKeys(key, after) <= 0) {
			continue
		}
		if looked == step.Limit {
			return encodeCursor(after), now, nil
		}
		looked++
		after, begins = key, false
		do(m.mu.records[key], now)
	}
	return nil, now, nil
}
