package mitm_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage/sqlstore/mitm"
)

// TestLate: a trip whose client gives up first is executed after that.
func TestLate(t *testing.T) {
	t.Parallel()
	for name, insert := range shapes {
		t.Run(name, func(t *testing.T) {
			r := setup(t)
			conn := r.connect()
			if _, err := insert(r.ctx, r, conn, 1); err != nil {
				t.Fatal(err)
			}
			r.inject(r.table, mitm.Fault{Kind: mitm.Late})
			ctx, giveUp := context.WithCancel(r.ctx)
			done := make(chan error, 1)
			go func() {
				_, err := insert(ctx, r, conn, 2)
				done <- err
			}()
			if err := r.asked(func(tr mitm.Trip) bool { return len(tr.SQL) > 0 }, 2); err != nil {
				t.Fatal(err)
			}
			r.wantRows(2, 0) // the client still waits
			giveUp()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("the client got %v", err)
			}
			n, err := r.proxy.Late(r.ctx)
			if n != 1 || err != nil {
				t.Errorf("%d late trips executed, %v", n, err)
			}
			r.wantRows(2, 1)
			r.wantAlive(conn, false, "")
			if name != "batch" {
				return
			}
			if got := r.proxy.Stats().Cancels; got != 1 {
				t.Errorf("%d cancels, want the one of the client", got)
			}
		})
	}
}

// asked waits until that many trips match. Nothing signals a trip from
// outside, so it looks again and again.
func (r *rig) asked(match func(mitm.Trip) bool, n int) error {
	for r.proxy.Count(match) < n {
		if err := r.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// TestLateInTransaction: a late statement does not outlive its transaction; a
// late COMMIT ends it.
func TestLateInTransaction(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"values (8": 0, "commit": 1} {
		t.Run(text, func(t *testing.T) {
			r := setup(t)
			conn := r.connect()
			ctx, giveUp := context.WithCancel(r.ctx)
			r.inject(text, mitm.Fault{Kind: mitm.Late})
			done := make(chan error, 1)
			go func() {
				for _, sql := range []string{"begin", "insert into " + r.table + " values (7)", "insert into " + r.table + " values (8)", "commit"} {
					if _, err := conn.Exec(ctx, sql); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			err := r.asked(func(tr mitm.Trip) bool { return len(tr.SQL) == 1 && strings.Contains(tr.SQL[0], text) }, 1)
			giveUp()
			if err := errors.Join(err, <-done); !errors.Is(err, context.Canceled) {
				t.Errorf("the client got %v", err)
			}
			if n, err := r.proxy.Late(r.ctx); n != 1 || err != nil {
				t.Errorf("%d late trips executed, %v", n, err)
			}
			r.wantRows(7, want)
		})
	}
}

// TestLateCopy: the data of a late COPY is gone with its client, so that it is
// executed and fails.
func TestLateCopy(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	ctx, giveUp := context.WithCancel(r.ctx)
	r.inject("copy ", mitm.Fault{Kind: mitm.Late})
	done := make(chan error, 1)
	go func() {
		_, err := conn.CopyFrom(ctx, pgx.Identifier{r.table}, []string{"id"}, pgx.CopyFromRows([][]any{{1}}))
		done <- err
	}()
	err := r.asked(func(tr mitm.Trip) bool { return len(tr.SQL) == 1 }, 1)
	giveUp()
	if err := errors.Join(err, <-done); !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	if n, err := r.proxy.Late(r.ctx); n != 1 || err != nil {
		t.Errorf("%d late trips executed, %v", n, err)
	}
	r.wantRows(1, 0)
}

// TestLateLost: late trips that cannot be executed any more are told.
func TestLateLost(t *testing.T) {
	const clients = 8
	r := setup(t, func(c *mitm.Config) {
		c.Decide = func(mitm.Trip) mitm.Fault { return mitm.Fault{Kind: mitm.Late} }
	})
	done := make(chan error, clients)
	for range clients {
		conn := r.connect()
		go func() {
			_, err := conn.Exec(r.ctx, "insert into "+r.table+" values (7)")
			done <- err
		}()
	}
	if err := r.asked(func(mitm.Trip) bool { return true }, clients); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(r.ctx)
	cancel()
	if _, err := r.proxy.Late(short); !errors.Is(err, context.Canceled) {
		t.Errorf("Late did not wait: %v", err)
	}
	r.proxy.Cut()
	for range clients {
		if err := <-done; code(err) != "dropped" {
			t.Errorf("the client got %v", err)
		}
	}
	if n, err := r.proxy.Late(r.ctx); n != 0 || err == nil {
		t.Errorf("%d executed, error %v; want none and an error", n, err)
	}
	r.wantRows(7, 0)
}

// TestRedeliver: the duplicate comes when it is told to, on another
// connection, and finds its statements there.
func TestRedeliver(t *testing.T) {
	t.Parallel()
	for name, insert := range shapes {
		t.Run(name, func(t *testing.T) {
			r := setup(t)
			conn := r.connect("search_path=public", "application_name=first")
			if _, err := insert(r.ctx, r, conn, 1); err != nil {
				t.Fatal(err)
			}
			r.inject(r.table, mitm.Fault{Kind: mitm.TwiceLate})
			if seen, err := insert(r.ctx, r, conn, 2); seen != 1 || err != nil {
				t.Fatalf("read %d rows, %v", seen, err)
			}
			r.injected()
			if err := conn.Close(r.ctx); err != nil {
				t.Fatal(err)
			}
			r.wantRows(2, 1)
			if n, err := r.proxy.Redeliver(r.ctx); n != 1 || err != nil {
				t.Errorf("%d delivered again, %v", n, err)
			}
			r.wantRows(2, 2)
			if n, err := r.proxy.Redeliver(r.ctx); n != 0 || err != nil {
				t.Errorf("a second time: %d delivered again, %v", n, err)
			}
			r.wantRows(2, 2)
		})
	}
}

// TestRedeliverSameStatementTwice: a statement that a trip binds twice is
// prepared once.
func TestRedeliverSameStatementTwice(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	send := func() {
		var b pgx.Batch
		b.Queue("insert into "+r.table+" values ($1)", 5)
		b.Queue("insert into "+r.table+" values ($1)", 5)
		if err := conn.SendBatch(r.ctx, &b).Close(); err != nil {
			t.Fatal(err)
		}
	}
	send()
	r.inject(r.table, mitm.Fault{Kind: mitm.TwiceLate})
	send()
	if n, err := r.proxy.Redeliver(r.ctx); n != 1 || err != nil {
		t.Errorf("%d delivered again, %v", n, err)
	}
	r.wantRows(5, 6)
}

// TestRedeliverRefused: what the database thinks of a duplicate is nobody's
// business; that it could not be delivered is.
func TestRedeliverRefused(t *testing.T) {
	r := setup(t)
	conn := r.connect()
	if _, err := conn.Exec(r.ctx, "alter table "+r.table+" add primary key (id)"); err != nil {
		t.Fatal(err)
	}
	r.inject("values", mitm.Fault{Kind: mitm.TwiceLate})
	if _, err := conn.Exec(r.ctx, "insert into "+r.table+" values (1)"); err != nil {
		t.Fatal(err)
	}
	if n, err := r.proxy.Redeliver(r.ctx); n != 1 || err != nil {
		t.Errorf("%d delivered again, %v", n, err)
	}
	r.wantRows(1, 1)
	r.inject("values", mitm.Fault{Kind: mitm.TwiceLate})
	if _, err := conn.Exec(r.ctx, "insert into "+r.table+" values (2)"); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	if n, err := r.proxy.Redeliver(ended); n != 0 || err == nil {
		t.Errorf("with an ended context: %d delivered, error %v", n, err)
	}
}

// TestHold: a held trip waits for Release, and others do not wait for it.
func TestHold(t *testing.T) {
	r := setup(t)
	slow, fast := r.connect(), r.connect()
	r.inject("values (1)", mitm.Fault{Kind: mitm.Hold})
	done := make(chan error, 1)
	go func() {
		_, err := slow.Exec(r.ctx, "insert into "+r.table+" values (1)")
		done <- err
	}()
	if err := r.proxy.Held(r.ctx, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := fast.Exec(r.ctx, "insert into "+r.table+" values (2)"); err != nil {
		t.Fatal(err)
	}
	r.wantRows(1, 0)
	r.wantRows(2, 1)
	r.proxy.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.wantRows(1, 1)
	// Release lets go what is held, not what comes.
	r.inject("values (3)", mitm.Fault{Kind: mitm.Hold})
	go func() {
		_, err := slow.Exec(r.ctx, "insert into "+r.table+" values (3)")
		done <- err
	}()
	if err := r.proxy.Held(r.ctx, 1); err != nil {
		t.Fatal(err)
	}
	r.proxy.Cut()
	if err := <-done; code(err) != "dropped" {
		t.Errorf("a held trip that was cut got %v", err)
	}
	r.wantRows(3, 0)
	r.proxy.Release()
}
