package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/migrate"
	"github.com/warifu/warifu/storage/storagetest"
)

// scratch is a database that the suite may fill and empty.
type scratch struct {
	target target
	cfg    sqlstore.Config
	pool   *pgxpool.Pool
}

// What a conformance store is given: few connections, which each case makes
// anew, and the patience to wait for them.
const (
	scratchConns   = 4
	scratchTimeout = time.Minute
	emptyTimeout   = time.Minute
)

// conformanceOnDatabase runs the suite on a database that has no claims, and
// leaves none there, also when it is interrupted.
func conformanceOnDatabase(ctx context.Context, sys *system, t target, isolation string, mayMigrate bool) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cfg := sqlstore.Config{
		URL: t.url, Isolation: sqlstore.Isolation(isolation), Conns: scratchConns, SweepConns: 1,
		AcquireTimeout: scratchTimeout, CallTimeout: scratchTimeout, SweepTimeout: scratchTimeout,
	}
	seen, err := sqlstore.Inspect(ctx, cfg, sys.now)
	if err != nil {
		return t.failed("connect to", err)
	}
	pool, err := sqlstore.NewMaintenancePool(ctx, cfg)
	if err != nil {
		return t.failed("connect to", err)
	}
	defer pool.Close()
	s := &scratch{target: t, cfg: cfg, pool: pool}
	if err := s.prepare(ctx, sys.stdout, mayMigrate); err != nil {
		return err
	}
	err = storagetest.RunCases(ctx, sys.stdout, s.open)
	if _, printed := fmt.Fprintf(sys.stdout, "run against %s, %s %s, %s\n", t, seen.Dialect, plain(seen.Version), seen.Wanted); printed != nil {
		return errors.Join(err, printed)
	}
	if errors.Is(err, storagetest.ErrFailed) {
		return exit(exitFailed, err)
	}
	return err
}

// prepare refuses a database with claims and one that lacks tables, unless it
// may make them.
func (s *scratch) prepare(ctx context.Context, w io.Writer, mayMigrate bool) error {
	if err := s.refuseUsed(ctx); err != nil {
		return err
	}
	err := checkSchema(ctx, s.cfg)
	if errors.Is(err, migrate.ErrOld) && mayMigrate {
		return s.migrate(ctx, w)
	}
	if errors.Is(err, migrate.ErrOld) {
		return exit(exitSchema, fmt.Errorf("%s lacks tables; make them with --migrate", s.target))
	}
	if err != nil {
		return s.target.failed("look at", err)
	}
	return nil
}

func (s *scratch) migrate(ctx context.Context, w io.Writer) error {
	steps, err := schemaSteps(s.cfg.URL)
	if err != nil {
		return err
	}
	m, err := migrate.New(migrate.Config{DB: s.pool, Steps: steps, Owner: owner()})
	if err != nil {
		return err
	}
	applied, err := m.Up(ctx)
	if err != nil {
		return s.target.failed("migrate", err)
	}
	_, err = fmt.Fprintf(w, "migrated: %d steps\n", len(applied))
	return err
}

// tables are those that the suite writes to.
var tables = []string{"claims", "claim_results"}

const undefinedTable = "42P01"

// refuseUsed fails when there is anything in the tables.
func (s *scratch) refuseUsed(ctx context.Context) error {
	for _, table := range tables {
		var one int
		err := s.pool.QueryRow(ctx, "SELECT 1 FROM "+table+" LIMIT 1").Scan(&one)
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == undefinedTable || errors.Is(err, pgx.ErrNoRows) {
			continue
		}
		if err != nil {
			return s.target.failed("look at", err)
		}
		return usageError("%s: table %s is not empty; the suite deletes all that it finds, so it takes a database without claims only", s.target, table)
	}
	return nil
}

// open opens a store for one case, and empties it afterwards.
func (s *scratch) open(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
	if err := s.refuseUsed(t.Context()); err != nil {
		t.Fatalf("somebody else is writing: %v", err)
	}
	cfg := s.cfg
	cfg.Clock, cfg.SweepGrace = clock.Now, grace
	store, err := sqlstore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("open: %v", s.target.failed("open", err))
	}
	t.Cleanup(func() {
		if err := errors.Join(store.Close(), s.empty(t.Context())); err != nil {
			t.Errorf("clean up: %v", s.target.failed("empty", err))
		}
	})
	return store
}

// empty deletes all rows, by their shards: a database that is told to refuse
// deletions without a condition, or scans of whole tables, accepts that.
func (s *scratch) empty(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), emptyTimeout)
	defer cancel()
	shards := make([]int16, shardsMax)
	for i := range shards {
		shards[i] = int16(i)
	}
	for _, table := range tables {
		if _, err := s.pool.Exec(ctx, "DELETE FROM "+table+" WHERE shard = ANY ($1::INT2[])", shards); err != nil {
			return fmt.Errorf("delete from %s: %w", table, err)
		}
	}
	return nil
}

// shardsMax is more than any store has.
const shardsMax = 64
