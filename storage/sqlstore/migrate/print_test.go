package migrate

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// psql runs a script as an operator would, who forgets every option.
func psql(t *testing.T, to, script string) (string, error) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	path := u.Query().Get("search_path") // which is not libpq's
	u.RawQuery = "sslmode=disable"
	cmd := exec.CommandContext(t.Context(), "psql", "--no-psqlrc", "-q", "-f", "-", u.String())
	cmd.Env = append(os.Environ(), "PGOPTIONS=-c search_path="+path+" -c client_min_messages=warning")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func script(t *testing.T, dialect Dialect, steps []Step) string {
	t.Helper()
	var b strings.Builder
	if err := Print(&b, dialect, steps); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestPrint: what psql makes of the script is what Up makes, lease and all.
func TestPrint(t *testing.T) {
	t.Parallel()
	steps := load(t, Postgres, nil)
	byUp, _ := setup(t)
	mustUp(t, newMigrator(t, Config{DB: byUp}), allIDs...)
	want := dump(t, byUp, true)
	printed := script(t, Postgres, steps)

	byPsql, to := setup(t)
	if out, err := psql(t, to, printed); err != nil || out != "" {
		t.Fatalf("%v: %s", err, out)
	}
	if got := dump(t, byPsql, true); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	mustUp(t, newMigrator(t, Config{DB: byPsql}))

	// As one message, in which statements have no transactions of their own.
	simple, _ := setup(t)
	mustExec(t, simple, script(t, Cockroach, steps))
	if got := dump(t, simple, true); got != want {
		t.Errorf("as one message: got\n%swant\n%s", got, want)
	}
}

// TestPrintPending: after each number of steps the script of the rest comes to
// the same, and so does the script of all, once or again.
func TestPrintPending(t *testing.T) {
	t.Parallel()
	steps := load(t, Postgres, nil)
	whole, _ := setup(t)
	mustUp(t, newMigrator(t, Config{DB: whole}), allIDs...)
	want := dump(t, whole, false)
	for n := 1; n <= len(steps); n++ {
		pool, to := setup(t)
		mustUp(t, newMigrator(t, Config{DB: pool, Steps: steps[:n]}), allIDs[:n]...)
		s, err := newMigrator(t, Config{DB: pool}).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out, err := psql(t, to, script(t, Postgres, s.Pending))
		if got := dump(t, pool, false); err != nil || out != "" || got != want {
			t.Errorf("after %d: %v, %s, got\n%swant\n%s", n, err, out, got, want)
		}
	}
	if got := script(t, Postgres, nil); got != "" {
		t.Errorf("nothing is %q", got)
	}
}

// TestPrintStops: a statement that fails is not recorded, nor what follows it,
// and the script goes on from there when it is run again.
func TestPrintStops(t *testing.T) {
	t.Parallel()
	pool, to := setup(t)
	printed := script(t, Postgres, load(t, Postgres, nil))
	mustExec(t, pool, `CREATE TABLE owners (other INT8)`) // 002 passes, 005 cannot
	if out, err := psql(t, to, printed); err == nil {
		t.Fatalf("psql went on: %s", out)
	}
	s, err := newMigrator(t, Config{DB: pool}).Status(t.Context())
	if err != nil || s.Version != 4 || len(s.Pending) != 2 {
		t.Errorf("status %+v, %v", s, err)
	}
	mustExec(t, pool, `DROP TABLE owners`)
	if out, err := psql(t, to, printed); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	mustUp(t, newMigrator(t, Config{DB: pool}))
}

// TestPrintFences: a script that is run beside a migrator stops it.
func TestPrintFences(t *testing.T) {
	t.Parallel()
	pool, to := setup(t)
	steps := load(t, Postgres, nil)
	m := newMigrator(t, Config{DB: &hooked{pool: pool, around: at("CREATE UNIQUE INDEX", func(context.Context) error {
		out, err := psql(t, to, script(t, Postgres, steps))
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return nil
	})}})
	applied, err := m.Up(t.Context())
	if !errors.Is(err, ErrLeaseLost) || len(applied) != 5 {
		t.Errorf("applied %v, got %v", ids(applied), err)
	}
	mustUp(t, m)
}
