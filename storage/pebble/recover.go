package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/cockroachdb/pebble/v2"
)

// firstSegment is where the log of a store begins that has flushed nothing yet.
const firstSegment = 1

// engineMeta is what the engine says of itself: the last commit that it has,
// and the segment in which the log goes on.
type engineMeta struct {
	meta
	segment uint64
}

func (s *Store) readMeta() (engineMeta, error) {
	v, closer, err := s.db.Get(metaKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return engineMeta{segment: firstSegment}, nil
	}
	if err != nil {
		return engineMeta{}, err
	}
	if len(v) != metaLen+8 {
		return engineMeta{}, errors.Join(errBadKey, closer.Close())
	}
	m, err := parseMeta(v[:metaLen])
	return engineMeta{m, binary.BigEndian.Uint64(v[metaLen:])}, errors.Join(err, closer.Close())
}

// recover gives the engine what only the log has, begins a new log, and returns
// the last commit.
func (s *Store) recover() (meta, error) {
	m, err := s.readMeta()
	if err != nil {
		return meta{}, err
	}
	if err := s.cfg.FS.Remove(s.cfg.FS.PathJoin(s.cfg.Dir, flushName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return meta{}, fmt.Errorf("remove what a flush left: %w", err)
	}
	last, mem, segment := m.meta, newMemtable(s.seed), m.segment
	err = replay(s.cfg.FS, s.cfg.Dir, m.segment, m.seq, func(in uint64, c meta, ops []byte) error {
		if mem.bytes >= int64(s.cfg.MemTableBytes) {
			if err := s.flush(mem, in); err != nil {
				return err
			}
			mem = newMemtable(s.seed)
		}
		last.seq, last.hwm, last.ceil = c.seq, max(last.hwm, c.hwm), max(last.ceil, c.ceil)
		mem.meta, segment = last, in
		if !mem.add(ops) {
			return fmt.Errorf("%w: commit %d cannot be read", errLog, c.seq)
		}
		return nil
	})
	if err != nil {
		return meta{}, err
	}
	mem.meta = last
	return last, s.beginLog(mem, segment)
}

// beginLog begins a new segment, gives the engine all that the log before had,
// and removes that. The old segments are gone from the disk before anything is
// acknowledged from the new one: they are not sealed, and a start that found
// them would take their end for that of the log.
func (s *Store) beginLog(mem *memtable, segment uint64) error {
	old, err := segments(s.cfg.FS, s.cfg.Dir)
	if err != nil {
		return err
	}
	number := segment
	for _, n := range old {
		number = max(number, n)
	}
	number++
	if err := s.wal.begin(number); err != nil {
		return err
	}
	if err := s.flush(mem, number); err != nil {
		// Nothing is in the new segment: starts that fail do not fill the disk.
		return errors.Join(err, s.wal.close(), s.cfg.FS.Remove(s.wal.path(number)))
	}
	for _, n := range old {
		if err := s.cfg.FS.Remove(s.cfg.FS.PathJoin(s.cfg.Dir, segmentName(n))); err != nil {
			return errors.Join(fmt.Errorf("remove old log: %w", err), s.wal.close())
		}
	}
	if err := syncDir(s.cfg.FS, s.cfg.Dir); err != nil {
		return errors.Join(fmt.Errorf("remove old log: %w", err), s.wal.close())
	}
	return nil
}
