package mitm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warifu/warifu/storage/sqlstore/mitm"
)

func TestNewChecks(t *testing.T) {
	t.Parallel()
	_, err := mitm.New(mitm.Config{Upstream: "nowhere", Listen: "here"})
	if err == nil || !strings.Contains(err.Error(), "upstream") || !strings.Contains(err.Error(), "listen") {
		t.Errorf("New does not name both faults: %v", err)
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	p, err := mitm.New(mitm.Config{Upstream: database.addr})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.URL(database.url); err == nil || p.Addr() != "" {
		t.Error("there is an address before Start")
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err == nil {
		t.Error("a second Start is not refused")
	}
	url, err := p.URL("postgres://warifu@example.org:1/postgres?sslmode=disable")
	if want := "postgres://warifu@" + p.Addr() + "/postgres?sslmode=disable"; url != want || err != nil {
		t.Errorf("URL is %q, %v; want %q", url, err, want)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection outlives Close")
	}
	if err := p.Start(t.Context()); err == nil {
		t.Error("Start after Close is not refused")
	}
}

// TestTripsAreResolved: what Decide is told of the trips of a client.
func TestTripsAreResolved(t *testing.T) {
	var got []mitm.Trip
	r := setup(t, func(c *mitm.Config) {
		c.Decide = func(tr mitm.Trip) mitm.Fault {
			got = append(got, tr)
			return mitm.Fault{}
		}
	})
	conn := r.connect()
	insert, read := "insert into "+r.table+" values ($1)", "select id from "+r.table+" where id = $1"
	batch := func() {
		var b pgx.Batch
		b.Queue(insert, 1)
		b.Queue(read, 1)
		b.Queue(insert, 2)
		if err := conn.SendBatch(r.ctx, &b).Close(); err != nil {
			t.Fatal(err)
		}
	}
	batch()
	tx, err := conn.Begin(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	batch()
	if err := errors.Join(tx.Rollback(r.ctx), conn.DeallocateAll(r.ctx)); err != nil {
		t.Fatal(err)
	}
	batch()
	if _, err := conn.Exec(r.ctx, read, pgx.QueryExecModeExec, 1); err != nil {
		t.Fatal(err)
	}
	both, all := []string{insert, read}, []string{insert, read, insert}
	want := []mitm.Trip{
		{Prepares: both},
		{SQL: all},
		{SQL: []string{"begin"}},
		{SQL: all, InTransaction: true},
		{SQL: []string{"rollback"}, InTransaction: true},
		{SQL: []string{"deallocate all"}},
		{Prepares: both},
		{SQL: all},
		{SQL: []string{read}, Prepares: []string{read}},
	}
	for i := range want {
		want[i].Index = i
	}
	equal := func(a, b mitm.Trip) bool {
		return a.Conn == b.Conn && a.Index == b.Index && a.InTransaction == b.InTransaction &&
			slices.Equal(a.SQL, b.SQL) && slices.Equal(a.Prepares, b.Prepares)
	}
	if !slices.EqualFunc(got, want, equal) {
		t.Errorf("the trips are\n%+v\nwant\n%+v", got, want)
	}
}

// TestNamesFollowTheDatabase: a name stands for what the database confirmed,
// not for what the client tried.
func TestNamesFollowTheDatabase(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	prepare := func(sql, want string) {
		t.Helper()
		if _, err := conn.PgConn().Prepare(r.ctx, "name", sql, nil); code(err) != want {
			t.Fatalf("prepare %q: %v, want %q", sql, err, want)
		}
	}
	executes := func(want string) {
		t.Helper()
		r.proxy.Reset()
		if _, err := conn.PgConn().ExecPrepared(r.ctx, "name", nil, nil, nil).Close(); err != nil {
			t.Fatal(err)
		}
		if r.proxy.Count(func(tr mitm.Trip) bool { return slices.Equal(tr.SQL, []string{want}) }) != 1 {
			t.Errorf("%q was not executed", want)
		}
	}
	prepare("select 1", "")
	prepare("select 2", "42P05") // the name is taken
	executes("select 1")
	if err := conn.PgConn().Deallocate(r.ctx, "name"); err != nil {
		t.Fatal(err)
	}
	prepare("select nothing there", "42703")
	prepare("select 3", "")
	executes("select 3")
}

func TestCounters(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	first := r.connect().PgConn()
	if err := first.Close(r.ctx); err != nil {
		t.Fatal(err)
	}
	insert := "insert into " + r.table + " values ($1)"
	r.inject("insert", mitm.Fault{Kind: mitm.Refuse, Code: "40001"})
	for want := range 3 {
		wantCode := ""
		if want == 0 {
			wantCode = "40001"
		}
		if _, err := conn.Exec(r.ctx, insert, want); code(err) != wantCode {
			t.Fatal(err)
		}
	}
	// pgx prepares; after the error it closes the statement and prepares again.
	if got, want := r.proxy.Stats(), (mitm.Stats{Connections: 2, Asked: 6, Trips: 3, Forwarded: 5}); got != want {
		t.Errorf("the counters are %+v, want %+v", got, want)
	}
	inserts := func(tr mitm.Trip) bool { return slices.Equal(tr.SQL, []string{insert}) }
	if got := r.proxy.Count(inserts); got != 3 {
		t.Errorf("Count is %d, want 3", got)
	}
	r.proxy.Reset()
	if got := r.proxy.Stats(); got != (mitm.Stats{}) || r.proxy.Count(inserts) != 0 {
		t.Errorf("after Reset the counters are %+v", got)
	}
}

func TestCutAndRefusing(t *testing.T) {
	r := setup(t)
	url, err := r.proxy.URL(database.url)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(r.ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	other := r.connect()
	tx, err := other.Begin(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(r.ctx, "insert into "+r.table+" values (1)"); err != nil {
		t.Fatal(err)
	}
	if err := pool.Ping(r.ctx); err != nil {
		t.Fatal(err)
	}
	r.proxy.Refusing(true)
	if err := tx.Conn().Ping(r.ctx); err != nil {
		t.Errorf("Refusing broke a connection: %v", err)
	}
	r.proxy.Cut()
	if err := tx.Commit(r.ctx); code(err) != "dropped" {
		t.Errorf("commit over a connection that was cut: %v", err)
	}
	r.wantRows(1, 0)
	if err := pool.Ping(r.ctx); err == nil {
		t.Error("the database is down, and a ping goes through")
	}
	r.proxy.Refusing(false)
	if _, err := pool.Exec(r.ctx, "insert into "+r.table+" values (2)"); err != nil {
		t.Errorf("the database is up again: %v", err)
	}
	r.wantRows(2, 1)
}

// TestUpstreamDown: clients of a proxy without a database get no answer, and
// the proxy goes on.
func TestUpstreamDown(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	r := setup(t, func(c *mitm.Config) { c.Upstream = nobody.Addr().String() })
	url, err := r.proxy.URL(database.url)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if conn, err := pgx.Connect(r.ctx, url); code(err) != "dropped" {
			t.Errorf("a client got %v, %v", conn, err)
		}
	}
}

// TestCancel: a cancel finds its statement through the proxy.
func TestCancel(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(r.ctx, "select pg_sleep(60)")
		done <- err
	}()
	running := "select count(*) from pg_stat_activity where pid = $1 and wait_event = 'PgSleep'"
	for n := 0; n == 0; {
		if err := r.beside.QueryRow(r.ctx, running, conn.PgConn().PID()).Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.PgConn().CancelRequest(r.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; code(err) != "57014" {
		t.Errorf("the canceled statement got %v", err)
	}
	if got := r.proxy.Stats().Cancels; got != 1 {
		t.Errorf("%d cancels, want 1", got)
	}
}

// TestEncryptionIsRefused: a client that would like TLS goes on without.
func TestEncryptionIsRefused(t *testing.T) {
	r := setup(t)
	url, err := r.proxy.URL(strings.Replace(database.url, "sslmode=disable", "sslmode=prefer", 1))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(r.ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(conn.Ping(r.ctx), conn.Close(r.ctx)); err != nil {
		t.Error(err)
	}
}

// TestPassword: the proxy passes the proof that a database asks for, and has
// none of its own.
func TestPassword(t *testing.T) {
	guard, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guard.Close() })
	r := setup(t, func(c *mitm.Config) {
		c.Upstream = guard.Addr().String()
		c.Decide = func(mitm.Trip) mitm.Fault { return mitm.Fault{Kind: mitm.TwiceLate} }
	})
	guarded := make(chan error, 1)
	go func() { guarded <- askForPassword(guard) }()
	w := &wire{t: t}
	var d net.Dialer
	if w.conn, err = d.DialContext(r.ctx, "tcp", r.proxy.Addr()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.conn.Close() }()
	w.Frontend = pgproto3.NewFrontend(w.conn, w.conn)
	w.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "warifu"}})
	if got := w.until("R"); got != "R" {
		t.Fatalf("the client was not asked: %q", got)
	}
	w.send(&pgproto3.PasswordMessage{Password: "secret"})
	if got := w.until("Z"); got != "R ZI" {
		t.Errorf("the client got %q", got)
	}
	w.send(&pgproto3.Query{String: ""})
	if got := w.until("Z"); got != "I ZI" {
		t.Errorf("the client got %q", got)
	}
	if _, err := r.proxy.Redeliver(r.ctx); err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("Redeliver: %v", err)
	}
	if err := <-guarded; err != nil {
		t.Error(err)
	}
}

// askForPassword is a database that asks each of two clients for a password,
// and answers one empty query.
func askForPassword(guard net.Listener) error {
	for i := range 2 {
		c, err := guard.Accept()
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		b := pgproto3.NewBackend(c, c)
		if _, err := b.ReceiveStartupMessage(); err != nil {
			return err
		}
		b.Send(&pgproto3.AuthenticationCleartextPassword{})
		if err := b.Flush(); err != nil || i == 1 {
			return err
		}
		if m, err := b.Receive(); err != nil || m.(*pgproto3.PasswordMessage).Password != "secret" {
			return fmt.Errorf("the password is %v, %w", m, err)
		}
		b.Send(&pgproto3.AuthenticationOk{})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if err := b.Flush(); err != nil {
			return err
		}
		if _, err := b.Receive(); err != nil {
			return err
		}
		b.Send(&pgproto3.EmptyQueryResponse{})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if err := b.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// TestTerminated: that the database ends a connection reaches an idle client.
func TestTerminated(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	if _, err := r.beside.Exec(r.ctx, "select pg_terminate_backend($1)", conn.PgConn().PID()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.PgConn().ReceiveMessage(r.ctx); code(err) != "57P01" {
		t.Errorf("the client was told %v", err)
	}
	r.wantAlive(conn, false, "")
}

// TestNotification: what belongs to no trip passes.
func TestNotification(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	if _, err := conn.Exec(r.ctx, "listen "+r.table); err != nil {
		t.Fatal(err)
	}
	if _, err := r.beside.Exec(r.ctx, "notify "+r.table+", 'hello'"); err != nil {
		t.Fatal(err)
	}
	n, err := conn.WaitForNotification(r.ctx)
	if err != nil || n.Payload != "hello" {
		t.Errorf("the client got %v, %v", n, err)
	}
}

// TestLarge: neither a large pipeline nor a large reply blocks.
func TestLarge(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	note := strings.Repeat("x", 4096)
	for _, kind := range []mitm.Kind{mitm.Pass, mitm.TwiceLate, mitm.LoseAtSync} {
		r.inject("values", mitm.Fault{Kind: kind})
		var b pgx.Batch
		for range 3000 {
			b.Queue("insert into "+r.table+" values ($1, $2) returning *", int(kind), note)
		}
		err := conn.SendBatch(r.ctx, &b).Close()
		r.injected()
		if want := map[mitm.Kind]string{mitm.LoseAtSync: "XX000"}[kind]; code(err) != want {
			t.Errorf("%v: the client got %v, want %q", kind, err, want)
		}
		r.wantRows(int(kind), 3000)
	}
}

// TestMany: connections do not disturb one another.
func TestMany(t *testing.T) {
	r := setup(t)
	url, err := r.proxy.URL(database.url)
	if err != nil {
		t.Fatal(err)
	}
	const workers, each = 8, 40
	done := make(chan error, workers)
	for w := range workers {
		go func() {
			conn, err := pgx.Connect(r.ctx, url)
			for i := 0; i < each && err == nil; i++ {
				var got int
				err = conn.QueryRow(r.ctx, "insert into "+r.table+" values ($1) returning id", w*each+i).Scan(&got)
				if err == nil && got != w*each+i {
					err = fmt.Errorf("wrote %d, read %d", w*each+i, got)
				}
			}
			done <- errors.Join(err, conn.Close(context.Background()))
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := r.proxy.Trips(); got != workers*each {
		t.Errorf("%d trips, want %d", got, workers*each)
	}
}
