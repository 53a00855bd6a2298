package sqlstore

import (
	"context"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storetime"
)

// change is a group of items that one statement changes.
type change struct {
	sql    string
	places []int
	// args are the arrays beside keys and clock, in the order of the statement.
	args []any
	cs   completions
	// drops: bodies may be left that belong to no record any more.
	drops bool
}

// change sends all groups and reads back every key, in one trip. The groups are
// sent in one order by everybody, as their keys are.
func (s *Store) change(ctx context.Context, k *keys, f *found, groups []change) error {
	return s.trip(ctx, s.traffic, writes, func(b storetime.Bounds) []query {
		var queries []query
		for i := range f.items {
			f.items[i] = storage.Found{}
		}
		for i := range groups {
			queries = append(queries, groups[i].queries(k, b, f)...)
		}
		return append(queries, s.readBack(k, b, f))
	})
}

func (g *change) queries(k *keys, b storetime.Bounds, f *found) []query {
	mine := k.only(g.places)
	queries := []query{{
		sql: g.sql, args: append(append(held(b), mine.args()...), g.args...),
		row: func(r row) error {
			i, err := k.item(r.int2())
			if err != nil {
				return err
			}
			f.items[i].Applied = true
			return r.end()
		},
	}}
	queries = append(queries, g.cs.put(k)...)
	if g.drops {
		queries = append(queries, query{sql: sqlBodyDelete, args: mine.named()})
	}
	return queries
}

// Transition implements storage.Store: one trip.
func (s *Store) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	key := func(i int) *claim.Key { return &ts[i].Key }
	leave, err := s.begin(ctx, len(ts), key)
	if err != nil || leave == nil {
		return nil, err
	}
	defer leave()
	k, f := sorted(len(ts), key), newFound(len(ts))
	var groups []change
	for _, kind := range []claim.TransitionKind{claim.Complete, claim.Extend, claim.Release} {
		if g := transitions(kind, k, ts); len(g.places) > 0 {
			groups = append(groups, g)
		}
	}
	if err := s.change(ctx, k, f, groups); err != nil {
		return nil, err
	}
	return s.finish(ctx, k, f, key)
}

// transitions collects those of one kind.
func transitions(kind claim.TransitionKind, k *keys, ts []claim.Transition) change {
	var g change
	var attempts [][16]byte
	var fences []int64
	var leases []time.Duration
	for p, i := range k.order {
		t := &ts[i]
		if t.Kind != kind {
			continue
		}
		g.places = append(g.places, p)
		attempts, fences = append(attempts, t.Attempt), append(fences, int64(t.Fence))
		leases = append(leases, t.Lease)
		if kind == claim.Complete {
			g.cs.add(p, t.Completion)
		}
	}
	g.args = []any{attempts, fences}
	switch kind {
	case claim.Complete:
		g.sql, g.args = sqlComplete, append(g.args, g.cs.args()...)
	case claim.Extend:
		g.sql, g.args = sqlExtend, append(g.args, leases)
	case claim.Release:
		g.sql = sqlRelease
	}
	return g
}
