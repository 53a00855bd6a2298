package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/storagetest"
)

const (
	jumpLease  = 5 * time.Minute // less than it takes a jumped clock to be believed
	jumpWindow = 2 * time.Minute
	jumpGrace  = time.Minute
	jumpFar    = 3 * time.Hour
)

// ownTime puts a now() before PostgreSQL's: statements mean that one, because
// the schema stands before pg_catalog in their search path.
const ownTime = `
CREATE TABLE clock_shift (id INT PRIMARY KEY, shift INTERVAL NOT NULL);
INSERT INTO clock_shift VALUES (1, INTERVAL '0');
CREATE FUNCTION now() RETURNS TIMESTAMPTZ LANGUAGE sql STABLE
  AS 'SELECT pg_catalog.now() + (SELECT shift FROM clock_shift WHERE id = 1)'`

// hands are the clock of a database and the elapsed time of the process beside
// it, apart from each other.
type hands struct {
	t    *testing.T
	url  string
	conn *pgx.Conn
	wall time.Duration // how far the database's clock was moved
	mono atomic.Int64  // the same of the process, beside the time that really passes
}

// shifted are schemas with a clock of their own that are used again.
var shifted struct {
	sync.Mutex
	free []string
}

// shiftedSchema returns the URL of a schema with a clock of its own and without
// a record, until the test ends.
func shiftedSchema(t *testing.T) string {
	t.Helper()
	shifted.Lock()
	defer shifted.Unlock()
	if n := len(shifted.free); n > 0 {
		url := shifted.free[n-1]
		shifted.free = shifted.free[:n-1]
		return url
	}
	url, _, err := server.Schema(t.Context())
	if err == nil {
		err = migrated(t.Context(), url)
	}
	if err == nil {
		err = execute(t.Context(), url, ownTime)
	}
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

func newHands(t *testing.T) *hands {
	t.Helper()
	h := &hands{t: t, url: shiftedSchema(t)}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(execute(ctx, h.url, "UPDATE clock_shift SET shift = INTERVAL '0'"), emptied(ctx, h.url)); err != nil {
			t.Errorf("clean up: %v", err)
			return
		}
		shifted.Lock()
		defer shifted.Unlock()
		shifted.free = append(shifted.free, h.url)
	})
	var err error
	if h.conn, err = pgx.Connect(t.Context(), h.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h
}

// jump moves the database's clock alone.
func (h *hands) jump(d time.Duration) {
	h.t.Helper()
	h.wall += d
	if _, err := h.conn.Exec(h.t.Context(), "UPDATE clock_shift SET shift = $1", h.wall); err != nil {
		h.t.Fatal(err)
	}
}

// pass has time go by for everybody.
func (h *hands) pass(d time.Duration) {
	h.t.Helper()
	h.mono.Add(int64(d))
	h.jump(d)
}

func (h *hands) open() *sqlstore.Store {
	h.t.Helper()
	began := time.Now()
	return open(h.t, h.url, nil, jumpGrace, func(c *sqlstore.Config) {
		c.Monotonic = func() time.Duration { return time.Since(began) + time.Duration(h.mono.Load()) }
	})
}

// jumped is a store with a record of each kind, from before its clock jumps.
type jumped struct {
	*hands
	*sqlstore.Store
	held, done, released claim.Request
	fence                claim.Fence // of held
}

func jumpRequest(event string, attempt byte) claim.Request {
	return claim.Request{
		Key: claim.Key{Tenant: 1, Consumer: "c", EventID: event}, Attempt: attemptID(attempt), InsertBefore: claim.Never, Lease: jumpLease,
		Policy: claim.Policy{Window: jumpWindow, Retention: 2 * jumpWindow, HoldMax: time.Hour, ResultBytesMax: 1 << 20},
	}
}

func newJumped(t *testing.T) *jumped {
	t.Helper()
	h := newHands(t)
	j := &jumped{hands: h, Store: h.open(), held: jumpRequest("held", 1), done: jumpRequest("done", 1), released: jumpRequest("released", 1)}
	j.done.Record = small()
	j.done.Policy.Retention = time.Hour
	var fence claim.Fence
	for _, r := range []*claim.Request{&j.held, &j.done, &j.released} {
		a, err := j.claim(*r)
		if err != nil || a.Decision != claim.Granted {
			t.Fatalf("%v: %+v %v", r.Key, a, err)
		}
		fence = a.Fence
		if r == &j.held {
			j.fence = fence
		}
	}
	if reply := j.move(claim.Transition{Kind: claim.Release, Key: j.released.Key, Attempt: j.released.Attempt, Fence: fence}); reply.Status != claim.OK {
		t.Fatalf("release: %+v", reply)
	}
	return j
}

func (j *jumped) claim(r claim.Request) (claim.Answer, error) {
	j.t.Helper()
	answers, err := storagetest.Claim(j.t.Context(), j.Store, []claim.Request{r})
	if err != nil {
		return claim.Answer{}, err
	}
	return answers[0], nil
}

func (j *jumped) move(t claim.Transition) claim.Reply {
	j.t.Helper()
	replies, err := storagetest.Move(j.t.Context(), j.Store, []claim.Transition{t})
	if err != nil {
		j.t.Fatal(err)
	}
	return replies[0]
}

// other is what another attempt is answered, in one word.
func (j *jumped) other(r claim.Request) string {
	j.t.Helper()
	r.Attempt, r.Record = attemptID(9), nil
	a, err := j.claim(r)
	switch {
	case errors.Is(err, storage.ErrClockSuspect):
		return "SUSPECT"
	case err != nil:
		j.t.Fatal(err)
	case a.Decision == claim.Granted:
		return fmt.Sprintf("GRANTED %d", a.Attempt)
	}
	return a.Decision.String()
}

// sweep sweeps once where there is something.
func (j *jumped) sweep() (deleted int, suspect bool) {
	j.t.Helper()
	rows, err := j.conn.Query(j.t.Context(), "SELECT DISTINCT expiry_shard FROM claims")
	if err != nil {
		j.t.Fatal(err)
	}
	shards, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		j.t.Fatal(err)
	}
	for _, shard := range shards {
		out, err := j.Sweep(j.t.Context(), storage.Sweep{Shard: shard, Limit: storage.SweepLimitMax})
		if err != nil && !errors.Is(err, storage.ErrClockSuspect) {
			j.t.Fatal(err)
		}
		deleted, suspect = deleted+out.Deleted, suspect || err != nil
	}
	return deleted, suspect
}

// look reads the clock and nothing that depends on it.
func (j *jumped) look() {
	j.t.Helper()
	j.read(j.done.Key)
}

// TestDatabaseClockJumps moves the clock of the database and asks what others
// are answered: nothing ends early, neither because of a step back nor because
// of a jump ahead that nobody has confirmed, and what has not to do with time
// goes on.
func TestDatabaseClockJumps(t *testing.T) {
	t.Parallel()
	const inProgress, duplicate, suspect, taken, anew = "IN_PROGRESS", "DUPLICATE", "SUSPECT", "GRANTED 2", "GRANTED 1"
	for _, c := range []struct {
		rule                 string
		move                 func(*jumped)
		held, done, released string
		suspect              bool
	}{
		{"stays", func(*jumped) {}, inProgress, duplicate, taken, false},
		{"goes on past the lease", func(j *jumped) { j.pass(jumpLease + time.Second) }, taken, duplicate, taken, false},
		{"goes on past the retention", func(j *jumped) { j.pass(2 * time.Hour) }, anew, anew, anew, false},
		{"steps back", func(j *jumped) { j.jump(-jumpFar) }, inProgress, duplicate, taken, false},
		{"steps back, and some time passes", func(j *jumped) { j.jump(-jumpFar); j.look(); j.pass(2 * jumpLease) }, inProgress, duplicate, taken, false},
		{"steps back, and catches up", func(j *jumped) { j.jump(-jumpFar); j.look(); j.pass(jumpFar) }, inProgress, duplicate, taken, false},
		{"steps back, and goes past the lease", func(j *jumped) { j.jump(-jumpFar); j.look(); j.pass(jumpFar + jumpLease + time.Second) }, taken, duplicate, taken, false},
		{"jumps ahead", func(j *jumped) { j.jump(jumpFar) }, inProgress, duplicate, taken, true},
		{"jumps ahead, noticed before", func(j *jumped) { j.jump(jumpFar); j.look() }, inProgress, duplicate, taken, true},
		{"jumps ahead by years", func(j *jumped) { j.jump(10_000 * time.Hour) }, inProgress, duplicate, taken, true},
		{"jumps ahead, and the lease ends meanwhile", func(j *jumped) { j.jump(jumpFar); j.look(); j.pass(jumpLease + time.Second) }, suspect, duplicate, taken, true},
		{"jumps ahead, and runs steadily for not quite ten minutes", func(j *jumped) {
			j.jump(jumpFar)
			j.look()
			j.pass(9 * time.Minute)
		}, suspect, duplicate, suspect, true},
		{"jumps ahead, and runs steadily for ten minutes", func(j *jumped) {
			j.jump(jumpFar)
			j.look()
			j.pass(10*time.Minute + time.Second)
			j.look()
		}, anew, anew, anew, false},
		{"jumps ahead and is confirmed", func(j *jumped) { j.jump(jumpFar); j.look(); j.ConfirmClock() }, anew, anew, anew, false},
		{"jumps ahead and back", func(j *jumped) { j.jump(jumpFar); j.look(); j.jump(-jumpFar); j.look() }, inProgress, duplicate, taken, false},
		{"jumps ahead less than is suspected", func(j *jumped) { j.jump(jumpLease + time.Minute) }, taken, duplicate, taken, false},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			j := newJumped(t)
			c.move(j)
			if got := j.other(j.held); got != c.held {
				t.Errorf("another attempt at what is held: %s, want %s", got, c.held)
			}
			if got := j.other(j.done); got != c.done {
				t.Errorf("another attempt at what is completed: %s, want %s", got, c.done)
			}
			if got := j.other(j.released); got != c.released {
				t.Errorf("another attempt at what was released: %s, want %s", got, c.released)
			}
			// A clock behind where it was gives new keys smaller fences: each key's
			// own go on growing.
			if a, err := j.claim(jumpRequest("new", 1)); err != nil || a.Decision != claim.Granted || a.Fence <= j.fence && j.wall >= 0 {
				t.Errorf("a new key: %+v %v; time was at fence %d before", a, err, j.fence)
			}
			if stats, err := j.Stats(t.Context()); err != nil || stats.ClockSuspect != c.suspect {
				t.Errorf("suspect: %v, want %v (%v)", stats.ClockSuspect, c.suspect, err)
			}
			if deleted, suspect := j.sweep(); deleted != 0 || suspect != c.suspect {
				t.Errorf("a sweep deletes %d records, suspect %v", deleted, suspect)
			}
			if c.held == inProgress || c.held == suspect {
				j.mustBeHeld()
			}
		})
	}
}

// mustBeHeld demands that the owner of what is held is one still.
func (j *jumped) mustBeHeld() {
	j.t.Helper()
	own, err := j.claim(j.held)
	if err != nil || own.Decision != claim.Granted || own.Fence != j.fence {
		j.t.Errorf("the owner, again: %+v %v", own, err)
	}
	done := claim.Transition{Kind: claim.Complete, Key: j.held.Key, Attempt: j.held.Attempt, Fence: j.fence, Completion: small()}
	if reply := j.move(done); reply.Status != claim.OK {
		j.t.Errorf("the owner's completion: %+v", reply)
	}
}

// TestJumpIsSeenInTheStatement has a statement be the first to meet a clock that
// jumped ahead: it holds the time down by itself, whatever the store knew when
// it was sent.
func TestJumpIsSeenInTheStatement(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind claim.SwapKind
		hold bool
	}{"take over": {claim.TakeOver, false}, "begin anew": {claim.BeginAnew, false}, "put in doubt": {claim.PutInDoubt, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJumped(t)
			r := jumpRequest("theirs", 1)
			r.Policy.Hold = c.hold
			if a, err := j.claim(r); err != nil || a.Decision != claim.Granted {
				t.Fatalf("%+v %v", a, err)
			}
			before := j.read(r.Key)
			r.Attempt = attemptID(9)
			swap := claim.NewSwap(c.kind, &before.Record, &r)
			j.jump(jumpFar)
			if found, err := j.Replace(t.Context(), []claim.Swap{swap}); err != nil || found[0].Applied {
				t.Errorf("while it lives: %+v %v", found, err)
			}
			j.ConfirmClock()
			if found, err := j.Replace(t.Context(), []claim.Swap{swap}); err != nil || !found[0].Applied {
				t.Errorf("once the clock is confirmed: %+v %v", found, err)
			}
		})
	}
	for name, result := range map[string]*claim.Completion{"insert alike": nil, "insert": small()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJumped(t)
			before := j.read(j.held.Key)
			j.jump(jumpFar)
			r := jumpRequest("new", 1)
			r.Record = result
			a, err := j.claim(r)
			stored := j.read(r.Key)
			if err != nil || a.ExpiresAt.Sub(before.Now) > time.Hour || stored.Record.ExpiresAt != a.ExpiresAt {
				t.Errorf("%+v %v, and it was %v; stored is %+v", a, err, before.Now, stored)
			}
		})
	}
}

func (j *jumped) read(k claim.Key) storage.Found {
	j.t.Helper()
	found, err := j.Get(j.t.Context(), []claim.Key{k})
	if err != nil {
		j.t.Fatal(err)
	}
	return found[0]
}

// TestDatabaseClockStepsBackBetweenStores: what is granted and completed after
// the step by a store that was opened after it does not end early for one that
// was open before.
func TestDatabaseClockStepsBackBetweenStores(t *testing.T) {
	t.Parallel()
	h := newHands(t)
	old := h.open()
	h.jump(-jumpFar)
	young := h.open()
	ask := func(s storage.Store, r claim.Request) claim.Answer {
		t.Helper()
		a, err := storagetest.Claim(t.Context(), s, []claim.Request{r})
		if errors.Is(err, storage.ErrClockSuspect) {
			return claim.Answer{Decision: claim.HeldByOther}
		}
		if err != nil {
			t.Fatal(err)
		}
		return a[0]
	}
	done := jumpRequest("done", 1)
	done.Record = small()
	ask(young, jumpRequest("held", 1))
	ask(young, done)
	if a := ask(old, jumpRequest("held", 2)); a.Decision != claim.HeldByOther {
		t.Errorf("a live lease: %+v", a)
	}
	if a := ask(old, jumpRequest("done", 2)); a.Decision == claim.Granted {
		t.Errorf("a completed event: %+v", a)
	}
}
