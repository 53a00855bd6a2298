package sqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	"github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// restartsMax bounds how often CockroachDB's protocol restarts a transaction
// with its locks held and without a pause. What is left after that is run again
// from the start, after one.
const restartsMax = 5

// errAgain: the transaction is to be run again, though the database has not
// said so. It looks as if it had.
var errAgain error = &pgconn.PgError{Severity: "ERROR", Code: "40001", Message: "what was read has changed since"}

// txRunner runs a transaction of several statements to its end: committed, or
// undone and run again. There are two, because the databases commit in different
// ways; see postgresTx. It is called again for every try of a call, which bounds
// tries and time.
type txRunner interface {
	// run begins a transaction on conn, calls fn, and commits. nil means
	// committed, and nothing else does. fn is called anew for each attempt: it
	// sets its results afresh, and nothing it has read counts before run
	// returns nil.
	run(ctx context.Context, conn *pgxpool.Conn, fn func(context.Context, pgx.Tx) error) error
}

func (d Dialect) txRunner() txRunner {
	if d == Cockroach {
		return cockroachTx{}
	}
	return postgresTx{}
}

// serializableTx: what is decided in Go from several reads needs it.
var serializableTx = pgx.TxOptions{IsoLevel: pgx.Serializable, AccessMode: pgx.ReadWrite}

// cockroachTx runs transactions under the restart savepoint, whose release is
// the commit. CockroachDB keeps the locks of a transaction that it restarts, so
// these restarts make progress without a pause.
type cockroachTx struct{}

func (cockroachTx) run(ctx context.Context, conn *pgxpool.Conn, fn func(context.Context, pgx.Tx) error) error {
	bounded := crdb.WithMaxRetries(ctx, restartsMax)
	return crdbpgx.ExecuteTx(bounded, conn, serializableTx, func(tx pgx.Tx) error {
		if err := ctx.Err(); err != nil { // ExecuteTx does not look
			return err
		}
		return fn(ctx, tx)
	})
}

// postgresTx runs transactions as PostgreSQL does: COMMIT decides, and its error
// is the answer. ExecuteTx of cockroach-go takes the release of its savepoint
// for the commit and drops that error; on PostgreSQL a transaction that was
// refused at its commit would count as done (TestExecuteTxLosesCommits).
type postgresTx struct{}

func (postgresTx) run(ctx context.Context, conn *pgxpool.Conn, fn func(context.Context, pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, serializableTx)
	if err != nil {
		return notSentError{err}
	}
	if err := fn(ctx, tx); err != nil {
		// Nothing is committed without a COMMIT. A connection that cannot even
		// roll back is closed by pgx, and the server rolls back.
		_ = tx.Rollback(ctx) // err says more
		return notSentError{err}
	}
	if err = tx.Commit(ctx); errors.Is(err, pgx.ErrTxCommitRollback) {
		// A statement had failed and fn did not say so: COMMIT was a rollback.
		return notSentError{fmt.Errorf("%w: %w", err, errAgain)}
	}
	return err
}

// transact runs fn as one transaction of s, again as often as a call may. fn
// refuses by returning a refusal: it ends the transaction and the call without a
// change, and what it wraps is returned.
func (s *Store) transact(ctx context.Context, p *pool, fn func(context.Context, pgx.Tx) error) error {
	var refused error
	err := s.try(ctx, p, writes, func(ctx context.Context, conn *pgxpool.Conn) error {
		refused = nil
		err := s.dialect.txRunner().run(ctx, conn, fn)
		var no refusal
		if errors.As(err, &no) {
			refused = no.error
			return nil
		}
		return err
	})
	return errors.Join(err, refused)
}

// refusal is how the function of a transaction says that it was understood, and
// is not done.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }
