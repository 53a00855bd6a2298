package mitm_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/warifu/warifu/storage/sqlstore/mitm"
)

// wire is a client that shows the bytes.
type wire struct {
	*pgproto3.Frontend
	t    *testing.T
	conn net.Conn
}

func (r *rig) wire() *wire {
	r.t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(r.ctx, "tcp", r.proxy.Addr())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	deadline, _ := r.ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		r.t.Fatal(err)
	}
	w := &wire{pgproto3.NewFrontend(conn, conn), r.t, conn}
	w.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "warifu", "database": "warifu"}})
	w.until("Z")
	return w
}

func (w *wire) send(messages ...pgproto3.FrontendMessage) {
	w.t.Helper()
	for _, m := range messages {
		w.Send(m)
	}
	if err := w.Flush(); err != nil {
		w.t.Fatal(err)
	}
}

// until reads messages up to one of the type and names them all: "1 2 D C Z".
// An error is named with its code, ReadyForQuery with its status.
func (w *wire) until(kind string) string {
	w.t.Helper()
	var got []string
	for {
		m, err := w.Receive()
		if err != nil {
			return strings.Join(append(got, "end"), " ")
		}
		raw, err := m.Encode(nil)
		if err != nil {
			w.t.Fatal(err)
		}
		name := string(raw[:1])
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			name += m.Code
		case *pgproto3.ReadyForQuery:
			name += string(m.TxStatus)
		}
		got = append(got, name)
		if string(raw[:1]) == kind {
			return strings.Join(got, " ")
		}
	}
}

func insertion(table string, id int) []pgproto3.FrontendMessage {
	return []pgproto3.FrontendMessage{
		&pgproto3.Parse{Query: fmt.Sprintf("insert into %s values (%d, 'noted') returning note", table, id)},
		&pgproto3.Bind{}, &pgproto3.Execute{},
	}
}

// TestWire: the messages that the kinds of fault leave of one pipeline.
func TestWire(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault mitm.Fault
		want  string
	}{
		{mitm.Fault{}, "1 2 D C ZI"},
		{mitm.Fault{Kind: mitm.Refuse, Code: "40001"}, "E40001 ZI"},
		{mitm.Fault{Kind: mitm.Refuse, Code: "57P01"}, "E57P01 end"},
		{mitm.Fault{Kind: mitm.RefuseAtSync, Code: "40001"}, "1 2 D C E40001 ZI"},
		{mitm.Fault{Kind: mitm.RefuseAtSync, Code: "57P01"}, "1 2 D C E57P01 end"},
		{mitm.Fault{Kind: mitm.Lose, Code: "40003"}, "E40003 ZI"},
		{mitm.Fault{Kind: mitm.LoseAtSync, Code: "40003"}, "1 2 D C E40003 ZI"},
		{mitm.Fault{Kind: mitm.LoseAtSync, Code: "57P01"}, "1 2 D C E57P01 end"},
		{mitm.Fault{Kind: mitm.DropBefore}, "end"},
		{mitm.Fault{Kind: mitm.DropAfter}, "end"},
		{mitm.Fault{Kind: mitm.DropMidRow}, "1 2 end"},
		{mitm.Fault{Kind: mitm.Twice}, "1 2 D C ZI"},
		{mitm.Fault{Kind: mitm.TwiceLate}, "1 2 D C ZI"},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			r := setup(t)
			w := r.wire()
			r.inject("insert", c.fault)
			w.send(append(insertion(r.table, 1), &pgproto3.Sync{})...)
			if got := w.until("Z"); got != c.want {
				t.Errorf("the client got %q, want %q", got, c.want)
			}
		})
	}
}

// TestMidRowBytes: exactly half of the first row's bytes arrive, and half of
// the first message where there is no row.
func TestMidRowBytes(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		// T: 1+4+2+"a\0"+18 bytes; D: 1+4+2+4+6 bytes, of which 8.
		"select 'abcdef' as a": "T\x00\x00\x00\x1a\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x19\xff\xff\xff\xff\xff\xff\x00\x00" + "D\x00\x00\x00\x10\x00\x01\x00",
		// C: 1+4+"BEGIN\0", of which 5.
		"begin": "C\x00\x00\x00\x0a",
	} {
		t.Run(sql, func(t *testing.T) {
			r := setup(t)
			w := r.wire()
			r.inject(sql, mitm.Fault{Kind: mitm.DropMidRow})
			w.send(&pgproto3.Query{String: sql})
			got, err := io.ReadAll(w.conn)
			if string(got) != want || err != nil {
				t.Errorf("the client got %q, %v; want %q", got, err, want)
			}
		})
	}
}

// TestFlush: what a Flush sent is answered at once, and belongs to the trip.
func TestFlush(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault mitm.Fault
		want  string
		rows  int
	}{
		{mitm.Fault{}, "1 2 D C ZI", 1},
		{mitm.Fault{Kind: mitm.Refuse, Code: "40001"}, "E40001 ZI", 0},
		{mitm.Fault{Kind: mitm.RefuseAtSync, Code: "40001"}, "1 2 D C E40001 ZI", 0},
		{mitm.Fault{Kind: mitm.Lose, Code: "40003"}, "E40003 ZI", 1},
		{mitm.Fault{Kind: mitm.DropBefore}, "end", 0},
		{mitm.Fault{Kind: mitm.DropAfter}, "end", 1},
		{mitm.Fault{Kind: mitm.Twice}, "1 2 D C ZI", 2},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			r := setup(t)
			w := r.wire()
			r.inject("values (2", c.fault)
			w.send(append(insertion(r.table, 1), &pgproto3.Flush{})...)
			if got := w.until("C"); got != "1 2 D C" {
				t.Fatalf("the flushed part got %q", got)
			}
			w.send(append(insertion(r.table, 2), &pgproto3.Sync{})...)
			if got := w.until("Z"); got != c.want {
				t.Errorf("the client got %q, want %q", got, c.want)
			}
			r.injected()
			r.settled()
			r.wantRows(1, c.rows)
			r.wantRows(2, c.rows)
			forwarded := 1
			if c.fault.Kind == mitm.Refuse || c.fault.Kind == mitm.DropBefore {
				forwarded = 0
			}
			if got := r.proxy.Stats().Forwarded; got != forwarded {
				t.Errorf("%d trips forwarded, want %d", got, forwarded)
			}
			if got := r.proxy.Count(func(tr mitm.Trip) bool { return len(tr.SQL) == 2 }); got != 1 {
				t.Errorf("%d trips with both texts, want 1", got)
			}
			if strings.HasSuffix(c.want, "end") {
				return
			}
			w.send(append(insertion(r.table, 3), &pgproto3.Sync{})...)
			if got := w.until("Z"); got != "1 2 D C ZI" {
				t.Errorf("the next trip got %q", got)
			}
			// Nothing of a refused trip is left open for the next Sync.
			r.wantRows(1, c.rows)
		})
	}
}

// TestPipelinedTrips: trips that the client sends without waiting are trips.
func TestPipelinedTrips(t *testing.T) {
	r := setup(t)
	w := r.wire()
	r.inject("values (2", mitm.Fault{Kind: mitm.Refuse, Code: "40001"})
	var all []pgproto3.FrontendMessage
	for id := range 4 {
		all = append(append(all, insertion(r.table, id)...), &pgproto3.Sync{})
	}
	w.send(all...)
	for id, want := range []string{"1 2 D C ZI", "1 2 D C ZI", "E40001 ZI", "1 2 D C ZI"} {
		if got := w.until("Z"); got != want {
			t.Errorf("trip %d got %q, want %q", id, got, want)
		}
	}
}

// TestClosedNames: Close of a portal is not taken for Close of a statement.
func TestClosedNames(t *testing.T) {
	r := setup(t)
	w := r.wire()
	w.send(&pgproto3.Parse{Name: "a", Query: "select 1"}, &pgproto3.Parse{Name: "b", Query: "select 2"},
		&pgproto3.Bind{DestinationPortal: "b", PreparedStatement: "a"}, &pgproto3.Close{ObjectType: 'P', Name: "b"},
		&pgproto3.Close{ObjectType: 'S', Name: "a"}, &pgproto3.Parse{Name: "a", Query: "select 3"}, &pgproto3.Sync{})
	if got := w.until("Z"); got != "1 1 2 3 3 1 ZI" {
		t.Fatalf("the client got %q", got)
	}
	for name, sql := range map[string]string{"a": "select 3", "b": "select 2", "": ""} {
		r.proxy.Reset()
		w.send(&pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{}, &pgproto3.Sync{})
		w.until("Z")
		if r.proxy.Count(func(tr mitm.Trip) bool { return len(tr.SQL) == 1 && tr.SQL[0] == sql }) != 1 {
			t.Errorf("%q does not stand for %q", name, sql)
		}
	}
}

// TestNotificationPasses: what belongs to the session passes, whatever
// becomes of the trip that it comes with.
func TestNotificationPasses(t *testing.T) {
	r := setup(t)
	w := r.wire()
	for sql, want := range map[string]string{
		"notify " + r.table:                        "A E40003 ZI",
		"set application_name = '" + r.table + "'": "S E40003 ZI",
	} {
		w.send(&pgproto3.Query{String: "listen " + r.table})
		w.until("Z")
		r.inject(sql, mitm.Fault{Kind: mitm.Lose, Code: "40003"})
		w.send(&pgproto3.Query{String: sql})
		if got := w.until("Z"); got != want {
			t.Errorf("%s: the client got %q, want %q", sql, got, want)
		}
	}
}

// TestCopy: COPY FROM STDIN is part of the trip that began it.
func TestCopy(t *testing.T) {
	t.Parallel()
	for _, p := range promises() {
		t.Run(p.fault.String(), func(t *testing.T) {
			r := setup(t)
			conn := r.connect()
			rows := func(yield func(int) bool) {
				for range 2000 {
					if !yield(2) {
						return
					}
				}
			}
			source := func() pgx.CopyFromSource {
				var ids [][]any
				for id := range rows {
					ids = append(ids, []any{id, "noted"})
				}
				return pgx.CopyFromRows(ids)
			}
			r.inject("copy ", p.fault)
			_, err := conn.CopyFrom(r.ctx, pgx.Identifier{r.table}, []string{"id", "note"}, source())
			r.injected()
			// A client that still writes when the connection ends may find
			// that out before it reads why.
			if got := code(err); got != p.code && (p.alive || got != "dropped") {
				t.Errorf("the client got %q (%v), want %q", got, err, p.code)
			}
			r.settled()
			r.wantRows(2, p.rows*2000)
			r.wantAlive(conn, p.alive, "")
		})
	}
}

// TestCopyRefusedByDatabase: a COPY that fails in the middle ends as it does
// without the proxy.
func TestCopyRefusedByDatabase(t *testing.T) {
	r := setup(t)
	if _, err := r.beside.Exec(r.ctx, "alter table "+r.table+" add primary key (id)"); err != nil {
		t.Fatal(err)
	}
	conn := r.connect()
	var ids [][]any
	for range 100_000 {
		ids = append(ids, []any{1, "noted"})
	}
	_, err := conn.CopyFrom(r.ctx, pgx.Identifier{r.table}, []string{"id", "note"}, pgx.CopyFromRows(ids))
	if code(err) != "23505" {
		t.Errorf("the client got %v", err)
	}
	r.wantAlive(conn, true, "")
}

// TestNonsense: bytes that are no protocol end their own connection only.
func TestNonsense(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	for _, raw := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00\x04", "\x00\x00\x00\x08\x00\x00\x00\x01", "\x00\x00"} {
		var d net.Dialer
		c, err := d.DialContext(r.ctx, "tcp", r.proxy.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Write([]byte(raw))
		if tcp, ok := c.(*net.TCPConn); ok {
			err = errors.Join(err, tcp.CloseWrite())
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("%q was answered by %q", raw, got)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	w := r.wire()
	if _, err := w.conn.Write([]byte("Q\xff\xff\xff\xff")); err != nil {
		t.Fatal(err)
	}
	if got := w.until("Z"); got != "end" {
		t.Errorf("a message of a wrong length was answered by %q", got)
	}
	r.wantAlive(conn, true, "")
}
