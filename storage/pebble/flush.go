package pebble

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
)

const (
	// frozenMax is how many memtables may wait to be written out. Writers wait
	// when the active one is full as well.
	frozenMax = 3
	// sublevelsMax is how many tables may lie over each other in the engine's
	// first level before flushes wait for compactions: each costs every read.
	sublevelsMax = 24
	// compactionWait is how long one flush waits for that. It goes on then: where
	// compactions fail, it is what starts them again.
	compactionWait = 2 * time.Second
	// flushRetry is how long to wait after a flush that failed.
	flushRetry = time.Second
)

// flushName is the table under way; the engine takes it over.
const flushName = "flush.sst"

// freeze begins a new memtable and hands the old one to the flusher, unless
// there is nothing in it or too many are waiting. Store.mu is held.
func (s *Store) freeze() {
	f := &s.mu.front
	if f.active.meta.seq == 0 || len(f.frozen) >= frozenMax {
		return
	}
	s.wal.wantsFlush.Store(false)
	f.frozen = append(f.frozen, f.active)
	f.active = newMemtable(s.seed)
	s.flusher.signal()
}

// flusher is the goroutine that hands memtables over to the engine.
type flusher struct {
	wake      chan struct{}
	compacted chan struct{} // a compaction ended
	quit      chan struct{}
	ended     chan struct{}
}

func (f *flusher) init() {
	f.wake, f.compacted = make(chan struct{}, 1), make(chan struct{}, 1)
	f.quit, f.ended = make(chan struct{}), make(chan struct{})
}

func (f *flusher) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// stop ends the flusher. What it has not written out is in the log.
func (f *flusher) stop() {
	close(f.quit)
	<-f.ended
}

func (f *flusher) quits() bool {
	select {
	case <-f.quit:
		return true
	default:
		return false
	}
}

// sleep reports whether to go on after the flusher was idle for d.
func (f *flusher) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-f.quit:
		return false
	}
}

func (s *Store) runFlusher() {
	defer close(s.flusher.ended)
	for {
		select {
		case <-s.flusher.quit:
			return
		case <-s.flusher.wake:
		}
		for m := s.oldestFrozen(); m != nil && !s.flusher.quits(); m = s.oldestFrozen() {
			if !s.flushFrozen(m) {
				return
			}
		}
	}
}

func (s *Store) oldestFrozen() *memtable {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.front.frozen) == 0 {
		return nil
	}
	return s.mu.front.frozen[0]
}

// flushFrozen writes m out, as often as it takes, and reports whether to go on.
// The log may not have all of m yet: what the engine has is not replayed.
func (s *Store) flushFrozen(m *memtable) bool {
	if !s.waitForCompactions() {
		return false
	}
	segment := s.wal.holding(m.meta.seq)
	for {
		err := s.flush(m, segment)
		if err == nil {
			break
		}
		s.cfg.Logger.Error("memory cannot be written out; trying again", "cause", err)
		s.mu.Lock()
		s.mu.flushFailed = err
		s.room.Broadcast()
		s.mu.Unlock()
		if !s.flusher.sleep(flushRetry) {
			return false
		}
	}
	s.mu.Lock()
	s.mu.front.frozen = slices.Delete(s.mu.front.frozen, 0, 1)
	s.mu.flushFailed = nil
	s.room.Broadcast()
	s.mu.Unlock()
	close(m.flushed)
	if err := s.wal.flushed(segment); err != nil {
		s.cfg.Logger.Error("a part of the log that is no longer needed cannot be deleted; it is when the store is opened", "cause", err)
	}
	return true
}

// waitForCompactions holds a flush back while the engine's first level is too
// high, and reports whether to go on.
func (s *Store) waitForCompactions() bool {
	enough := time.NewTimer(compactionWait)
	defer enough.Stop()
	for s.db.Metrics().Levels[0].Sublevels >= sublevelsMax {
		select {
		case <-s.flusher.compacted:
		case <-enough.C:
			return true
		case <-s.flusher.quit:
			return false
		}
	}
	return true
}

// flushDue writes out all that is in memory if any of it expires in a bucket
// that is due: sweeps know only the engine's index.
func (s *Store) flushDue(ctx context.Context, due int64) error {
	for {
		s.mu.Lock()
		f := &s.mu.front
		if f.dueMin() > due {
			s.mu.Unlock()
			return nil
		}
		s.freeze()
		oldest := f.frozen[0]
		s.mu.Unlock()
		select {
		case <-oldest.flushed:
		case <-s.closing:
			return storage.ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("write out what is due: %w: %w", storage.ErrUnavailable, context.Cause(ctx))
		}
	}
}

// flush writes m into a table and hands that to the engine, together with how
// far the engine is then and with which segment the log goes on from there.
func (s *Store) flush(m *memtable, segment uint64) error {
	path := s.cfg.FS.PathJoin(s.cfg.Dir, flushName)
	f, err := s.cfg.FS.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), s.opts.MakeWriterOptions(0, s.db.TableFormat()))
	if err := errors.Join(writeTable(w, m, segment), w.Close()); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	if err := s.db.Ingest(context.Background(), []string{path}); err != nil {
		return s.failed("flush", err)
	}
	return nil
}
