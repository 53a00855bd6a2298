package journal

import (
	"errors"
	"fmt"
	"iter"
)

// Record is an entry and its place.
type Record struct {
	Entry
	Cursor Cursor
}

// All yields, in order, the entries behind after that were durable when the
// iteration began, and ends with the first error: ErrDamaged, or the file
// system's. It holds one file in memory, and may run beside appends and
// removals; what is removed meanwhile may be left out. It works on a broken
// journal, and not on a closed one.
func (j *Journal) All(after Cursor) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if j == nil {
			return
		}
		j.mu.Lock()
		end := j.active().next
		j.mu.Unlock()
		for {
			seg, err := j.segmentAfter(after, end)
			if err == nil && seg == nil {
				return
			}
			var records []Record
			if err == nil {
				records, err = j.read(seg, after)
			}
			for i := range records {
				if records[i].Cursor >= end {
					return
				}
				if after = records[i].Cursor; !yield(records[i], nil) {
					return
				}
			}
			if err != nil {
				yield(Record{}, fmt.Errorf("journal: read: %w", err))
				return
			}
		}
	}
}

// segmentAfter returns the first segment with an entry behind after and before
// end, or nil.
func (j *Journal) segmentAfter(after, end Cursor) (*segment, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.closed {
		return nil, fmt.Errorf("%w: it is closed", ErrBroken)
	}
	for i := range j.mu.segments {
		if seg := j.mu.segments[i]; seg.next > after+1 && seg.first < end && seg.entries() > 0 {
			return &seg, nil
		}
	}
	return nil, nil
}

// read returns the entries of a segment behind after. A segment that is not
// held any more has none.
func (j *Journal) read(seg *segment, after Cursor) ([]Record, error) {
	data, err := j.fs.ReadFile(j.path(seg.first))
	if err != nil {
		if errors.Is(err, errNotExist) && !j.holds(seg.first) {
			return nil, nil
		}
		return nil, fmt.Errorf("%s: %w", segmentName(seg.first), err)
	}
	var records []Record
	s, err := scan(data[:min(int64(len(data)), seg.size)], func(f *frame) error {
		entries, err := f.entries()
		for i := range entries {
			if at := f.first + Cursor(i); at > after {
				records = append(records, Record{Entry: entries[i], Cursor: at})
			}
		}
		return err
	})
	if err == nil && (s.next != seg.next || s.first != seg.first) {
		err = ErrDamaged
	}
	if err != nil {
		return records, fmt.Errorf("%s at byte %d: %w", segmentName(seg.first), s.size, err)
	}
	return records, nil
}

func (j *Journal) holds(first Cursor) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.mu.segments {
		if j.mu.segments[i].first == first {
			return true
		}
	}
	return false
}

// Remove forgets entries up to and including upTo, whole files only: the last
// entries may stay, and are read again after a restart. Once upTo is the last
// entry there is, nothing stays. Entries are unlinked, not overwritten.
//
// Errors: ErrInvalid when upTo was never given out; ErrBroken; ErrFull when the
// disk has no room to begin the next file (older ones are gone by then); the
// file system's. It is safe to call again.
func (j *Journal) Remove(upTo Cursor) error {
	if j == nil {
		return fmt.Errorf("journal: remove: %w", errAbsent)
	}
	j.files.Lock()
	defer j.files.Unlock()
	if err := j.remove(upTo); err != nil {
		return fmt.Errorf("journal: remove: %w", err)
	}
	return nil
}

func (j *Journal) remove(upTo Cursor) error {
	j.mu.Lock()
	err, next, active := j.usable(), j.active().next, *j.active()
	j.mu.Unlock()
	if err != nil {
		return err
	}
	if upTo >= next {
		return fmt.Errorf("%w: entry %d was not written yet", ErrInvalid, upTo)
	}
	if err := j.removeOldest(upTo); err != nil {
		return err
	}
	if active.entries() == 0 || active.next > upTo+1 {
		return nil
	}
	// All is reconciled: the file that is written goes too.
	if err := j.roll(); err != nil {
		return err
	}
	return j.removeOldest(upTo)
}

// removeOldest removes the files before the last one whose entries are all
// within upTo. Each is gone durably before the next one goes: a crash leaves no
// gap.
func (j *Journal) removeOldest(upTo Cursor) error {
	for {
		j.mu.Lock()
		oldest, last := j.mu.segments[0], len(j.mu.segments) == 1
		j.mu.Unlock()
		if last || oldest.next > upTo+1 {
			return nil
		}
		if err := j.fs.Remove(j.path(oldest.first)); err != nil && !errors.Is(err, errNotExist) {
			return fmt.Errorf("%s: %w", segmentName(oldest.first), err)
		}
		j.mu.Lock()
		j.mu.segments = j.mu.segments[1:]
		j.mu.counts.removed += oldest.entries()
		j.mu.Unlock()
		if err := j.fs.SyncDir(j.cfg.Dir); err != nil {
			return j.breakWith(err)
		}
	}
}
