package pgtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if stage := os.Getenv(childStage); stage != "" {
		child(stage, os.Getenv(childDir))
		return
	}
	goleak.VerifyTestMain(m)
}

// setup starts a server that ends with the test.
func setup(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustNil(t, s.Close()) })
	return s
}

func mustNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// dial connects, and closes the connection at the end of the test. What then
// fails is a connection that the test broke.
func dial(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func run(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// value asks for one value as text.
func value(t *testing.T, conn *pgx.Conn, query string) string {
	t.Helper()
	var v string
	if err := conn.QueryRow(t.Context(), query).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// openDir is a folder that every account may use; T.TempDir is root's alone.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgtest-parent-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustNil(t, os.RemoveAll(dir)) })
	mustNil(t, os.Chmod(dir, 0o777))
	return dir
}

// pids are those of all processes of a server, its keeper's last.
func pids(t *testing.T, s *Server) []int {
	t.Helper()
	all, err := s.mu.main.family()
	if err != nil {
		t.Fatal(err)
	}
	var ids []int
	for _, p := range all {
		ids = append(ids, p.pid)
	}
	return append(ids, s.keeper.cmd.Process.Pid)
}

// lives says whether a process does anything. One that is dead and was not
// collected does not: where tests run, nobody may be there to collect orphans.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state, _, err := parseStat(stat)
	return err != nil || state != 'Z' && state != 'X'
}

// leftovers are what should be gone: processes, entries of a folder, and
// shared memory that one of the processes made.
func leftovers(t *testing.T, ids []int, dir string) string {
	t.Helper()
	var left []string
	for _, pid := range append(workingIn(t, dir), ids...) {
		if lives(pid) {
			left = append(left, fmt.Sprintf("process %d", pid))
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		left = append(left, "folder "+filepath.Join(dir, entry.Name()))
	}
	segments, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(segments)) {
		for _, pid := range ids {
			if fields := strings.Fields(line); len(fields) > 4 && fields[4] == strconv.Itoa(pid) {
				left = append(left, "shared memory "+fields[1])
			}
		}
	}
	return strings.Join(left, ", ")
}

// eventually polls until nothing is amiss, for what other processes do in their
// own time.
func eventually(t *testing.T, what string, amiss func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		left := amiss()
		if left == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within a minute: %s", what, left)
		case <-ticker.C:
		}
	}
}

// signalled ends a process as the outside world would.
func signalled(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	mustNil(t, syscall.Kill(pid, sig))
}
