package pebble

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
)

// sortItem is an operation and the part of its key that is compared first.
type sortItem struct {
	prefix uint64
	r      ref
}

// sortPlain is the size under which whole keys are compared.
const sortPlain = 16

// sort sorts operations of a memtable by key. Keys begin alike (tenant,
// consumer) and lie all over memory, so eight bytes of each, from where they
// first differ, are kept beside it and compared; those that are equal so far
// are sorted again by the bytes after. The caller has filled in the first
// prefixes, from the end of what is shared.
func (m *memtable) sort(items []sortItem, shared int) {
	slices.SortFunc(items, func(a, b sortItem) int { return cmp.Compare(a.prefix, b.prefix) })
	for from, i := 0, 1; i <= len(items); i++ {
		if i < len(items) && items[i].prefix == items[from].prefix {
			continue
		}
		if i-from > 1 {
			m.sortEqual(items[from:i], shared)
		}
		from = i
	}
}

// sortEqual sorts operations whose keys have more than shared bytes in common.
func (m *memtable) sortEqual(items []sortItem, shared int) {
	more := shared
	if len(items) > sortPlain {
		more = m.sharedPrefix(items)
	}
	if more == shared { // few, or keys that end before they differ
		slices.SortFunc(items, func(a, b sortItem) int { return bytes.Compare(m.at(a.r).key, m.at(b.r).key) })
		return
	}
	for i := range items {
		items[i].prefix = eightBytes(m.at(items[i].r).key[more:])
	}
	m.sort(items, more)
}

func (m *memtable) sharedPrefix(items []sortItem) int {
	first := m.at(items[0].r).key
	for i := range items {
		first = first[:commonPrefix(first, m.at(items[i].r).key)]
	}
	return len(first)
}

func eightBytes(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	var pad [8]byte
	copy(pad[:], b)
	return binary.BigEndian.Uint64(pad[:])
}
