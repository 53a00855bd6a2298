package pebble

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// fenceReserve is how far ahead of the clock the fence ceiling is reserved. A
// store that comes back begins above the ceiling, so not even a fence that was
// given out and never acknowledged is given out again.
const fenceReserve = time.Minute

// commit is one batch on its way to the disk.
type commit struct {
	meta
	batch *pebble.Batch
	repr  []byte
	done  chan struct{} // closed when both logs are durable, or failed
	err   error         // set before done is closed
}

// builder collects the writes of one call; it is used under Store.mu only.
type builder struct {
	batch *pebble.Batch
	now   claim.Time
	top   claim.Fence // largest fence written
	value []byte
	body  []byte
	index []indexEntry
}

var builders = sync.Pool{New: func() any { return new(builder) }}

func (s *Store) newBuilder(now claim.Time) *builder {
	b := builders.Get().(*builder)
	b.now, b.top, b.index = now, 0, b.index[:0]
	return b
}

// writes returns the builder's batch, made when the first write is.
func (s *Store) writes(b *builder) *pebble.Batch {
	if b.batch == nil {
		b.batch = s.db.NewBatch()
	}
	return b.batch
}

// put writes a record over what is stored under key. old is nil for a new key.
func (s *Store) put(b *builder, key []byte, rec, old *claim.Record, oldBodyAside bool) error {
	batch := s.writes(b)
	aside := rec.Completion != nil && len(rec.Completion.Body) > inlineBodyMax
	b.value = appendRecord(b.value[:0], rec, aside)
	if err := batch.Set(key, b.value, nil); err != nil {
		return err
	}
	if aside || oldBodyAside {
		b.body = appendBodyKey(b.body[:0], key)
	}
	if aside {
		if err := batch.Set(b.body, rec.Completion.Body, nil); err != nil {
			return err
		}
	} else if oldBodyAside {
		if err := batch.Delete(b.body, nil); err != nil {
			return err
		}
	}
	s.recent.put(key, rec)
	b.top = max(b.top, rec.Fence)
	if bucket := bucketOf(rec.ExpiresAt); old == nil || bucketOf(old.ExpiresAt) != bucket {
		b.indexed(bucket, key)
	}
	return nil
}

// indexed notes that the record under key expires in bucket. Few buckets occur
// in one batch: one for each retention in use.
func (b *builder) indexed(bucket int64, key []byte) {
	for i := range b.index {
		if b.index[i].bucket == bucket {
			b.index[i].add(key)
			return
		}
	}
	n := len(b.index)
	if n < cap(b.index) {
		b.index = b.index[:n+1]
	} else {
		b.index = append(b.index, indexEntry{})
	}
	e := &b.index[n]
	e.bucket, e.last, e.data = bucket, e.last[:0], e.data[:0]
	e.add(key)
}

// apply makes the builder's writes visible and queues them for the disk. It is
// called under Store.mu and takes the builder back. A nil commit means that
// nothing was written.
func (s *Store) apply(b *builder) (*commit, error) {
	defer builders.Put(b)
	batch := b.batch
	b.batch = nil
	if batch == nil {
		return nil, nil
	}
	seq := s.mu.seq + 1
	m := meta{seq: seq, hwm: b.now, ceil: s.reserve(b)}
	err := batch.Set(metaKey, m.append(b.value[:0]), nil)
	for i := range b.index {
		err = errors.Join(err, batch.Set(indexKey(b.index[i].bucket, seq), b.index[i].data, nil))
	}
	if err != nil {
		s.recent.clear()
		return nil, errors.Join(s.failed("write", err), batch.Close())
	}
	s.mu.seq = seq
	c := &commit{meta: m, batch: batch, done: make(chan struct{})}
	// The engine may take the batch's memory with it: the tail's copy is made
	// before, and readers learn of the commit before they can see its writes.
	c.repr = s.syncer.copy(batch.Repr())
	s.syncer.last.Store(c)
	if err := s.db.ApplyNoSyncWait(batch, pebble.Sync); err != nil {
		// The engine has not taken the batch, but its number is used up. The
		// two logs would part ways: end here.
		s.cfg.Fatal(fmt.Sprintf("apply batch %d: %v", seq, err))
		return nil, storage.ErrUnknown
	}
	s.syncer.enqueue(c)
	return c, nil
}

// reserve returns a ceiling above every fence of this batch and before.
func (s *Store) reserve(b *builder) claim.Fence {
	if top := max(b.top, claim.Fence(b.now)); top >= s.mu.ceil {
		s.mu.ceil = max(top, s.mu.floor) + claim.Fence(fenceReserve/time.Microsecond)
	}
	return s.mu.ceil
}

// durable waits until c, or all that was visible when nothing was written, is
// on disk in both logs. An answer may depend on nothing less.
func (s *Store) durable(ctx context.Context, c *commit) error {
	if c == nil {
		if c = s.syncer.last.Load(); c == nil || c.seq <= s.syncer.synced.Load() {
			return nil
		}
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the disk: %w: %w", storage.ErrUnknown, context.Cause(ctx))
	}
}

// beat commits a batch of nothing but clock and sequence: it shows that the
// disk still answers and carries the clock's high-water mark.
func (s *Store) beat() error {
	s.life.RLock()
	defer s.life.RUnlock()
	if err := s.usable(); err != nil {
		return err
	}
	s.mu.Lock()
	now, _ := s.clock.now()
	b := s.newBuilder(now)
	s.writes(b)
	c, err := s.apply(b)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	<-c.done
	return c.err
}

// syncer is the goroutine that writes the tail and waits for the disk. While
// it syncs, further commits queue up and share the next sync.
type syncer struct {
	tail   *tailLog
	last   atomic.Pointer[commit]
	synced atomic.Uint64
	fatal  func(string)
	reprs  sync.Pool
	wake   chan struct{}
	ended  chan struct{}

	mu struct {
		sync.Mutex
		queue   []*commit
		stopped bool
	}
}

func (y *syncer) start(s *Store, tail *tailLog) {
	y.tail, y.fatal = tail, s.cfg.Fatal
	y.wake, y.ended = make(chan struct{}, 1), make(chan struct{})
	y.synced.Store(s.mu.seq)
	go y.run()
}

// copy returns the tail's own copy of a batch, in memory that is used again.
func (y *syncer) copy(repr []byte) []byte {
	if b, ok := y.reprs.Get().(*[]byte); ok {
		return append((*b)[:0], repr...)
	}
	return append([]byte(nil), repr...)
}

func (y *syncer) enqueue(c *commit) {
	y.mu.Lock()
	y.mu.queue = append(y.mu.queue, c)
	y.mu.Unlock()
	y.signal()
}

func (y *syncer) signal() {
	select {
	case y.wake <- struct{}{}:
	default:
	}
}

func (y *syncer) run() {
	defer close(y.ended)
	var group []*commit
	for range y.wake {
		y.mu.Lock()
		group, y.mu.queue = y.mu.queue, group[:0]
		stopped := y.mu.stopped
		y.mu.Unlock()
		y.sync(group)
		clear(group)
		if stopped {
			return
		}
	}
}

// sync makes a group durable in both logs and wakes those who wait for it. The
// engine has been syncing its own log since the batches were applied.
func (y *syncer) sync(group []*commit) {
	for _, c := range group {
		y.tail.append(c.meta, c.repr)
	}
	err := y.tail.write()
	if err != nil {
		y.fatal(err.Error())
	}
	for _, c := range group {
		if c.err = errors.Join(err, c.batch.SyncWait()); c.err != nil {
			c.err = errors.Join(storage.ErrUnknown, c.err)
		} else {
			y.synced.Store(c.seq)
		}
		c.err = errors.Join(c.err, c.batch.Close())
		repr := c.repr
		c.batch, c.repr = nil, nil
		y.reprs.Put(&repr) // whoever gets it owns it: c must not point to it any more
		close(c.done)
	}
}

// stop syncs what is queued and closes the tail.
func (y *syncer) stop() error {
	y.mu.Lock()
	y.mu.stopped = true
	y.mu.Unlock()
	y.signal()
	<-y.ended
	return y.tail.close()
}
