package mitm_test

import (
	"errors"
	"testing"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	"github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5"
	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage/sqlstore/mitm"
)

func cockroach(c *mitm.Config) {
	c.Announce = map[string]string{"crdb_version": "CockroachDB CCL v26.2.0 (x86_64-linux)"}
}

var serializable = pgx.TxOptions{IsoLevel: pgx.Serializable}

func TestAnnounced(t *testing.T) {
	r := setup(t, cockroach)
	conn := r.connect("results_buffer_size=524288", "default_transaction_quality_of_service=background")
	if got := conn.PgConn().ParameterStatus("crdb_version"); got != "CockroachDB CCL v26.2.0 (x86_64-linux)" {
		t.Errorf("crdb_version is %q", got)
	}
	if got := conn.PgConn().ParameterStatus("server_encoding"); got != "UTF8" {
		t.Errorf("the database's own parameters are lost: server_encoding is %q", got)
	}
	for _, sql := range []string{
		"select count(*) from " + r.table + " as of system time '-10s' where id > $1",
		"select count(*) from " + r.table + " AS OF SYSTEM TIME follower_read_timestamp() where id > $1",
	} {
		var n int
		if err := conn.QueryRow(r.ctx, sql, 0).Scan(&n); err != nil {
			t.Error(err)
		}
		if r.proxy.Count(func(tr mitm.Trip) bool { return len(tr.SQL) == 1 && tr.SQL[0] == sql }) != 1 {
			t.Error("a trip does not have the text of the client")
		}
	}
	if _, err := conn.Exec(r.ctx, "set transaction as of system time '-10s'"); code(err) != "42601" {
		t.Errorf("%v", err) // nothing is left of it, which is no statement
	}
}

// TestNotAnnounced: a store that takes PostgreSQL for CockroachDB must notice.
func TestNotAnnounced(t *testing.T) {
	r := setup(t)
	url, err := r.proxy.URL(database.url + "&results_buffer_size=524288")
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := pgx.Connect(r.ctx, url); code(err) != "42704" {
		t.Errorf("the database took results_buffer_size: %v %v", conn, err)
	}
	if _, err := r.connect().Exec(r.ctx, "select 1 as of system time '-10s'"); code(err) != "42601" {
		t.Errorf("the database took AS OF SYSTEM TIME: %v", err)
	}
}

// insertTx inserts a row under ExecuteTx and counts the attempts.
func (r *rig) insertTx(conn *pgx.Conn, id int) (attempts int, err error) {
	err = crdbpgx.ExecuteTx(r.ctx, conn, serializable, func(tx pgx.Tx) error {
		attempts++
		_, err := tx.Exec(r.ctx, "insert into "+r.table+" values ($1)", id)
		return err
	})
	return attempts, err
}

func TestExecuteTxCommits(t *testing.T) {
	r := setup(t, cockroach)
	conn := r.connect()
	for id := range 3 {
		if attempts, err := r.insertTx(conn, id); attempts != 1 || err != nil {
			t.Fatalf("%d attempts, %v", attempts, err)
		}
		r.wantRows(id, 1)
		if conn.PgConn().TxStatus() != 'I' {
			t.Errorf("the client is left in state %q", conn.PgConn().TxStatus())
		}
	}
	// At the RELEASE it is committed, before COMMIT.
	r.inject("commit", mitm.Fault{Kind: mitm.DropBefore})
	if _, err := r.insertTx(conn, 7); err != nil {
		t.Error(err)
	}
	r.injected()
	r.wantRows(7, 1)
}

// TestExecuteTxFaults: what happened at RELEASE, as a client of CockroachDB
// sees it.
func TestExecuteTxFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text      string
		fault     mitm.Fault
		code      string
		ambiguous bool
		attempts  int
		rows      int
	}{
		{"insert", mitm.Fault{Kind: mitm.Refuse, Code: "40001"}, "", false, 2, 1},
		{"insert", mitm.Fault{Kind: mitm.RefuseAtSync, Code: "40001"}, "", false, 2, 1},
		{"insert", mitm.Fault{Kind: mitm.Lose, Code: "40001"}, "", false, 2, 1},
		{"insert", mitm.Fault{Kind: mitm.Lose, Code: "40003"}, "40003", false, 1, 0},
		{"RELEASE", mitm.Fault{Kind: mitm.Refuse, Code: "40001"}, "", false, 2, 1},
		{"RELEASE", mitm.Fault{Kind: mitm.RefuseAtSync, Code: "40001"}, "", false, 2, 1},
		{"RELEASE", mitm.Fault{Kind: mitm.Lose, Code: "40001"}, "", false, 2, 2}, // applied all the same, and again
		{"RELEASE", mitm.Fault{Kind: mitm.Refuse, Code: "40003"}, "40003", true, 1, 0},
		{"RELEASE", mitm.Fault{Kind: mitm.Lose, Code: "40003"}, "40003", true, 1, 1},
		{"RELEASE", mitm.Fault{Kind: mitm.LoseAtSync, Code: "40003"}, "40003", true, 1, 1},
		{"RELEASE", mitm.Fault{Kind: mitm.Lose, Code: "57P01"}, "57P01", true, 1, 1},
		{"RELEASE", mitm.Fault{Kind: mitm.Refuse, Code: "57014"}, "57014", true, 1, 0},
		{"RELEASE", mitm.Fault{Kind: mitm.DropBefore}, "dropped", true, 1, 0},
		{"RELEASE", mitm.Fault{Kind: mitm.DropAfter}, "dropped", true, 1, 1},
		{"RELEASE", mitm.Fault{Kind: mitm.DropMidRow}, "dropped", true, 1, 1},
		{"RELEASE", mitm.Fault{Kind: mitm.Twice}, "", false, 1, 1},
		{"RELEASE", mitm.Fault{Kind: mitm.TwiceLate}, "", false, 1, 1},
	} {
		t.Run(c.text+"/"+c.fault.String(), func(t *testing.T) {
			r := setup(t, cockroach)
			conn := r.connect()
			r.inject(c.text, c.fault)
			attempts, err := r.insertTx(conn, 7)
			r.injected()
			if code(err) != c.code || attempts != c.attempts {
				t.Errorf("%d attempts, %v; want %d, %q", attempts, err, c.attempts, c.code)
			}
			if _, ambiguous := errors.AsType[*crdb.AmbiguousCommitError](err); ambiguous != c.ambiguous {
				t.Errorf("ambiguous is %v, want %v", ambiguous, c.ambiguous)
			}
			r.settled()
			r.wantRows(7, c.rows)
			if conn.IsClosed() {
				return
			}
			if attempts, err := r.insertTx(conn, 8); attempts != 1 || err != nil {
				t.Errorf("the next transaction: %d attempts, %v", attempts, err)
			}
			r.wantRows(8, 1)
		})
	}
}

// TestExecuteTxCommitError: what COMMIT finds wrong reaches the client as the
// answer to RELEASE.
func TestExecuteTxCommitError(t *testing.T) {
	r := setup(t, cockroach)
	if _, err := r.beside.Exec(r.ctx, "alter table "+r.table+" add unique (id) deferrable initially deferred"); err != nil {
		t.Fatal(err)
	}
	conn := r.connect()
	if _, err := r.insertTx(conn, 1); err != nil {
		t.Fatal(err)
	}
	_, err := r.insertTx(conn, 1)
	if _, ambiguous := errors.AsType[*crdb.AmbiguousCommitError](err); code(err) != "23505" || !ambiguous {
		t.Errorf("the client got %v", err)
	}
	r.wantRows(1, 1)
	if _, err := r.insertTx(conn, 2); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
}

// TestExecuteTxWriteSkew: a real conflict at commit is tried again, in a new
// transaction of the same isolation. Without the proxy ExecuteTx on PostgreSQL
// answers nil and changes nothing.
func TestExecuteTxWriteSkew(t *testing.T) {
	r := setup(t, cockroach)
	if _, err := r.beside.Exec(r.ctx, "insert into "+r.table+" values (1), (1)"); err != nil {
		t.Fatal(err)
	}
	one, other := r.connect(), r.connect()
	read := "select count(*) from " + r.table + " where id = 1"
	attempts := 0
	err := crdbpgx.ExecuteTx(r.ctx, one, serializable, func(tx pgx.Tx) error {
		attempts++
		var n int
		var level string
		if err := tx.QueryRow(r.ctx, "show transaction_isolation").Scan(&level); err != nil || level != "serializable" {
			t.Errorf("attempt %d is %s, %v", attempts, level, err)
		}
		if err := tx.QueryRow(r.ctx, read).Scan(&n); err != nil {
			return err
		}
		if _, err := tx.Exec(r.ctx, "insert into "+r.table+" values (2)"); err != nil {
			return err
		}
		if attempts > 1 {
			return nil
		}
		return crdbpgx.ExecuteTx(r.ctx, other, serializable, func(tx pgx.Tx) error {
			if err := tx.QueryRow(r.ctx, "select count(*) from "+r.table+" where id = 2").Scan(&n); err != nil {
				return err
			}
			_, err := tx.Exec(r.ctx, "insert into "+r.table+" values (1)")
			return err
		})
	})
	if err != nil || attempts != 2 {
		t.Errorf("%d attempts, %v; want 2 and none", attempts, err)
	}
	r.wantRows(2, 1)
	r.wantRows(1, 3)
}

// TestReleaseExtended: RELEASE as a prepared statement commits as well.
func TestReleaseExtended(t *testing.T) {
	r := setup(t, cockroach)
	conn := r.connect()
	for _, sql := range []string{"begin", "savepoint cockroach_restart", "insert into " + r.table + " values (7)", "release savepoint cockroach_restart"} {
		rows, err := conn.Query(r.ctx, sql, pgx.QueryExecModeExec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := drain(rows); err != nil {
			t.Fatal(err)
		}
	}
	r.wantRows(7, 1)
	if conn.PgConn().TxStatus() != 'T' {
		t.Errorf("the client is in state %q, want T until it says COMMIT", conn.PgConn().TxStatus())
	}
	if _, err := conn.Exec(r.ctx, "commit"); err != nil {
		t.Error(err)
	}
}

// TestReleaseOnPostgreSQL: without the announcement RELEASE is PostgreSQL's.
func TestReleaseOnPostgreSQL(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	r.inject("commit", mitm.Fault{Kind: mitm.Refuse, Code: "40001"})
	if _, err := r.insertTx(conn, 7); err != nil {
		t.Errorf("ExecuteTx tells of the commit: %v", err)
	}
	r.injected()
	r.wantRows(7, 0) // which is why ExecuteTx is for CockroachDB only
}

func TestWithoutSystemTime(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"select 1 from t AS OF SYSTEM TIME '-10s' where x":                    "select 1 from t where x",
		"begin as of  system\ntime '-10s'":                                    "begin",
		"select 1 from t as of system time follower_read_timestamp()":         "select 1 from t",
		"select 1 from t as of system time with_max_staleness('10s') limit 1": "select 1 from t limit 1",
		"select 'of system time'":                                             "select 'of system time'",
	} {
		if got := mitm.WithoutSystemTime(sql); got != want {
			t.Errorf("%q became %q, want %q", sql, got, want)
		}
	}
}
