// Package pebble is the embedded driver: claims of one process on one disk, in
// CockroachDB's storage engine. It keeps the whole contract of package storage;
// it refuses to be opened twice, to start on damage, and to acknowledge what is
// not durable twice over.
//
// A write goes to the log (wal.go) and to memory (memtable.go), and from there,
// many at once, as a table to the engine (flush.go). A start replays what the
// engine has not got yet (replay.go, recover.go).
package pebble

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Defaults of Config.
const (
	CacheBytesDefault      = 128 << 20
	MemTableBytesDefault   = 64 << 20
	StallMaxDefault        = 2 * time.Second
	FreeClaimsMinDefault   = 1 << 30
	FreeBodiesMinDefault   = 256 << 20
	FilterKeysMinDefault   = 1 << 20
	FilterBytesMaxDefault  = 1 << 30
	LogSegmentBytesDefault = 64 << 20
)

// memTableBytesMax keeps what a memtable holds within the reach of its refs.
const memTableBytesMax = 1 << 30

// Config says where a store lives and how it behaves. Zero values mean the
// defaults.
type Config struct {
	// Dir holds everything of the store. Required; created when missing.
	Dir string
	// FS is the file system; the operating system's when nil.
	FS vfs.FS
	// Clock is the wall clock. Required.
	Clock func() time.Time
	// Monotonic is time elapsed since any fixed moment of this process; with it
	// a wall clock that jumps ahead is noticed. Nil turns that off.
	Monotonic func() time.Duration
	// Logger takes what an operator should know. Discarded when nil.
	Logger *slog.Logger
	// SweepGrace is how long expired records are kept before a sweep may delete
	// them. claim.SweepGrace when 0.
	SweepGrace time.Duration
	// CacheBytes bounds the block cache. MemTableBytes is how much is written
	// before it goes to the engine; up to frozenMax+1 times as much is in memory
	// while that takes its time.
	CacheBytes    int64
	MemTableBytes uint64
	// LogSegmentBytes is the size of a full-grown segment of the log. Everything
	// is in it twice; as many exist as hold what is in memory, and two more.
	LogSegmentBytes int64
	// NoFilter turns the negative-lookup filter off: every claim reads first.
	NoFilter bool
	// FilterKeysMin is the least capacity of the filter, in keys of 1.25 bytes
	// each; it grows by three fifths of the keys when it is full. FilterBytesMax
	// bounds its memory: a fuller filter only costs reads.
	FilterKeysMin  int64
	FilterBytesMax int64
	// StallMax is how long a sync may take before the store counts as stalled
	// and answers ErrUnavailable.
	StallMax time.Duration
	// FreeClaimsMin and FreeBodiesMin are the free bytes under which new claims
	// are refused, and under which result bodies are dropped.
	FreeClaimsMin uint64
	FreeBodiesMin uint64
	// Fatal is called when the engine cannot go on after an I/O error; it must
	// end the process. It panics when nil, on a goroutine of the store's own.
	Fatal func(message string)

	// hooks let tests stop at the places where races live.
	hooks hooks
}

// hooks are called, where set, at the named places.
type hooks struct {
	sweepFound func() // between finding candidates and deleting them
	adminRead  func() // between the revision of the registry and its rows
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	setDefault(&c.SweepGrace, claim.SweepGrace)
	setDefault(&c.CacheBytes, CacheBytesDefault)
	setDefault(&c.MemTableBytes, MemTableBytesDefault)
	setDefault(&c.StallMax, StallMaxDefault)
	setDefault(&c.FreeClaimsMin, FreeClaimsMinDefault)
	setDefault(&c.FreeBodiesMin, FreeBodiesMinDefault)
	setDefault(&c.LogSegmentBytes, LogSegmentBytesDefault)
	setDefault(&c.FilterKeysMin, FilterKeysMinDefault)
	setDefault(&c.FilterBytesMax, FilterBytesMaxDefault)
	if c.Fatal == nil {
		c.Fatal = func(message string) { panic("the store cannot go on: " + message) }
	}
	return c
}

func setDefault[T int | int64 | uint64 | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

func (c Config) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("pebble: Dir is required"))
	}
	if c.Clock == nil {
		errs = append(errs, errors.New("pebble: Clock is required"))
	}
	if c.SweepGrace < 0 {
		errs = append(errs, errors.New("pebble: SweepGrace is negative"))
	}
	if n := c.LogSegmentBytes; n != 0 && (n < logSegmentBytesMin || n%blockBytes != 0) {
		errs = append(errs, fmt.Errorf("pebble: LogSegmentBytes is not a multiple of %d and at least %d", blockBytes, logSegmentBytesMin))
	}
	if c.MemTableBytes > memTableBytesMax {
		errs = append(errs, fmt.Errorf("pebble: MemTableBytes exceeds %d", memTableBytesMax))
	}
	if c.FreeBodiesMin > c.FreeClaimsMin {
		errs = append(errs, errors.New("pebble: FreeBodiesMin exceeds FreeClaimsMin: claims must be refused first"))
	}
	return errors.Join(errs...)
}

// Store implements storage.Store on one directory.
type Store struct {
	cfg   Config
	db    *pebble.DB
	opts  *pebble.Options // of db
	lock  *pebble.Lock
	wal   *wal
	seed  maphash.Seed // of this process: nobody can craft collisions
	clock clock

	// mu serialises what reads and then writes, from the filter's test until
	// the write is visible. Nothing waits for the disk under it.
	mu struct {
		sync.Mutex
		front       front
		last        meta        // last commit
		floor       claim.Fence // new fences are at least this
		flushFailed error       // the last flush failed with it
	}
	room    sync.Cond // a memtable was flushed, or could not be; on mu
	filter  filter
	syncer  syncer
	flusher flusher
	gate    gate
	admin   chan struct{} // holds a token while somebody writes to the registry
	damage  atomic.Pointer[error]
	life    sync.RWMutex  // held for reading by every call; Close takes it
	once    sync.Once     // Close happens once
	closing chan struct{} // closed when Close begins
}

var _ storage.Store = (*Store)(nil)

// Run does the store's work in the background until ctx ends: it builds and
// rebuilds the filter and watches the disk. It returns nil when ctx ends, and
// an error when the store must not be used further.
func (s *Store) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	fail := make(chan error, 2)
	for _, work := range []func(context.Context) error{s.runFilter, s.runWatch} {
		wg.Go(func() {
			if err := work(ctx); err != nil {
				fail <- err
				cancel(err)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-fail:
		return err
	default:
		return nil
	}
}

// Ready reports whether the store would take a claim now.
func (s *Store) Ready(context.Context) error {
	if err := s.usable(); err != nil {
		return err
	}
	if s.gate.refusesClaims() {
		return storage.ErrFull
	}
	return nil
}

func (s *Store) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// usable reports why the store cannot be asked at all, if so.
func (s *Store) usable() error {
	if s.isClosing() {
		return storage.ErrClosed
	}
	if err := s.damage.Load(); err != nil {
		return *err
	}
	if s.gate.stalled.Load() {
		return fmt.Errorf("disk is stalled: %w", storage.ErrUnavailable)
	}
	return nil
}

// enter admits a call. Unless it fails, the caller leaves with s.life.RUnlock;
// Close waits for that.
func (s *Store) enter(ctx context.Context, items int) error {
	if items > claim.BatchItemsMax {
		return storage.ErrBatchTooLarge
	}
	if err := ctx.Err(); err != nil {
		return errors.Join(storage.ErrUnavailable, err)
	}
	s.life.RLock()
	if err := s.usable(); err != nil {
		s.life.RUnlock()
		return err
	}
	return nil
}

// failed translates an error of the engine. Damage is remembered: nothing is
// answered from a damaged store.
func (s *Store) failed(action string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pebble.ErrClosed):
		return storage.ErrClosed
	case pebble.IsCorruptionError(err), errors.Is(err, errBadRecord), errors.Is(err, errBadKey):
		return s.damaged(fmt.Errorf("%s: %w: %w", action, storage.ErrDamaged, err))
	}
	return fmt.Errorf("%s: %w: %w", action, storage.ErrUnavailable, err)
}

func (s *Store) damaged(err error) error {
	if s.damage.CompareAndSwap(nil, &err) {
		s.cfg.Logger.Error("the store is damaged and answers nothing more; restore it from a backup", "cause", err)
	}
	return err
}

// ConfirmClock makes a suspect clock trusted: an operator says it is right.
func (s *Store) ConfirmClock() { s.clock.Confirm() }

// Stats returns counters that cost no scan.
func (s *Store) Stats(context.Context) (storage.Stats, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.isClosing() {
		return storage.Stats{}, storage.ErrClosed
	}
	_, suspect := s.clock.now()
	m := s.db.Metrics()
	return storage.Stats{
		Engine: "pebble", Shards: 1, SweepGrace: s.cfg.SweepGrace, ClockSuspect: suspect,
		RecordsEstimate: s.filter.keys(), DiskBytes: int64(m.DiskSpaceUsage()) + s.wal.bytes(), Filter: s.filter.stats(),
	}, nil
}

// Close waits for calls under way and closes the store. Everything
// acknowledged is durable already; closing only frees it for the next process.
func (s *Store) Close() error {
	err := storage.ErrClosed
	s.once.Do(func() {
		close(s.closing)
		s.mu.Lock()
		s.room.Broadcast()
		s.mu.Unlock()
		s.life.Lock()
		defer s.life.Unlock()
		err = errors.Join(s.stop(), s.lock.Close())
	})
	return err
}

func (s *Store) stop() error {
	err := s.syncer.stop()
	s.flusher.stop()
	return errors.Join(err, s.db.Close())
}
