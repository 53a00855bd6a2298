package migrate

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// at runs do before the statement that contains text, once.
func at(text string, do func(context.Context) error) func(context.Context, int, string, func() error) error {
	var done bool
	return func(ctx context.Context, _ int, sql string, run func() error) error {
		if !done && strings.Contains(sql, text) {
			done = true
			if err := do(ctx); err != nil {
				return err
			}
		}
		return run()
	}
}

// TestHolderDies: the lease of a holder that is gone is waited for until it
// lapses by the database's time, and then taken.
func TestHolderDies(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	dead := false
	first := newMigrator(t, Config{Owner: "first", DB: &hooked{pool: pool, around: func(_ context.Context, _ int, sql string, run func() error) error {
		dead = dead || strings.Contains(sql, "things_owner_idx")
		if dead {
			return errKilled
		}
		return run()
	}}, Lease: time.Second})
	if _, err := first.Up(t.Context()); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	s, err := first.Status(t.Context())
	if err == nil {
		t.Fatalf("status of the dead: %+v", s)
	}
	end := query(t, pool, `SELECT lease_until FROM warifu_schema`)
	second := newMigrator(t, Config{DB: pool, Lease: time.Second})
	s, err = second.Status(t.Context())
	if err != nil || !strings.HasPrefix(s.Holder, "first ") || s.HeldUntil.IsZero() {
		t.Fatalf("status %+v, %v", s, err)
	}
	mustUp(t, second, allIDs[5:]...)
	early := query(t, pool, `SELECT count(*) FROM warifu_schema_steps WHERE (version, statement) >= (4, 2) AND applied_at < $1::TEXT::TIMESTAMPTZ`,
		s.HeldUntil.Format(time.RFC3339Nano))
	if early != "0\n" {
		t.Errorf("%s steps were applied before the lease ended at %s", early, end)
	}
	if got := query(t, pool, `SELECT lease_owner, lease_fence FROM warifu_schema`); got != " 2\n" {
		t.Errorf("lease afterwards: %q", got)
	}
}

// TestWaitMax: a holder that renews for ever is not waited for for ever.
func TestWaitMax(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	blocked := newMigrator(t, Config{Owner: "slow", DB: &hooked{pool: pool, around: at("CREATE TABLE IF NOT EXISTS things", func(ctx context.Context) error {
		m := newMigrator(t, Config{DB: pool, WaitMax: 300 * time.Millisecond, Lease: 200 * time.Millisecond})
		if _, err := m.Up(ctx); !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), `by "slow `) {
			t.Errorf("got %v", err)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := m.Up(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		return nil
	})}})
	mustUp(t, blocked, allIDs...)
}

// TestStaleHolder stops a holder before each of its statements for longer than
// its lease; another finishes meanwhile. Whatever it does then changes nothing.
func TestStaleHolder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql, step string // stopped before this statement, of this step
		lost      bool   // what it does then needs the lease
	}{
		"look":    {sql: "FROM warifu_schema_steps", lost: true},
		"renew":   {sql: renewLease, lost: true},
		"step":    {sql: "CREATE UNIQUE INDEX", lost: true},
		"record":  {sql: recordStep, lost: true},
		"release": {sql: releaseLease},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, _ := setup(t)
			var want string
			var held, stopped bool
			var later []string
			stale := newMigrator(t, Config{Owner: "stale", DB: &hooked{pool: pool, around: func(_ context.Context, _ int, sql string, run func() error) error {
				if stopped {
					later = append(later, sql)
					return run()
				}
				if held && strings.Contains(sql, c.sql) {
					stopped = true
					lapse(t, pool)
					more := load(t, Postgres, map[string]string{"006_more.sql": "DROP TABLE IF EXISTS zones;\n"})
					if _, err := newMigrator(t, Config{DB: pool, Steps: more}).Up(t.Context()); err != nil {
						t.Error(err)
					}
					want = dump(t, pool, true)
				}
				held = held || sql == takeLease
				return run()
			}}})
			applied, err := stale.Up(t.Context())
			if c.lost && !errors.Is(err, ErrLeaseLost) || !c.lost && err != nil {
				t.Errorf("applied %v, got %v", ids(applied), err)
			}
			if !stopped {
				t.Fatal("it was not stopped")
			}
			if got := dump(t, pool, true); got != want {
				t.Errorf("it changed\n%sto\n%s", want, got)
			}
			for _, sql := range later { // after what it was stopped before
				if strings.HasPrefix(sql, "CREATE") || strings.HasPrefix(sql, "ALTER") {
					t.Errorf("it went on with %s", sql)
				}
			}
		})
	}
}

// TestRenewsMeanwhile: a statement longer than the lease keeps it.
func TestRenewsMeanwhile(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	m := newMigrator(t, Config{Lease: 600 * time.Millisecond, DB: &hooked{pool: pool, around: at("CREATE UNIQUE INDEX", func(context.Context) error {
		first := query(t, pool, `SELECT lease_until FROM warifu_schema`)
		until(t, "three leases have passed", func() bool {
			if query(t, pool, `SELECT lease_until < now() FROM warifu_schema`) != "false\n" {
				t.Error("the lease lapsed")
				return true
			}
			return query(t, pool, `SELECT now() > $1::TEXT::TIMESTAMPTZ + '1800 milliseconds'::INTERVAL`, pgTime(first)) == "true\n"
		})
		return nil
	})}})
	mustUp(t, m, allIDs...)
}

// pgTime turns what query prints of a time into what PostgreSQL reads.
func pgTime(printed string) string {
	fields := strings.Fields(printed)
	return fields[0] + " " + fields[1] + fields[2]
}

// TestLostMeanwhile: a statement under way is given up when the lease is gone,
// taken by another or just not renewed.
func TestLostMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lease    time.Duration
		lose     func(t *testing.T, db DB) bool // whether renewals fail from now on
		notKnown bool                           // only that it was not renewed
	}{
		"taken": {3 * time.Second, func(t *testing.T, db DB) bool {
			t.Helper()
			mustExec(t, db, `UPDATE warifu_schema SET lease_owner = 'thief', lease_fence = lease_fence + 1`)
			return false
		}, false},
		"unreachable": {300 * time.Millisecond, func(*testing.T, DB) bool { return true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, _ := setup(t)
			var failing atomic.Bool
			var later []string
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			m := newMigrator(t, Config{Lease: c.lease, DB: &hooked{pool: pool, around: func(ctx context.Context, _ int, sql string, run func() error) error {
				switch {
				case strings.Contains(sql, "CREATE UNIQUE INDEX"):
					failing.Store(c.lose(t, pool))
					<-ctx.Done()
					return ctx.Err()
				case sql == renewLease && failing.Load():
					return errKilled
				case sql == recordStep:
					later = append(later, sql)
				}
				return run()
			}}})
			applied, err := m.Up(ctx)
			if !errors.Is(err, ErrLeaseLost) || strings.Contains(err.Error(), "not renewed") != c.notKnown || len(applied) != 5 {
				t.Errorf("applied %v, got %v", ids(applied), err)
			}
			if len(later) != 5 {
				t.Errorf("%d steps recorded", len(later))
			}
		})
	}
}

// TestRecordsUntilTaken: a holder whose lease lapsed may record until another
// takes it, also after the other has looked. The other does not run that step.
func TestRecordsUntilTaken(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	m := newMigrator(t, Config{DB: pool, Steps: load(t, Postgres, nil)})
	if err := m.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := mustTake(t, &lease{m: m, owner: "first", fence: 1})
	mustExec(t, pool, m.cfg.Steps[0].SQL)
	lapse(t, pool)
	second := newMigrator(t, Config{DB: &hooked{pool: pool, around: at(takeLease, func(ctx context.Context) error {
		return first.record(ctx, m.cfg.Steps[0])
	})}})
	mustUp(t, second, allIDs[1:]...)
	if err := first.record(t.Context(), m.cfg.Steps[1]); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("got %v", err)
	}
}

// TestLeaseRaces: who acts on what it read too long ago changes nothing, also
// where the schema has not moved since.
func TestLeaseRaces(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	m := newMigrator(t, Config{DB: pool})
	if err := m.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := mustTake(t, &lease{m: m, owner: "first", fence: 1})
	second := &lease{m: m, owner: "second", fence: 2}
	if mine, err := second.take(t.Context()); mine || err != nil { // it saw the lease free
		t.Fatalf("taken while it was held: %t, %v", mine, err)
	}
	lapse(t, pool)
	mustTake(t, second)
	want := dump(t, pool, true)
	for name, act := range map[string]func() error{
		"record": func() error { return first.record(t.Context(), m.cfg.Steps[0]) },
		"renew":  func() error { return first.renew(t.Context()) },
	} {
		if err := act(); !errors.Is(err, ErrLeaseLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
	first.release(t.Context())
	if got := dump(t, pool, true); got != want {
		t.Errorf("changed\n%sto\n%s", want, got)
	}
	if err := second.record(t.Context(), m.cfg.Steps[0]); err != nil {
		t.Error(err)
	}
}

func mustTake(t *testing.T, l *lease) *lease {
	t.Helper()
	if mine, err := l.take(t.Context()); !mine {
		t.Fatalf("not taken: %v", err)
	}
	return l
}

// TestLateCopies sends everything that Up wrote once more, when all is done and
// another holds the lease: it arrives late, and does nothing.
func TestLateCopies(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	copies := &copying{DB: pool}
	mustUp(t, newMigrator(t, Config{DB: copies}), allIDs...)
	check := func(when string) {
		t.Helper()
		want := query(t, pool, `SELECT version, statement, lease_owner, lease_fence, lease_until FROM warifu_schema`) + dump(t, pool, true)
		for _, c := range copies.sent {
			if strings.HasPrefix(c.sql, "INSERT INTO owners") || strings.HasPrefix(c.sql, "UPDATE owners") {
				continue // a migration's own: see the package comment
			}
			_, err := pool.Exec(t.Context(), c.sql, c.args...)
			if got := query(t, pool, `SELECT version, statement, lease_owner, lease_fence, lease_until FROM warifu_schema`) + dump(t, pool, true); err != nil || got != want {
				t.Fatalf("%s: %v, changed\n%sto\n%sby %s", when, err, want, got, c.sql)
			}
		}
	}
	check("free")
	mustExec(t, pool, takeLease, "another", 1, time.Minute)
	check("held")
	lapse(t, pool)
	check("lapsed")
}

// copying keeps what is written through it.
type copying struct {
	DB
	sent []sent // by one goroutine: the lease is long
}

type sent struct {
	sql  string
	args []any
}

func (c *copying) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	c.sent = append(c.sent, sent{sql, args})
	return c.DB.Exec(ctx, sql, args...)
}
