package sqlstore

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// class is what is done about an error. None of them says "not committed": an
// error that came after something was sent leaves the outcome open, whatever
// its code. CockroachDB has returned even 40001 for what it had committed
// (issues 107658, 152010).
type class int

const (
	// fails: the statement is wrong or the database is set up wrongly; running
	// it again would fail again.
	fails class = iota
	// undone: others were in the way. Run it again after a pause. The database
	// says that it has undone everything, which is believed for one purpose
	// only: when the next try finds the work of somebody else, that this one
	// did nothing before. Releases of CockroachDB that we support keep to it.
	undone
	// conflict: the same, of which the database says nothing.
	conflict
	// broken: the connection is gone or its node is going; run it again at once
	// on another.
	broken
	// replan: a prepared statement is older than the schema; run it again at
	// once, it is prepared anew.
	replan
	// overloaded: run it again after a longer pause.
	overloaded
	// busy: no connection became free in time. Whoever waits longer makes
	// others wait.
	busy
	// damaged: what is stored cannot be read back.
	damaged
)

// classes are the SQLSTATE codes and what is done about them.
var classes = map[string]class{
	"40001": undone,   // serialization failure; every retryable error of CockroachDB
	"CR000": undone,   // its code before v20
	"40003": conflict, // statement completion unknown: CockroachDB's ambiguous result
	"40P01": undone,   // deadlock of PostgreSQL
	"55P03": undone,   // lock not available
	"57014": broken,   // cancelled by a timeout; a batch does not recover from it on CockroachDB
	"57P01": broken,   // the node is being drained or shut down
	"57P02": broken,   // crash of another backend
	"57P03": broken,   // cannot connect now
	"25006": broken,   // read-only: a standby; another host may be the primary
	"25P03": broken,   // idle in transaction for too long
	"08000": broken, "08001": broken, "08003": broken, "08004": broken, "08006": broken, "08007": broken,
	"08C00": broken,     // CockroachDB's proxy
	"58C01": broken,     // CockroachDB: internal connection failure
	"58C00": overloaded, // range unavailable
	"53100": overloaded, // disk full
	"53200": overloaded, // out of memory
	"53300": overloaded, // too many connections
	"53400": overloaded, // a configured limit
	"XX000": conflict,   // internal error: mostly a race within the server
	"XX001": damaged,    // data corrupted
	"XX002": damaged,    // index corrupted
	"XXUUU": conflict,   // uncategorized, such as clock skew between nodes
	"26000": replan,     // the prepared statement does not exist
}

// stalePlan is the text of a 0A000 that a changed schema causes.
const stalePlan = "cached plan must not change result type"

// classify returns what is done about err, and whether anything was sent.
func classify(err error) (c class, sent bool) {
	var before notSentError
	sent = !errors.As(err, &before) && !pgconn.SafeToRetry(err)
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return classOf(pg), sent
	}
	switch {
	case errors.Is(err, errRow), errors.Is(err, ErrMismatch):
		return fails, sent
	case !sent && errors.Is(err, context.DeadlineExceeded):
		return busy, false
	}
	// Everything else is about the connection: closed, reset, timed out.
	return broken, sent
}

// final reports whether a call ends with an error of this class. One that may
// have been executed needs an answer more than others need its connection.
func (c class) final(sent bool) bool {
	return c == fails || c == damaged || c == busy && !sent
}

func classOf(pg *pgconn.PgError) class {
	if c, ok := classes[pg.Code]; ok {
		return c
	}
	if pg.Code == "0A000" && strings.Contains(pg.Message, stalePlan) {
		return replan
	}
	return fails
}
