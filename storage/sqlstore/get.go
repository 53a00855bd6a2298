package sqlstore

import (
	"context"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
	"github.com/warifu/warifu/storage/storetime"
)

// bodyBytesMax is about how many bytes of bodies one statement asks for. The
// largest body fits always.
const bodyBytesMax = 4 << 20

// lookAgainMax bounds how often a key is read again that vanished between two
// statements.
const lookAgainMax = 3

// found collects what one call has found, item by item.
type found struct {
	items []storage.Found
	aside []int64 // sizes of bodies that are still to be read
}

func newFound(n int) *found {
	return &found{items: make([]storage.Found, n), aside: make([]int64, n)}
}

// readBack is the statement that ends every call on keys: what is stored now.
func (s *Store) readBack(k *keys, b storetime.Bounds, f *found) query {
	return query{sql: sqlGet, args: k.args(), row: func(r row) error {
		i, err := k.item(r.int2())
		if err != nil {
			return err
		}
		reading := r.time()
		s.saw(reading)
		f.items[i] = storage.Found{Now: b.Hold(reading), Applied: f.items[i].Applied}
		f.aside[i] = 0
		if r.values[r.next] == nil {
			return nil // nothing is stored
		}
		rec := &f.items[i].Record
		f.aside[i] = r.record(rec, true)
		rec.Key = claim.Key{}
		return r.end()
	}}
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
	return s.finish(ctx, k, f, key)
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

// finish names the records and reads the bodies that are stored aside.
func (s *Store) finish(ctx context.Context, k *keys, f *found, key func(int) *claim.Key) ([]storage.Found, error) {
	for i := range f.items {
		if f.items[i].Record.State != claim.Absent {
			f.items[i].Record.Key = *key(i)
		}
	}
	for range lookAgainMax {
		lost, err := s.readBodies(ctx, k, f)
		if err != nil || len(lost) == 0 {
			return f.items, err
		}
		// Forgotten, begun anew or swept since the record was read: read the
		// record again.
		again := k.only(lost)
		err = s.trip(ctx, s.traffic, reads, func(b storetime.Bounds) []query { return []query{s.readBack(again, b, f)} })
		if err != nil {
			return nil, err
		}
		for _, p := range lost {
			if i := k.order[p]; f.items[i].Record.State != claim.Absent {
				f.items[i].Record.Key = *key(i)
			}
		}
	}
	for i, size := range f.aside {
		if size > 0 {
			f.items[i] = storage.Found{Err: storage.ErrUnavailable}
		}
	}
	return f.items, nil
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
