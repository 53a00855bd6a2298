package reliability_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// stockStart is what is in stock before anybody takes anything.
const stockStart = 100

// stock is a folder outside of all processes: how much is left, and a line for
// each time that something was taken. It knows nothing of events and fences,
// so it counts every effect that happens.
type stock string

func newStock(t *testing.T) stock {
	t.Helper()
	s := stock(t.TempDir())
	if err := os.WriteFile(s.left(), []byte(strconv.Itoa(stockStart)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.effects(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s stock) left() string    { return filepath.Join(string(s), "left") }
func (s stock) effects() string { return filepath.Join(string(s), "effects") }

// take is the effect: when it returns, n are gone, whoever dies next.
func (s stock) take(n int, by string) (left int, err error) {
	f, err := os.OpenFile(s.left(), os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // synced below
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return 0, err
	}
	if left, err = s.count(); err != nil {
		return 0, err
	}
	left -= n
	if _, err := f.WriteAt(fmt.Appendf(nil, "%-8d", left), 0); err != nil {
		return 0, err
	}
	log, err := os.OpenFile(s.effects(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = log.Close() }() // synced below
	if _, err := fmt.Fprintf(log, "%d by %s\n", n, by); err != nil {
		return 0, err
	}
	if err := log.Sync(); err != nil {
		return 0, err
	}
	return left, f.Sync()
}

func (s stock) count() (int, error) {
	b, err := os.ReadFile(s.left())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// look returns what is left and how many effects there were.
func (s stock) look(t *testing.T) (left, effects int) {
	t.Helper()
	left, err := s.count()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(s.effects())
	if err != nil {
		t.Fatal(err)
	}
	return left, strings.Count(string(b), "\n")
}
