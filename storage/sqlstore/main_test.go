package sqlstore_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
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
	dialect, plain := migrate.Postgres, url
	if rest, ok := strings.CutPrefix(url, "cockroach://"); ok {
		dialect, plain = migrate.Cockroach, "postgres://"+rest
	}
	files, err := fs.Sub(sqlstore.Migrations, "migrations")
	if err != nil {
		return err
	}
	steps, err := migrate.Load(files, dialect)
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, plain)
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

// scratch hands out databases without a record, one after the other: making
// one takes longer than most cases.
type scratch struct {
	create func(context.Context) (url string, err error)

	mu   sync.Mutex
	free []string
}

var schemas = scratch{create: func(ctx context.Context) (string, error) {
	url, _, err := server.Schema(ctx)
	return url, err
}}

// cleanSchema returns the URL of a PostgreSQL schema without a record, until
// the test ends.
func cleanSchema(t storagetest.T) string {
	t.Helper()
	return schemas.clean(t)
}

// ownSchema returns the URL of a migrated schema that nobody uses after the
// test, which may change it.
func ownSchema(t *testing.T) string {
	t.Helper()
	url, drop, err := server.Schema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := migrated(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	return url
}

func (s *scratch) clean(t storagetest.T) string {
	t.Helper()
	s.mu.Lock()
	var url string
	if n := len(s.free); n > 0 {
		url, s.free = s.free[n-1], s.free[:n-1]
	}
	s.mu.Unlock()
	if url == "" {
		var err error
		if url, err = s.create(t.Context()); err != nil {
			t.Fatalf("create: %v", err)
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
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free = append(s.free, url)
	})
	return url
}

// emptied removes what a case has stored.
func emptied(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, strings.Replace(url, "cockroach://", "postgres://", 1))
	if err != nil {
		return err
	}
	for _, table := range []string{"claims", "claim_results", "registry_rows", "registry_audit", "registry_seen", "registry_leases", "registry_meta"} {
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
	c := sqlstore.Config{URL: url, SweepGrace: grace, Conns: 2, SweepConns: 1, AcquireTimeout: 20 * time.Second, CallTimeout: 20 * time.Second, SweepTimeout: 20 * time.Second}
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
