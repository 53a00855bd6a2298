package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// A sweep walks the engine's expiry index from its beginning; what is in memory
// and due is written out first. An entry lists keys that were flushed together
// with an expiry in one bucket; whichever of them is due is read again under
// the lock and deleted if the rules still say so. A record whose expiry has
// moved has a later entry. Entries whose bucket is due as a whole are used up
// and go, as one range, with the records.

// found is what one step of a sweep looks at.
type candidates struct {
	keys   [][]byte
	cursor []byte // where the next step begins; nil at the end
	used   []byte // entries before this key are used up; nil: none
	from   []byte // first of them
}

// Sweep implements storage.Store.
func (s *Store) Sweep(ctx context.Context, sw storage.Sweep) (storage.Swept, error) {
	if sw.Shard != 0 {
		return storage.Swept{}, fmt.Errorf("sweep: shard %d of 1", sw.Shard)
	}
	if sw.Limit < 1 || sw.Limit > storage.SweepLimitMax {
		return storage.Swept{}, fmt.Errorf("sweep: limit %d is not in 1–%d", sw.Limit, storage.SweepLimitMax)
	}
	if err := s.enter(ctx, 0); err != nil {
		return storage.Swept{}, err
	}
	defer s.life.RUnlock()
	now, suspect := s.clock.now()
	if suspect {
		return storage.Swept{}, storage.ErrClockSuspect
	}
	if err := s.flushDue(ctx, bucketOf(now.Add(-s.cfg.SweepGrace))); err != nil {
		return storage.Swept{}, err
	}
	cand, err := s.sweepCandidates(sw, now)
	if err != nil {
		return storage.Swept{}, err
	}
	if s.cfg.hooks.sweepFound != nil {
		s.cfg.hooks.sweepFound()
	}
	out := storage.Swept{Cursor: cand.cursor, Looked: len(cand.keys)}
	c, err := s.sweepDelete(ctx, cand, &out)
	if err != nil {
		return storage.Swept{}, err
	}
	return out, s.durable(ctx, c)
}

// sweepCandidates collects up to the limit of due keys. The cursor is an index
// key and, after it, how many keys of that entry were dealt with.
func (s *Store) sweepCandidates(sw storage.Sweep, now claim.Time) (cand candidates, err error) {
	at := sweepCursor{entry: indexLower}
	if sw.Cursor != nil {
		if at, err = parseSweepCursor(sw.Cursor); err != nil {
			return cand, err
		}
	}
	due := now.Add(-s.cfg.SweepGrace)
	upper := indexKey(bucketOf(due)+1, 0, 0)
	if bytes.Compare(at.entry, upper) >= 0 {
		return cand, nil
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: at.entry, UpperBound: upper})
	if err != nil {
		return cand, s.failed("sweep", err)
	}
	defer func() { err = errors.Join(err, s.failed("sweep", it.Close())) }()
	whole := indexKey(bucketOf(due), 0, 0) // entries before it are due as a whole
	for ok := it.First(); ok; ok = it.Next() {
		entry := bytes.Clone(it.Key())
		if at.done == 0 || !bytes.Equal(entry, at.entry) {
			at = sweepCursor{entry: entry, whole: bytes.Compare(entry, whole) < 0}
		}
		if done, err := cand.take(it.Value(), &at, sw.Limit); err != nil || !done {
			return cand, s.failed("sweep", err)
		}
		at.done = 0
	}
	return cand, s.failed("sweep", it.Error())
}

// take adds the keys of one entry, from where at stands, and reports whether
// there was room for all of them; otherwise at is where the next step begins.
func (c *candidates) take(data []byte, at *sweepCursor, limit int) (done bool, err error) {
	n := 0
	err = eachIndexed(data, func(key []byte) error {
		if n++; n <= at.done {
			return nil
		}
		if len(c.keys) == limit {
			return errStop
		}
		c.keys = append(c.keys, bytes.Clone(key))
		return nil
	})
	if errors.Is(err, errStop) {
		at.done = n - 1
		c.cursor = at.encode()
		return false, nil
	}
	if err == nil && at.whole {
		if c.used == nil {
			c.from = at.entry
		}
		c.used = append(bytes.Clone(at.entry), 0)
	}
	return true, err
}

var errStop = errors.New("stop")

// sweepCursor is where a step begins: an index entry and how many of its keys
// were looked at. whole: all of it was due when the first of them was. An entry
// that became due in between is not used up: its first keys may have been left.
type sweepCursor struct {
	entry []byte
	done  int
	whole bool
}

const cursorWhole = 1 << 31

func (c *sweepCursor) encode() []byte {
	n := uint32(c.done)
	if c.whole {
		n |= cursorWhole
	}
	return binary.BigEndian.AppendUint32(slices.Clone(c.entry), n)
}

func parseSweepCursor(b []byte) (sweepCursor, error) {
	if len(b) != indexKeyLen+4 || b[0] != indexPrefix {
		return sweepCursor{}, storage.ErrCursor
	}
	n := binary.BigEndian.Uint32(b[indexKeyLen:])
	return sweepCursor{slices.Clone(b[:indexKeyLen]), int(n &^ cursorWhole), n&cursorWhole != 0}, nil
}

// sweepDelete deletes what is still due and the index entries that are used up.
func (s *Store) sweepDelete(ctx context.Context, cand candidates, out *storage.Swept) (*commit, error) {
	if err := s.lockToWrite(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	now, _ := s.clock.now()
	out.Now = now
	b := newBuilder(now)
	// A record whose expiry moved has several entries; it goes once.
	slices.SortFunc(cand.keys, bytes.Compare)
	for _, key := range slices.CompactFunc(cand.keys, bytes.Equal) {
		if err := s.sweepOne(b, key, now, out); err != nil {
			b.drop()
			return nil, err
		}
	}
	// No entry comes to lie in the range later: what is still in memory expires
	// after the time of this sweep.
	if cand.used != nil {
		b.deleteRange(cand.from, cand.used)
	}
	return s.apply(b), nil
}

func (s *Store) sweepOne(b *builder, encoded []byte, now claim.Time, out *storage.Swept) error {
	key, err := parseRecordKey(encoded)
	if err != nil {
		return s.failed("sweep", err)
	}
	var rec claim.Record
	aside, err := s.readLocked(maphash.Bytes(s.seed, encoded), encoded, key, &rec)
	if err != nil || rec.State == claim.Absent {
		return err
	}
	if !rec.Sweepable(now, s.cfg.SweepGrace) {
		if rec.Expired(now) && (out.OldestExpired == 0 || rec.ExpiresAt < out.OldestExpired) {
			out.OldestExpired = rec.ExpiresAt
		}
		return nil
	}
	// Just after a restart fences come from the floor, which stands still until
	// the clock has passed it: the key's next life begins above this one.
	s.mu.floor = max(s.mu.floor, rec.Fence+1)
	out.Deleted++
	b.delete(encoded)
	if aside {
		b.delete(appendBodyKey(nil, encoded))
	}
	return nil
}
