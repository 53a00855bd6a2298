package migrate

import (
	"context"
	"crypto/rand"
	_ "embed" // the statements
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

//go:embed queries/create_schema.sql
var createSchema string

//go:embed queries/create_steps.sql
var createSteps string

//go:embed queries/insert_row.sql
var insertRow string

//go:embed queries/take_lease.sql
var takeLease string

//go:embed queries/renew_lease.sql
var renewLease string

//go:embed queries/release_lease.sql
var releaseLease string

//go:embed queries/record_step.sql
var recordStep string

// pollMax is the longest time between two looks at a lease another holds.
const pollMax = time.Second

// lease is the right to move the schema, until it is lost.
type lease struct {
	m     *Migrator
	owner string
	fence int64
}

// take waits until the lease is taken, or until there is nothing to do for it:
// then it is nil.
func (m *Migrator) take(ctx context.Context) (*lease, error) {
	owner := m.cfg.Owner + " " + rand.Text() // of this call: two of one process are two
	waiting, cancel := context.WithTimeout(ctx, m.cfg.WaitMax)
	defer cancel()
	var holder string // that was waited for
	for {
		now, err := m.look(waiting)
		if err == nil && len(now.pending) == 0 {
			if now.newer {
				m.cfg.Logger.WarnContext(ctx, "schema is newer than this binary", slog.Int64("version", now.at.version))
			}
			return nil, nil
		}
		l := &lease{m: m, owner: owner, fence: now.fence + 1}
		switch {
		case err != nil:
		case !now.exists:
			err = m.prepare(waiting)
		case !now.held:
			var mine bool
			if mine, err = l.take(waiting); mine {
				return l, nil
			}
		case holder != now.owner:
			holder = now.owner
			m.cfg.Logger.InfoContext(ctx, "waiting for another migration", slog.String("holder", holder))
		}
		if err == nil && now.exists {
			err = pause(waiting, min(m.cfg.Lease/10, pollMax))
		}
		if err != nil && waiting.Err() != nil && ctx.Err() == nil && holder != "" {
			return nil, fmt.Errorf("%w by %q, still after %s", ErrHeld, holder, m.cfg.WaitMax)
		}
		if err != nil {
			return nil, fmt.Errorf("take the lease: %w", err)
		}
	}
}

// prepare makes what has to be there before there can be a lease. The row comes
// last, so that where it is, everything is.
func (m *Migrator) prepare(ctx context.Context) error {
	for _, sql := range []string{createSteps, createSchema, insertRow} {
		if err := m.exec(ctx, "prepare", sql); err != nil {
			return err
		}
	}
	return nil
}

// take reports whether the lease became l's. It does not where it is no longer
// free, or had another holder since its fence was read.
func (l *lease) take(ctx context.Context) (bool, error) {
	err := l.set(ctx, "take", l.isOf, takeLease, l.owner, l.fence-1, l.m.cfg.Lease)
	if errors.Is(err, ErrLeaseLost) {
		return false, nil
	}
	return err == nil, err
}

// renew moves the end of the lease.
func (l *lease) renew(ctx context.Context) error {
	never := func(row) bool { return false }
	return l.set(ctx, "renew the lease", never, renewLease, l.owner, l.fence, l.m.cfg.Lease)
}

// record moves the schema past s.
func (l *lease) record(ctx context.Context, s Step) error {
	from, to := before(s), after(s)
	done := func(now row) bool { return l.isOf(now) && now.at == to }
	return l.set(ctx, "record", done, recordStep, to.version, to.statement, from.version, from.statement,
		l.owner, l.fence, s.Version, s.Statement, s.File, s.SHA256[:])
}

// release lets the next holder begin at once. It runs although ctx has ended,
// and when it fails the lease lapses.
func (l *lease) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callMax)
	defer cancel()
	released := func(now row) bool { return !l.isOf(now) }
	if err := l.set(ctx, "release the lease", released, releaseLease, l.owner, l.fence); err != nil {
		l.m.cfg.Logger.WarnContext(ctx, "lease not released; it lapses", slog.Any("error", err))
	}
}

func (l *lease) isOf(now row) bool { return now.owner == l.owner && now.fence == l.fence }

// set runs a compare-and-set. Where it changes nothing, the row as it is now
// decides: an earlier try whose answer was lost may have been the one.
func (l *lease) set(ctx context.Context, action string, done func(now row) bool, sql string, args ...any) error {
	return retry(ctx, action, func() error {
		ctx, cancel := context.WithTimeout(ctx, callMax)
		defer cancel()
		tag, err := l.m.cfg.DB.Exec(ctx, sql, args...)
		if err != nil || tag.RowsAffected() > 0 {
			return err
		}
		now, err := readRow(ctx, l.m.cfg.DB)
		if err != nil {
			return err
		}
		if !done(now) {
			return ErrLeaseLost
		}
		return nil
	})
}

// hold renews the lease, and goes on doing so until stop is called, which waits
// for it. The context it returns ends with ErrLeaseLost when another has the
// lease, or when it was not renewed for its length: counted from before the
// renewal was sent, so that it ends no later than the database lets others in.
func (l *lease) hold(ctx context.Context) (held context.Context, stop func(), err error) {
	held, cancel := context.WithCancelCause(ctx)
	lapse := func() *time.Timer {
		return time.AfterFunc(l.m.cfg.Lease, func() { cancel(fmt.Errorf("%w: not renewed for %s", ErrLeaseLost, l.m.cfg.Lease)) })
	}
	end := lapse()
	if err := l.renew(held); err != nil {
		end.Stop()
		cancel(nil)
		return nil, nil, err
	}
	var renewals sync.WaitGroup
	renewals.Go(func() {
		ticker := time.NewTicker(l.m.cfg.Lease / 3)
		defer ticker.Stop()
		for {
			select {
			case <-held.Done():
				end.Stop()
				return
			case <-ticker.C:
			}
			later := lapse()
			if err := l.renew(held); err != nil {
				later.Stop()
				if errors.Is(err, ErrLeaseLost) {
					cancel(err)
				}
				continue // until end says that it was too long
			}
			end.Stop()
			end = later
		}
	})
	return held, func() { cancel(nil); renewals.Wait() }, nil
}
