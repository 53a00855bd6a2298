package pebble

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// fenceReserve is how far ahead of the clock the fence ceiling is reserved. A
// store that comes back begins above the ceiling, so not even a fence that was
// given out and never acknowledged is given out again.
const fenceReserve = time.Minute

// frameOpsMax bounds the operations of several commits in one frame.
const frameOpsMax = 4 << 20

// opsKept is the largest buffer of operations that is used again.
const opsKept = 4 << 20

// commit is what one call wrote, on its way to the disk.
type commit struct {
	meta
	ops  []byte        // taken back by the syncer once they are in the log
	done chan struct{} // closed when the log is durable, or failed
	err  error         // set before done is closed
}

// builder collects the writes of one call; it is used under Store.mu only.
type builder struct {
	ops []byte
	now claim.Time
	top claim.Fence // largest fence written
	// forced: commit even when nothing was written.
	forced bool
	body   []byte
}

var builders = sync.Pool{New: func() any { return new(builder) }}

func newBuilder(now claim.Time) *builder {
	b := builders.Get().(*builder)
	b.ops, b.now, b.top, b.forced = b.ops[:0], now, 0, false
	return b
}

// drop gives up what was built.
func (b *builder) drop() { builders.Put(b) }

// put writes a record over what is stored under key. old is nil for a new key.
func (b *builder) put(key []byte, rec, old *claim.Record, oldBodyAside bool) {
	aside := rec.Completion != nil && len(rec.Completion.Body) > inlineBodyMax
	if aside || oldBodyAside {
		b.body = appendBodyKey(b.body[:0], key)
	}
	if aside {
		start := len(b.ops)
		b.ops = append(beginOp(b.ops, opBody, 0, b.body), rec.Completion.Body...)
		endOp(b.ops, start)
	} else if oldBodyAside {
		b.delete(b.body)
	}
	kind, bucket := byte(opRecord), bucketOf(rec.ExpiresAt)
	if old == nil || bucketOf(old.ExpiresAt) != bucket {
		kind = opRecordDue
	}
	start := len(b.ops)
	b.ops = appendRecord(beginOp(b.ops, kind, bucket, key), rec, aside)
	endOp(b.ops, start)
	b.top = max(b.top, rec.Fence)
}

func (b *builder) delete(key []byte) { b.ops = beginOp(b.ops, opDelete, 0, key) }

func (b *builder) deleteRange(from, to []byte) {
	start := len(b.ops)
	b.ops = append(beginOp(b.ops, opDeleteRange, 0, from), to...)
	endOp(b.ops, start)
}

// lockToWrite takes Store.mu once there is room for more writes.
func (s *Store) lockToWrite(ctx context.Context) error {
	s.mu.Lock()
	full := func() bool { return s.mu.front.active.bytes >= int64(s.cfg.MemTableBytes) }
	if full() || s.wal.wantsFlush.Load() {
		s.freeze()
	}
	if !full() {
		return nil
	}
	wake := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.room.Broadcast()
	})
	defer wake()
	for full() {
		if s.isClosing() {
			s.mu.Unlock()
			return storage.ErrClosed
		}
		if err := errors.Join(s.mu.flushFailed, context.Cause(ctx)); err != nil {
			s.mu.Unlock()
			return fmt.Errorf("memory is full and is not written out: %w: %w", storage.ErrUnavailable, err)
		}
		s.room.Wait()
		s.freeze()
	}
	return nil
}

// apply makes the builder's writes visible and queues them for the disk. It is
// called under Store.mu and takes the builder back. A nil commit means that
// nothing was written.
func (s *Store) apply(b *builder) *commit {
	defer builders.Put(b)
	if len(b.ops) == 0 && !b.forced {
		return nil
	}
	m := meta{seq: s.mu.last.seq + 1, hwm: b.now, ceil: s.reserve(b)}
	c := &commit{meta: m, ops: b.ops, done: make(chan struct{})}
	b.ops = s.syncer.buffer()
	s.mu.last = m
	if !s.mu.front.active.add(c.ops) {
		s.cfg.Fatal("a commit that was just built cannot be read")
	}
	s.mu.front.active.meta = m
	s.syncer.last.Store(c)
	s.syncer.enqueue(c)
	return c
}

// reserve returns a ceiling above every fence of this commit and before.
func (s *Store) reserve(b *builder) claim.Fence {
	ceil := s.mu.last.ceil
	if top := max(b.top, claim.Fence(b.now)); top >= ceil {
		ceil = max(top, s.mu.floor) + claim.Fence(fenceReserve/time.Microsecond)
	}
	return ceil
}

// durable waits until c, or all that was visible when nothing was written, is
// on disk. An answer may depend on nothing less.
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

// latest is the commit that an answer made of reads has to wait for.
func (s *Store) latest(c *commit) *commit {
	if last := s.syncer.last.Load(); last != nil && last.seq > s.syncer.synced.Load() {
		return last
	}
	return c
}

// beat commits nothing but clock and sequence: it shows that the disk still
// answers and carries the clock's high-water mark.
func (s *Store) beat(ctx context.Context) error {
	s.life.RLock()
	defer s.life.RUnlock()
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.lockToWrite(ctx); err != nil {
		return err
	}
	now, _ := s.clock.now()
	b := newBuilder(now)
	b.forced = true
	c := s.apply(b)
	s.mu.Unlock()
	<-c.done
	return c.err
}

// syncer is the goroutine that writes the log and waits for the disk. While it
// syncs, further commits queue up and share the next sync.
type syncer struct {
	wal     *wal
	last    atomic.Pointer[commit]
	synced  atomic.Uint64
	fatal   func(string)
	buffers sync.Pool
	wake    chan struct{}
	ended   chan struct{}

	mu struct {
		sync.Mutex
		queue   []*commit
		stopped bool
	}
}

func (y *syncer) start(s *Store) {
	y.wal, y.fatal = s.wal, s.cfg.Fatal
	y.wake, y.ended = make(chan struct{}, 1), make(chan struct{})
	y.synced.Store(s.mu.last.seq)
	go y.run()
}

// buffer returns memory for the operations of a commit to come.
func (y *syncer) buffer() []byte {
	if b, ok := y.buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return nil
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

// sync makes a group durable and wakes those who wait for it.
func (y *syncer) sync(group []*commit) {
	for len(group) > 0 {
		n, size := 1, len(group[0].ops)
		for n < len(group) && size+len(group[n].ops) <= frameOpsMax {
			size += len(group[n].ops)
			n++
		}
		y.syncFrame(group[:n])
		group = group[n:]
	}
}

func (y *syncer) syncFrame(group []*commit) {
	err := y.wal.write(group)
	if err != nil {
		y.fatal(err.Error())
		err = errors.Join(storage.ErrUnknown, err)
	}
	for _, c := range group {
		if c.err = err; err == nil {
			y.synced.Store(c.seq)
		}
		if ops := c.ops; cap(ops) <= opsKept {
			y.buffers.Put(&ops)
		}
		c.ops = nil
		close(c.done)
	}
}

// stop syncs what is queued and closes the log.
func (y *syncer) stop() error {
	y.mu.Lock()
	y.mu.stopped = true
	y.mu.Unlock()
	y.signal()
	<-y.ended
	return y.wal.close()
}
