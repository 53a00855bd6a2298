// Package migrate brings the schema of a CockroachDB or PostgreSQL database to
// what this binary knows: numbered, forward-only SQL files, one statement at a
// time.
//
// A statement is a step: one implicit transaction, and another that records it
// by a compare-and-set of the one row in warifu_schema. A crash between the two
// runs the statement again, so that every statement must bear being run twice;
// Load refuses those it sees do not. Who migrates holds a lease in the same
// row, renews it before each step and during it, and is told from every earlier
// holder by a fence. Advisory locks and DDL in transactions would be simpler
// and do not work on CockroachDB.
//
// One thing a lease cannot do is to call back a statement that was sent: a
// holder that stands still between its renewal and its statement may run that
// statement late, though it can record nothing. Every statement is therefore
// one that does no harm when it runs again after its successors: what removes
// something belongs into a later release than what added it.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// What the caller can do something about. Other errors are the database's.
var (
	// ErrOld: the schema lacks what this binary needs. Run `warifu migrate up`.
	ErrOld = errors.New("the schema is too old")
	// ErrChanged: a file that was applied is not the file of this binary. Bring
	// back the file as it was, and write a new one for the change.
	ErrChanged = errors.New("a migration that was applied has changed since")
	// ErrHeld: another process was migrating for all of Config.WaitMax. Look at
	// it, or wait longer.
	ErrHeld = errors.New("the lease on the schema is held")
	// ErrLeaseLost: another process migrates now, or this one could not reach
	// the database for the length of its lease. Nothing is broken: run again.
	ErrLeaseLost = errors.New("the lease on the schema was lost")
	// ErrHalfApplied: CockroachDB committed a statement and then could not carry
	// out all of it (XXA00). Nothing was recorded. Somebody has to look.
	ErrHalfApplied = errors.New("CockroachDB applied the statement in part (XXA00); compare the table with the file, undo or finish it by hand, then migrate again")
)

// Defaults of Config.
const (
	LeaseDefault   = 30 * time.Second
	WaitMaxDefault = 15 * time.Minute
)

// leaseMin leaves room for a renewal between two of its thirds.
const leaseMin = 100 * time.Millisecond

// DB is what is needed of a *pgxpool.Pool. It is used by two goroutines at
// once, so that one connection is not enough: a renewal would wait for the
// statement it is to keep the lease for.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Config is what New needs.
type Config struct {
	// DB is a pool of at least two connections without statement_timeout (a
	// statement may build an index) and, on PostgreSQL, best with a lock_timeout
	// of seconds: a statement that waits for a lock makes all others wait.
	DB DB
	// Steps are all that this binary knows, as Load returns them.
	Steps []Step
	// Owner is shown to those who wait, such as host and process. Not an
	// identity: each Up adds a random one of its own.
	Owner string
	// Lease is how long after a crash the others wait. Default LeaseDefault.
	Lease time.Duration
	// WaitMax bounds how long Up waits for another holder. Default
	// WaitMaxDefault.
	WaitMax time.Duration
	// Logger defaults to none.
	Logger *slog.Logger
}

// Migrator applies steps. It is safe for concurrent use.
type Migrator struct{ cfg Config }

// New checks c. It does not touch the database.
func New(c Config) (*Migrator, error) {
	var faults []error
	if c.DB == nil {
		faults = append(faults, errors.New("no DB"))
	}
	if len(c.Steps) == 0 {
		faults = append(faults, errors.New("no Steps"))
	}
	for i, s := range c.Steps {
		if i > 0 && after(c.Steps[i-1]) != before(s) || i == 0 && before(s) != (position{}) {
			faults = append(faults, fmt.Errorf("step %s does not follow the one before it", s.ID()))
		}
	}
	if c.Lease == 0 {
		c.Lease = LeaseDefault
	}
	if c.Lease < leaseMin {
		faults = append(faults, fmt.Errorf("a Lease of %s is shorter than %s", c.Lease, leaseMin))
	}
	if c.WaitMax == 0 {
		c.WaitMax = WaitMaxDefault
	}
	if c.WaitMax < 0 {
		faults = append(faults, fmt.Errorf("a WaitMax of %s", c.WaitMax))
	}
	if c.Owner == "" {
		c.Owner = "warifu"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	return &Migrator{cfg: c}, nil
}

// Up applies what is missing and returns it, also beside an error: those steps
// are recorded. It waits for another process that migrates. A schema newer than
// this binary is left as it is, without an error. Where nothing is missing, Up
// only reads, so that it needs no right to do more.
//
// Errors: ErrChanged, ErrHeld, ErrLeaseLost, ErrHalfApplied, the database's.
// After every one of them Up may be called again.
func (m *Migrator) Up(ctx context.Context) ([]Step, error) {
	l, err := m.take(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	if l == nil {
		return nil, nil
	}
	defer l.release(ctx)
	// Read again: the holder before could record until the fence changed.
	found, err := m.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	var applied []Step
	for _, s := range found.pending {
		if err := m.apply(ctx, l, s); err != nil {
			return applied, fmt.Errorf("migrate: step %s (%s): %w", s.ID(), s.File, err)
		}
		m.cfg.Logger.InfoContext(ctx, "schema migrated", slog.String("step", s.ID()), slog.String("file", s.File))
		applied = append(applied, s)
	}
	return applied, nil
}

// apply runs one step and records it, under a lease that is kept meanwhile.
func (m *Migrator) apply(ctx context.Context, l *lease, s Step) error {
	ctx, stop, err := l.hold(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if s.SQL != "" {
		if err := m.exec(ctx, "run", s.SQL); err != nil {
			return err
		}
	}
	return l.record(ctx, s)
}

// exec runs a statement that may be run again, however long it takes.
func (m *Migrator) exec(ctx context.Context, action, sql string) error {
	return retry(ctx, action, func() error {
		_, err := m.cfg.DB.Exec(ctx, sql)
		return err
	})
}
