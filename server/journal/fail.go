package journal

import (
	"errors"
	"fmt"
	"syscall"
)

// noSpace reports what ends when somebody makes room.
func noSpace(err error) bool {
	return !errors.Is(err, errBegun) && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
}

// failure is for errors that left the files as they were: without space the
// journal is full, anything else breaks it. files is held.
func (j *Journal) failure(err error) error {
	if !noSpace(err) {
		return j.breakWith(err)
	}
	j.noticeFull("disk")
	return fmt.Errorf("%w: %w", ErrFull, err)
}

// breakWith ends writing for good. What is durable can still be read.
func (j *Journal) breakWith(cause error) error {
	err := fmt.Errorf("%w: %w", ErrBroken, cause)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.broken == nil {
		j.mu.broken = err
		j.cfg.Logger.Error("the journal of unprotected runs failed; consumers with FAIL_OPEN fail closed until this process starts again", "error", cause)
	}
	return err
}

// noticeFull logs that the journal is full, once for as long as it is.
func (j *Journal) noticeFull(cause string) {
	if j.files.full {
		return
	}
	j.files.full = true
	j.cfg.Logger.Warn("the journal of unprotected runs is full; consumers with FAIL_OPEN fail closed", "cause", cause, "bytes_max", j.cfg.BytesMax)
}

// answer ends one Append and counts how.
func (j *Journal) answer(w *waiting, err error) {
	j.mu.Lock()
	switch {
	case errors.Is(err, ErrFull):
		j.mu.counts.full++
	case err != nil:
		j.mu.counts.failed++
	}
	j.mu.Unlock()
	w.done <- err
}
