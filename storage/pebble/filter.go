package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bits-and-blooms/bloom/v3"
	"github.com/cockroachdb/pebble/v2"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

const (
	filterBitsPerKey = 10 // with filterHashes: 0.84 % false positives when full
	filterHashes     = 6
	// auditEvery: one in so many negatives is read all the same. A hit is
	// corruption.
	auditEvery = 1024
	// rebuildRetry is how long to wait after a rebuild that failed.
	rebuildRetry = 10 * time.Second
)

// filter is the completeness filter: it knows every stored key, so that a key
// it has never seen needs no read. A false negative would be corruption, so it
// is used only once built from a full scan, every key enters it before it is
// written, and a generation is replaced only by one that was built from a full
// scan while writes entered both. Its bits are guarded by Store.mu; counters
// are atomic. What enters is the hash of a key with the seed of this process, so
// that nobody can craft collisions.
type filter struct {
	off     bool
	keysMin int64
	bitsMax uint64

	// Guarded by Store.mu.
	current *bloom.BloomFilter // nil: not ready
	next    *bloom.BloomFilter // being built; writes enter it too
	full    int64              // keys at which the generation in use is full

	isReady        atomic.Bool
	count          atomic.Int64 // keys in the filter; deleted ones too
	size           atomic.Int64 // bytes
	grow           chan struct{}
	skipped        atomic.Int64
	maybe          atomic.Int64
	falsePositives atomic.Int64
	audited        atomic.Int64
	auditHit       atomic.Int64
	rebuilds       atomic.Int64
	building       sync.Mutex // one rebuild at a time
}

// init prepares the filter; that of an empty store is complete as it is.
func (f *filter) init(cfg Config, empty bool) {
	f.off = cfg.NoFilter
	f.keysMin = cfg.FilterKeysMin
	f.bitsMax = uint64(cfg.FilterBytesMax) * 8
	f.grow = make(chan struct{}, 1)
	if empty && !f.off {
		f.install(f.newGeneration(f.keysMin), f.keysMin, 0)
	}
}

func (f *filter) newGeneration(keys int64) *bloom.BloomFilter {
	return bloom.New(uint(min(uint64(keys)*filterBitsPerKey, f.bitsMax)), filterHashes)
}

// install replaces the generation in use. Store.mu is held.
func (f *filter) install(b *bloom.BloomFilter, capacity, count int64) {
	f.current, f.full = b, capacity
	f.count.Store(count)
	f.size.Store(int64(b.Cap() / 8))
	f.isReady.Store(true)
}

func (f *filter) ready() bool { return f.current != nil }

// entry is what stands for a key in the filter.
func entry(hash uint64) []byte { return binary.LittleEndian.AppendUint64(make([]byte, 0, 8), hash) }

// test adds a key by its hash and reports whether it may have been there before,
// and whether a negative is due for an audit.
func (f *filter) test(hash uint64) (seen, audit bool) {
	data := entry(hash)
	if seen = f.current.TestAndAdd(data); seen {
		return true, false
	}
	if f.next != nil {
		f.next.Add(data)
	}
	f.added()
	return false, f.skipped.Add(1)%auditEvery == 0
}

// add enters a key that is about to be written.
func (f *filter) add(hash uint64) {
	if f.current == nil && f.next == nil {
		return
	}
	data := entry(hash)
	if f.current != nil && !f.current.TestAndAdd(data) {
		f.added()
	}
	if f.next != nil {
		f.next.Add(data)
	}
}

func (f *filter) added() {
	if f.count.Add(1) == f.full && uint64(f.current.Cap()) < f.bitsMax {
		select {
		case f.grow <- struct{}{}:
		default:
		}
	}
}

func (f *filter) passed(maybe, absent int) {
	f.maybe.Add(int64(maybe))
	f.falsePositives.Add(int64(absent))
}

func (f *filter) keys() int64 {
	if !f.isReady.Load() {
		return -1
	}
	return f.count.Load()
}

func (f *filter) stats() storage.FilterStats {
	keys, size := f.count.Load(), f.size.Load()
	var fill float64
	if size > 0 {
		// Expected share of bits set; counting them would touch all memory.
		fill = 1 - math.Pow(1-1/float64(size*8), float64(keys*filterHashes))
	}
	return storage.FilterStats{
		Ready: f.isReady.Load(), Keys: keys, Bytes: size, Fill: fill,
		Skipped: f.skipped.Load(), Passed: f.maybe.Load(), FalsePositives: f.falsePositives.Load(),
		Audited: f.audited.Load(), AuditHits: f.auditHit.Load(), Rebuilds: f.rebuilds.Load(),
	}
}

// audit reads a key that the filter has never seen. Store.mu is held.
func (s *Store) audit(hash uint64, key []byte) error {
	s.filter.audited.Add(1)
	var rec claim.Record
	if _, err := s.readLocked(hash, key, claim.Key{}, &rec); err != nil {
		return err
	}
	if rec.State == claim.Absent {
		return nil
	}
	s.filter.auditHit.Add(1)
	s.filter.current = nil
	s.filter.isReady.Store(false)
	s.cfg.Logger.Error("the filter denied a stored key; it is dropped and rebuilt, and keys may have been granted twice since the last rebuild")
	select {
	case s.filter.grow <- struct{}{}:
	default:
	}
	return fmt.Errorf("filter audit: %w", storage.ErrUnavailable)
}

// runFilter builds the filter when it is not ready and rebuilds it, larger,
// when it is full.
func (s *Store) runFilter(ctx context.Context) error {
	if s.filter.off {
		<-ctx.Done()
		return nil
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.closing:
			return nil
		case <-s.filter.grow:
		case <-retry.C:
			if s.filter.isReady.Load() && !failed {
				continue
			}
		}
		err := s.RebuildFilter(ctx)
		failed = err != nil
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, storage.ErrClosed):
		case errors.Is(err, storage.ErrDamaged):
			return err
		default:
			s.cfg.Logger.Warn("filter rebuild failed; trying again", "cause", err)
			retry.Reset(rebuildRetry)
		}
	}
}

// RebuildFilter builds the filter anew from a full scan while writes enter both
// generations, and then puts it in place of the old one.
func (s *Store) RebuildFilter(ctx context.Context) error {
	f := &s.filter
	f.building.Lock()
	defer f.building.Unlock()
	known := f.count.Load()
	if !f.isReady.Load() {
		known = s.estimateRecords()
	}
	// No more than 2 bytes for a key that is there, and as much room as that
	// gives: each rebuild reads every key.
	capacity := max(f.keysMin, known*8/5)
	next := f.newGeneration(capacity)
	s.mu.Lock()
	f.next = next
	s.mu.Unlock()
	count, err := s.fillFilter(ctx, next)
	s.mu.Lock()
	defer s.mu.Unlock()
	f.next = nil
	if err != nil {
		return err
	}
	f.install(next, capacity, count)
	f.rebuilds.Add(1)
	if count > capacity { // it outgrew its room while it was built
		f.count.Store(capacity - 1)
		f.added()
		f.count.Store(count)
	}
	return nil
}

// estimateRecords guesses how many records there are before anybody has
// counted them: what the tables hold, versions that are not compacted yet
// included. Too many costs memory until the next rebuild, too few a second scan.
func (s *Store) estimateRecords() (n int64) {
	levels, err := s.db.SSTables(pebble.WithProperties())
	if err != nil {
		s.cfg.Logger.Warn("tables cannot be counted; the filter may be built twice", "cause", err)
		return 0
	}
	for _, tables := range levels {
		for i := range tables {
			if p := tables[i].Properties; p != nil {
				n += int64(p.NumEntries) - 2*int64(p.NumDeletions)
			}
		}
	}
	return max(n, 0)
}

// scanChunk is how many keys enter the new generation under one hold of
// Store.mu, which its bits need.
const scanChunk = 256

func (s *Store) fillFilter(ctx context.Context, next *bloom.BloomFilter) (count int64, err error) {
	chunk := make([]uint64, 0, scanChunk)
	flush := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, hash := range chunk {
			next.Add(entry(hash))
		}
		count += int64(len(chunk))
		chunk = chunk[:0]
	}
	err = s.scanKeys(ctx, func(key []byte) error {
		if chunk = append(chunk, maphash.Bytes(s.seed, key)); len(chunk) == scanChunk {
			flush()
		}
		return nil
	})
	flush()
	return count, err
}

// scanKeys calls each with every record key. Reading through the whole store
// also finds damage that nobody has read yet.
func (s *Store) scanKeys(ctx context.Context, each func(key []byte) error) (err error) {
	if err := s.enter(ctx, 0); err != nil {
		return err
	}
	defer s.life.RUnlock()
	v, err := s.view(ctx, recordLower, recordUpper)
	if err != nil {
		return s.failed("scan", err)
	}
	defer func() { err = errors.Join(err, s.failed("scan", v.close())) }()
	for n := 1; v.next(); n++ {
		if n%scanChunk == 0 {
			if err := s.interrupted(ctx); err != nil {
				return err
			}
		}
		if err := each(v.key); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) interrupted(ctx context.Context) error {
	if s.isClosing() {
		return storage.ErrClosed
	}
	return ctx.Err()
}

// Scan implements storage.Store.
func (s *Store) Scan(ctx context.Context, each func(claim.Key) error) error {
	return s.scanKeys(ctx, func(encoded []byte) error {
		key, err := parseRecordKey(encoded)
		if err != nil {
			return s.failed("scan", err)
		}
		return each(key)
	})
}
