// Package journal keeps the list of unprotected decisions: claims that were
// answered UNPROTECTED because the store could not be asked and the consumer's
// policy is FAIL_OPEN. It is an append-only list in files, bounded, and durable
// before the answer is sent; whoever cannot append fails closed. Afterwards it
// is read from the front, reconciled with the store, and removed.
//
// What it promises:
//
//   - When Append returns nil, its entries are on disk and are read after any
//     crash. When it returns an error they may be there or not, whole or not
//     at all: an entry says that UNPROTECTED may have been answered, not that
//     the effect happened. Reconciling must not take it for a completion.
//   - A tail that a crash tore is cut off. Every frame says how much of its file
//     was durable before it, so damage to what had been acknowledged is told
//     from a torn tail, and refused with ErrDamaged. One thing cannot be told:
//     damage to the very last group before a crash. Close writes a frame that
//     vouches for that one too.
//   - Nothing damaged is skipped or deleted. Somebody has to move the directory
//     away and look; a new journal begins empty.
//   - One process holds a directory; the operating system's lock ends with it.
//
// Entries hold event IDs, which are personal data. Files have mode 0600 and the
// directory 0700; the event IDs stay on disk, in the clear, until Remove
// unlinks them. Neither errors nor log lines show what is in an entry.
//
// To wire it: New at start; Append after the decision to fail open and before
// the answer; Stats for metrics; when the store answers again, All and Remove;
// Close when no call is in flight. A nil *Journal is one that is not there: its
// Append returns ErrBroken, so consumers fail closed.
package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// Errors. Whoever gets one of the first two from Append answers "unavailable".
var (
	// ErrFull says that the journal's bound or the disk's space is reached, or
	// that too much waits for the disk. Later appends may succeed: after Remove,
	// or when there is space again.
	ErrFull = errors.New("the journal of unprotected runs is full")
	// ErrBroken says that the journal is absent or closed, or that its disk
	// failed. It stays so until the process starts again.
	ErrBroken = errors.New("the journal of unprotected runs cannot be written")
	// ErrDamaged says that what was acknowledged cannot be read. Move the
	// directory away, examine it, and start with an empty one.
	ErrDamaged = errors.New("the journal of unprotected runs is damaged; move its directory away to examine it, and start with an empty one")
	// ErrLocked says that another process has the directory. Every process needs
	// its own.
	ErrLocked = errors.New("the journal's directory is in use by another process; give every process its own")
	// ErrInvalid says that the caller passed what no checked request has, or a
	// cursor from elsewhere. Nothing was changed.
	ErrInvalid = errors.New("invalid argument")
)

// errAbsent is what a journal says that nobody configured.
var errAbsent = fmt.Errorf("%w: none is configured", ErrBroken)

// Bounds and their defaults.
const (
	// BytesDefault bounds the journal's files together: some 300,000 entries
	// with event IDs of 40 bytes and one digest.
	BytesDefault = 64 << 20
	// BytesMin lets the largest append in.
	BytesMin = 4 << 20
	// SegmentBytesDefault is the size from which the next file is begun. Only
	// whole files are removed.
	SegmentBytesDefault = 4 << 20
	segmentBytesMin     = 4 << 10
)

// Config of a Journal. Dir and Clock are required; other zero values are the
// documented defaults.
type Config struct {
	// Dir is made when it is not there; the one it is in has to be. It belongs on a volume that outlives the
	// process, and better not on the store's: what fails there fails here too.
	Dir string
	// BytesMax bounds all files together; BytesDefault when 0, at least BytesMin.
	// A journal that is larger already is full until it is removed from.
	BytesMax int64
	// SegmentBytes is the size from which a new file is begun.
	// SegmentBytesDefault when 0, at most half of BytesMax. One group of appends
	// may exceed it.
	SegmentBytes int64
	// Clock stamps entries that carry no time.
	Clock func() time.Time
	// Logger takes a line when the journal breaks, fills up, or cut off a torn
	// tail. Nothing is logged when nil.
	Logger *slog.Logger
	// FS is the operating system's when nil.
	FS FS
}

func (c *Config) validate() error {
	if c.BytesMax == 0 {
		c.BytesMax = BytesDefault
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = min(SegmentBytesDefault, c.BytesMax/2)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.FS == nil {
		c.FS = osFS{}
	}
	var faults []error
	refuse := func(broken bool, format string, args ...any) {
		if broken {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	refuse(c.Dir == "", "Dir is missing")
	refuse(c.Clock == nil, "Clock is missing")
	refuse(c.BytesMax < BytesMin, "BytesMax %d is less than %d", c.BytesMax, BytesMin)
	refuse(c.SegmentBytes < segmentBytesMin || c.SegmentBytes > c.BytesMax/2,
		"SegmentBytes %d is not within %d-BytesMax/2", c.SegmentBytes, segmentBytesMin)
	return errors.Join(faults...)
}

// Cursor is the place of an entry, counted from 1 and never used again, not
// after Remove and not after a restart. 0 is before the first one.
type Cursor uint64

// Journal is safe for concurrent use.
type Journal struct {
	cfg    Config
	fs     FS
	unlock func() error
	writer sync.WaitGroup // the one goroutine that writes, while there is something to write

	// files is held for whatever changes files: one group, or one removal.
	files struct {
		sync.Mutex
		active File
		buf    []byte
		full   bool // the last group met a full disk or bound; logged once
		// vouched: the last frame says that all before it is durable.
		vouched bool
	}
	// mu is never held while the disk works.
	mu struct {
		sync.Mutex
		segments []segment // oldest first; the last one is written
		queue    []*waiting
		queued   int64 // bytes of queue
		writing  bool
		closed   bool
		broken   error // why; ErrBroken is in it
		counts   counts
	}
}

type counts struct{ appended, removed, groups, full, failed uint64 }

// New locks the directory, checks every file, cuts off what a crash tore, and
// makes durable what it keeps. It starts nothing. Errors are ErrLocked,
// ErrDamaged, faults of the configuration, and the file system's.
func New(cfg Config) (*Journal, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &Journal{cfg: cfg, fs: cfg.FS}
	unlock, err := j.fs.Lock(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("journal: lock %s: %w", cfg.Dir, err)
	}
	j.unlock = unlock
	if err := j.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("journal: open %s: %w", cfg.Dir, err), unlock())
	}
	return j, nil
}

// Close answers the appends that are under way, vouches for the last group and
// gives the directory back. The journal is broken from then on.
func (j *Journal) Close() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	if j.mu.closed {
		j.mu.Unlock()
		return nil
	}
	j.mu.closed = true
	j.mu.Unlock()
	j.writer.Wait()

	j.files.Lock()
	defer j.files.Unlock()
	j.vouch()
	if err := errors.Join(j.files.active.Close(), j.unlock()); err != nil {
		return fmt.Errorf("journal: close: %w", err)
	}
	return nil
}

// usable returns why nothing can be written, or nil; mu is held.
func (j *Journal) usable() error {
	if j.mu.broken != nil {
		return j.mu.broken
	}
	if j.mu.closed {
		return fmt.Errorf("%w: it is closed", ErrBroken)
	}
	return nil
}

// Stats is what metrics show. Counters begin with the process.
type Stats struct {
	Entries  uint64     // held now
	Bytes    int64      // of all files
	BytesMax int64      // when Bytes comes near it, FAIL_OPEN ends
	Segments int        // files
	Oldest   claim.Time // time of the oldest entry held; claim.Never when there is none
	Broken   bool       // absent, closed or failed

	Appended uint64 // entries acknowledged
	Removed  uint64 // entries removed
	Groups   uint64 // writes, each with one sync
	Full     uint64 // appends refused with ErrFull
	Failed   uint64 // appends refused with ErrBroken
}

// Stats never waits for the disk.
func (j *Journal) Stats() Stats {
	if j == nil {
		return Stats{Oldest: claim.Never, Broken: true}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	n := &j.mu.counts
	s := Stats{
		Bytes: j.bytes(), BytesMax: j.cfg.BytesMax, Segments: len(j.mu.segments), Oldest: claim.Never,
		Broken:   j.usable() != nil,
		Appended: n.appended, Removed: n.removed, Groups: n.groups, Full: n.full, Failed: n.failed,
	}
	for i := range j.mu.segments {
		s.Entries += j.mu.segments[i].entries()
		s.Oldest = min(s.Oldest, j.mu.segments[i].oldest)
	}
	return s
}

// bytes is what all files have together; mu is held.
func (j *Journal) bytes() (n int64) {
	for i := range j.mu.segments {
		n += j.mu.segments[i].size
	}
	return n
}
