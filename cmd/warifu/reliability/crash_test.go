package reliability_test

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	warifu "github.com/warifu/warifu/sdk/go"
)

const (
	// fatalLease is the lease of an attempt that will not end it itself: every
	// test that waits for a lapse waits this long. Twice the least lease, so
	// that a slow reply on a busy machine is not a lapse.
	fatalLease = 2 * time.Second
	// calmLease is the lease of attempts that are not to lapse.
	calmLease = 5 * time.Minute
	// untilLapse lets the server answer when the lease ahead has lapsed.
	untilLapse = 30 * time.Second
)

// crashRow is a line of the table: what the contract says about a worker that
// dies at a point and whose event is delivered twice more.
type crashRow struct {
	consumer, dieAt string
	decisions       []string // of the three deliveries
	attempts        uint32   // grants in all
	effects         int      // how often the stock was touched
	takeover        string   // of the last grant
	final           warifu.State
}

func crashTable() []crashRow {
	granted := []string{"GRANTED", "DUPLICATE", "DUPLICATE"}
	again := []string{"GRANTED", "GRANTED", "DUPLICATE"}
	doubt := []string{"GRANTED", "IN_DOUBT", "IN_DOUBT"}
	return []crashRow{
		{regrant, nowhere, granted, 1, 1, "NONE", warifu.StateCompleted},
		{regrant, afterClaim, again, 2, 1, "LEASE_LAPSED", warifu.StateCompleted},
		// Not promised, and said so: a lease cannot know that the effect
		// happened. The takeover says that it may have.
		{regrant, afterEffect, again, 2, 2, "LEASE_LAPSED", warifu.StateCompleted},
		{regrant, afterCompletion, granted, 1, 1, "NONE", warifu.StateCompleted},
		{hold, nowhere, granted, 1, 1, "NONE", warifu.StateCompleted},
		{hold, afterClaim, doubt, 1, 0, "NONE", warifu.StateInDoubt},
		{hold, afterEffect, doubt, 1, 1, "NONE", warifu.StateInDoubt},
		{hold, afterCompletion, granted, 1, 1, "NONE", warifu.StateCompleted},
	}
}

// TestCrashTable: a handler takes 3 from a stock of 100, and its process dies.
// Effects, attempts and decisions are counted apart.
func TestCrashTable(t *testing.T) {
	t.Parallel()
	p := newHost(t).start()
	rows := crashTable()
	lines := make([]string, len(rows))
	t.Cleanup(func() { // when the last row is done
		t.Logf("3 of %d are taken; the worker dies; two redeliveries; then the same ID with 4\n%s\n%s", stockStart,
			fmt.Sprintf(crashLine, "policy", "dies", "decisions", "attempts", "effects", "left", "state", "with 4"), strings.Join(lines, "\n"))
	})
	for i, row := range rows {
		t.Run(fmt.Sprint(row.consumer, " ", cmp.Or(row.dieAt, "no crash")), func(t *testing.T) {
			t.Parallel()
			c := &crash{t: t, row: row, process: p, client: p.sdk(nil), stock: newStock(t), event: fmt.Sprint("order-", i)}
			lines[i] = c.run()
		})
	}
}

const crashLine = "%-8v %-17v %-30v %-9v %-8v %-5v %-10v %v"

type crash struct {
	t       *testing.T
	row     crashRow
	process *process
	client  *warifu.Client
	stock   stock
	event   string
}

func (c *crash) orders(take int, lease time.Duration, dieAt string) orders {
	return orders{
		URL: c.process.url, Key: c.process.key, Consumer: c.row.consumer, Event: c.event, Take: take,
		Lease: lease, Wait: untilLapse, Stock: c.stock, DieAt: dieAt,
	}
}

// run plays the row and returns its line.
func (c *crash) run() string {
	c.t.Helper()
	first := c.orders(3, fatalLease, c.row.dieAt)
	if c.row.dieAt == nowhere {
		first.Lease = calmLease
	}
	deliveries := []delivery{
		hire(c.t, first).finish(),
		hire(c.t, c.orders(3, calmLease, nowhere)).finish(),
		hire(c.t, c.orders(3, calmLease, nowhere)).finish(),
	}
	before := c.lookup()
	c.check(deliveries, &before)
	reused := c.reuse(&before)
	var decisions []string
	for _, d := range deliveries {
		decisions = append(decisions, d.decision())
	}
	left, effects := c.stock.look(c.t)
	return fmt.Sprintf(crashLine, strings.ToUpper(c.row.consumer), cmp.Or(c.row.dieAt, "no crash"), strings.Join(decisions, " "),
		before.Attempt, effects, left, before.State, reused)
}

func (c *crash) lookup() warifu.Record {
	c.t.Helper()
	rec, err := c.client.Lookup(c.t.Context(), c.row.consumer, c.event)
	if err != nil {
		c.t.Fatal(err)
	}
	return rec
}

// check compares with the row, and what was replayed with what was stored.
func (c *crash) check(deliveries []delivery, rec *warifu.Record) {
	c.t.Helper()
	grants := uint32(0)
	var fence int64
	for i, d := range deliveries {
		if d.decision() != c.row.decisions[i] {
			c.t.Errorf("delivery %d: %s, want %s; %+v", i+1, d.decision(), c.row.decisions[i], d.done)
		}
		if g := d.granted; g != nil {
			grants++
			if g.Number != grants || g.Fence <= fence {
				c.t.Errorf("delivery %d: attempt %d with fence %d after %d grants and fence %d", i+1, g.Number, g.Fence, grants-1, fence)
			}
			fence = g.Fence
		}
		if d.done == nil {
			continue
		}
		if want := c.row.decisions[i] != "IN_DOUBT"; d.done.Accepted != want || d.done.Applied != (d.granted != nil) {
			c.t.Errorf("delivery %d: accepted %v, applied %v: %+v", i+1, d.done.Accepted, d.done.Applied, d.done)
		}
		if c.row.decisions[i] == "DUPLICATE" && d.done.Body != string(rec.Stored.Body) {
			c.t.Errorf("delivery %d was replayed %q, stored is %q", i+1, d.done.Body, rec.Stored.Body)
		}
	}
	if grants != c.row.attempts || rec.Attempt != grants || rec.Fence != fence || rec.State != c.row.final || rec.Takeover.String() != c.row.takeover {
		c.t.Errorf("%d grants, last fence %d, record %+v; want %+v", grants, fence, rec, c.row)
	}
	wantBody := ""
	if rec.State == warifu.StateCompleted {
		wantBody = fmt.Sprintf("took 3, left %d, attempt %d", stockStart-3*c.row.effects, c.row.attempts)
	}
	if string(rec.Stored.Body) != wantBody {
		c.t.Errorf("stored is %q, want %q", rec.Stored.Body, wantBody)
	}
	c.untouched()
}

// untouched: the stock is what the row says, and says itself so in two ways.
func (c *crash) untouched() {
	c.t.Helper()
	if left, effects := c.stock.look(c.t); effects != c.row.effects || left != stockStart-3*c.row.effects {
		c.t.Errorf("%d effects and %d left, want %d and %d", effects, left, c.row.effects, stockStart-3*c.row.effects)
	}
}

// reuse sends another order under the same event ID: it is refused, and
// nothing changes. It returns the decision.
func (c *crash) reuse(before *warifu.Record) string {
	c.t.Helper()
	d := hire(c.t, c.orders(4, calmLease, nowhere)).finish()
	if d.decision() != "MISMATCH" || d.done.Accepted || d.done.Body != "" {
		c.t.Errorf("the same event ID with 4: %s, %+v", d.decision(), d.done)
	}
	if after := c.lookup(); !reflect.DeepEqual(*before, after) {
		c.t.Errorf("a mismatch changed the record from %+v to %+v", *before, after)
	}
	c.untouched()
	return d.decision()
}
