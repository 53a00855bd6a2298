package arbiter

import (
	"context"
	"errors"
	"fmt"

	"github.com/warifu/warifu/storage"
)

// Sentinels beside those of package storage. Both mean that nothing was
// applied.
var (
	// ErrOverloaded: the queue is full. Retry later.
	ErrOverloaded = errors.New("too many requests are queued; nothing was applied; retry later")
	// ErrNotSent: the caller's context ended while its items were queued, or
	// while it waited for a key. Always wrapped together with the context's
	// error.
	ErrNotSent = errors.New("the caller left in time; nothing was applied")
)

func notSent(ctx context.Context) error { return fmt.Errorf("%w: %w", ErrNotSent, ctx.Err()) }

// checked is the error of a store call: its own, in the words of package
// storage, or that it did not answer every item.
func (l *lane[Q, A]) checked(method string, asked, answered int, err error) error {
	l.count.trips.Add(1)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %s: %w", l.action, method, l.known(err))
	case asked != answered:
		return fmt.Errorf("%s: %s: %w (the store answered %d of %d items)", l.action, method, l.unsure, answered, asked)
	}
	return nil
}

// known passes the sentinels on; whatever else a store says means unknown. It
// is told, not wrapped: a time-out in there is not the caller's.
func (l *lane[Q, A]) known(err error) error {
	for _, sentinel := range []error{
		storage.ErrUnavailable, storage.ErrUnknown, storage.ErrFull, storage.ErrClockSuspect,
		storage.ErrDamaged, storage.ErrClosed, storage.ErrRepeatedKey, storage.ErrBatchTooLarge,
	} {
		if errors.Is(err, sentinel) {
			return err
		}
	}
	return fmt.Errorf("%w (%v)", l.unsure, err) //nolint:errorlint // told, as said above
}
