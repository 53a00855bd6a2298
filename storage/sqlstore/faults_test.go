package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
	"github.com/warifu/warifu/storage/storagetest"
)

// faults are what happens to the trip that carries a statement.
var faults = []mitm.Fault{
	{Kind: mitm.Refuse, Code: "XX000"}, {Kind: mitm.Lose, Code: "XX000"},
	{Kind: mitm.Refuse, Code: "40001"}, {Kind: mitm.RefuseAtSync, Code: "40001"},
	{Kind: mitm.Lose, Code: "40001"}, {Kind: mitm.LoseAtSync, Code: "40001"},
	{Kind: mitm.RefuseAtSync, Code: "40003"}, {Kind: mitm.LoseAtSync, Code: "40003"},
	{Kind: mitm.Refuse, Code: "57P01"}, {Kind: mitm.Lose, Code: "57P01"},
	{Kind: mitm.Refuse, Code: "57014"}, {Kind: mitm.LoseAtSync, Code: "57014"},
	{Kind: mitm.RefuseAtSync, Code: "08006"}, {Kind: mitm.Refuse, Code: "53300"},
	{Kind: mitm.DropBefore}, {Kind: mitm.DropAfter}, {Kind: mitm.DropMidRow},
	{Kind: mitm.Late}, {Kind: mitm.Twice}, {Kind: mitm.TwiceLate},
}

var dialects = []sqlstore.Dialect{sqlstore.Postgres, sqlstore.Cockroach}

// answers reports whether the client hears a whole answer in spite of a fault.
func answers(f mitm.Fault) bool { return f.Kind == mitm.Twice || f.Kind == mitm.TwiceLate }

const (
	// lateTimeout is how long a call waits for an answer that is held back.
	lateTimeout = 250 * time.Millisecond
	// persistent outlasts every retry.
	persistent = 1 << 20
	// cellLength is longer than what happens in a cell.
	cellLength = 1000 * time.Hour
	// matrixRetries keeps the matrix short: the first retry is on another
	// connection, the second after a pause.
	matrixRetries = 2
)

// statementNames are the names of all statements, those of the registry apart.
func statementNames(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("queries/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	var out []string
	for _, f := range files {
		name, _, _ := strings.Cut(filepath.Base(f), ".")
		if !strings.HasPrefix(name, "registry_") && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// TestFaults: whatever becomes of the trip with a statement, once or again and
// again, a call that says nothing was applied has applied nothing, the same
// call sent again succeeds, and what is stored then is what the rules say of
// it. What arrives late changes nothing that came after it.
func TestFaults(t *testing.T) {
	t.Parallel()
	ops := operations()
	for _, name := range statementNames(t) {
		op, ok := ops[name]
		if !ok {
			t.Errorf("statement %s has no operation that runs it", name)
			continue
		}
		for _, d := range dialects {
			sql := sqlstore.Words(name, d)
			if sql == "" {
				continue
			}
			if name == "sweep_scan" { // a suite's time knows no past
				sql = sqlstore.Words(name, sqlstore.Postgres)
			}
			t.Run(fmt.Sprintf("%s/%s", name, d), func(t *testing.T) {
				t.Parallel()
				l := newLane(t, d)
				for i, f := range faults {
					for _, times := range []int{1, persistent} {
						if times > 1 && (answers(f) || !soak() && (i+len(name))%2 == 0) {
							continue // an ordinary run has half of those that last
						}
						c := &cell{lane: l, op: op, sql: sql, fault: f, times: times}
						t.Run(c.String(), c.run)
					}
				}
			})
		}
	}
}

// lane is a database with ways to it that the cells of one statement use one
// after the other.
type lane struct {
	url     string
	clock   *storagetest.Clock
	proxy   *mitm.Proxy
	patient storage.Store // behind the proxy
	hasty   storage.Store // behind the proxy, for answers that are held back
	direct  storage.Store // beside it, on the same tables
	current atomic.Pointer[cell]
	// start is when the current cell begins: stores never go back to that of
	// an earlier one.
	start time.Time
}

// cell is one of the matrix.
type cell struct {
	*lane
	op    operation
	sql   string
	fault mitm.Fault
	times int

	left   atomic.Int64 // how often the fault still strikes
	struck atomic.Int64
	store  storage.Store // behind the proxy
	model  storage.Store
}

func (c *cell) String() string {
	if c.times == 1 {
		return c.fault.String() + " once"
	}
	return c.fault.String() + " always"
}

func (l *lane) decide(t mitm.Trip) mitm.Fault {
	c := l.current.Load()
	if c == nil || !slices.Contains(t.SQL, c.sql) || c.left.Add(-1) < 0 {
		return mitm.Fault{}
	}
	c.struck.Add(1)
	return c.fault
}

func (c *cell) run(t *testing.T) {
	ctx := t.Context()
	if err := emptied(ctx, c.url); err != nil {
		t.Fatal(err)
	}
	c.proxy.Reset()
	c.model = storagetest.NewModel(c.clock.Now, matrixGrace)
	if c.store = c.patient; c.fault.Kind == mitm.Late {
		c.store = c.hasty
	}
	c.current.Store(c)
	c.start = c.start.Add(cellLength)
	for _, s := range []storage.Store{c.direct, c.model} {
		c.clock.Set(c.start)
		c.op.prepare(ctx, t, s, c.clock)
	}
	before := records(t, c.direct)
	c.left.Store(int64(c.times))
	_, err := c.op.call(ctx, c.store, before[0])
	c.left.Store(0)
	if c.struck.Load() == 0 {
		t.Fatalf("the operation does not send the statement")
	}
	c.judge(t, err, before)

	again, err := c.op.call(ctx, c.store, before[0])
	if err != nil {
		t.Fatalf("sent again: %v", err)
	}
	want, err := c.op.call(ctx, c.model, before[0])
	if err != nil {
		t.Fatalf("the model: %v", err)
	}
	c.same(t, "sent again", again, want)
	c.same(t, "stored", records(t, c.direct), records(t, c.model))
	c.deliverLate(t)
}

// judge demands of the first call what its error may mean.
func (c *cell) judge(t *testing.T, err error, before []claim.Record) {
	t.Helper()
	survives := c.times == 1 && c.fault.Kind != mitm.Late
	switch {
	case err == nil && !survives && !answers(c.fault):
		t.Fatalf("succeeded though every try failed")
	case err == nil:
		return
	case survives:
		t.Fatalf("one fault is not survived: %v", err)
	case c.op.reads && !errors.Is(err, storage.ErrUnavailable):
		t.Fatalf("a read that failed says %v, want %v", err, storage.ErrUnavailable)
	case !errors.Is(err, storage.ErrUnavailable) && !errors.Is(err, storage.ErrUnknown):
		t.Fatalf("failed with %v", err)
	case c.struck.Load() > matrixRetries+1:
		t.Fatalf("%d tries", c.struck.Load())
	}
	if errors.Is(err, storage.ErrUnavailable) {
		c.same(t, "nothing was applied", records(t, c.direct), before)
	}
}

// deliverLate lets others act, and then lets the database execute what was sent
// before.
func (c *cell) deliverLate(t *testing.T) {
	t.Helper()
	if c.fault.Kind != mitm.TwiceLate && c.fault.Kind != mitm.Late {
		return
	}
	ctx := t.Context()
	if base := c.clock.Now(); c.op.after != nil {
		for _, s := range []storage.Store{c.direct, c.model} {
			c.clock.Set(base)
			c.op.after(ctx, t, s, c.clock)
		}
	}
	if c.fault.Kind == mitm.Late {
		if _, err := c.proxy.Late(ctx); err != nil {
			t.Fatalf("late: %v", err)
		}
	} else if n, err := c.proxy.Redeliver(ctx); err != nil || n == 0 {
		t.Fatalf("delivered %d again: %v", n, err)
	}
	c.same(t, "after a late delivery", records(t, c.direct), records(t, c.model))
}

func newLane(t *testing.T, d sqlstore.Dialect) *lane {
	t.Helper()
	l := &lane{url: cleanSchema(t), clock: storagetest.NewClock(storagetest.Start), start: storagetest.Start}
	config := mitm.Config{Upstream: server.Addr(), Decide: l.decide}
	if d == sqlstore.Cockroach {
		config.Announce = map[string]string{"crdb_version": "CockroachDB CCL v25.2.3 (x86_64-pc-linux-gnu)"}
	}
	var err error
	if l.proxy, err = mitm.New(config); err != nil {
		t.Fatal(err)
	}
	if err := l.proxy.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.proxy.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
	})
	through, err := l.proxy.URL(l.url)
	if err != nil {
		t.Fatal(err)
	}
	if d == sqlstore.Cockroach {
		through = "cockroach" + strings.TrimPrefix(through, "postgres")
	}
	atOnce := func(c *sqlstore.Config) {
		c.Rand, c.Retries = func() float64 { return 0 }, matrixRetries
	}
	l.patient = open(t, through, l.clock, matrixGrace, atOnce)
	l.hasty = open(t, through, l.clock, matrixGrace, func(c *sqlstore.Config) {
		atOnce(c)
		c.CallTimeout, c.SweepTimeout = lateTimeout, lateTimeout
	})
	l.direct = open(t, l.url, l.clock, matrixGrace, nil)
	return l
}

func records(t *testing.T, s storage.Store) []claim.Record {
	t.Helper()
	found, err := s.Get(context.WithoutCancel(t.Context()), matrixKeys)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	var out []claim.Record
	for i := range found {
		out = append(out, found[i].Record)
	}
	return out
}

// same compares records. An operation that may be applied more often than it
// was called, because that changes nothing, counts its versions up.
func (c *cell) same(t *testing.T, what string, got, want []claim.Record) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d records, want %d", what, len(got), len(want))
	}
	for i := range got {
		g, w := got[i], want[i]
		if c.op.counts && g.Version >= w.Version {
			g.Version = w.Version
		}
		if !storagetest.SameRecord(g, w) {
			t.Fatalf("%s, record %d:\ngot  %+v\nwant %+v", what, i, g, w)
		}
	}
}
