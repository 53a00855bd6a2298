package journal

import (
	"context"
	"fmt"
	"slices"

	"github.com/warifu/warifu/storage/claim"
)

const (
	// groupBytesMax bounds what one write and one sync bring, unless a single
	// append is larger.
	groupBytesMax = 1 << 20
	// queueBytesMax bounds what waits while the disk works.
	queueBytesMax = 4 << 20
)

// waiting is one Append.
type waiting struct {
	body   []byte
	count  int
	oldest claim.Time
	done   chan error // takes one answer without anybody there
}

func (w *waiting) size() int64 { return frameBytes + int64(len(w.body)) }

// Append returns nil when the entries are durable. They are written together
// or not at all, and with those of other callers who came while the disk
// worked: one write and one sync for all of them.
//
// Errors: ErrFull and ErrBroken, upon which the caller fails closed;
// ErrInvalid for entries that no checked request brings, or more than
// EntriesMax; ctx's, when it ends first. After any of them but ErrInvalid the
// entries may be there all the same.
func (j *Journal) Append(ctx context.Context, entries []Entry) error {
	if j == nil {
		return fmt.Errorf("journal: append: %w", errAbsent)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("journal: append: %w", err)
	}
	if len(entries) == 0 {
		return nil
	}
	w, err := j.encode(entries)
	if err == nil {
		err = j.enqueue(w)
	}
	if err == nil {
		select {
		case err = <-w.done:
		case <-ctx.Done():
			j.withdraw(w)
			err = ctx.Err()
		}
	}
	if err != nil {
		return fmt.Errorf("journal: append: %w", err)
	}
	return nil
}

func (j *Journal) encode(entries []Entry) (*waiting, error) {
	if len(entries) > EntriesMax {
		return nil, fmt.Errorf("%w: %d entries, at most %d", ErrInvalid, len(entries), EntriesMax)
	}
	w := &waiting{count: len(entries), oldest: claim.Never, done: make(chan error, 1)}
	now := claim.FromTime(j.cfg.Clock())
	for i := range entries {
		e := &entries[i]
		if err := e.validate(); err != nil {
			return nil, err
		}
		w.body = appendEntry(w.body, e, now)
		if e.Time == 0 {
			w.oldest = min(w.oldest, now)
		} else {
			w.oldest = min(w.oldest, e.Time)
		}
	}
	return w, nil
}

// enqueue leaves w to the writer, and starts one where there is none.
func (j *Journal) enqueue(w *waiting) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.usable(); err != nil {
		j.mu.counts.failed++
		return err
	}
	if j.mu.queued > 0 && j.mu.queued+w.size() > queueBytesMax {
		j.mu.counts.full++
		return fmt.Errorf("%w: too much waits for the disk", ErrFull)
	}
	j.mu.queue = append(j.mu.queue, w)
	j.mu.queued += w.size()
	if !j.mu.writing {
		j.mu.writing = true
		j.writer.Go(j.write) // Close waits for it
	}
	return nil
}

// withdraw takes back what is not being written yet.
func (j *Journal) withdraw(w *waiting) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if i := slices.Index(j.mu.queue, w); i >= 0 {
		j.mu.queue = slices.Delete(j.mu.queue, i, i+1)
		j.mu.queued -= w.size()
	}
}

// write commits group after group until nothing waits.
func (j *Journal) write() {
	for {
		j.files.Lock()
		group := j.take()
		if len(group) == 0 {
			j.files.Unlock()
			return
		}
		j.commit(group)
		j.files.Unlock()
	}
}

// take returns what is written next. It is called with files held, so that what
// arrives while a removal works comes in one group.
func (j *Journal) take() (group []*waiting) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var size int64
	n := 0
	for ; n < len(j.mu.queue); n++ {
		size += j.mu.queue[n].size()
		if n > 0 && size > groupBytesMax {
			break
		}
		j.mu.queued -= j.mu.queue[n].size()
	}
	group = slices.Clone(j.mu.queue[:n])
	j.mu.queue = slices.Delete(j.mu.queue, 0, n)
	j.mu.writing = n > 0
	return group
}

// commit makes a group durable and answers it; files is held.
func (j *Journal) commit(group []*waiting) {
	fits, err := j.admit(group)
	if err == nil && len(fits) > 0 {
		err = j.flush(fits)
	}
	for _, w := range fits {
		j.answer(w, err)
	}
	if err == nil && len(fits) == len(group) {
		j.files.full = false
	}
}

// admit refuses what is above the bound, makes a new file where the next frames
// belong into one, and returns what is to be written.
func (j *Journal) admit(group []*waiting) (fits []*waiting, err error) {
	j.mu.Lock()
	held, active, broken := j.bytes(), j.active().size, j.mu.broken
	j.mu.Unlock()
	if broken != nil {
		return group, broken
	}
	var size int64
	for _, w := range group {
		// The file that this may begin has a header too.
		if held+size+w.size()+headerBytes > j.cfg.BytesMax {
			j.noticeFull("bound")
			j.answer(w, fmt.Errorf("%w: %d bytes of unreconciled entries", ErrFull, held))
			continue
		}
		fits = append(fits, w)
		size += w.size()
	}
	if len(fits) > 0 && active > headerBytes && active+size > j.cfg.SegmentBytes {
		return fits, j.roll()
	}
	return fits, nil
}

// roll begins the next file.
func (j *Journal) roll() error {
	j.mu.Lock()
	next := j.active().next
	j.mu.Unlock()
	if err := j.begin(next); err != nil {
		return j.failure(err)
	}
	return nil
}

// active is the segment that is written; mu is held.
func (j *Journal) active() *segment { return &j.mu.segments[len(j.mu.segments)-1] }

// flush writes frames behind the last file, syncs, and counts them as held.
func (j *Journal) flush(group []*waiting) error {
	j.mu.Lock()
	seg := *j.active()
	j.mu.Unlock()
	b, oldest, next := j.files.buf[:0], seg.oldest, seg.next
	for _, w := range group {
		f := frame{nonce: seg.nonce, first: next, durable: seg.size, count: w.count, body: w.body}
		b = f.append(b)
		next += Cursor(w.count) //nolint:gosec // at most EntriesMax
		oldest = min(oldest, w.oldest)
	}
	if j.files.buf = b; cap(b) > 2*groupBytesMax {
		j.files.buf = nil // one large append does not hold memory for good
	}
	if err := j.put(b, seg.size); err != nil {
		return err
	}
	j.files.vouched = next == seg.next
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.counts.appended += uint64(next - seg.next)
	j.mu.counts.groups++
	seg.size, seg.next, seg.oldest = seg.size+int64(len(b)), next, oldest
	*j.active() = seg
	return nil
}

// put writes b at the end of the last file, durably.
func (j *Journal) put(b []byte, at int64) error {
	if _, err := j.files.active.WriteAt(b, at); err != nil {
		if !noSpace(err) {
			return j.breakWith(fmt.Errorf("write: %w", err))
		}
		// What was written of it must not stand before what comes later.
		if err := j.files.active.Truncate(at); err != nil {
			return j.breakWith(fmt.Errorf("truncate after a full disk: %w", err))
		}
		if err := j.files.active.Sync(); err != nil {
			return j.breakWith(fmt.Errorf("sync after a full disk: %w", err))
		}
		return j.failure(err)
	}
	// After a sync that failed nobody knows what is on disk, and asking again
	// would say "all" (the kernel forgets): even a full disk breaks us here.
	if err := j.files.active.Sync(); err != nil {
		return j.breakWith(fmt.Errorf("sync: %w", err))
	}
	return nil
}

// vouch writes a frame without entries behind the last group, so that damage to
// that one is told from a torn tail. Without it nothing acknowledged is lost.
func (j *Journal) vouch() {
	j.mu.Lock()
	broken := j.mu.broken
	j.mu.Unlock()
	if broken != nil || j.files.vouched {
		return
	}
	if err := j.flush([]*waiting{{oldest: claim.Never}}); err != nil {
		j.cfg.Logger.Warn("the journal of unprotected runs was closed without its last mark", "error", err)
	}
}
