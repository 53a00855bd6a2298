package migrate

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/warifu/warifu/storage/sqlstore/pgtest"
)

// server is one PostgreSQL for all tests, without durability: nothing here is
// about the server's own crashes.
var server *pgtest.Server

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	var err error
	server, err = pgtest.New(context.Background(), pgtest.Config{Settings: map[string]string{"max_connections": "200"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code = m.Run()
	for _, err := range []error{server.Close(), goleak.Find()} {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// setup returns a pool on a fresh, empty schema, and the URL to reach it by.
func setup(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	url, _, err := server.Schema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, url), url
}

func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
