package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/pgtest"
)

// postgres is one PostgreSQL for all tests that need one, started by the first
// of them. A machine without it fails them.
var postgres struct {
	sync.Mutex
	server *pgtest.Server
	err    error
}

func postgresServer(t *testing.T) *pgtest.Server {
	t.Helper()
	postgres.Lock()
	defer postgres.Unlock()
	if postgres.server == nil && postgres.err == nil {
		postgres.server, postgres.err = pgtest.New(context.Background(), pgtest.Config{Settings: map[string]string{"max_connections": "300"}})
	}
	if postgres.err != nil {
		t.Fatal(postgres.err)
	}
	return postgres.server
}

func closePostgres() error {
	postgres.Lock()
	defer postgres.Unlock()
	if postgres.server == nil {
		return nil
	}
	return postgres.server.Close()
}

// password of test URLs. The server asks nobody for one, so that a URL may have
// any: no output may have this one.
const (
	password = "s3cret/halves"
	escaped  = "s3cret%2Fhalves" // in a URL
)

// database makes an empty database and returns its URL, with a password.
func database(t *testing.T) string {
	t.Helper()
	made, drop, err := postgresServer(t).Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return withPassword(t, made)
}

func withPassword(t *testing.T, made string) string {
	t.Helper()
	u, err := url.Parse(made)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return u.String()
}

// asScheme is the URL of the same server, called something else.
func asScheme(scheme, made string) string {
	_, rest, _ := strings.Cut(made, "://")
	return scheme + "://" + rest
}

// execSQL executes a statement in a database.
func execSQL(t *testing.T, database, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), statement)
	if err := errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func queryInt(t *testing.T, database, query string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	err = conn.QueryRow(t.Context(), query).Scan(&n)
	if err := errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// grow stores what the planner takes for more than a few rows, and returns how
// many.
func grow(t *testing.T, url string) int {
	t.Helper()
	const batches = 20
	store, err := sqlstore.Open(t.Context(), sqlstore.Config{URL: url, Conns: 1, SweepConns: 1, CallTimeout: patience, ConnectTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	for b := range batches {
		reqs := make([]claim.Request, claim.BatchItemsMax)
		for i := range reqs {
			reqs[i] = claim.Request{
				Key:          claim.Key{Tenant: 1, Consumer: "c", EventID: fmt.Sprintf("e-%d-%d", b, i)},
				InsertBefore: claim.Never, Lease: time.Minute, Policy: claim.Policy{Window: time.Hour, Retention: time.Hour, HoldMax: time.Hour},
			}
		}
		if _, err := store.InsertOrGet(t.Context(), reqs); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	execSQL(t, url, "ANALYZE claims")
	return batches * claim.BatchItemsMax
}

// migratedDatabase has the schema of this program.
func (f *folder) migratedDatabase() string {
	f.t.Helper()
	made := database(f.t)
	f.warifu("migrate", "up", "--store", made).want(f.t, 0, "nothing is missing", "")
	return made
}

// wantNoPassword demands that nobody said the password.
func (o outcome) wantNoPassword(t *testing.T) {
	t.Helper()
	for _, form := range []string{password, escaped, "s3cret", "halves"} {
		if strings.Contains(o.stdout+o.stderr, form) {
			t.Errorf("the password is said: stdout %q, stderr %q", o.stdout, o.stderr)
		}
	}
}
