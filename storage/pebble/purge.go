package pebble

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"

	"github.com/warifu/warifu/storage"
)

// A purge deletes what the engine has as ranges, which cost next to nothing
// however much is in them, and what is in memory key by key. Each step deletes
// what lies between the last key of the step before and its own last key. A
// range takes effect when its memtable goes to the engine: reads do not look for
// ranges in memory. So the last step waits for that.
//
// Nothing comes back by a crash: a commit holds the range and the deletions of
// what is in memory, so in whatever memtable they are replayed, the newest
// operation on each key is its deletion, and tables go to the engine in order.
// A record and its body are in one commit, and so are their deletions: none is
// found without the other.

// Purge implements storage.Store. The cursor is the last key deleted.
func (s *Store) Purge(ctx context.Context, step storage.TenantStep) (storage.Purged, error) {
	var keys [][]byte
	cursor, err := s.walkTenant(ctx, "purge", step, func(v *view) (bool, error) {
		keys = append(keys, bytes.Clone(v.key))
		return false, nil
	}, func() {})
	if err != nil {
		return storage.Purged{}, err
	}
	if err := s.purge(ctx, step, keys, cursor == nil); err != nil {
		return storage.Purged{}, err
	}
	return storage.Purged{Cursor: cursor, Looked: len(keys), Deleted: len(keys)}, nil
}

// purge deletes the keys of a step. The last step of several also waits for what
// those before have written, and so does one that begins anew.
func (s *Store) purge(ctx context.Context, step storage.TenantStep, keys [][]byte, last bool) error {
	if err := s.enter(ctx, 0); err != nil {
		return err
	}
	defer s.life.RUnlock()
	if len(keys) > 0 {
		lower, _, err := tenantBounds("purge", step)
		if err != nil {
			return err
		}
		c, err := s.purgeKeys(ctx, lower, keys)
		if err != nil {
			return err
		}
		if err := s.durable(ctx, c); err != nil {
			return err
		}
	}
	if last && (len(keys) > 0 || step.Cursor != nil) {
		return s.flushNow(ctx)
	}
	return nil
}

// purgeKeys deletes keys, which are sorted, and their bodies.
func (s *Store) purgeKeys(ctx context.Context, lower []byte, keys [][]byte) (*commit, error) {
	if err := s.lockToWrite(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	now, _ := s.clock.now()
	b := newBuilder(now)
	var body []byte
	for _, key := range keys {
		body = appendBodyKey(body[:0], key)
		s.deleteInMemory(b, key)
		s.deleteInMemory(b, body)
	}
	upper := append(bytes.Clone(keys[len(keys)-1]), 0)
	b.deleteRange(lower, upper)
	b.deleteRange(appendBodyKey(nil, lower), appendBodyKey(nil, upper))
	return s.apply(b), nil
}

// deleteInMemory deletes a key of which memory has a value. Store.mu is held.
func (s *Store) deleteInMemory(b *builder, key []byte) {
	if len(s.memory(maphash.Bytes(s.seed, key), key)) > 0 {
		b.delete(key)
	}
}

// flushNow waits until the engine has all that is in memory when it is called.
// When it fails, that is in the log all the same, and reaches the engine later.
func (s *Store) flushNow(ctx context.Context) error {
	target := s.newestMemtable()
	for target != nil {
		s.mu.Lock()
		if s.mu.front.active == target {
			s.freeze()
		}
		next := target
		if s.mu.front.active == target { // there is no room for it yet
			next = s.mu.front.frozen[0]
		}
		s.mu.Unlock()
		select {
		case <-next.flushed:
		case <-s.closing:
			return fmt.Errorf("write out what was purged: %w: the store is closed", storage.ErrUnknown)
		case <-ctx.Done():
			return fmt.Errorf("write out what was purged: %w: %w", storage.ErrUnknown, context.Cause(ctx))
		}
		if next == target {
			return nil
		}
	}
	return nil
}

// newestMemtable is the newest one that holds anything; nil when none does.
func (s *Store) newestMemtable() *memtable {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.mu.front
	switch n := len(f.frozen); {
	case f.active.meta.seq != 0:
		return f.active
	case n > 0:
		return f.frozen[n-1]
	}
	return nil
}
