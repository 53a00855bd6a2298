package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
	"github.com/warifu/warifu/storage/storagetest"
)

// matrixRestarts is how often CockroachDB's protocol restarts a transaction
// within one try.
const matrixRestarts = 5

const emptyRegistry = `DELETE FROM registry_meta; DELETE FROM registry_rows; DELETE FROM registry_audit;
	DELETE FROM registry_seen; DELETE FROM registry_leases`

// TestRegistryFaults is TestFaults for the statements of the registry. Several
// of them make one trip of Apply's transaction: a fault strikes the whole trip,
// and each is listed all the same, so that one that moves to another trip is
// covered there. What the proxy breaks that no rule can hold is among
// exceptions.
func TestRegistryFaults(t *testing.T) {
	t.Parallel()
	for _, x := range exceptions() {
		t.Logf("known exception: %s", x)
	}
	ops := registryOperations()
	for _, name := range registryStatementNames(t) {
		if len(ops[name]) == 0 {
			t.Errorf("statement %s has no operation that runs it", name)
		}
		for _, d := range dialects {
			sql := sqlstore.Words(name, d)
			if sql == "" {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", name, d), func(t *testing.T) {
				t.Parallel()
				l := newLane(t, d)
				beside := connected(t, l.url)
				for _, op := range ops[name] {
					for i, f := range faults {
						for _, times := range []int{1, persistent} {
							if times > 1 && !soak() && (i+len(name))%2 == 0 {
								continue // an ordinary run has half of those that last
							}
							c := &registryCell{cell: cell{lane: l, sql: sql, fault: f, times: times}, beside: beside, statement: name, dialect: d, op: op}
							if c.tells() {
								t.Run(strings.TrimSpace(op.variant+" "+c.String()), c.run)
							}
						}
					}
				}
			})
		}
	}
}

// registryStatementNames are the names of the registry's statements.
func registryStatementNames(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("queries/registry_*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	var out []string
	for _, f := range files {
		name, _, _ := strings.Cut(filepath.Base(f), ".")
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// connected is a connection until the test ends.
func connected(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return conn
}

// registryCell is one of the matrix. Of the cell within, the proxy's decision is
// used.
type registryCell struct {
	cell
	beside    *pgx.Conn // empties the tables, without a connection for each cell
	statement string
	dialect   sqlstore.Dialect
	op        registryOperation
	model     registry.Registry
}

// tells reports whether this cell tells more than the others. A trip that is
// late takes all the time of its call, so that there is no second one; and what
// others do meanwhile matters to what comes after them only, which Late leaves
// to chance.
func (c *registryCell) tells() bool {
	if c.times > 1 && (answers(c.fault) || c.fault.Kind == mitm.Late) {
		return false
	}
	return !c.op.overtaken || c.fault.Kind == mitm.TwiceLate
}

// registryOf is the registry of one of the lane's stores.
func registryOf(t *testing.T, s storage.Store) registry.Registry {
	t.Helper()
	of, ok := s.(*sqlstore.Store)
	if !ok {
		t.Fatalf("%T has no registry", s)
	}
	return of.Registry()
}

func (c *registryCell) run(t *testing.T) {
	ctx := t.Context()
	if _, err := c.beside.Exec(ctx, emptyRegistry, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	c.proxy.Reset()
	c.model = storagetest.NewRegistryModel(c.clock.Now)
	c.current.Store(&c.cell)
	c.start = c.start.Add(cellLength)
	c.onBoth(t, c.start, c.op.prepare)
	before := c.stored(t)
	same(t, "prepared", before, readRegistry(t, c.model))

	patient := registryOf(t, c.patient)
	first := patient
	if c.fault.Kind == mitm.Late {
		first = registryOf(t, c.hasty)
	}
	c.left.Store(int64(c.times))
	answer, err := c.op.call(ctx, first, before)
	c.left.Store(0)
	if c.struck.Load() == 0 {
		t.Fatalf("the operation does not send the statement; it returned %v", err)
	}
	c.judge(t, err, before)

	again, err2 := c.op.call(ctx, patient, before)
	if err2 != nil {
		t.Fatalf("sent again: %v", err2)
	}
	want, errModel := c.op.call(ctx, c.model, before)
	if errModel != nil {
		t.Fatalf("the model: %v", errModel)
	}
	if err == nil {
		same(t, "answer", answer, want)
	}
	same(t, "sent again", again, want)
	c.compare(t, "stored", c.fault.Kind == mitm.Twice)
	c.deliverLate(t)
}

// onBoth does a step on the tables and on the model, at the same time of the
// clock.
func (c *registryCell) onBoth(t *testing.T, at time.Time, do registryStep) {
	t.Helper()
	if do == nil {
		return
	}
	for _, r := range []registry.Registry{registryOf(t, c.direct), c.model} {
		c.clock.Set(at)
		if err := do(t.Context(), r, c.clock); err != nil {
			t.Fatalf("%T: %v", r, err)
		}
	}
}

// judge demands of the first call what its error may mean.
func (c *registryCell) judge(t *testing.T, err error, before registryState) {
	t.Helper()
	tries := int64(matrixRetries + 1)
	if c.dialect == sqlstore.Cockroach && c.op.transaction && c.fault.Code == "40001" {
		tries *= matrixRestarts + 1
	}
	if n := c.struck.Load(); n > tries {
		t.Fatalf("%d tries, want at most %d", n, tries)
	}
	survives := c.times == 1 && c.fault.Kind != mitm.Late
	if x := c.exception(); x != nil && x.unknown {
		if !errors.Is(err, storage.ErrUnknown) {
			t.Fatalf("error %v: the exception is none any more: %s", err, x)
		}
		t.Logf("known exception: %s", x)
		return
	}
	switch {
	case err == nil && !survives:
		t.Fatalf("succeeded though every try failed")
	case err == nil:
		return
	case survives:
		t.Fatalf("one fault is not survived: %v", err)
	case errors.Is(err, storage.ErrUnavailable) == errors.Is(err, storage.ErrUnknown):
		t.Fatalf("failed with %v", err)
	case c.op.reads && !errors.Is(err, storage.ErrUnavailable):
		t.Fatalf("a read that failed says %v, want %v", err, storage.ErrUnavailable)
	}
	if errors.Is(err, storage.ErrUnavailable) {
		same(t, "nothing was applied", c.stored(t), before)
	}
}

// deliverLate lets others act, and then lets the database execute what was sent
// before.
func (c *registryCell) deliverLate(t *testing.T) {
	t.Helper()
	if c.fault.Kind != mitm.TwiceLate && c.fault.Kind != mitm.Late {
		return
	}
	c.onBoth(t, c.clock.Now(), c.op.after)
	deliver := c.proxy.Redeliver
	if c.fault.Kind == mitm.Late {
		deliver = c.proxy.Late
	}
	if n, err := deliver(t.Context()); err != nil || n == 0 {
		t.Fatalf("%d delivered late: %v", n, err)
	}
	c.compare(t, "after a late delivery", c.fault.Kind == mitm.TwiceLate)
}
