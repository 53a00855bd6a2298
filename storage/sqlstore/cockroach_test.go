package sqlstore_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/testserver"
	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/storagetest"
)

// cockroachVariable names a CockroachDB that the suite may use: a URL
// cockroach://…, whose user may create databases, or "testserver", which
// downloads the newest release and runs one node of it. Our CI has neither.
const cockroachVariable = "WARIFU_TEST_COCKROACH"

// TestCockroach runs the suite and random histories on a CockroachDB of your
// own. Without one it says so: everything else here runs on PostgreSQL.
func TestCockroach(t *testing.T) {
	given := os.Getenv(cockroachVariable)
	if given == "" {
		t.Skipf("no CockroachDB: set %s to a URL, or to testserver", cockroachVariable)
	}
	if given == "testserver" {
		ts, err := testserver.NewTestServer()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ts.Stop)
		given = "cockroach" + ts.PGURL().String()[len(ts.PGURL().Scheme):]
	}
	dbs := databases(t, given)
	open := func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		return open(t, dbs.clean(t), clock, grace, nil)
	}
	t.Run("suite", func(t *testing.T) { storagetest.Run(t, open) })
	t.Run("histories", func(t *testing.T) {
		storagetest.Histories(t, map[string]storagetest.Backend{"cockroach": {Open: open}})
	})
}

// databases makes databases on the cluster that at names.
func databases(t *testing.T, at string) *scratch {
	t.Helper()
	base, err := url.Parse(at)
	if err != nil || base.Scheme != "cockroach" {
		t.Fatalf("%s is no cockroach:// URL: %v", cockroachVariable, err)
	}
	var made atomic.Int64
	return &scratch{create: func(ctx context.Context) (string, error) {
		name := fmt.Sprintf("warifu_test_%d_%d", os.Getpid(), made.Add(1))
		plain := *base
		plain.Scheme = "postgres"
		conn, err := pgx.Connect(ctx, plain.String())
		if err != nil {
			return "", err
		}
		defer conn.Close(ctx) //nolint:errcheck // nothing is lost with it
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
			return "", err
		}
		own := *base
		own.Path = "/" + name
		t.Cleanup(func() { drop(t, plain.String(), name) })
		return own.String(), nil
	}}
}

func drop(t *testing.T, at, name string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		t.Errorf("drop %s: %v", name, err)
		return
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with it
	if _, err := conn.Exec(ctx, "DROP DATABASE "+name+" CASCADE"); err != nil {
		t.Errorf("drop %s: %v", name, err)
	}
}
