package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
)

const (
	// waitMax bounds every wait for another session of the database.
	waitMax = 60 * time.Second
	// waitPoll is how often it is looked whether that has come.
	waitPoll = 5 * time.Millisecond
)

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitMax)
	defer cancel()
	ticker := time.NewTicker(waitPoll)
	defer ticker.Stop()
	for !so() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", waitMax, what)
		case <-ticker.C:
		}
	}
}

// session is a connection beside those of the store.
type session struct {
	*pgx.Conn
	t *testing.T
}

func newSession(t *testing.T, url string) *session {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // its transaction goes with it
	return &session{Conn: conn, t: t}
}

func (s *session) run(statements ...string) {
	s.t.Helper()
	for _, sql := range statements {
		if _, err := s.Exec(s.t.Context(), sql); err != nil {
			s.t.Fatalf("%s: %v", sql, err)
		}
	}
}

func (s *session) number(sql string, args ...any) (n int64) {
	s.t.Helper()
	if err := s.QueryRow(s.t.Context(), sql, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// waiting is how many sessions wait for a lock of another one.
func (s *session) waiting(holder *session) int64 {
	s.t.Helper()
	return s.number("SELECT count(*) FROM pg_stat_activity WHERE $1::INT4 = ANY (pg_blocking_pids(pid))", int32(holder.PgConn().PID()))
}

// waited waits until a session waits for a lock of holder's.
func (s *session) waited(holder *session) {
	s.t.Helper()
	eventually(s.t, "a call waits for the lock", func() bool { return s.waiting(holder) > 0 })
}

// background is a call that waits for the lock of another session.
type background struct {
	holder *session
	done   chan error
}

// stuck makes every connection for traffic of a store with one wait for a lock.
func stuck(t *testing.T, url string, s storage.Store) *background {
	t.Helper()
	b := &background{holder: newSession(t, url), done: make(chan error, 1)}
	b.holder.run("BEGIN", "LOCK TABLE claims IN ACCESS EXCLUSIVE MODE")
	go func() {
		_, err := s.Get(context.WithoutCancel(t.Context()), matrixKeys)
		b.done <- err
	}()
	newSession(t, url).waited(b.holder)
	return b
}

// free ends the lock and returns what the call says.
func (b *background) free() error {
	b.holder.run("ROLLBACK")
	return <-b.done
}

// TestAllConnectionsBusy: with every connection in use a call gives up after
// AcquireTimeout, however long CallTimeout is and whatever the pauses between
// tries are, and the store is ready all the same.
func TestAllConnectionsBusy(t *testing.T) {
	t.Parallel()
	// Every retry would add half a second and a pause of as much.
	const acquire, most = 500 * time.Millisecond, 5 * time.Second
	url := cleanSchema(t)
	s := open(t, url, nil, time.Hour, func(c *sqlstore.Config) {
		c.Conns, c.AcquireTimeout, c.Rand = 1, acquire, func() float64 { return 1 }
	})
	b := stuck(t, url, s)
	for name, call := range map[string]func(context.Context) error{
		"read": func(ctx context.Context) error { _, err := s.Get(ctx, matrixKeys); return err },
		"write": func(ctx context.Context) error {
			_, err := s.InsertOrGet(ctx, []claim.Request{matrixRequest(matrixKeys[0], 1)})
			return err
		},
	} {
		began := time.Now()
		err := call(t.Context())
		if took := time.Since(began); !errors.Is(err, storage.ErrUnavailable) || took < acquire || took > most {
			t.Errorf("a %s is answered %v after %v, want %v after %v", name, err, took, storage.ErrUnavailable, acquire)
		}
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("ready: %v", err)
	}
	if err := b.free(); err != nil {
		t.Errorf("the call that has the connection: %v", err)
	}
}

// TestLateForClose: who comes while Close waits for a call under way is told so
// at once, and that call is finished.
func TestLateForClose(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	s, err := sqlstore.Open(t.Context(), sqlstore.Config{URL: url, Conns: 1, SweepConns: 1, AcquireTimeout: time.Minute, CallTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	b := stuck(t, url, s)
	closed, late := make(chan error, 1), make(chan error, 1)
	go func() { closed <- s.Close() }()
	go func() {
		// Ready needs no lock: it succeeds until Close has begun.
		var err error
		for err == nil {
			err = s.Ready(context.WithoutCancel(t.Context()))
		}
		_, get := s.Get(context.WithoutCancel(t.Context()), matrixKeys)
		late <- errors.Join(err, get)
	}()
	select {
	case err := <-late:
		if !errors.Is(err, storage.ErrClosed) || strings.Count(err.Error(), storage.ErrClosed.Error()) != 2 {
			t.Errorf("late calls are told %v, want %v", err, storage.ErrClosed)
		}
	case <-time.After(20 * time.Second):
		t.Error("late calls wait for Close")
	}
	select {
	case err := <-closed:
		t.Errorf("closed with a call under way: %v", err)
	default:
	}
	if err := b.free(); err != nil {
		t.Errorf("the call under way: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
}

const (
	crossRounds = 50
	crossKeys   = 60
)

// TestMixedBatchesNeverDeadlock has two callers do different things with the
// same keys at once, each several in one batch.
func TestMixedBatchesNeverDeadlock(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	watch := newSession(t, server.URL())
	name := newSession(t, url).Config().Database
	deadlocks := func() int64 {
		watch.run("SELECT pg_stat_clear_snapshot()")
		return watch.number("SELECT deadlocks FROM pg_stat_database WHERE datname = $1", name)
	}
	t.Run("rounds", func(t *testing.T) {
		// What waits is looked at soon: a deadlock costs the rounds no second.
		s := open(t, with(url, "deadlock_timeout=20"), nil, time.Hour, func(c *sqlstore.Config) { c.Conns = 6 })
		for round := range crossRounds {
			crossRound(t, s, round)
		}
	})
	// A session tells its numbers at the latest when it ends.
	eventually(t, "the store's sessions have ended", func() bool {
		return watch.number("SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE 'warifu%'", name) == 0
	})
	if n := deadlocks(); n != 0 {
		t.Errorf("%d deadlocks in %d rounds", n, crossRounds)
	}
}

func crossRound(t *testing.T, s storage.Store, round int) {
	t.Helper()
	var reqs []claim.Request
	for i := range crossKeys {
		reqs = append(reqs, matrixRequest(claim.Key{Tenant: 1, Consumer: "cross", EventID: fmt.Sprintf("%d-%d", round, i)}, 1))
	}
	found, err := s.InsertOrGet(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	kinds := []claim.TransitionKind{claim.Complete, claim.Extend, claim.Release}
	var wg sync.WaitGroup
	for side := range 2 {
		var ts []claim.Transition
		for i := range reqs {
			ts = append(ts, claim.Transition{
				Kind: kinds[(i+side)%len(kinds)], Key: reqs[i].Key, Attempt: attemptID(1), Fence: found[i].Record.Fence,
				Lease: time.Minute, Completion: small(),
			})
		}
		wg.Go(func() {
			out, err := s.Transition(t.Context(), ts)
			if err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			for i := range out {
				if out[i].Err != nil {
					t.Errorf("round %d, item %d: %v", round, i, out[i].Err)
				}
			}
		})
	}
	wg.Wait()
}
