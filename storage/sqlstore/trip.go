package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/storetime"
)

const (
	// pauseFirst and pauseMax are the longest first and the longest of all
	// pauses before a retry; each is drawn evenly from zero to its longest.
	pauseFirst = 5 * time.Millisecond
	pauseMax   = 500 * time.Millisecond
)

// query is one statement of a trip and what is done with its rows.
type query struct {
	sql  text
	args []any
	row  func(row) error // nil: it returns none, or nobody asks
	// tag, where set, is told how many rows were changed.
	tag func(int64)
}

// effect says whether a trip may change anything.
type effect bool

const (
	reads  effect = false
	writes effect = true
)

// trip sends the statements that build returns as one implicit transaction,
// again until it has succeeded or may not be tried any longer. build is called
// for each try, with what the database's time is held to in it; what its
// queries have read counts only when trip returns nil.
func (s *Store) trip(ctx context.Context, p *pool, e effect, build func(storetime.Bounds) []query) error {
	_, err := s.tripAgain(ctx, p, e, build)
	return err
}

// tripAgain is trip, and says whether an earlier try than the one that
// succeeded may have been committed too.
func (s *Store) tripAgain(ctx context.Context, p *pool, e effect, build func(storetime.Bounds) []query) (again bool, err error) {
	return s.tries(ctx, p, e, func(ctx context.Context, conn *pgxpool.Conn) error {
		return s.send(ctx, conn, build(s.bounds()))
	})
}

// sender is a connection, or a transaction on one.
type sender interface {
	Conn() *pgx.Conn
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// send sends one batch and reads what comes back. Rows arrive before the
// transaction commits: only the nil of Close makes them true.
func (s *Store) send(ctx context.Context, to sender, queries []query) error {
	teachArrays(to.Conn().TypeMap())
	b := &pgx.Batch{}
	for _, q := range queries {
		b.Queue(q.sql.of(s.dialect), q.args...).Query(func(rows pgx.Rows) error { return readRows(rows, q) })
	}
	return to.SendBatch(ctx, b).Close()
}

func readRows(rows pgx.Rows, q query) error {
	for first := true; rows.Next(); first = false {
		if q.row == nil {
			continue
		}
		if first { // all rows have the same columns
			if err := readable(rows); err != nil {
				return err
			}
		}
		if err := q.row(row{values: rows.RawValues()}); err != nil {
			return err
		}
	}
	rows.Close()
	if rows.Err() == nil && q.tag != nil {
		q.tag(rows.CommandTag().RowsAffected())
	}
	return rows.Err()
}

// try runs once on a connection of p, again and again as the class of its error
// allows. It does not end with ctx, except between tries: see Config.CallTimeout.
func (s *Store) try(ctx context.Context, p *pool, e effect, once func(context.Context, *pgxpool.Conn) error) error {
	_, err := s.tries(ctx, p, e, once)
	return err
}

func (s *Store) tries(ctx context.Context, p *pool, e effect, once func(context.Context, *pgxpool.Conn) error) (again bool, err error) {
	call, cancel := p.detach(ctx)
	defer cancel()
	sent := false
	for n := 0; ; n++ {
		err := p.with(call, once)
		if err == nil {
			return again, nil
		}
		c, out := classify(err)
		sent, again = sent || out, again || out && c != undone
		if c.final(sent) || n == s.cfg.Retries || !s.pause(ctx, call, c, n) {
			return again, outcome(e, c, sent, err)
		}
		s.cfg.Logger.DebugContext(ctx, "database call is run again", "try", n+1, "error", err)
	}
}

// detach returns a context that ends with p's patience or at ctx's deadline,
// and not when ctx is cancelled.
func (p *pool) detach(ctx context.Context) (context.Context, context.CancelFunc) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.call)
	deadline, ok := ctx.Deadline()
	if !ok {
		return call, cancel
	}
	call, inner := context.WithDeadline(call, deadline)
	return call, func() { inner(); cancel() }
}

// with runs once on a connection. One on which something broke is not used
// again.
func (p *pool) with(ctx context.Context, once func(context.Context, *pgxpool.Conn) error) error {
	conn, err := p.take(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	err = once(ctx, conn)
	if err == nil {
		return nil
	}
	if c, _ := classify(err); c == broken && !conn.Conn().IsClosed() {
		p.discard(ctx, conn)
	}
	return err
}

// discard closes a connection; Release then gives its place to a new one.
func (p *pool) discard(ctx context.Context, conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
	defer cancel()
	_ = conn.Conn().Close(ctx) // it is broken: that is why
}

// pause waits before the next try. It reports false when there is no time left
// for one, or nobody waits for it any more.
func (s *Store) pause(ctx, call context.Context, c class, n int) bool {
	longest := min(pauseFirst<<n, pauseMax)
	switch {
	case c == replan, c == broken && n == 0:
		longest = 0
	case c == overloaded, c == busy:
		longest = pauseMax
	}
	timer := time.NewTimer(time.Duration(s.cfg.Rand() * float64(longest)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return call.Err() == nil && ctx.Err() == nil
	case <-call.Done():
	case <-ctx.Done():
	}
	return false
}

// outcome is what a call that is given up says about itself.
func outcome(e effect, c class, sent bool, err error) error {
	switch {
	case e == writes && sent:
		return fmt.Errorf("%w: %w", storage.ErrUnknown, engineError{err})
	case c == damaged, errors.Is(err, errRow):
		return fmt.Errorf("%w: %w", storage.ErrDamaged, engineError{err})
	case c == fails && sent:
		return engineError{err}
	}
	return fmt.Errorf("%w: %w", storage.ErrUnavailable, engineError{err})
}

// engineError is an error of the database under the sentinel that says what it
// means: nobody above is to act on the database's own codes, or on its contexts
// as if they were the caller's. What this package says itself stays visible.
type engineError struct{ cause error }

func (e engineError) Is(target error) bool {
	return target == ErrMismatch && errors.Is(e.cause, target)
}

func (e engineError) Error() string { return e.cause.Error() }
