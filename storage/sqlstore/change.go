package sqlstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storetime"
)

// change is a group of items that one statement changes.
type change struct {
	sql    text
	places []int
	// args are the arrays beside keys and clock, in the order of the statement.
	args []any
	cs   completions
	// drops: bodies may be left that belong to no record any more.
	drops bool
}

// changeAll sends each group as a transaction of its own, at the same time: one
// transaction with several groups would lock its keys group by group, and two
// of them could wait for each other. done reports whether an item that was not
// applied shows all the same what it asked for.
func (s *Store) changeAll(ctx context.Context, k *keys, f *found, groups []change, done func(int) bool) error {
	groups = k.used(groups)
	if len(groups) == 1 {
		return s.change(ctx, k, f, &groups[0], done)
	}
	var wg sync.WaitGroup
	for i := range groups {
		wg.Go(func() {
			g := &groups[i]
			if err := s.change(ctx, k, f, g, done); err != nil {
				for _, p := range g.places {
					f.set(k.order[p], storage.Found{Err: err})
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// change sends one group and reads back its keys, in one trip. When an earlier
// try may have been executed as well, an item that was not applied by the last
// one may have been by the first: unless it shows, nobody can say.
func (s *Store) change(ctx context.Context, k *keys, f *found, g *change, done func(int) bool) error {
	mine := k.only(g.places)
	again, err := s.tripAgain(ctx, s.traffic, writes, func(b storetime.Bounds) []query {
		for _, p := range g.places {
			f.set(k.order[p], storage.Found{})
		}
		return append(g.queries(k, mine, b, f), s.readBack(mine, b, f))
	})
	if err != nil || !again {
		return err
	}
	for _, p := range g.places {
		if i := k.order[p]; !f.items[i].Applied && !done(i) {
			f.set(i, storage.Found{Err: storage.ErrUnknown})
		}
	}
	return nil
}

// used returns the groups that have items, and one more for the items that are
// in none: those are only read.
func (k *keys) used(groups []change) []change {
	var out []change
	in := make([]bool, len(k.n))
	for _, g := range groups {
		if len(g.places) > 0 {
			out = append(out, g)
		}
		for _, p := range g.places {
			in[p] = true
		}
	}
	var rest change
	for p := range in {
		if !in[p] {
			rest.places = append(rest.places, p)
		}
	}
	if len(rest.places) > 0 {
		out = append(out, rest)
	}
	return out
}

func (g *change) queries(k, mine *keys, b storetime.Bounds, f *found) []query {
	if g.sql == (text{}) {
		return nil
	}
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
	queries = append(queries, g.cs.put(k, b)...)
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
	for i := range ts {
		if ts[i].Kind == claim.Complete && noOutcome(ts[i].Completion) {
			return nil, errNoOutcome
		}
	}
	k, f := sorted(len(ts), key), newFound(len(ts))
	var groups []change
	for _, kind := range []claim.TransitionKind{claim.Complete, claim.Extend, claim.Release} {
		groups = append(groups, transitions(kind, k, ts))
	}
	done := func(i int) bool { return showsOf(&ts[i], &f.items[i].Record) }
	if err := s.changeAll(ctx, k, f, groups, done); err != nil {
		return nil, err
	}
	s.finish(ctx, k, f, key, func(i int) *claim.Completion { return ts[i].Completion }, storage.ErrUnknown)
	return f.items, nil
}

// showsOf reports whether a record tells by itself what became of a transition.
// Its owner's completion stays for as long as it is the owner: there is one
// completion, this one or another. A release shows until the same owner
// completes after all, and an extension not at all.
func showsOf(t *claim.Transition, rec *claim.Record) bool {
	if !rec.Owner(t.Attempt, t.Fence) {
		return false // who takes over hides it
	}
	switch t.Kind {
	case claim.Complete:
		return rec.State == claim.Completed
	case claim.Release:
		return rec.State == claim.Released
	case claim.Extend:
	}
	return false
}

func noOutcome(c *claim.Completion) bool { return c == nil || c.Outcome == claim.NoOutcome }

// errNoOutcome is a bug of the caller: what has no outcome is not complete.
var errNoOutcome = errors.New("sqlstore: a completion has no outcome")

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
