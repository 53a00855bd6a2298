package pebble

import (
	"hash/maphash"

	"github.com/warifu/warifu/storage/claim"
)

// recent keeps the records that were written last, so that the completion of a
// lease that was granted a moment ago needs neither the engine's read nor a
// decode. Every write goes through it and every delete empties its slot; a key
// that collides with another only loses its place. It is used under Store.mu
// alone. The hash is keyed per process: nobody can push others out on purpose.
type recent struct {
	seed  maphash.Seed
	slots []claim.Record
}

func newRecent(slots int) recent {
	return recent{seed: maphash.MakeSeed(), slots: make([]claim.Record, slots)}
}

func (r *recent) slot(encoded []byte) *claim.Record {
	return &r.slots[maphash.Bytes(r.seed, encoded)%uint64(len(r.slots))]
}

// get copies the record of key, if it is there.
func (r *recent) get(encoded []byte, key *claim.Key, rec *claim.Record) bool {
	s := r.slot(encoded)
	if s.State == claim.Absent || s.Key != *key {
		return false
	}
	*rec = *s
	return true
}

// put notes what is stored under key now. Records with a body of their own key
// are left to the engine, which also knows where the body is.
func (r *recent) put(encoded []byte, rec *claim.Record) {
	s := r.slot(encoded)
	if rec.Completion != nil && len(rec.Completion.Body) > inlineBodyMax {
		r.forget(s, &rec.Key)
		return
	}
	*s = *rec
}

// clear forgets everything.
func (r *recent) clear() { clear(r.slots) }

// drop notes that nothing is stored under key any more.
func (r *recent) drop(encoded []byte, key *claim.Key) { r.forget(r.slot(encoded), key) }

func (r *recent) forget(s *claim.Record, key *claim.Key) {
	if s.Key == *key {
		*s = claim.Record{}
	}
}
