// Package bloom chooses which trip to a store is made first. A filter over the
// keys that are stored says of a key "not seen" or "maybe": what was not seen
// is inserted, what may have been is read first and inserted only if it is
// absent.
//
// The filter is never an answer. Both trips end at the store's own uniqueness,
// so a wrong guess, in either direction, costs a trip and nothing else. That is
// also why it works with any store and any number of replicas, none of which
// knows what the others have written. Acting on "maybe" instead, as if it were
// "seen", would lose messages: at a false positive rate of 1 %, one in a
// hundred.
//
// Why read first at all: an insert that meets its key costs a store of several
// nodes a write path for nothing, and most keys that were seen are duplicates.
package bloom

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Filter guesses which keys are stored. Both methods are called concurrently.
type Filter interface {
	// MaybeHas says false for "not seen".
	MaybeHas(k claim.Key) bool
	// Add is told of a key that is stored.
	Add(k claim.Key)
}

// Defaults of Config.
const (
	CapacityDefault       = 1 << 20
	FalsePositivesDefault = 0.01
	MemoryDefault         = 64 << 20
	RetryAfterDefault     = 10 * time.Second
)

// Config of a Store.
type Config struct {
	Store storage.Store // required

	// Capacity is how many keys the filter is sized for at first. A rebuild
	// sizes it for what is stored, within MemoryMaxBytes. CapacityDefault.
	Capacity int
	// FalsePositives is the share of unseen keys that are read in vain while
	// the filter is within its capacity, between 0 and 1, both excluded.
	// FalsePositivesDefault.
	FalsePositives float64
	// MemoryMaxBytes bounds the filter in all: a rebuild holds two generations,
	// so one has half of it. Beyond what fits, false positives rise.
	// MemoryDefault.
	MemoryMaxBytes int64
	// TenantShareMax is the share of the capacity that keys of one tenant may
	// take, above 0 and at most 1. The tenant's further keys count as not seen:
	// it cannot spoil the filter for others. 1 by default: no bound.
	TenantShareMax float64
	// RetryAfter is the pause after a rebuild that failed. RetryAfterDefault.
	RetryAfter time.Duration

	// Filter replaces the one built in; then nothing is rebuilt.
	Filter Filter
	Logger *slog.Logger // nil: no log
}

func (c Config) withDefaults() (Config, error) {
	if c.Capacity == 0 {
		c.Capacity = CapacityDefault
	}
	if c.FalsePositives == 0 {
		c.FalsePositives = FalsePositivesDefault
	}
	if c.MemoryMaxBytes == 0 {
		c.MemoryMaxBytes = MemoryDefault
	}
	if c.TenantShareMax == 0 {
		c.TenantShareMax = 1
	}
	if c.RetryAfter == 0 {
		c.RetryAfter = RetryAfterDefault
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("bloom: "+format, args...))
		}
	}
	check(c.Store != nil, "Store is required")
	check(c.Capacity > 0, "Capacity %d is not positive", c.Capacity)
	check(c.FalsePositives > 0 && c.FalsePositives < 1, "FalsePositives %v is not between 0 and 1", c.FalsePositives)
	check(c.MemoryMaxBytes >= memoryMin, "MemoryMaxBytes %d is below %d", c.MemoryMaxBytes, memoryMin)
	check(c.TenantShareMax > 0 && c.TenantShareMax <= 1, "TenantShareMax %v is not above 0 and at most 1", c.TenantShareMax)
	check(c.RetryAfter > 0, "RetryAfter %v is not positive", c.RetryAfter)
	return c, errors.Join(faults...)
}

// Store is a storage.Store that chooses which trip of InsertOrGet is made
// first; all other methods are those of the store inside. It is safe for
// concurrent use.
type Store struct {
	storage.Store
	filter  Filter
	builtin *rebuilt // nil where Config.Filter is given

	skipped, passed, falsePositives atomic.Int64
}

var _ storage.Store = (*Store)(nil)

// New returns a decorator of c.Store. Until Run has built the filter, every
// key may have been seen.
func New(c Config) (*Store, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{Store: c.Store, filter: c.Filter}
	if c.Filter == nil {
		s.builtin = newRebuilt(c)
		s.filter = s.builtin
	}
	return s, nil
}

// Run builds the filter from a scan, again whenever it is saturated, and until
// it succeeds. It returns when ctx ends.
func (s *Store) Run(ctx context.Context) error {
	if s.builtin == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.builtin.run(ctx)
}

// InsertOrGet implements storage.Store. What was not seen is inserted while what
// may have been is read; what was read in vain is inserted after that. Where
// there is more than one trip, one that fails is the failure of its items alone:
// the others may have been stored.
func (s *Store) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	if err := storage.CheckBatch(len(reqs), func(i int) claim.Key { return reqs[i].Key }); err != nil {
		return nil, err
	}
	unseen, maybe := s.guess(reqs)
	if len(maybe) == 0 {
		return s.insertAll(ctx, reqs)
	}
	out := make([]storage.Found, len(reqs))
	var reading sync.WaitGroup
	var absent []int
	var err error
	reading.Go(func() { absent, err = s.read(ctx, reqs, maybe, out) })
	if len(unseen) > 0 {
		s.insertSome(ctx, reqs, unseen, out)
	}
	reading.Wait()
	switch {
	case err != nil && len(unseen) == 0:
		return nil, err
	case err != nil:
		fail(out, maybe, err)
	case len(absent) > 0:
		s.insertSome(ctx, reqs, absent, out)
	}
	return out, nil
}

// guess asks the filter for every key, and returns which were not seen and which
// may have been.
func (s *Store) guess(reqs []claim.Request) (unseen, maybe []int) {
	for i := range reqs {
		if s.filter.MaybeHas(reqs[i].Key) {
			maybe = append(maybe, i)
		} else {
			unseen = append(unseen, i)
		}
	}
	s.skipped.Add(int64(len(unseen)))
	s.passed.Add(int64(len(maybe)))
	return unseen, maybe
}

// read reads some keys into out, and returns those that are absent.
func (s *Store) read(ctx context.Context, reqs []claim.Request, places []int, out []storage.Found) (absent []int, err error) {
	keys := make([]claim.Key, len(places))
	for j, i := range places {
		keys[j] = reqs[i].Key
	}
	found, err := s.Store.Get(ctx, keys)
	if err != nil {
		return nil, err
	}
	for j, i := range places {
		if found[j].Err == nil && found[j].Record.State == claim.Absent {
			absent = append(absent, i)
			continue
		}
		out[i] = found[j]
	}
	s.falsePositives.Add(int64(len(absent)))
	return absent, nil
}

func (s *Store) insertSome(ctx context.Context, reqs []claim.Request, places []int, out []storage.Found) {
	send := make([]claim.Request, len(places))
	for j, i := range places {
		send[j] = reqs[i]
	}
	found, err := s.insertAll(ctx, send)
	if err != nil {
		fail(out, places, err)
		return
	}
	for j, i := range places {
		out[i] = found[j]
	}
}

// insertAll tells the filter after the write, so that a rebuild that began
// before it, and may not have seen it, is told too.
func (s *Store) insertAll(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	found, err := s.Store.InsertOrGet(ctx, reqs)
	if err != nil {
		return nil, err
	}
	for i := range found {
		if found[i].Err == nil && found[i].Record.State != claim.Absent {
			s.filter.Add(reqs[i].Key)
		}
	}
	return found, nil
}

func fail(out []storage.Found, places []int, err error) {
	for _, i := range places {
		out[i] = storage.Found{Err: err}
	}
}

// FilterStats describes this filter; Stats of the store inside describes its
// own, where it has one. A replaced filter has counters only.
func (s *Store) FilterStats() storage.FilterStats {
	var stats storage.FilterStats
	if s.builtin != nil {
		stats = s.builtin.stats()
	}
	stats.Skipped, stats.Passed = s.skipped.Load(), s.passed.Load()
	stats.FalsePositives = s.falsePositives.Load()
	return stats
}
