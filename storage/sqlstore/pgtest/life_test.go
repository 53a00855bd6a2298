package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestRestart: what was committed is there after an end in good order and
// after crashes, at the same address.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := setup(t, Config{Durable: true})
	url, addr := s.URL(), s.Addr()
	run(t, dial(t, url), "CREATE TABLE acked (n bigint PRIMARY KEY)")
	var next atomic.Int64
	var acked []int64
	for _, end := range []func() error{s.Kill, s.Stop, s.Kill} {
		acked = append(acked, insertUntil(t, s, &next, end)...)
		mustNil(t, s.Start())
		if s.URL() != url || s.Addr() != addr {
			t.Fatalf("the server moved from %s to %s", url, s.URL())
		}
		var lost int
		err := dial(t, url).QueryRow(t.Context(),
			"SELECT count(*) FROM unnest($1::bigint[]) n WHERE n NOT IN (SELECT n FROM acked)", acked).Scan(&lost)
		mustNil(t, err)
		if lost > 0 {
			t.Errorf("%d of %d committed rows are lost", lost, len(acked))
		}
	}
}

// insertUntil inserts from several connections, ends the server meanwhile, and
// returns what was committed before.
func insertUntil(t *testing.T, s *Server, next *atomic.Int64, end func() error) []int64 {
	t.Helper()
	const writers, enough = 4, 200
	var mu sync.Mutex
	var acked []int64
	warm := make(chan struct{})
	var group sync.WaitGroup
	for range writers {
		conn := dial(t, s.URL())
		group.Go(func() {
			for {
				n := next.Add(1)
				if _, err := conn.Exec(context.Background(), "INSERT INTO acked VALUES ($1)", n); err != nil {
					return
				}
				mu.Lock()
				if acked = append(acked, n); len(acked) == enough {
					close(warm)
				}
				mu.Unlock()
			}
		})
	}
	<-warm
	mustNil(t, end())
	group.Wait()
	return acked
}

func TestPause(t *testing.T) {
	t.Parallel()
	s := setup(t, Config{})
	waiting, timed := dial(t, s.URL()), dial(t, s.URL())
	mustNil(t, s.Pause())
	mustNil(t, s.Pause())
	all, err := s.mu.main.family()
	mustNil(t, err)
	if len(all) < 3 {
		t.Fatalf("the family is %v, with two connections", all)
	}
	for _, p := range all {
		if p.state != 'T' {
			t.Errorf("process %d is in state %c", p.pid, p.state)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := timed.Exec(ctx, "SELECT 1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a paused server answers %v", err)
	}
	if _, err := pgx.Connect(ctx, s.URL()); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a paused server answers a new connection with %v", err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := waiting.Exec(context.Background(), "SELECT 1")
		answered <- err
	}()
	mustNil(t, s.Resume())
	mustNil(t, <-answered)
	mustNil(t, s.Resume())
	run(t, dial(t, s.URL()), "SELECT 1")
}

// TestPauseBusy: nothing moves in a paused server that had all hands full, and
// that was just making new processes.
func TestPauseBusy(t *testing.T) {
	t.Parallel()
	s := setup(t, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for ctx.Err() == nil {
				if conn, err := pgx.Connect(ctx, s.URL()); err == nil {
					_, _ = conn.Exec(ctx, "SELECT count(*) FROM pg_class") // it may be cancelled
					_ = conn.Close(ctx)
				}
			}
		})
	}
	defer group.Wait()
	defer cancel()
	for range 20 {
		mustNil(t, s.Pause())
		all, err := s.mu.main.family()
		mustNil(t, err)
		for _, p := range all {
			if p.state != 'T' {
				t.Errorf("process %d of %v is in state %c", p.pid, all, p.state)
			}
		}
		mustNil(t, s.Resume())
	}
	mustNil(t, s.Pause())
	cancel()
	group.Wait()
	mustNil(t, s.Stop())
	mustNil(t, s.Start())
	run(t, dial(t, s.URL()), "SELECT 1")
}

// TestKillPaused: what came in during the pause is not done on the way out.
func TestKillPaused(t *testing.T) {
	t.Parallel()
	s := setup(t, Config{Durable: true})
	run(t, dial(t, s.URL()), "CREATE TABLE late (n int)")
	var conns []*pgx.Conn
	for range 8 {
		conns = append(conns, dial(t, s.URL()))
	}
	mustNil(t, s.Pause())
	var group sync.WaitGroup
	for _, conn := range conns {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			defer cancel()
			if _, err := conn.Exec(ctx, "INSERT INTO late VALUES (1)"); err == nil {
				t.Error("a paused server inserted")
			}
		})
	}
	group.Wait()
	mustNil(t, s.Kill())
	mustNil(t, s.Start())
	if n := value(t, dial(t, s.URL()), "SELECT count(*)::text FROM late"); n != "0" {
		t.Errorf("%s rows were inserted", n)
	}
}

// TestWrongTime: what the methods answer when it is not their turn.
func TestWrongTime(t *testing.T) {
	t.Parallel()
	s := setup(t, Config{})
	if err := s.Start(); err == nil || !strings.Contains(err.Error(), "started already") {
		t.Errorf("Start of a running server: %v", err)
	}
	mustNil(t, s.Stop())
	mustNil(t, s.Stop())
	mustNil(t, s.Kill())
	for name, method := range map[string]func() error{"Pause": s.Pause, "Resume": s.Resume} {
		if err := method(); !errors.Is(err, ErrNotRunning) {
			t.Errorf("%s of a stopped server: %v", name, err)
		}
	}
	mustNil(t, s.Close())
	for name, method := range map[string]func() error{
		"Kill": s.Kill, "Stop": s.Stop, "Start": s.Start, "Pause": s.Pause, "Resume": s.Resume,
	} {
		if err := method(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s of a closed server: %v", name, err)
		}
	}
}

// TestEndedByItself: a server that somebody else ended is noticed, and can be
// started again.
func TestEndedByItself(t *testing.T) {
	t.Parallel()
	s := setup(t, Config{})
	main := s.mu.main
	signalled(t, main.cmd.Process.Pid, syscall.SIGINT)
	<-main.ended
	for i, want := range []string{"ended by itself", ""} {
		if err := s.Stop(); (err == nil) != (want == "") || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("Stop number %d: %v", i+1, err)
		}
	}
	mustNil(t, s.Start())
	run(t, dial(t, s.URL()), "SELECT 1")
}
