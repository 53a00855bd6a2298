package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// keyset holds the encoded keys of one call and the order in which to touch
// them: sorted keys find their neighbours in cache, in the memtable and in the
// expiry index.
type keyset struct {
	buf   []byte
	spans [][2]int
	order []int
	maybe []int
}

var keysets = sync.Pool{New: func() any { return new(keyset) }}

// encodeKeys encodes n keys and sorts them; a repeated key is refused.
func encodeKeys(n int, key func(int) *claim.Key) (*keyset, error) {
	ks := keysets.Get().(*keyset)
	ks.buf, ks.spans, ks.order, ks.maybe = ks.buf[:0], ks.spans[:0], ks.order[:0], ks.maybe[:0]
	for i := range n {
		from := len(ks.buf)
		ks.buf = appendRecordKey(ks.buf, key(i))
		ks.spans = append(ks.spans, [2]int{from, len(ks.buf)})
		ks.order = append(ks.order, i)
	}
	if n == 1 {
		return ks, nil
	}
	slices.SortFunc(ks.order, func(a, b int) int { return bytes.Compare(ks.key(a), ks.key(b)) })
	for i := 1; i < n; i++ {
		if bytes.Equal(ks.key(ks.order[i-1]), ks.key(ks.order[i])) {
			keysets.Put(ks)
			return nil, storage.ErrRepeatedKey
		}
	}
	return ks, nil
}

func (ks *keyset) key(i int) []byte { return ks.buf[ks.spans[i][0]:ks.spans[i][1]] }

// InsertOrGet implements storage.Store. Keys that the filter has never seen
// are stored without a read. The others are read outside the lock, which is
// all that most of them need, and only those that are absent after all are
// looked at again under it.
func (s *Store) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	if err := s.enter(ctx, len(reqs)); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	ks, err := encodeKeys(len(reqs), func(i int) *claim.Key { return &reqs[i].Key })
	if err != nil {
		return nil, err
	}
	defer keysets.Put(ks)
	found := make([]storage.Found, len(reqs))
	c, err := s.insertUnseen(ks, reqs, found)
	if err != nil {
		return nil, err
	}
	if len(ks.maybe) > 0 {
		first := c
		if c, err = s.insertSeen(ks, reqs, found, c); err != nil {
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
func (s *Store) insertUnseen(ks *keyset, reqs []claim.Request, found []storage.Found) (*commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.filter.ready() {
		return s.insertReading(ks, ks.order, reqs, found)
	}
	now, suspect := s.clock.now()
	b := s.newBuilder(now)
	for _, i := range ks.order {
		key := ks.key(i)
		seen, audit := s.filter.test(key)
		if audit && !seen {
			if err := s.audit(key); err != nil {
				return nil, errors.Join(err, s.drop(b))
			}
		}
		if seen {
			if s.recent.get(key, &reqs[i].Key, &found[i].Record) {
				found[i].Now = now
			} else {
				ks.maybe = append(ks.maybe, i)
			}
			continue
		}
		if err := s.insert(b, key, &reqs[i], &found[i], suspect); err != nil {
			return nil, errors.Join(err, s.drop(b))
		}
	}
	return s.apply(b)
}

// insertSeen answers the keys in ks.maybe. The time is taken before the read:
// what is read is then no older than the time it is judged at.
func (s *Store) insertSeen(ks *keyset, reqs []claim.Request, found []storage.Found, c *commit) (*commit, error) {
	now, _ := s.clock.now()
	absent := ks.maybe[:0]
	for _, i := range ks.maybe {
		if _, err := s.read(ks.key(i), reqs[i].Key, &found[i].Record, true); err != nil {
			return nil, err
		}
		found[i].Now = now
		if found[i].Record.State == claim.Absent {
			absent = append(absent, i)
		}
	}
	s.filter.passed(len(ks.maybe), len(absent))
	if len(absent) == 0 {
		return s.latest(c), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.insertReading(ks, absent, reqs, found)
}

// latest is the commit that an answer made of reads has to wait for.
func (s *Store) latest(c *commit) *commit {
	if last := s.syncer.last.Load(); last != nil && last.seq > s.syncer.synced.Load() {
		return last
	}
	return c
}

// insertReading reads and, where nothing is stored, inserts, all under
// Store.mu.
func (s *Store) insertReading(ks *keyset, items []int, reqs []claim.Request, found []storage.Found) (*commit, error) {
	now, suspect := s.clock.now()
	b := s.newBuilder(now)
	for _, i := range items {
		key := ks.key(i)
		if _, err := s.read(key, reqs[i].Key, &found[i].Record, true); err != nil {
			return nil, errors.Join(err, s.drop(b))
		}
		if found[i].Record.State != claim.Absent {
			found[i].Now = now
			continue
		}
		s.filter.add(key)
		if err := s.insert(b, key, &reqs[i], &found[i], suspect); err != nil {
			return nil, errors.Join(err, s.drop(b))
		}
	}
	c, err := s.apply(b)
	return s.latest(c), err
}

// insert stores a fresh record unless its event is too old or there is no room.
func (s *Store) insert(b *builder, key []byte, r *claim.Request, f *storage.Found, suspect bool) error {
	switch {
	case b.now >= r.InsertBefore && suspect:
		f.Err = storage.ErrClockSuspect
		return nil
	case b.now >= r.InsertBefore:
		f.Now = b.now
		return nil
	case s.gate.refusesClaims():
		f.Err = storage.ErrFull
		return nil
	}
	f.Now, f.Record = b.now, claim.Fresh(r, b.now, s.mu.floor)
	s.fit(&f.Record)
	return s.put(b, key, &f.Record, nil, false)
}

// fit drops the body of a completion when there is hardly any room left. The
// completion itself is always taken.
func (s *Store) fit(r *claim.Record) {
	if r.Completion != nil && len(r.Completion.Body) > 0 && s.gate.dropsBodies() {
		r.Completion = r.Completion.Without(claim.StoreFull)
	}
}

// drop gives up what was built. The records kept in memory may be among it:
// all of them are let go, since this is rare.
func (s *Store) drop(b *builder) error {
	batch := b.batch
	b.batch = nil
	builders.Put(b)
	if batch == nil {
		return nil
	}
	s.recent.clear()
	return batch.Close()
}

// Get implements storage.Store.
func (s *Store) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	if err := s.enter(ctx, len(keys)); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	ks, err := encodeKeys(len(keys), func(i int) *claim.Key { return &keys[i] })
	if err != nil {
		return nil, err
	}
	defer keysets.Put(ks)
	found := make([]storage.Found, len(keys))
	now, _ := s.clock.now()
	for _, i := range ks.order {
		if _, err := s.read(ks.key(i), keys[i], &found[i].Record, true); err != nil {
			return nil, err
		}
		found[i].Now = now
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
	ks, err := encodeKeys(n, key)
	if err != nil {
		return nil, err
	}
	defer keysets.Put(ks)
	found := make([]storage.Found, n)
	c, err := s.changeLocked(ks, key, rule, found)
	if err != nil {
		return nil, err
	}
	if err := s.durable(ctx, c); err != nil {
		return nil, err
	}
	return found, nil
}

func (s *Store) changeLocked(ks *keyset, key func(int) *claim.Key,
	rule func(int, *claim.Record, claim.Time, bool) (claim.Record, bool, error), found []storage.Found,
) (*commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, suspect := s.clock.now()
	b := s.newBuilder(now)
	for _, i := range ks.order {
		f := &found[i]
		aside, err := s.readLocked(ks.key(i), *key(i), &f.Record)
		if err != nil {
			return nil, errors.Join(err, s.drop(b))
		}
		f.Now = now
		next, changed, err := rule(i, &f.Record, now, suspect)
		switch {
		case err != nil:
			*f = storage.Found{Err: err}
		case changed:
			s.fit(&next)
			if err := s.put(b, ks.key(i), &next, &f.Record, aside); err != nil {
				return nil, errors.Join(s.failed("write", err), s.drop(b))
			}
			f.Record, f.Applied = next, true
		case aside:
			if err := s.readBody(ks.key(i), &f.Record); err != nil {
				return nil, errors.Join(err, s.drop(b))
			}
		}
	}
	c, err := s.apply(b)
	return s.latest(c), err
}

// readLocked is read under Store.mu, without the body.
func (s *Store) readLocked(encoded []byte, key claim.Key, rec *claim.Record) (bodyAside bool, err error) {
	if s.recent.get(encoded, &key, rec) {
		return false, nil
	}
	return s.read(encoded, key, rec, false)
}

// read decodes the record under an encoded key; its State stays Absent when
// there is none. It reports whether the body is stored aside, and loads it if
// asked to.
func (s *Store) read(encoded []byte, key claim.Key, rec *claim.Record, withBody bool) (bodyAside bool, err error) {
	value, closer, err := s.db.Get(encoded)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, s.failed("read", err)
	}
	bodyAside, err = decodeRecord(rec, key, value)
	if err = errors.Join(err, closer.Close()); err != nil {
		return false, s.failed("read", err)
	}
	if bodyAside && withBody {
		return true, s.readBody(encoded, rec)
	}
	return bodyAside, nil
}

// readBody loads a body stored aside. A sweep or a forget between the two
// reads leaves the record without one; it is read again then, and gone or
// changed.
func (s *Store) readBody(encoded []byte, rec *claim.Record) error {
	value, closer, err := s.db.Get(appendBodyKey(nil, encoded))
	if errors.Is(err, pebble.ErrNotFound) {
		key := rec.Key
		*rec = claim.Record{}
		aside, err := s.read(encoded, key, rec, false)
		if err == nil && aside {
			err = s.damaged(errors.Join(storage.ErrDamaged, errors.New("a result body is missing")))
		}
		return err
	}
	if err != nil {
		return s.failed("read body", err)
	}
	completion := *rec.Completion
	completion.Body = bytes.Clone(value)
	rec.Completion = &completion
	return s.failed("read body", closer.Close())
}
