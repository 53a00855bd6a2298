package sqlstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
	"github.com/warifu/warifu/storage/storetime"
)

const (
	// bodyBytesMax is about how many bytes of bodies one statement asks for. The
	// largest body fits always.
	bodyBytesMax = 4 << 20
	// callBytesMax is how many bytes of bodies one call returns; what is beyond
	// it is done all the same, and omitted. A reply to a client has a smaller
	// limit of its own.
	callBytesMax = 16 << 20
	// lookAgainMax bounds how often a key is read again that vanished between
	// two statements.
	lookAgainMax = 3
)

// found collects what one call has found, item by item.
type found struct {
	items []storage.Found
	aside []int64 // sizes of bodies that are still to be read
}

// set answers an item for good: what a try has read of it before is void.
func (f *found) set(i int, with storage.Found) { f.items[i], f.aside[i] = with, 0 }

func newFound(n int) *found {
	return &found{items: make([]storage.Found, n), aside: make([]int64, n)}
}

// readBack is the statement that ends most calls on keys: what is stored now.
func (s *Store) readBack(k *keys, b storetime.Bounds, f *found) query {
	read := s.reading(k, b, f)
	return query{sql: sqlGet, args: k.args(), row: read.row}
}

// reading is how the rows of one statement are read.
type reading struct {
	s      *Store
	k      *keys
	f      *found
	bounds storetime.Bounds // what the statement was held to
	known  claim.Time       // the store's time when it was sent
	clock  claim.Time       // what the database's clock said last, and
	now    claim.Time       // what that is in the store's time
}

func (s *Store) reading(k *keys, b storetime.Bounds, f *found) *reading {
	return &reading{s: s, k: k, f: f, bounds: b, known: s.time.Bounds().Low}
}

// row reads a row of what is stored of a key, from the key's place on.
func (g *reading) row(r row) error {
	i, err := g.k.item(r.int2())
	if err != nil {
		return err
	}
	it := &g.f.items[i]
	*it = storage.Found{Now: g.asOf(r.time()), Applied: it.Applied}
	g.f.aside[i] = 0
	if r.values[r.next] == nil {
		return nil // nothing is stored
	}
	g.f.aside[i] = r.record(&it.Record, true)
	// The database's time is that of the transaction's beginning. It may have
	// waited since, and have read what was written later.
	it.Now = max(it.Now, it.Record.GrantedAt, it.Record.EndedAt)
	return r.end()
}

// asOf is the store's time at which something was read by a statement that was
// held to bounds. Its clock is that of the transaction's beginning, the same in
// all rows: what others have seen while it waited counts, unless the clock has
// stepped back behind what was known when it was sent.
func (g *reading) asOf(clock claim.Time) claim.Time {
	if clock == g.clock && clock != 0 {
		return g.now
	}
	g.s.saw(clock)
	g.clock, g.now = clock, g.bounds.Hold(clock)
	if g.s.cfg.Clock == nil && clock >= g.known {
		g.now = max(g.now, g.s.time.Bounds().Low)
	}
	return g.now
}

// Get implements storage.Store.
func (s *Store) Get(ctx context.Context, ids []claim.Key) ([]storage.Found, error) {
	key := func(i int) *claim.Key { return &ids[i] }
	leave, err := s.begin(ctx, len(ids), key)
	if err != nil || leave == nil {
		return nil, err
	}
	defer leave()
	k, f := sorted(len(ids), key), newFound(len(ids))
	err = s.trip(ctx, s.traffic, reads, func(b storetime.Bounds) []query { return []query{s.readBack(k, b, f)} })
	if err != nil {
		return nil, err
	}
	s.finish(ctx, k, f, key, func(int) *claim.Completion { return nil }, storage.ErrUnavailable)
	return f.items, nil
}

// begin is the beginning of every call on keys. No leave and no error: there is
// nothing to do.
func (s *Store) begin(ctx context.Context, n int, key func(int) *claim.Key) (leave func(), err error) {
	leave, err = s.enter(ctx)
	if err != nil {
		return nil, err
	}
	if err := storage.CheckBatch(n, func(i int) claim.Key { return *key(i) }); err != nil || n == 0 {
		leave()
		return nil, err
	}
	return leave, nil
}

// finish names the records and reads the bodies that are stored aside, but for
// those that the call itself has brought: given, or nil. Where that fails the
// item alone fails, with what otherwise says: behind a write that has been
// committed nothing may say that nothing was applied.
func (s *Store) finish(ctx context.Context, k *keys, f *found, key func(int) *claim.Key, given func(int) *claim.Completion, otherwise error) {
	for i := range f.items {
		rec := &f.items[i].Record
		if rec.State != claim.Absent {
			rec.Key = *key(i)
		}
		if c := given(i); c != nil && f.aside[i] > 0 && f.aside[i] == int64(len(c.Body)) && c.Sum == rec.Completion.Sum {
			rec.Completion.Body, f.aside[i] = c.Body, 0
		}
	}
	if err := s.bodies(ctx, k, f, key); err != nil {
		otherwise = fmt.Errorf("%w: read a result: %v", otherwise, err) //nolint:errorlint // the cause's class would deny the item's
	}
	for i, size := range f.aside {
		if size > 0 {
			f.items[i] = storage.Found{Err: otherwise}
		}
	}
}

// bodies reads the bodies that are still missing. Those that are not there
// belong to records that were forgotten, begun anew or swept since they were
// read: they are read again.
func (s *Store) bodies(ctx context.Context, k *keys, f *found, key func(int) *claim.Key) error {
	s.omit(k, f)
	for range lookAgainMax {
		lost, err := s.readBodies(ctx, k, f)
		if err != nil || len(lost) == 0 {
			return err
		}
		again, before := k.only(lost), slices.Clone(f.items)
		err = s.trip(ctx, s.traffic, reads, func(b storetime.Bounds) []query { return []query{s.readBack(again, b, f)} })
		if err != nil {
			return err
		}
		for _, p := range lost {
			i := k.order[p]
			rec := &f.items[i].Record
			if rec.State != claim.Absent {
				rec.Key = *key(i)
			}
			if f.aside[i] > 0 && rec.Version == before[i].Record.Version {
				f.set(i, storage.Found{Err: fmt.Errorf("%w: the result of a completed record is missing", storage.ErrDamaged)})
			}
		}
	}
	return nil
}

// omit gives up the bodies that one call has no room for.
func (s *Store) omit(k *keys, f *found) {
	total := int64(0)
	for _, i := range k.order {
		if total += f.aside[i]; f.aside[i] > 0 && total > callBytesMax {
			f.items[i].Record.Completion = f.items[i].Record.Completion.Without(claim.BatchBudget)
			f.aside[i] = 0
		}
	}
}

// readBodies reads the bodies that are stored aside, a few megabytes at a time,
// and returns the places of those that are not there.
func (s *Store) readBodies(ctx context.Context, k *keys, f *found) (lost []int, err error) {
	var places []int
	bytes := int64(0)
	flush := func() error {
		if len(places) == 0 {
			return nil
		}
		missing, err := s.readSomeBodies(ctx, k, f, places)
		lost, places, bytes = append(lost, missing...), nil, 0
		return err
	}
	for p, i := range k.order {
		if f.aside[i] == 0 {
			continue
		}
		if bytes+f.aside[i] > bodyBytesMax {
			if err := flush(); err != nil {
				return nil, err
			}
		}
		places, bytes = append(places, p), bytes+f.aside[i]
	}
	return lost, flush()
}

func (s *Store) readSomeBodies(ctx context.Context, k *keys, f *found, places []int) (lost []int, err error) {
	some := k.only(places)
	fences := make([]int64, len(places))
	for j, p := range places {
		fences[j] = int64(f.items[k.order[p]].Record.Fence)
	}
	bodies := map[int][]byte{}
	err = s.trip(ctx, s.traffic, reads, func(storetime.Bounds) []query {
		clear(bodies)
		return []query{{sql: sqlBodies, args: append(some.args(), fences), row: func(r row) error {
			i, err := k.item(r.int2())
			if err != nil {
				return err
			}
			bodies[i] = codec.Clone(r.value())
			return r.end()
		}}}
	})
	if err != nil {
		return nil, err
	}
	for _, p := range places {
		i := k.order[p]
		body, ok := bodies[i]
		if !ok || int64(len(body)) != f.aside[i] {
			lost = append(lost, p)
			continue
		}
		f.items[i].Record.Completion.Body, f.aside[i] = body, 0
	}
	return lost, nil
}
