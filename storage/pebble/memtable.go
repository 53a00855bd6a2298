package pebble

import (
	"bytes"
	"hash/maphash"
	"math"
	"slices"
)

// chunkBytes is the grain in which a memtable takes memory.
const (
	chunkBits  = 20
	chunkBytes = 1 << chunkBits
)

// ref says where in a memtable's chunks an operation begins: the chunk above,
// the position in it in the lower chunkBits.
type ref uint32

// memtable holds the newest writes: operations one after the other in chunks
// that never move or change, and a hash table of the newest operation on each
// key. It has no pointers for the collector to follow and needs no order; a
// flush sorts once. Store.mu guards it until it is frozen; what a snapshot sees
// of it never changes.
type memtable struct {
	seed    maphash.Seed
	chunks  [][]byte
	slots   []uint64 // hash above, ref+1 below; 0 is empty
	used    int
	bytes   int64
	stale   []ref  // operations that a newer one on the same key took the place of
	shared  []byte // what the keys of all records begin with
	dueMin  int64  // least bucket that the expiry index has to learn of
	ranges  []op
	meta    meta          // of its last commit; zero in a new one
	flushed chan struct{} // closed when the engine has all of it
}

const slotsMin = 1 << 8

func newMemtable(seed maphash.Seed) *memtable {
	return &memtable{
		seed: seed, slots: make([]uint64, slotsMin), dueMin: math.MaxInt64, flushed: make(chan struct{}),
	}
}

// add takes the operations of one commit, and reports whether all of them could
// be parsed.
func (m *memtable) add(ops []byte) bool {
	for len(ops) > 0 {
		o, ok := parseOp(ops)
		if !ok {
			return false
		}
		r, kept := m.keep(ops[:o.size])
		switch {
		case o.kind == opDeleteRange:
			o, _ = parseOp(kept)
			m.ranges = append(m.ranges, o)
		default:
			m.insert(o.key, r, kept)
		}
		if o.kind == opRecordDue {
			m.dueMin = min(m.dueMin, o.bucket)
		}
		if o.key[0] == recordPrefix {
			m.share(o.key)
		}
		ops = ops[o.size:]
	}
	return true
}

func (m *memtable) share(key []byte) {
	if m.shared == nil {
		m.shared = bytes.Clone(key)
	}
	m.shared = m.shared[:commonPrefix(m.shared, key)]
}

// keep copies one operation into a chunk.
func (m *memtable) keep(raw []byte) (ref, []byte) {
	n := len(m.chunks) - 1
	if n < 0 || len(m.chunks[n])+len(raw) > cap(m.chunks[n]) {
		m.chunks = append(m.chunks, make([]byte, 0, max(chunkBytes, len(raw))))
		n++
	}
	pos := len(m.chunks[n])
	m.chunks[n] = append(m.chunks[n], raw...)
	m.bytes += int64(len(raw))
	return ref(n<<chunkBits | pos), m.chunks[n][pos:]
}

func (m *memtable) at(r ref) op {
	o, _ := parseOp(m.chunks[r>>chunkBits][r&(chunkBytes-1):])
	return o
}

// insert makes r, whose bytes are raw, the newest operation on key. Where the
// one before it was still to be indexed, r is instead: a record whose bucket
// changed is to be indexed anyway.
func (m *memtable) insert(key []byte, r ref, raw []byte) {
	if m.used >= len(m.slots)/2 {
		m.grow()
	}
	tag := tagOf(maphash.Bytes(m.seed, key))
	for i := tag; ; i++ {
		slot := &m.slots[i&uint64(len(m.slots)-1)]
		switch {
		case *slot == 0:
			m.used++
			*slot = tag<<32 | uint64(r+1)
			return
		case *slot>>32 == tag && bytes.Equal(m.at(ref(*slot)-1).key, key):
			old := ref(*slot) - 1
			if m.at(old).kind == opRecordDue && raw[0] == opRecord {
				raw[0] = opRecordDue
			}
			m.stale = append(m.stale, old)
			*slot = tag<<32 | uint64(r+1)
			return
		}
	}
}

// tagOf is the part of a hash that a slot keeps; it also says where to look.
func tagOf(hash uint64) uint64 { return hash >> 32 }

func (m *memtable) grow() {
	old := m.slots
	m.slots = make([]uint64, 2*len(old))
	for _, slot := range old {
		if slot == 0 {
			continue
		}
		i := slot >> 32
		for m.slots[i&uint64(len(m.slots)-1)] != 0 {
			i++
		}
		m.slots[i&uint64(len(m.slots)-1)] = slot
	}
}

// get returns the newest operation on key.
func (m *memtable) get(hash uint64, key []byte) (op, bool) {
	tag := tagOf(hash)
	for i := tag; ; i++ {
		slot := m.slots[i&uint64(len(m.slots)-1)]
		if slot == 0 {
			return op{}, false
		}
		if slot>>32 == tag {
			if o := m.at(ref(slot) - 1); bytes.Equal(o.key, key) {
				return o, true
			}
		}
	}
}

// newest calls each with the newest operation on each key, in the order in which
// they lie in memory.
func (m *memtable) newest(each func(r ref, o op)) {
	slices.Sort(m.stale)
	stale := m.stale
	for n, chunk := range m.chunks {
		for pos := 0; pos < len(chunk); {
			o, _ := parseOp(chunk[pos:])
			r := ref(n<<chunkBits | pos)
			pos += o.size
			switch {
			case len(stale) > 0 && stale[0] == r:
				stale = stale[1:]
			case o.kind != opDeleteRange:
				each(r, o)
			}
		}
	}
}
