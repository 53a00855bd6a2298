package sqlstore_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/migrate"
	"github.com/warifu/warifu/storage/sqlstore/pgtest"
	"github.com/warifu/warifu/storage/storagetest"
)

// server is the PostgreSQL that most tests share. Those that stop one start
// their own.
var server *pgtest.Server

func TestMain(m *testing.M) {
	os.Exit(withServer(m))
}

func withServer(m *testing.M) int {
	flag.Parse()
	if err := short(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := pgtest.New(context.Background(), pgtest.Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	server = s
	code := m.Run()
	if err := s.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// migrated brings the schema of a database up.
func migrated(ctx context.Context, url string) error {
	files, err := fs.Sub(sqlstore.Migrations, "migrations")
	if err != nil {
		return err
	}
	steps, err := migrate.Load(files, migrate.Postgres)
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	m, err := migrate.New(migrate.Config{DB: pool, Steps: steps})
	if err != nil {
		return err
	}
	_, err = m.Up(ctx)
	return err
}

// schemas are clean schemas that are used again: making one takes longer than
// most cases.
var schemas struct {
	sync.Mutex
	free []string
}

// cleanSchema returns the URL of a schema without a record, until the test
// ends.
func cleanSchema(t storagetest.T) string {
	t.Helper()
	schemas.Lock()
	var url string
	if n := len(schemas.free); n > 0 {
		url, schemas.free = schemas.free[n-1], schemas.free[:n-1]
	}
	schemas.Unlock()
	if url == "" {
		var err error
		if url, _, err = server.Schema(t.Context()); err != nil {
			t.Fatalf("%v", err)
		}
		if err := migrated(t.Context(), url); err != nil {
			t.Fatalf("migrate: %v", err)
		}
	}
	t.Cleanup(func() {
		if err := emptied(context.Background(), url); err != nil {
			t.Errorf("clean up: %v", err)
			return
		}
		schemas.Lock()
		defer schemas.Unlock()
		schemas.free = append(schemas.free, url)
	})
	return url
}

// emptied removes what a case has stored.
func emptied(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	for _, table := range []string{"claims", "claim_results"} {
		if _, err := conn.Exec(ctx, "DELETE FROM "+table); err != nil {
			return errors.Join(err, conn.Close(ctx))
		}
	}
	return conn.Close(ctx)
}

// opener opens stores whose time is the suite's.
func opener(change func(*sqlstore.Config)) storagetest.Opener {
	return func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		t.Helper()
		return open(t, cleanSchema(t), clock, grace, change)
	}
}

func open(t storagetest.T, url string, clock *storagetest.Clock, grace time.Duration, change func(*sqlstore.Config)) *sqlstore.Store {
	t.Helper()
	c := sqlstore.Config{URL: url, SweepGrace: grace, Conns: 2, SweepConns: 1, AcquireTimeout: time.Minute, CallTimeout: time.Minute}
	if clock != nil {
		c.Clock = clock.Now
	}
	if change != nil {
		change(&c)
	}
	s, err := sqlstore.Open(t.Context(), c)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func serializable(c *sqlstore.Config) { c.Isolation = sqlstore.Serializable }
