package mitm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/warifu/warifu/storage/sqlstore/mitm"
	"github.com/warifu/warifu/storage/sqlstore/pgtest"
)

// patience bounds every wait of these tests.
const patience = 30 * time.Second

// database is the server that all tests of the package share.
var database struct{ addr, url string }

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	server, err := pgtest.New(context.Background(), pgtest.Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	database.addr, database.url = server.Addr(), server.URL()
	code := m.Run()
	if err := errors.Join(server.Close(), goleak.Find()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// rig is a proxy, a client behind it, a client beside it and a table.
type rig struct {
	t      *testing.T
	ctx    context.Context //nolint:containedctx // bounds every call of the test, as t.Context would
	proxy  *mitm.Proxy
	table  string
	beside *pgx.Conn
	next   atomic.Pointer[order]
}

// order is a fault for the first trip that has a text with this in it.
type order struct {
	text  string
	fault mitm.Fault
}

var tables atomic.Int64

func setup(t *testing.T, change ...func(*mitm.Config)) *rig {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, table: fmt.Sprintf("t%d", tables.Add(1))}
	config := mitm.Config{Upstream: database.addr, Decide: r.decide}
	for _, c := range change {
		c(&config)
	}
	var err error
	if r.proxy, err = mitm.New(config); err != nil {
		t.Fatal(err)
	}
	if err := r.proxy.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.proxy.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if r.beside, err = pgx.Connect(ctx, database.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.beside.Close(context.Background()) })
	if _, err := r.beside.Exec(ctx, "create table "+r.table+" (id int, note text)"); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) decide(trip mitm.Trip) mitm.Fault {
	o := r.next.Load()
	if o == nil {
		return mitm.Fault{}
	}
	for _, sql := range trip.SQL {
		if strings.Contains(sql, o.text) && r.next.CompareAndSwap(o, nil) {
			return o.fault
		}
	}
	return mitm.Fault{}
}

// inject orders a fault for the next trip that executes such a text.
func (r *rig) inject(text string, fault mitm.Fault) {
	r.t.Helper()
	if !r.next.CompareAndSwap(nil, &order{text, fault}) {
		r.t.Fatal("a fault is waiting already")
	}
}

// injected checks that the fault has happened.
func (r *rig) injected() {
	r.t.Helper()
	if r.next.Load() != nil {
		r.t.Fatal("no trip met the fault")
	}
}

// connect returns a client behind the proxy; parameters go into the URL.
func (r *rig) connect(parameters ...string) *pgx.Conn {
	r.t.Helper()
	url, err := r.proxy.URL(database.url)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range parameters {
		url += "&" + p
	}
	conn, err := pgx.Connect(r.ctx, url)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = conn.Close(context.Background())
		<-conn.PgConn().CleanupDone()
	})
	return conn
}

// rows counts what is in the table.
func (r *rig) rows(id int) int {
	r.t.Helper()
	var n int
	if err := r.beside.QueryRow(r.ctx, "select count(*) from "+r.table+" where id = $1", id).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) wantRows(id, want int) {
	r.t.Helper()
	if got := r.rows(id); got != want {
		r.t.Errorf("the table has row %d %d times, want %d", id, got, want)
	}
}

// code is the SQLSTATE of an error, "dropped" when it has none, "" for nil.
func code(err error) string {
	var e *pgconn.PgError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	default:
		return "dropped"
	}
}
