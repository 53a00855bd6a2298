package mitm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage/sqlstore/mitm"
)

// shapes are the ways in which a client inserts one row and reads something
// back. All are executed once before, so that statements are cached.
var shapes = map[string]func(ctx context.Context, r *rig, q querier, id int) (rowsSeen int, err error){
	"statement": func(ctx context.Context, r *rig, q querier, id int) (int, error) {
		rows, err := q.Query(ctx, "insert into "+r.table+" values ($1, 'noted') returning id, note", id)
		if err != nil {
			return 0, err
		}
		return drain(rows)
	},
	"batch": func(ctx context.Context, r *rig, q querier, id int) (int, error) {
		var b pgx.Batch
		b.Queue("insert into "+r.table+" values ($1, 'noted')", id)
		b.Queue("select id, note from "+r.table+" where id = $1", id)
		results := q.SendBatch(ctx, &b)
		_, err := results.Exec()
		if err != nil {
			return 0, errors.Join(err, results.Close())
		}
		rows, err := results.Query()
		if err != nil {
			return 0, errors.Join(err, results.Close())
		}
		n, err := drain(rows)
		return n, errors.Join(err, results.Close())
	},
	"simple": func(ctx context.Context, r *rig, q querier, id int) (int, error) {
		rows, err := q.Query(ctx, "insert into "+r.table+" values ($1, 'noted') returning id, note", pgx.QueryExecModeSimpleProtocol, id)
		if err != nil {
			return 0, err
		}
		return drain(rows)
	},
	"described": func(ctx context.Context, r *rig, q querier, id int) (int, error) {
		rows, err := q.Query(ctx, "insert into "+r.table+" values ($1, 'noted') returning id, note", pgx.QueryExecModeExec, id)
		if err != nil {
			return 0, err
		}
		return drain(rows)
	},
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

func drain(rows pgx.Rows) (n int, err error) {
	defer rows.Close()
	for rows.Next() {
		n++
	}
	rows.Close()
	return n, rows.Err()
}

// promise is what a kind of fault promises for one trip.
type promise struct {
	fault mitm.Fault
	code  string // what the client sees alone
	rows  int    // how often its row is in the table then
	seen  int    // rows the client read, in a pipeline
	alive bool   // the connection goes on
}

func promises() []promise {
	return []promise{
		{mitm.Fault{}, "", 1, 1, true},
		{mitm.Fault{Kind: mitm.Refuse, Code: "40001"}, "40001", 0, 0, true},
		{mitm.Fault{Kind: mitm.Refuse, Code: "40003"}, "40003", 0, 0, true},
		{mitm.Fault{Kind: mitm.Refuse, Code: "57014"}, "57014", 0, 0, true},
		{mitm.Fault{Kind: mitm.Refuse, Code: "57P01"}, "57P01", 0, 0, false},
		{mitm.Fault{Kind: mitm.Refuse}, "XX000", 0, 0, true},
		{mitm.Fault{Kind: mitm.RefuseAtSync, Code: "40001"}, "40001", 0, 1, true},
		{mitm.Fault{Kind: mitm.RefuseAtSync, Code: "57P01"}, "57P01", 0, 1, false},
		{mitm.Fault{Kind: mitm.Lose, Code: "40001"}, "40001", 1, 0, true},
		{mitm.Fault{Kind: mitm.Lose, Code: "40003"}, "40003", 1, 0, true},
		{mitm.Fault{Kind: mitm.Lose, Code: "57P01"}, "57P01", 1, 0, false},
		{mitm.Fault{Kind: mitm.LoseAtSync, Code: "40003"}, "40003", 1, 1, true},
		{mitm.Fault{Kind: mitm.LoseAtSync, Code: "57P01"}, "57P01", 1, 1, false},
		{mitm.Fault{Kind: mitm.DropBefore}, "dropped", 0, 0, false},
		{mitm.Fault{Kind: mitm.DropAfter}, "dropped", 1, 0, false},
		{mitm.Fault{Kind: mitm.DropMidRow}, "dropped", 1, 0, false},
		{mitm.Fault{Kind: mitm.Twice}, "", 2, 1, true},
		{mitm.Fault{Kind: mitm.Kind(99)}, "dropped", 0, 0, false},
	}
}

func TestFaultAlone(t *testing.T) {
	t.Parallel()
	for name, insert := range shapes {
		for _, p := range promises() {
			t.Run(name+"/"+p.fault.String(), func(t *testing.T) {
				r := setup(t)
				conn := r.connect()
				if _, err := insert(r.ctx, r, conn, 1); err != nil {
					t.Fatal(err)
				}
				r.inject(r.table, p.fault)
				seen, err := insert(r.ctx, r, conn, 2)
				r.injected()
				if got := code(err); got != p.code {
					t.Errorf("the client got %q (%v), want %q", got, err, p.code)
				}
				wantSeen := p.seen
				if name == "simple" && p.fault.Kind == mitm.RefuseAtSync {
					wantSeen = 0 // then it is Refuse
				}
				if seen != wantSeen {
					t.Errorf("the client read %d rows, want %d", seen, wantSeen)
				}
				r.settled()
				r.wantRows(2, p.rows)
				r.wantAlive(conn, p.alive, "")
			})
		}
	}
}

// TestFaultInTransaction: whatever happened to a statement in a transaction,
// the client and the database agree on what becomes of it.
func TestFaultInTransaction(t *testing.T) {
	t.Parallel()
	for name, insert := range shapes {
		for _, p := range promises() {
			t.Run(name+"/"+p.fault.String(), func(t *testing.T) {
				r := setup(t)
				conn := r.connect()
				if _, err := insert(r.ctx, r, conn, 1); err != nil {
					t.Fatal(err)
				}
				tx, err := conn.Begin(r.ctx)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := insert(r.ctx, r, tx, 2); err != nil {
					t.Fatal(err)
				}
				r.inject(r.table, p.fault)
				_, err = insert(r.ctx, r, tx, 3)
				r.injected()
				if got := code(err); got != p.code {
					t.Errorf("the client got %q (%v), want %q", got, err, p.code)
				}
				r.settled()
				r.wantRows(3, 0)
				if p.code == "" {
					if err := tx.Commit(r.ctx); err != nil {
						t.Errorf("commit: %v", err)
					}
					r.wantRows(2, 1)
					r.wantRows(3, p.rows)
					return
				}
				r.wantAlive(conn, p.alive, "25P02")
				err = tx.Commit(r.ctx)
				if p.alive && !errors.Is(err, pgx.ErrTxCommitRollback) || err == nil {
					t.Errorf("the commit of a failed transaction got %v", err)
				}
				r.wantRows(2, 0)
				r.wantRows(3, 0)
				r.wantAlive(conn, p.alive, "")
			})
		}
	}
}

// TestFaultAtCommit: "rows" of a promise is whether the commit counts.
func TestFaultAtCommit(t *testing.T) {
	t.Parallel()
	for _, p := range promises() {
		for _, ending := range []string{"commit", "rollback"} {
			t.Run(ending+"/"+p.fault.String(), func(t *testing.T) {
				r := setup(t)
				conn := r.connect()
				tx, err := conn.Begin(r.ctx)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := shapes["statement"](r.ctx, r, tx, 2); err != nil {
					t.Fatal(err)
				}
				r.inject(ending, p.fault)
				// By its text: tx.Rollback closes the connection itself.
				_, err = conn.Exec(r.ctx, ending)
				r.injected()
				if got := code(err); got != p.code {
					t.Errorf("the client got %q (%v), want %q", got, err, p.code)
				}
				r.settled()
				want := min(p.rows, 1)
				if ending == "rollback" {
					want = 0
				}
				r.wantRows(2, want)
				r.wantAlive(conn, p.alive, "")
				if p.alive && conn.PgConn().TxStatus() != 'I' {
					t.Errorf("the client is left in state %q", conn.PgConn().TxStatus())
				}
			})
		}
	}
}

// TestFaultOfTransactionBatch: a batch that brings its own transaction is one
// trip.
func TestFaultOfTransactionBatch(t *testing.T) {
	t.Parallel()
	for _, p := range promises() {
		t.Run(p.fault.String(), func(t *testing.T) {
			r := setup(t)
			conn := r.connect()
			send := func(id int) error {
				var b pgx.Batch
				b.Queue("begin isolation level serializable")
				b.Queue(fmt.Sprintf("insert into %s values ($1, 'noted')", r.table), id)
				b.Queue("commit")
				return conn.SendBatch(r.ctx, &b).Close()
			}
			if err := send(1); err != nil {
				t.Fatal(err)
			}
			r.proxy.Reset()
			r.inject(r.table, p.fault)
			err := send(2)
			r.injected()
			if got := code(err); got != p.code {
				t.Errorf("the client got %q (%v), want %q", got, err, p.code)
			}
			r.settled()
			r.wantRows(2, p.rows)
			if got := r.proxy.Trips(); got != 1 {
				t.Errorf("%d trips, want 1", got)
			}
			r.wantAlive(conn, p.alive, "")
		})
	}
}

// settled waits for second deliveries.
func (r *rig) settled() {
	r.t.Helper()
	if _, err := r.proxy.Late(r.ctx); err != nil {
		r.t.Fatal(err)
	}
}

// wantAlive checks that a connection goes on, with an answer of the database
// itself: the wanted code is "25P02" in a failed transaction.
func (r *rig) wantAlive(conn *pgx.Conn, alive bool, want string) {
	r.t.Helper()
	_, err := conn.Exec(r.ctx, "select 1")
	if !alive {
		if err == nil || !conn.IsClosed() {
			r.t.Errorf("the connection is not broken (%v)", err)
		}
		return
	}
	if got := code(err); got != want {
		r.t.Errorf("the next statement got %q (%v), want %q", got, err, want)
	}
}

func TestKindNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for k := mitm.Pass; k <= mitm.Hold; k++ {
		if name := k.String(); name == "" || seen[name] {
			t.Errorf("kind %d is called %q", int(k), name)
		} else {
			seen[name] = true
		}
	}
	if got := mitm.Kind(-1).String(); got != "kind -1" {
		t.Errorf("an unknown kind is called %q", got)
	}
	if got := (mitm.Fault{Kind: mitm.Lose, Code: "40003"}).String(); got != "lose 40003" {
		t.Errorf("a fault is called %q", got)
	}
}
