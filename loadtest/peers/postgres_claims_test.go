package peers

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage/sqlstore/pgtest"
)

// TestPostgresClaims: each event is a row once, and a second time an error.
func TestPostgresClaims(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server, err := pgtest.New(ctx, pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	conn, err := pgx.Connect(ctx, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the server ends next
	if _, err := conn.Exec(ctx, PostgresSchema); err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	op, end, err := PostgresClaims(ctx, server.URL(), 2, func() (string, []byte) {
		return fmt.Sprint(n.Add(1)), []byte{1, 2, 3}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	for range 3 {
		if done, err := op(ctx, 0); done != 1 || err != nil {
			t.Fatalf("%d, %v", done, err)
		}
	}
	n.Store(0)
	if _, err := op(ctx, 0); err == nil || !strings.Contains(err.Error(), "a fresh key was taken") {
		t.Errorf("the same event again: %v", err)
	}
	var rows, digests int
	if err := conn.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE digest = '\x010203') FROM events`).Scan(&rows, &digests); err != nil {
		t.Fatal(err)
	}
	if rows != 3 || digests != 3 {
		t.Errorf("%d rows, %d with their digest; want 3", rows, digests)
	}
	if _, _, err := PostgresClaims(ctx, "postgres://%", 2, nil); err == nil {
		t.Error("a URL that is none was taken")
	}
}
