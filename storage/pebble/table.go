package pebble

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2/sstable"
)

// writeTable writes, in the order of keys, the registry, bodies, how far the
// engine is, records, and the expiry index.
func writeTable(w *sstable.Writer, m *memtable, segment uint64) error {
	var bodies []sortItem
	records := make([]sortItem, 0, m.used)
	m.newest(func(r ref, o op) {
		if o.key[0] != recordPrefix { // bodies and the registry, in one run of keys
			bodies = append(bodies, sortItem{eightBytes(o.key), r})
		} else {
			records = append(records, sortItem{eightBytes(o.key[len(m.shared):]), r})
		}
	})
	m.sort(bodies, 0)
	m.sort(records, len(m.shared))
	index := expiryIndex{seq: m.meta.seq, buckets: map[int64]*bucketEntries{}}
	if err := writeOps(w, m, bodies, &index); err != nil {
		return err
	}
	if err := w.Set(metaKey, binary.BigEndian.AppendUint64(m.meta.append(nil), segment)); err != nil {
		return err
	}
	if err := writeOps(w, m, records, &index); err != nil {
		return err
	}
	return errors.Join(writeRanges(w, m.ranges), index.write(w))
}

func writeOps(w *sstable.Writer, m *memtable, items []sortItem, index *expiryIndex) error {
	for i := range items {
		o := m.at(items[i].r)
		if o.kind == opDelete {
			if err := w.Delete(o.key); err != nil {
				return err
			}
			continue
		}
		if err := w.Set(o.key, o.value); err != nil {
			return err
		}
		if o.kind == opRecordDue {
			index.add(o.bucket, o.key)
		}
	}
	return nil
}

// writeRanges writes range deletions, those that touch as one. They delete what
// the engine had before and nothing of the table that they come in.
func writeRanges(w *sstable.Writer, ranges []op) error {
	slices.SortFunc(ranges, func(a, b op) int { return bytes.Compare(a.key, b.key) })
	for i := 0; i < len(ranges); {
		from, to := ranges[i].key, ranges[i].value
		for i++; i < len(ranges) && bytes.Compare(ranges[i].key, to) <= 0; i++ {
			if bytes.Compare(ranges[i].value, to) > 0 {
				to = ranges[i].value
			}
		}
		if err := w.DeleteRange(from, to); err != nil {
			return err
		}
	}
	return nil
}

// expiryIndex collects what a table adds to the expiry index. Keys come in
// sorted order.
type expiryIndex struct {
	seq     uint64
	buckets map[int64]*bucketEntries
}

// bucketEntries are the entries of one bucket: data of indexEntryKeys keys each.
type bucketEntries struct {
	full [][]byte
	data []byte
	keys int
	last []byte
}

func (x *expiryIndex) add(bucket int64, key []byte) {
	e := x.buckets[bucket]
	if e == nil {
		e = &bucketEntries{}
		x.buckets[bucket] = e
	}
	if e.keys == indexEntryKeys {
		e.full = append(e.full, e.data)
		e.data, e.keys, e.last = nil, 0, nil
	}
	e.data = appendIndexed(e.data, e.last, key)
	e.last = key
	e.keys++
}

func (x *expiryIndex) write(w *sstable.Writer) error {
	for _, bucket := range slices.Sorted(maps.Keys(x.buckets)) {
		e := x.buckets[bucket]
		for part, data := range append(e.full, e.data) {
			if err := w.Set(indexKey(bucket, x.seq, uint32(part)), data); err != nil {
				return err
			}
		}
	}
	return nil
}
