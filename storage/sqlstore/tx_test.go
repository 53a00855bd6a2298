package sqlstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/sqlstore"
)

// ward is a table with two doctors on duty, of whom one has to stay. Each signs
// off where it sees two: under SERIALIZABLE one of two that do so at once has to
// fail, and PostgreSQL tells it at its COMMIT.
type ward struct {
	t    *testing.T
	url  string
	pool *pgxpool.Pool
}

func newWard(t *testing.T) *ward {
	t.Helper()
	url, _, err := server.Schema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), "CREATE TABLE doctors (id INT8 PRIMARY KEY, on_duty BOOL NOT NULL); INSERT INTO doctors VALUES (1, true), (2, true)")
	if err != nil {
		t.Fatal(err)
	}
	return &ward{t, url, pool}
}

// signOff takes a doctor off duty unless it is the last one.
func signOff(ctx context.Context, tx pgx.Tx, id int) error {
	var n int
	if err := tx.QueryRow(ctx, "SELECT count(*) FROM doctors WHERE on_duty").Scan(&n); err != nil {
		return err
	}
	if n < 2 {
		return nil
	}
	_, err := tx.Exec(ctx, "UPDATE doctors SET on_duty = false WHERE id = $1", id)
	return err
}

// overtake signs the second doctor off in a transaction of its own.
func (w *ward) overtake() {
	w.t.Helper()
	err := pgx.BeginTxFunc(w.t.Context(), w.pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
		return signOff(w.t.Context(), tx, 2)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *ward) onDuty(id int) (on bool) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), "SELECT on_duty FROM doctors WHERE id = $1", id).Scan(&on); err != nil {
		w.t.Fatal(err)
	}
	return on
}

func (w *ward) store() *sqlstore.Store {
	w.t.Helper()
	return open(w.t, w.url, nil, 0, nil)
}

// TestExecuteTxLosesCommits shows why ExecuteTx must not run on PostgreSQL: it
// says that a transaction was committed which the database refused.
func TestExecuteTxLosesCommits(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	err := crdbpgx.ExecuteTx(t.Context(), w.pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
		err := signOff(t.Context(), tx, 1)
		w.overtake()
		return err
	})
	if err != nil {
		t.Fatalf("ExecuteTx has become honest on PostgreSQL (%v): is a runner of our own still needed?", err)
	}
	if !w.onDuty(1) || w.onDuty(2) {
		t.Fatal("both transactions have committed: this is no test of a lost commit")
	}
}

func TestPostgresTxTellsOfItsCommit(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	conn, err := w.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	err = sqlstore.PostgresTx(t.Context(), conn, func(ctx context.Context, tx pgx.Tx) error {
		err := signOff(ctx, tx, 1)
		w.overtake()
		return err
	})
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "40001" {
		t.Fatalf("error %v, want a serialization failure", err)
	}
	if !w.onDuty(1) || w.onDuty(2) {
		t.Fatal("the refused transaction has done something")
	}
}

// TestTransactRunsAgain: the whole transaction, with what it reads.
func TestTransactRunsAgain(t *testing.T) {
	t.Parallel()
	w, tries := newWard(t), 0
	err := w.store().Transact(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		err := signOff(ctx, tx, 1)
		if tries++; tries == 1 {
			w.overtake()
		}
		return err
	})
	if err != nil || tries != 2 {
		t.Fatalf("%d tries, error %v; want 2 and none", tries, err)
	}
	if !w.onDuty(1) || w.onDuty(2) {
		t.Fatal("nobody is on duty")
	}
}

// TestTransactNoticesARollback: COMMIT of a transaction in which a statement
// failed is a rollback, without an error of the database.
func TestTransactNoticesARollback(t *testing.T) {
	t.Parallel()
	w, tries := newWard(t), 0
	err := w.store().Transact(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		err := signOff(ctx, tx, 1)
		if tries++; tries == 1 {
			if _, err := tx.Exec(ctx, "SELECT 1/0"); err == nil {
				t.Error("a division by zero went well")
			}
		}
		return err // forgets the failed statement
	})
	if err != nil || tries != 2 || w.onDuty(1) {
		t.Fatalf("%d tries, error %v, on duty: %v; want 2, none, and not", tries, err, w.onDuty(1))
	}
}

// TestTransactGivesUp: what fails for good is not run again, and says that
// nothing was applied.
func TestTransactGivesUp(t *testing.T) {
	t.Parallel()
	w, tries := newWard(t), 0
	err := w.store().Transact(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		tries++
		if err := signOff(ctx, tx, 1); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT no_such_column FROM doctors")
		return err
	})
	if tries != 1 || !errors.Is(err, storage.ErrUnavailable) || errors.Is(err, storage.ErrUnknown) || !w.onDuty(1) {
		t.Fatalf("%d tries, error %v", tries, err)
	}
}
