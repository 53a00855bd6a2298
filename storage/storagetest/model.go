// Package storagetest is what every store is measured against: a model that is
// obviously right, a conformance suite, random histories that run the same
// script on several stores, and decorators that count calls and inject faults.
//
// It is an ordinary package, not a test: `warifu conformance` ships the suite
// to users.
package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// modelShards is more than one so that callers that forget to sweep all shards
// are noticed.
const modelShards = 3

// listLimitMax bounds one page; see storage.List.
const listLimitMax = 500

// Model is the oracle: a map behind one mutex, and the pure rules. It prefers
// being obviously right to being fast, and keeps nothing when it is dropped.
type Model struct {
	clock func() time.Time
	grace time.Duration

	mu struct {
		sync.Mutex
		records map[claim.Key]claim.Record
		high    claim.Time // store time never runs backwards
		closed  bool
	}
}

var _ storage.Store = (*Model)(nil)

// NewModel returns an empty model whose store time is that of clock, and which
// keeps expired records for grace before it sweeps them.
func NewModel(clock func() time.Time, grace time.Duration) *Model {
	m := &Model{clock: clock, grace: grace}
	m.mu.records = map[claim.Key]claim.Record{}
	return m
}

// Reopen closes m and returns a model that holds what m held, as a durable
// store does after a restart.
func (m *Model) Reopen() *Model {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.closed = true
	n := NewModel(m.clock, m.grace)
	n.mu.records, n.mu.high = m.mu.records, m.mu.high
	m.mu.records = nil
	return n
}

// InsertOrGet implements storage.Store.
func (m *Model) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	return perKey(ctx, m, reqs, func(r *claim.Request) claim.Key { return r.Key },
		func(r *claim.Request, cur claim.Record, now claim.Time) (claim.Record, bool) {
			if cur.State != claim.Absent || now >= r.InsertBefore {
				return cur, false
			}
			m.mu.records[r.Key] = claim.Fresh(r, now, 0)
			return m.mu.records[r.Key], false
		})
}

// Get implements storage.Store.
func (m *Model) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	return perKey(ctx, m, keys, func(k *claim.Key) claim.Key { return *k },
		func(_ *claim.Key, cur claim.Record, _ claim.Time) (claim.Record, bool) { return cur, false })
}

// Transition implements storage.Store.
func (m *Model) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	return perKey(ctx, m, ts, func(t *claim.Transition) claim.Key { return t.Key },
		func(t *claim.Transition, cur claim.Record, now claim.Time) (claim.Record, bool) {
			next, changed, _ := t.Apply(&cur, now)
			if !changed {
				return cur, false
			}
			m.mu.records[t.Key] = next
			return next, true
		})
}

// Replace implements storage.Store.
func (m *Model) Replace(ctx context.Context, swaps []claim.Swap) ([]storage.Found, error) {
	return perKey(ctx, m, swaps, func(s *claim.Swap) claim.Key { return s.Key },
		func(s *claim.Swap, cur claim.Record, now claim.Time) (claim.Record, bool) {
			next, ok := s.Apply(&cur, now, 0)
			if !ok {
				return cur, false
			}
			m.mu.records[s.Key] = next
			return next, true
		})
}

// perKey is every batch call: it refuses what no driver takes, reads the time
// once, and shows each item the record of its key. do returns what is stored
// afterwards, and whether that is what the call itself has written.
func perKey[I any](ctx context.Context, m *Model, items []I, key func(*I) claim.Key,
	do func(*I, claim.Record, claim.Time) (claim.Record, bool),
) ([]storage.Found, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, err := m.begin(ctx)
	if err != nil {
		return nil, err
	}
	if err := storage.CheckBatch(len(items), func(i int) claim.Key { return key(&items[i]) }); err != nil {
		return nil, err
	}
	out := make([]storage.Found, len(items))
	for i := range items {
		rec, applied := do(&items[i], m.mu.records[key(&items[i])], now)
		out[i] = storage.Found{Record: rec, Now: now, Applied: applied}
	}
	return out, nil
}

// begin refuses calls that must not be answered, and reads the store's time.
// The mutex is held.
func (m *Model) begin(ctx context.Context) (claim.Time, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if m.mu.closed {
		return 0, storage.ErrClosed
	}
	m.mu.high = max(m.mu.high, claim.FromTime(m.clock()))
	return m.mu.high, nil
}

// Sweep implements storage.Store. Its candidates are the expired records of
// the shard, in the order of their keys.
func (m *Model) Sweep(ctx context.Context, s storage.Sweep) (storage.Swept, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, err := m.begin(ctx)
	if err != nil {
		return storage.Swept{}, err
	}
	if s.Shard < 0 || s.Shard >= modelShards {
		return storage.Swept{}, fmt.Errorf("sweep: no shard %d of %d", s.Shard, modelShards)
	}
	if s.Limit < 1 || s.Limit > storage.SweepLimitMax {
		return storage.Swept{}, fmt.Errorf("sweep: limit %d is not in 1–%d", s.Limit, storage.SweepLimitMax)
	}
	after, err := decodeCursor(s.Cursor)
	if err != nil {
		return storage.Swept{}, err
	}
	out := storage.Swept{Now: now}
	for _, key := range m.sorted() {
		rec := m.mu.records[key]
		if shardOf(key) != s.Shard || !rec.Expired(now) || (len(s.Cursor) > 0 && compareKeys(key, after) <= 0) {
			continue
		}
		if out.Looked == s.Limit {
			out.Cursor = encodeCursor(after)
			return out, nil
		}
		out.Looked++
		after = key
		switch {
		case rec.Sweepable(now, m.grace):
			delete(m.mu.records, key)
			out.Deleted++
		case out.OldestExpired == 0 || rec.ExpiresAt < out.OldestExpired:
			out.OldestExpired = rec.ExpiresAt
		}
	}
	return out, nil
}

// List implements storage.Store. It selects by the state as decisions see it: a
// lease that lapsed under HOLD is listed as in doubt before the lease monitor
// has written so.
func (m *Model) List(ctx context.Context, l storage.List) (storage.Page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, err := m.begin(ctx)
	if err != nil {
		return storage.Page{}, err
	}
	if l.Limit < 1 || l.Limit > listLimitMax {
		return storage.Page{}, fmt.Errorf("list: limit %d is not in 1–%d", l.Limit, listLimitMax)
	}
	if l.Prefix != "" && l.Consumer == "" {
		return storage.Page{}, errors.New("list: a prefix needs a consumer")
	}
	after, err := decodeCursor(l.Cursor)
	if err != nil {
		return storage.Page{}, err
	}
	if len(l.Cursor) > 0 && after.Tenant != l.Tenant {
		return storage.Page{}, storage.ErrCursor
	}
	page := storage.Page{Now: now}
	for _, key := range m.sorted() {
		rec := m.mu.records[key]
		if !selects(&l, &rec, now) || (len(l.Cursor) > 0 && compareKeys(key, after) <= 0) {
			continue
		}
		if len(page.Records) == l.Limit {
			page.Cursor = encodeCursor(after)
			return page, nil
		}
		after = key
		page.Records = append(page.Records, WithoutBody(rec))
	}
	return page, nil
}

func selects(l *storage.List, rec *claim.Record, now claim.Time) bool {
	return rec.Key.Tenant == l.Tenant &&
		(l.Consumer == "" || rec.Key.Consumer == l.Consumer) &&
		strings.HasPrefix(rec.Key.EventID, l.Prefix) &&
		(len(l.States) == 0 || slices.Contains(l.States, rec.Effective(now)))
}

// WithoutBody is rec as List shows it: the completion keeps everything but its
// body.
func WithoutBody(rec claim.Record) claim.Record {
	if rec.Completion != nil && rec.Completion.Body != nil {
		c := *rec.Completion
		c.Body = nil
		rec.Completion = &c
	}
	return rec
}

// Scan implements storage.Store. each is called without the lock, so it may
// call the store.
func (m *Model) Scan(ctx context.Context, each func(claim.Key) error) error {
	m.mu.Lock()
	_, err := m.begin(ctx)
	keys := m.sorted()
	m.mu.Unlock()
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := each(key); err != nil {
			return err
		}
	}
	return nil
}

// Stats implements storage.Store.
func (m *Model) Stats(ctx context.Context) (storage.Stats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.begin(ctx); err != nil {
		return storage.Stats{}, err
	}
	return storage.Stats{
		Engine: "model", Shards: modelShards, SweepGrace: m.grace,
		RecordsEstimate: int64(len(m.mu.records)), DiskBytes: -1,
	}, nil
}

// Ready implements storage.Store.
func (m *Model) Ready(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.begin(ctx)
	return err
}

// Close implements storage.Store.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.closed = true
	return nil
}

// sorted returns all keys in the order of List. The mutex is held.
func (m *Model) sorted() []claim.Key {
	keys := make([]claim.Key, 0, len(m.mu.records))
	for key := range m.mu.records {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func compareKeys(a, b claim.Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.EventID, b.EventID))
}

func shardOf(k claim.Key) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(k.EventID)) // a hash never fails
	return int(h.Sum32() % modelShards)
}

// cursorTag begins every cursor of the model.
const cursorTag = "model:"

func encodeCursor(k claim.Key) []byte {
	return fmt.Appendf(nil, "%s%d %q %q", cursorTag, k.Tenant, k.Consumer, k.EventID)
}

// decodeCursor refuses everything that encodeCursor did not make. No bytes are
// the beginning.
func decodeCursor(cursor []byte) (claim.Key, error) {
	var k claim.Key
	if len(cursor) == 0 {
		return k, nil
	}
	_, err := fmt.Sscanf(string(cursor), cursorTag+"%d %q %q", &k.Tenant, &k.Consumer, &k.EventID)
	if err != nil || !bytes.Equal(encodeCursor(k), cursor) {
		return claim.Key{}, storage.ErrCursor
	}
	return k, nil
}
