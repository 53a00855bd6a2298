package sqlstore

import (
	"context"
	"fmt"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storetime"
)

// InsertOrGet implements storage.Store: one trip, and one more for results that
// are stored aside.
func (s *Store) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	key := func(i int) *claim.Key { return &reqs[i].Key }
	leave, err := s.begin(ctx, len(reqs), key)
	if err != nil || leave == nil {
		return nil, err
	}
	defer leave()
	k, f := sorted(len(reqs), key), newFound(len(reqs))
	send := s.insert
	if alike(reqs) {
		send = s.insertAlike
	}
	for n := range lookAgainMax {
		if err := send(ctx, k, f, reqs); err != nil {
			if n > 0 { // an earlier round has stored the others
				err = fmt.Errorf("%w: %v", storage.ErrUnknown, err) //nolint:errorlint // its class would deny that
			}
			return nil, err
		}
		if !vanished(f, reqs) {
			break
		}
		send = s.insert // which also sees what was committed while it waited
	}
	s.judge(f, reqs)
	s.finish(ctx, k, f, key, func(i int) *claim.Completion { return reqs[i].Record }, storage.ErrUnknown)
	return f.items, nil
}

// insert inserts, and then reads what is stored of each key.
func (s *Store) insert(ctx context.Context, k *keys, f *found, reqs []claim.Request) error {
	var rs requests
	var cs completions
	for p, i := range k.order {
		rs.add(&reqs[i])
		cs.add(p, reqs[i].Record)
	}
	rest := append(append(k.args(), rs.args()...), cs.args()...)
	return s.trip(ctx, s.traffic, writes, func(b storetime.Bounds) []query {
		queries := append([]query{{sql: sqlInsert, args: append(held(b), rest...)}}, cs.put(k, b)...)
		return append(queries, s.readBack(k, b, f))
	})
}

// vanished reports whether a key is neither stored nor too old: it was swept
// between the insert that met it and the read, or taken behind the back of
// insertAlike.
func vanished(f *found, reqs []claim.Request) bool {
	for i := range f.items {
		if f.items[i].Record.State == claim.Absent && f.items[i].Now < reqs[i].InsertBefore {
			return true
		}
	}
	return false
}

// judge answers what is absent: too old, but not by a suspect clock, and
// nothing at all where it vanished again and again.
func (s *Store) judge(f *found, reqs []claim.Request) {
	suspect := s.time.Suspect()
	for i := range f.items {
		it := &f.items[i]
		switch {
		case it.Record.State != claim.Absent:
		case it.Now < reqs[i].InsertBefore:
			*it = storage.Found{Err: storage.ErrUnknown}
		case suspect:
			*it = storage.Found{Err: storage.ErrClockSuspect}
		}
	}
}
