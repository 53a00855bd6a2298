package pebble

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The write-ahead log is a chain of segments of a size that each one's header
// says. A segment holds frames, one for each sync, and every frame is written
// twice, in blocks of its own:
//
//	header, header again, frame, frame again, frame, frame again, …
//
// An ordinary log ends at the first thing that cannot be read, and so takes a
// flipped byte or a cut in its last stretch for its end: what was acknowledged
// last is gone without a word. Here one unreadable copy is made good by the
// other, a file shorter than its header says is damage, and a segment that
// others follow ends with a frame that says so. Both copies go out in one write
// and are made durable by one sync; no later frame touches their blocks.
const (
	// sealBytes are kept free at the end of a segment for its last frame.
	sealBytes = 2 * blockBytes
	// sealedMax is how many sealed segments may wait for a flush before one is
	// asked for: commits that come alone fill the log long before memory.
	sealedMax = 2
	// zeroChunk is how much of a new segment is filled and synced at once, so
	// that commits do not wait behind all of it.
	zeroChunk = 4 << 20
	// segmentGrowth is how much larger than the one before a segment is made,
	// up to the configured size, where at least one byte in segmentUseful is an
	// operation: a small store stays small, and an idle one, too.
	segmentGrowth   = 2
	segmentUseful   = 8
	segmentBytesMin = 4 << 20
	frameBufMax     = 8 << 20 // a larger buffer is not kept
	// logSegmentBytesMin has room for headers, seal and a small frame.
	logSegmentBytesMin = framesFrom + sealBytes + 2*blockBytes
)

const walPrefix = "wal."

func segmentName(number uint64) string { return fmt.Sprintf("%s%06d", walPrefix, number) }

// segment is one file of the log.
type segment struct {
	header
	off  int64    // where the next frame goes
	file vfs.File // nil once sealed
	last uint64   // sequence number of its last commit, once sealed
}

// wal appends frames. write belongs to the goroutine that syncs commits; mu
// guards what the flusher shares with it.
type wal struct {
	fs      vfs.FS
	dir     string
	sizeMax int64
	buf     []byte
	useful  int64         // bytes of operations in the current segment
	next    chan prepared // the segment to come, once it was asked for

	// wantsFlush asks for the memtable to be frozen, so that segments end.
	wantsFlush atomic.Bool

	mu struct {
		sync.Mutex
		cur    segment
		sealed []segment // oldest first
		spare  []segment // flushed, of full size, to be used again
	}
}

type prepared struct {
	segment segment
	err     error
}

// takeTries is how often the next segment is asked for: as it was prepared,
// anew, and once more.
const takeTries = 3

var errTooSmall = errors.New("the segment is too small for the frame")

func newWAL(cfg *Config) *wal {
	return &wal{fs: cfg.FS, dir: cfg.Dir, sizeMax: cfg.LogSegmentBytes}
}

// begin starts the log in a new segment.
func (w *wal) begin(number uint64) error {
	s, err := w.create(number, min(segmentBytesMin, w.sizeMax))
	if err == nil {
		err = syncDir(w.fs, w.dir)
	}
	if err != nil {
		return fmt.Errorf("begin log: %w", err)
	}
	w.mu.cur = s
	return nil
}

// write makes the commits of a group durable.
func (w *wal) write(group []*commit) error {
	b := w.buf[:0]
	b = append(b, zeroBlock[:frameHeader]...)
	ops := int64(0)
	for _, c := range group {
		ops += int64(len(c.ops))
		b = c.append(b)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(c.ops)))
		b = append(b, c.ops...)
	}
	first := group[0].seq
	if need := 2 * int64(len(b)+padding(len(b))); w.mu.cur.off+need+sealBytes > w.mu.cur.size {
		if err := w.rotate(first, need); err != nil {
			return err
		}
	}
	b = finishFrame(b, w.mu.cur.nonce, first, false)
	if w.buf = b; cap(b) > frameBufMax {
		w.buf = nil
	}
	if err := w.append(b); err != nil {
		return err
	}
	w.useful += ops
	if s := &w.mu.cur; w.next == nil && s.off > s.size/2 {
		w.prepare(0)
	}
	return nil
}

func (w *wal) append(b []byte) error {
	s := &w.mu.cur
	if _, err := s.file.WriteAt(b, s.off); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	if err := s.file.SyncData(); err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	s.off += int64(len(b))
	return nil
}

// rotate seals the current segment and goes on in the next, which has room for
// a frame of need bytes. first is the sequence number of the commit to come.
func (w *wal) rotate(first uint64, need int64) error {
	p := w.take(need + framesFrom + sealBytes)
	if p.err != nil {
		return fmt.Errorf("extend log: %w", p.err)
	}
	if err := w.append(finishFrame(make([]byte, frameHeader), w.mu.cur.nonce, first, true)); err != nil {
		return errors.Join(err, p.segment.file.Close())
	}
	w.mu.Lock()
	old := w.mu.cur
	old.file, old.last = nil, first-1
	w.mu.sealed = append(w.mu.sealed, old)
	file := w.mu.cur.file
	w.mu.cur = p.segment
	w.useful = 0
	many := len(w.mu.sealed) >= sealedMax
	w.mu.Unlock()
	if many {
		w.wantsFlush.Store(true)
	}
	return file.Close()
}

// take returns the next segment, of at least need bytes. One that was prepared
// in vain, for want of room perhaps, or too small, is tried again.
func (w *wal) take(need int64) (p prepared) {
	for range takeTries {
		if w.next == nil {
			w.prepare(need)
		}
		p = <-w.next
		w.next = nil
		if p.err == nil && p.segment.size >= need {
			return p
		}
		if p.err == nil {
			p.err = errors.Join(errTooSmall, p.segment.file.Close())
		}
	}
	return p
}

// prepare makes the next segment ready in the background.
func (w *wal) prepare(need int64) {
	size := w.mu.cur.size
	if w.useful > w.mu.cur.off/segmentUseful {
		size *= segmentGrowth
	}
	number, size := w.mu.cur.number+1, max(need, min(size, w.sizeMax))
	next := make(chan prepared, 1)
	w.next = next
	go func() {
		s, err := w.reuse(number, size)
		if err == nil {
			err = syncDir(w.fs, w.dir)
		}
		next <- prepared{s, err}
	}()
}

// reuse turns a spare segment into the one with the given number, or makes one.
// The frames that it held carry another nonce.
func (w *wal) reuse(number uint64, size int64) (segment, error) {
	w.mu.Lock()
	var spare segment
	if n := len(w.mu.spare); n > 0 && w.mu.spare[n-1].size >= size {
		spare = w.mu.spare[n-1]
		w.mu.spare = w.mu.spare[:n-1]
	}
	w.mu.Unlock()
	if spare.number == 0 {
		return w.create(number, size)
	}
	path := w.path(number)
	if err := w.fs.Rename(w.path(spare.number), path); err != nil {
		return segment{}, err
	}
	return w.head(number, spare.size)
}

// create makes a segment of zeros: writing over blocks that are there already
// costs a sync less than extending a file.
func (w *wal) create(number uint64, size int64) (segment, error) {
	f, err := w.fs.Create(w.path(number), vfs.WriteCategoryUnspecified)
	if err != nil {
		return segment{}, err
	}
	zeros := make([]byte, min(size, zeroChunk))
	for left := size; left > 0 && err == nil; left -= int64(len(zeros)) {
		zeros = zeros[:min(int64(len(zeros)), left)]
		if _, err = f.Write(zeros); err == nil {
			err = f.Sync()
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return segment{}, err
	}
	return w.head(number, size)
}

// head opens a segment's file and writes its header.
func (w *wal) head(number uint64, size int64) (segment, error) {
	f, err := w.fs.OpenReadWrite(w.path(number), vfs.WriteCategoryUnspecified)
	if err != nil {
		return segment{}, err
	}
	var nonce [8]byte
	if _, err = rand.Read(nonce[:]); err == nil {
		h := header{number: number, size: size, nonce: binary.LittleEndian.Uint64(nonce[:])}
		b := h.block()
		if _, err = f.WriteAt(append(b, b...), 0); err == nil {
			err = f.Sync()
		}
		if err == nil {
			return segment{header: h, off: framesFrom, file: f}, nil
		}
	}
	return segment{}, errors.Join(err, f.Close())
}

func (w *wal) path(number uint64) string { return w.fs.PathJoin(w.dir, segmentName(number)) }

// holding returns the segment that a start must begin with when the engine has
// everything up to seq.
func (w *wal) holding(seq uint64) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.mu.sealed {
		if w.mu.sealed[i].last > seq {
			return w.mu.sealed[i].number
		}
	}
	return w.mu.cur.number
}

// flushed lets go of the segments before the one that a start begins with now.
func (w *wal) flushed(first uint64) error {
	w.mu.Lock()
	var gone []segment
	for len(w.mu.sealed) > 0 && w.mu.sealed[0].number < first {
		s := w.mu.sealed[0]
		w.mu.sealed = w.mu.sealed[1:]
		if s.size == w.sizeMax && len(w.mu.spare) == 0 {
			w.mu.spare = append(w.mu.spare, s)
		} else {
			gone = append(gone, s)
		}
	}
	w.mu.Unlock()
	var errs []error
	for _, s := range gone {
		errs = append(errs, w.fs.Remove(w.path(s.number)))
	}
	return errors.Join(errs...)
}

// bytes is the size of all segments.
func (w *wal) bytes() (n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range slices.Concat(w.mu.sealed, w.mu.spare) {
		n += s.size
	}
	return n + w.mu.cur.size
}

func (w *wal) close() error {
	var err error
	if w.next != nil {
		p := <-w.next
		if p.segment.file != nil {
			err = p.segment.file.Close()
		}
		err = errors.Join(err, p.err)
	}
	return errors.Join(err, w.mu.cur.file.Close())
}

// segments lists the numbers of the segments in dir, in order.
func segments(fs vfs.FS, dir string) ([]uint64, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list log: %w", err)
	}
	var numbers []uint64
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, walPrefix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || segmentName(n) != name {
			return nil, fmt.Errorf("list log: %q is not a segment", name)
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	return numbers, nil
}
