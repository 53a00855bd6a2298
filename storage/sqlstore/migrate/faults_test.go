package migrate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hooked is a pool with something around each statement. around calls run, or
// does not.
type hooked struct {
	pool   *pgxpool.Pool
	around func(ctx context.Context, n int, sql string, run func() error) error // n from 1

	mu struct {
		sync.Mutex
		n int
	}
}

func (h *hooked) next() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.n++
	return h.mu.n
}

func (h *hooked) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = h.around(ctx, h.next(), sql, func() error {
		tag, err = h.pool.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

func (h *hooked) Query(ctx context.Context, sql string, args ...any) (rows pgx.Rows, err error) {
	err = h.around(ctx, h.next(), sql, func() error {
		rows, err = h.pool.Query(ctx, sql, args...)
		return err
	})
	if err != nil && rows != nil {
		rows.Close()
	}
	return rows, err
}

// fault is what happens to one statement.
type fault struct {
	name string
	err  error
	kill bool // and every statement after it, without end: the process is gone
}

var errKilled = errors.New("killed")

var killed = fault{name: "killed", err: errKilled, kill: true}

// passingFaults take turns: TestPasses is about each.
var passingFaults = []fault{
	{name: "40001", err: &pgconn.PgError{Code: "40001", Message: "restart transaction"}},
	{name: "40003", err: &pgconn.PgError{Code: "40003", Message: "result is ambiguous"}},
	{name: "57P01", err: &pgconn.PgError{Code: "57P01", Severity: "FATAL"}},
	{name: "EOF", err: fmt.Errorf("receive: %w", io.ErrUnexpectedEOF)},
	{name: "deadline", err: fmt.Errorf("timeout: %w", context.DeadlineExceeded)},
}

// TestUpFaults lets every statement that Up runs fail, before and after it ran,
// for a moment and for good. Up goes on where it can; where it was killed, the next one does.
func TestUpFaults(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	var count []string
	m := newMigrator(t, Config{DB: &hooked{pool: pool, around: func(_ context.Context, _ int, sql string, run func() error) error {
		count = append(count, sql)
		return run()
	}}})
	mustUp(t, m, allIDs...)
	want := [2]string{dump(t, pool, false), dump(t, pool, true)}
	t.Logf("%d statements", len(count))
	if least := 3 + 3*len(allIDs) - 1; len(count) < least {
		t.Fatalf("%d statements seen, want %d or more", len(count), least)
	}
	for n := 1; n <= len(count); n++ {
		for _, f := range []fault{killed, passingFaults[n%len(passingFaults)]} {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d/%s/after=%t", n, f.name, after), func(t *testing.T) {
					t.Parallel()
					testUpFault(t, n, f, after, want)
				})
			}
		}
	}
}

func testUpFault(t *testing.T, n int, f fault, after bool, want [2]string) {
	t.Helper()
	pool, _ := setup(t)
	var hit string
	faulty := &hooked{pool: pool, around: func(_ context.Context, i int, sql string, run func() error) error {
		if i < n || i > n && !f.kill {
			return run()
		}
		if i == n {
			hit = sql
			if after {
				_ = run()
			}
		}
		return f.err
	}}
	_, err := newMigrator(t, Config{DB: faulty}).Up(t.Context())
	if hit == "" {
		t.Fatal("the fault was not met")
	}
	if !f.kill && err != nil {
		t.Fatalf("up did not go on: %v\nat %s", err, hit)
	}
	if f.kill && err == nil && hit != releaseLease {
		t.Fatalf("up did not notice\nat %s", hit)
	}
	if !f.kill { // and left nothing to do
		if got := dump(t, pool, true); got != want[1] {
			t.Fatalf("got\n%swant\n%s", got, want[1])
		}
		return
	}
	if exists(t, pool) {
		lapse(t, pool)
	}
	if _, err := newMigrator(t, Config{DB: pool}).Up(t.Context()); err != nil {
		t.Fatalf("second up: %v\nafter %s", err, hit)
	}
	if got := dump(t, pool, false); got != want[0] {
		t.Fatalf("got\n%swant\n%s", got, want[0])
	}
}

func exists(t *testing.T, db DB) bool {
	t.Helper()
	return query(t, db, `SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'warifu_schema'`) != ""
}

// TestUpLosesConnections ends all connections of the pool before every
// statement of Up, so that the errors are those of pgx and the server.
func TestUpLosesConnections(t *testing.T) {
	t.Parallel()
	_, url := setup(t)
	name := "cut" + rand.Text()
	pool := connect(t, url+"&application_name="+name)
	other := connect(t, url)
	var cuts, failures int
	seen := map[string]int{}
	faulty := &hooked{pool: pool, around: func(_ context.Context, _ int, sql string, run func() error) error {
		if seen[sql]++; seen[sql]%2 == 1 { // the next try is let through
			if query(t, other, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = $1`, name) != "" {
				cuts++
			}
		}
		err := run()
		if err != nil {
			failures++
		}
		return err
	}}
	mustUp(t, newMigrator(t, Config{DB: faulty}), allIDs...)
	t.Logf("%d times cut, %d statements failed", cuts, failures)
	if cuts < 3*len(allIDs) || failures == 0 {
		t.Errorf("%d times cut, %d statements failed", cuts, failures)
	}
}

// TestUpStops: what will be the same the next time is not tried again.
func TestUpStops(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code  string
		want  error
		tries int
	}{
		"half applied":      {"XXA00", ErrHalfApplied, 1},
		"syntax":            {"42601", nil, 1},
		"duplicate rows":    {"23505", nil, 1},
		"always restarting": {"40001", nil, triesMax},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, _ := setup(t)
			tries := 0
			refused := &pgconn.PgError{Code: c.code, ConstraintName: "things_owner_idx"}
			m := newMigrator(t, Config{DB: &hooked{pool: pool, around: func(_ context.Context, _ int, sql string, run func() error) error {
				if strings.Contains(sql, "things_owner_idx") {
					tries++
					return refused
				}
				return run()
			}}})
			applied, err := m.Up(t.Context())
			if !errors.Is(err, refused) || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), "step 004.2 (004_more.sql)") {
				t.Errorf("got %v", err)
			}
			if tries != c.tries {
				t.Errorf("%d tries, want %d", tries, c.tries)
			}
			if got := ids(applied); !slices.Equal(got, allIDs[:5]) {
				t.Errorf("applied %v", got)
			}
			s, err := m.Status(t.Context())
			if err != nil || s.Version != 3 || s.Holder != "" || ids(s.Pending)[0] != "004.2" {
				t.Errorf("status %+v, %v", s, err)
			}
		})
	}
}

func TestPasses(t *testing.T) {
	t.Parallel()
	refused := func(code, constraint, message string) error {
		return fmt.Errorf("exec: %w", &pgconn.PgError{Code: code, ConstraintName: constraint, Message: message})
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{refused("40001", "", ""), true},
		{refused("40003", "", ""), true},
		{refused("40P01", "", ""), true},
		{refused("57P01", "", ""), true},
		{refused("08006", "", ""), true},
		{refused("55P03", "", ""), true},
		{refused("42P07", "", ""), true},
		{refused("23505", "pg_class_relname_nsp_index", ""), true},
		{refused("23505", "things_owner_idx", ""), false},
		{refused("XX000", "", "tuple concurrently updated"), true},
		{refused("XX000", "", "cache lookup failed"), false},
		{refused("XXA00", "", ""), false},
		{refused("42601", "", ""), false},
		{refused("42501", "", ""), false},
		{refused("28P01", "", ""), false},
		{refused("57014", "", ""), false},
		{fmt.Errorf("receive: %w", io.ErrUnexpectedEOF), true},
		{fmt.Errorf("read: %w", net.ErrClosed), true},
		{&net.OpError{Op: "write", Err: syscall.EPIPE}, true},
		{context.DeadlineExceeded, true},
		{context.Canceled, false},
		{ErrLeaseLost, false},
		{pgx.ErrNoRows, false},
	} {
		if got := passes(c.err); got != c.want {
			t.Errorf("%v: %t", c.err, got)
		}
	}
	// An address that nobody listens on.
	_, err := pgconn.Connect(t.Context(), "postgres://127.0.0.1:1/none")
	if err == nil || !passes(err) {
		t.Errorf("%v: does not pass", err)
	}
}
