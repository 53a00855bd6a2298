package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/warifu/warifu/storage/claim"
)

// segment is one file. Sizes and cursors count what is durable.
type segment struct {
	header
	size   int64
	next   Cursor // of the entry after its last one
	oldest claim.Time
}

func (s *segment) entries() uint64 { return uint64(s.next - s.first) }

// segmentSuffix follows the first cursor in a file's name.
const segmentSuffix = ".journal"

func segmentName(first Cursor) string { return fmt.Sprintf("%020d%s", first, segmentSuffix) }

func (j *Journal) path(first Cursor) string { return filepath.Join(j.cfg.Dir, segmentName(first)) }

// listSegments returns the first cursors of all files, ascending.
func (j *Journal) listSegments() ([]Cursor, error) {
	names, err := j.fs.List(j.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	var out []Cursor
	for _, name := range names {
		digits, ok := strings.CutSuffix(name, segmentSuffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n == 0 || segmentName(Cursor(n)) != name {
			return nil, fmt.Errorf("%s is no name of a journal's file: %w", name, ErrDamaged)
		}
		out = append(out, Cursor(n))
	}
	slices.Sort(out)
	return out, nil
}

// recover reads all files and opens the last one for writing.
func (j *Journal) recover() error {
	firsts, err := j.listSegments()
	if err != nil {
		return err
	}
	begin := Cursor(1)
	for i, first := range firsts {
		if i > 0 && first != begin {
			return fmt.Errorf("the file before %s is missing or short: %w", segmentName(first), ErrDamaged)
		}
		last := i == len(firsts)-1
		data, err := j.fs.ReadFile(j.path(first))
		if err != nil {
			return fmt.Errorf("read %s: %w", segmentName(first), err)
		}
		begin = first
		if _, err := parseHeader(data); errors.Is(err, ErrDamaged) && last && len(data) <= headerBytes {
			// The crash came while the file was made: it holds nothing yet.
			if err := j.discard(first); err != nil {
				return err
			}
			break
		}
		seg, err := j.recoverSegment(first, data, last)
		if err != nil {
			return fmt.Errorf("%s: %w", segmentName(first), err)
		}
		j.mu.segments = append(j.mu.segments, seg)
		begin = seg.next
	}
	if j.files.active == nil {
		return j.begin(begin)
	}
	return nil
}

// recoverSegment checks one file. In the last one a torn tail is cut off.
func (j *Journal) recoverSegment(first Cursor, data []byte, last bool) (segment, error) {
	oldest := claim.Never
	s, err := scan(data, func(f *frame) error {
		entries, err := f.entries()
		for i := range entries {
			oldest = min(oldest, entries[i].Time)
		}
		return err
	})
	if err == nil && (s.first != first || (s.size < int64(len(data)) && (!last || vouchedFor(data, s.size, s.nonce)))) {
		err = ErrDamaged
	}
	if err != nil {
		return segment{}, fmt.Errorf("at byte %d: %w", s.size, err)
	}
	if last {
		if err := j.reopen(first, data[:s.size], int64(len(data))-s.size); err != nil {
			return segment{}, err
		}
		j.files.vouched = s.vouched
	}
	return segment{header: s.header, size: s.size, next: s.next, oldest: oldest}, nil
}

// reopen makes the last file end behind its last whole frame, durably. What is
// kept is written again: after a sync that failed, pages may look clean and not
// be on disk, and a new sync alone would not bring them there.
func (j *Journal) reopen(first Cursor, keep []byte, torn int64) error {
	f, err := j.fs.Open(j.path(first))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	_, err = f.WriteAt(keep, 0)
	if err == nil {
		err = f.Truncate(int64(len(keep)))
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = j.fs.SyncDir(j.cfg.Dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cut off the torn tail: %w", err), f.Close())
	}
	if torn > 0 {
		j.cfg.Logger.Warn("the journal of unprotected runs ended in a torn write, which was never acknowledged", "bytes", torn)
	}
	j.files.active = f
	return nil
}

// begin makes the file of the entries from first on and writes there from now.
// When it fails, no trace of the file is left, or the error is errBegun: whoever
// went on writing the old file then would contradict the name of the new one.
func (j *Journal) begin(first Cursor) error {
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // never fails: it ends the process instead
	seg := segment{header: header{first: first, nonce: binary.LittleEndian.Uint64(nonce[:])}, size: headerBytes, next: first, oldest: claim.Never}
	f, err := j.fs.Create(j.path(first))
	if err != nil {
		return fmt.Errorf("begin a file: %w", err)
	}
	if err := j.fill(f, seg.encode()); err != nil {
		err = fmt.Errorf("begin a file: %w", errors.Join(err, f.Close()))
		if undone := j.discard(first); undone != nil {
			return fmt.Errorf("%w: %w", errBegun, errors.Join(err, undone))
		}
		return err
	}
	if old := j.files.active; old != nil {
		_ = old.Close() // all of it is synced
	}
	j.files.active, j.files.vouched = f, true
	j.mu.Lock()
	j.mu.segments = append(j.mu.segments, seg)
	j.mu.Unlock()
	return nil
}

// errBegun says that a file was not begun and may still be found after a crash.
var errBegun = errors.New("a file was left half begun")

// fill makes a new file and its name durable.
func (j *Journal) fill(f File, b []byte) error {
	if _, err := f.WriteAt(b, 0); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if err := j.fs.SyncDir(j.cfg.Dir); err != nil {
		return fmt.Errorf("%w: %w", errBegun, err)
	}
	return nil
}

// discard removes a file durably; that it is not there is no error.
func (j *Journal) discard(first Cursor) error {
	if err := j.fs.Remove(j.path(first)); err != nil && !errors.Is(err, errNotExist) {
		return fmt.Errorf("remove %s: %w", segmentName(first), err)
	}
	if err := j.fs.SyncDir(j.cfg.Dir); err != nil {
		return fmt.Errorf("remove %s: %w", segmentName(first), err)
	}
	return nil
}
