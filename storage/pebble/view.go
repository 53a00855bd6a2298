package pebble

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// view walks a range of record keys in order: what is in memory over what is in
// the engine, as of the moment it was made.
type view struct {
	s      *Store
	memory []op // newest on each key, sorted
	it     *pebble.Iterator
	valid  bool // it stands on a key
	key    []byte
	value  []byte
}

// view makes a view. What is in memory is looked at first: what leaves memory
// after that is in the engine by the time the iterator is made.
func (s *Store) view(ctx context.Context, lower, upper []byte) (*view, error) {
	s.mu.Lock()
	chunks := s.mu.front.snapshot()
	s.mu.Unlock()
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, err
	}
	return &view{s: s, memory: newestOps(chunks, lower, upper), it: it, valid: it.First()}, nil
}

// newestOps returns the last operation on each key of a range, sorted by key.
func newestOps(chunks [][]byte, lower, upper []byte) []op {
	type numbered struct {
		op
		n int
	}
	var all []numbered
	for _, chunk := range chunks {
		for len(chunk) > 0 {
			o, ok := parseOp(chunk)
			if !ok {
				break // cannot be: the chunk was built of operations
			}
			if o.kind != opDeleteRange && bytes.Compare(o.key, lower) >= 0 && (upper == nil || bytes.Compare(o.key, upper) < 0) {
				all = append(all, numbered{o, len(all)})
			}
			chunk = chunk[o.size:]
		}
	}
	slices.SortFunc(all, func(a, b numbered) int {
		return cmp.Or(bytes.Compare(a.key, b.key), cmp.Compare(b.n, a.n))
	})
	out := make([]op, 0, len(all))
	for i := range all {
		if i == 0 || !bytes.Equal(all[i].key, all[i-1].key) {
			out = append(out, all[i].op)
		}
	}
	return out
}

// next moves to the next key, the first one at first, and reports whether there
// is one. key and value are valid until the next call.
func (v *view) next() bool {
	for {
		order := 1 // the engine's key comes first
		switch {
		case len(v.memory) == 0 && !v.valid:
			return false
		case len(v.memory) == 0:
		case !v.valid:
			order = -1
		default:
			order = bytes.Compare(v.memory[0].key, v.it.Key())
		}
		if order > 0 {
			v.take(v.it.Key(), v.it.Value())
			v.valid = v.it.Next()
			return true
		}
		o := v.memory[0]
		v.memory = v.memory[1:]
		if order == 0 {
			v.valid = v.it.Next()
		}
		if o.kind != opDelete {
			v.take(o.key, o.value)
			return true
		}
	}
}

func (v *view) take(key, value []byte) {
	v.key = append(v.key[:0], key...)
	v.value = append(v.value[:0], value...)
}

func (v *view) close() error { return errors.Join(v.it.Error(), v.it.Close()) }
