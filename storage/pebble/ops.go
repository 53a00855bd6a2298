package pebble

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// keyset holds the encoded keys of one call and their hashes.
type keyset struct {
	buf    []byte
	ends   []int
	hashes []uint64
	maybe  []int // items that the filter may know
	every  []int // see all
	values [][]byte
	table  []int32 // of repeated: item+1 by hash
}

var keysets = sync.Pool{New: func() any { return new(keyset) }}

// encodeKeys encodes n keys; a repeated one is refused.
func (s *Store) encodeKeys(n int, key func(int) *claim.Key) (*keyset, error) {
	ks := keysets.Get().(*keyset)
	ks.buf, ks.ends, ks.hashes, ks.maybe = ks.buf[:0], ks.ends[:0], ks.hashes[:0], ks.maybe[:0]
	for i := range n {
		from := len(ks.buf)
		ks.buf = appendRecordKey(ks.buf, key(i))
		ks.ends = append(ks.ends, len(ks.buf))
		ks.hashes = append(ks.hashes, maphash.Bytes(s.seed, ks.buf[from:]))
	}
	if ks.repeated() {
		ks.free()
		return nil, storage.ErrRepeatedKey
	}
	return ks, nil
}

func (ks *keyset) key(i int) []byte {
	if i == 0 {
		return ks.buf[:ks.ends[0]]
	}
	return ks.buf[ks.ends[i-1]:ks.ends[i]]
}

// all returns the numbers of all items.
func (ks *keyset) all() []int {
	ks.every = ks.every[:0]
	for i := range ks.ends {
		ks.every = append(ks.every, i)
	}
	return ks.every
}

// repeated reports whether two of the keys are the same.
func (ks *keyset) repeated() bool {
	size := 1 << bits.Len(uint(2*len(ks.hashes)))
	if cap(ks.table) < size {
		ks.table = make([]int32, size)
	}
	ks.table = ks.table[:size]
	clear(ks.table)
	for i, hash := range ks.hashes {
		at := hash & uint64(size-1)
		for ; ks.table[at] != 0; at = (at + 1) & uint64(size-1) {
			if other := int(ks.table[at] - 1); ks.hashes[other] == hash && bytes.Equal(ks.key(other), ks.key(i)) {
				return true
			}
		}
		ks.table[at] = int32(i + 1)
	}
	return false
}

func (ks *keyset) free() { keysets.Put(ks) }

// InsertOrGet implements storage.Store. Keys that the filter has never seen
// are stored without a read. The others are read outside the lock, which is
// all that most of them need, and only those that are absent after all are
// looked at again under it.
func (s *Store) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	if err := s.enter(ctx, len(reqs)); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	ks, err := s.encodeKeys(len(reqs), func(i int) *claim.Key { return &reqs[i].Key })
	if err != nil {
		return nil, err
	}
	defer ks.free()
	found := make([]storage.Found, len(reqs))
	c, err := s.insertUnseen(ctx, ks, reqs, found)
	if err != nil {
		return nil, err
	}
	if len(ks.maybe) > 0 {
		first := c
		if c, err = s.insertSeen(ctx, ks, reqs, found, c); err != nil {
			return nil, partly(first, err)
		}
	}
	if err := s.durable(ctx, c); err != nil {
		return nil, err
	}
	return found, nil
}

// partly says that err came after some of the call's writes were made, so that
// nobody takes it for "nothing was applied".
func partly(c *commit, err error) error {
	if c == nil {
		return err
	}
	return fmt.Errorf("%w: %v", storage.ErrUnknown, err) //nolint:errorlint // the cause's class would deny that anything was applied
}

// insertUnseen stores what the filter has never seen and leaves the rest in
// ks.maybe.
func (s *Store) insertUnseen(ctx context.Context, ks *keyset, reqs []claim.Request, found []storage.Found) (*commit, error) {
	if err := s.lockToWrite(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if !s.filter.ready() {
		return s.insertReading(ks, ks.all(), reqs, found)
	}
	now, suspect := s.clock.now()
	b := newBuilder(now)
	for i := range reqs {
		key := ks.key(i)
		seen, audit := s.filter.test(ks.hashes[i])
		if seen {
			ks.maybe = append(ks.maybe, i)
			continue
		}
		if audit {
			if err := s.audit(ks.hashes[i], key); err != nil {
				b.drop()
				return nil, err
			}
		}
		s.insert(b, key, &reqs[i], &found[i], suspect)
	}
	return s.apply(b), nil
}

// insertSeen answers the keys in ks.maybe. The time is taken before the read:
// what is read is then no older than the time it is judged at.
func (s *Store) insertSeen(ctx context.Context, ks *keyset, reqs []claim.Request, found []storage.Found, c *commit) (*commit, error) {
	now, _ := s.clock.now()
	if err := s.readAll(ks, ks.maybe, found, func(i int) claim.Key { return reqs[i].Key }); err != nil {
		return nil, err
	}
	absent := ks.maybe[:0]
	for _, i := range ks.maybe {
		found[i].Now = now
		if found[i].Record.State == claim.Absent {
			absent = append(absent, i)
		}
	}
	s.filter.passed(len(ks.maybe), len(absent))
	if len(absent) == 0 {
		return s.latest(c), nil
	}
	if err := s.lockToWrite(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return s.insertReading(ks, absent, reqs, found)
}

// insertReading reads and, where nothing is stored, inserts, all under
// Store.mu.
func (s *Store) insertReading(ks *keyset, items []int, reqs []claim.Request, found []storage.Found) (*commit, error) {
	now, suspect := s.clock.now()
	b := newBuilder(now)
	for _, i := range items {
		f, key := &found[i], ks.key(i)
		aside, err := s.readLocked(ks.hashes[i], key, reqs[i].Key, &f.Record)
		if err == nil && aside {
			err = s.bodyLocked(key, &f.Record)
		}
		if err != nil {
			b.drop()
			return nil, err
		}
		if f.Record.State != claim.Absent {
			f.Now = now
			continue
		}
		s.filter.add(ks.hashes[i])
		s.insert(b, key, &reqs[i], f, suspect)
	}
	return s.latest(s.apply(b)), nil
}

// insert stores a fresh record unless its event is too old or there is no room.
func (s *Store) insert(b *builder, key []byte, r *claim.Request, f *storage.Found, suspect bool) {
	switch {
	case b.now >= r.InsertBefore && suspect:
		f.Err = storage.ErrClockSuspect
	case b.now >= r.InsertBefore:
		f.Now = b.now
	case s.gate.refusesClaims():
		f.Err = storage.ErrFull
	default:
		f.Now, f.Record = b.now, claim.Fresh(r, b.now, s.mu.floor)
		s.fit(&f.Record)
		b.put(key, &f.Record, nil, false)
	}
}

// fit drops the body of a completion when there is hardly any room left. The
// completion itself is always taken.
func (s *Store) fit(r *claim.Record) {
	if r.Completion != nil && len(r.Completion.Body) > 0 && s.gate.dropsBodies() {
		r.Completion = r.Completion.Without(claim.StoreFull)
	}
}

// Get implements storage.Store.
func (s *Store) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	if err := s.enter(ctx, len(keys)); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	ks, err := s.encodeKeys(len(keys), func(i int) *claim.Key { return &keys[i] })
	if err != nil {
		return nil, err
	}
	defer ks.free()
	found := make([]storage.Found, len(keys))
	now, _ := s.clock.now()
	for i := range found {
		found[i].Now = now
	}
	if err := s.readAll(ks, ks.all(), found, func(i int) claim.Key { return keys[i] }); err != nil {
		return nil, err
	}
	if err := s.durable(ctx, s.latest(nil)); err != nil {
		return nil, err
	}
	return found, nil
}

// Transition implements storage.Store.
func (s *Store) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	return s.change(ctx, len(ts), func(i int) *claim.Key { return &ts[i].Key },
		func(i int, cur *claim.Record, now claim.Time, _ bool) (claim.Record, bool, error) {
			next, changed, _ := ts[i].Apply(cur, now)
			return next, changed, nil
		})
}

// Replace implements storage.Store.
func (s *Store) Replace(ctx context.Context, swaps []claim.Swap) ([]storage.Found, error) {
	return s.change(ctx, len(swaps), func(i int) *claim.Key { return &swaps[i].Key },
		func(i int, cur *claim.Record, now claim.Time, suspect bool) (claim.Record, bool, error) {
			if suspect && trustsClock(&swaps[i], cur) {
				return claim.Record{}, false, storage.ErrClockSuspect
			}
			next, ok := swaps[i].Apply(cur, now, s.mu.floor)
			return next, ok, nil
		})
}

// trustsClock reports whether a swap grants because something lapsed or
// expired: not while the clock is suspect.
func trustsClock(sw *claim.Swap, cur *claim.Record) bool {
	switch sw.Kind {
	case claim.TakeOver:
		return cur.State == claim.InProgress
	case claim.BeginAnew:
		return cur.State != claim.Forgotten
	case claim.PutInDoubt:
		return true
	case claim.NoSwap, claim.Renew, claim.RecordOwn, claim.ResolveComplete, claim.ResolveRetry, claim.Forget:
	}
	return false
}

// change reads each record, applies a pure rule to it and writes what the rule
// says, as one step per key.
func (s *Store) change(ctx context.Context, n int, key func(int) *claim.Key,
	rule func(i int, cur *claim.Record, now claim.Time, suspect bool) (claim.Record, bool, error),
) ([]storage.Found, error) {
	if err := s.enter(ctx, n); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	ks, err := s.encodeKeys(n, key)
	if err != nil {
		return nil, err
	}
	defer ks.free()
	found := make([]storage.Found, n)
	c, err := s.changeLocked(ctx, ks, key, rule, found)
	if err != nil {
		return nil, err
	}
	if err := s.durable(ctx, c); err != nil {
		return nil, err
	}
	return found, nil
}

func (s *Store) changeLocked(ctx context.Context, ks *keyset, key func(int) *claim.Key,
	rule func(int, *claim.Record, claim.Time, bool) (claim.Record, bool, error), found []storage.Found,
) (*commit, error) {
	if err := s.lockToWrite(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	now, suspect := s.clock.now()
	b := newBuilder(now)
	for i := range found {
		if err := s.changeOne(b, ks, i, *key(i), rule, &found[i], now, suspect); err != nil {
			b.drop()
			return nil, err
		}
	}
	return s.latest(s.apply(b)), nil
}

func (s *Store) changeOne(b *builder, ks *keyset, i int, key claim.Key,
	rule func(int, *claim.Record, claim.Time, bool) (claim.Record, bool, error), f *storage.Found, now claim.Time, suspect bool,
) error {
	aside, err := s.readLocked(ks.hashes[i], ks.key(i), key, &f.Record)
	if err != nil {
		return err
	}
	f.Now = now
	next, changed, err := rule(i, &f.Record, now, suspect)
	switch {
	case err != nil:
		*f = storage.Found{Err: err}
	case changed:
		s.fit(&next)
		b.put(ks.key(i), &next, &f.Record, aside)
		f.Record, f.Applied = next, true
	case aside:
		return s.bodyLocked(ks.key(i), &f.Record)
	}
	return nil
}
