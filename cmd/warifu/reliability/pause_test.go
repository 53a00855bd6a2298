package reliability_test

import (
	"io"
	"reflect"
	"strings"
	"syscall"
	"testing"

	warifu "github.com/warifu/warifu/sdk/go"
)

// paused is a worker that was stopped between its effect and its completion,
// and another that met its lapsed lease meanwhile.
type paused struct {
	*crash
	first  *worker
	second delivery
}

// sleepThrough stops a worker with SIGSTOP until its lease is over and another
// worker has had its answer.
func sleepThrough(t *testing.T, consumer string) *paused {
	t.Helper()
	p := newHost(t).start()
	c := &crash{t: t, row: crashRow{consumer: consumer}, process: p, client: p.sdk(nil), stock: newStock(t), event: "sleepy"}
	asleep := c.orders(3, fatalLease, nowhere)
	asleep.Pause = true
	first := hire(t, asleep)
	if g := first.await(wasGranted); g.Number != 1 {
		t.Fatalf("first grant: %+v", g)
	}
	first.await(isPaused)
	first.signal(syscall.SIGSTOP)
	return &paused{crash: c, first: first, second: hire(t, c.orders(3, calmLease, nowhere)).finish()}
}

// wake lets the first worker go on; it returns how it ended.
func (p *paused) wake() report {
	p.t.Helper()
	p.first.signal(syscall.SIGCONT)
	if _, err := io.WriteString(p.first.stdin, "go on\n"); err != nil {
		p.t.Fatal(err)
	}
	if r := p.first.await(isPaused); !strings.Contains(r.Cause, warifu.ErrLeaseLost.Error()) {
		p.t.Errorf("the handler's context ended for another reason: %q", r.Cause)
	}
	d := p.first.finish()
	if d.done == nil {
		p.t.Fatal("the first worker has not reported")
	}
	return *d.done
}

// replays demands that a third delivery is told what a certain attempt did.
func (p *paused) replays(attempt uint32, body string, effects int) {
	p.t.Helper()
	if rec := p.lookup(); rec.State != warifu.StateCompleted || rec.Attempt != attempt || string(rec.Stored.Body) != body {
		p.t.Errorf("stored is %+v, want attempt %d and %q", rec, attempt, body)
	}
	third := hire(p.t, p.orders(3, calmLease, nowhere)).finish()
	if third.decision() != "DUPLICATE" || third.done.Body != body || !third.done.Accepted {
		p.t.Errorf("third delivery: %+v", third.done)
	}
	p.row.effects = effects
	p.untouched()
}

// TestPausedWorkerRegrant: who was taken over is too late, and says so; the
// completion of the one that took over stays. The lease could not prevent the
// first effect: there are two.
func TestPausedWorkerRegrant(t *testing.T) {
	t.Parallel()
	p := sleepThrough(t, regrant)
	if g := p.second.granted; g == nil || g.Number != 2 || g.Takeover != "LEASE_LAPSED" || !p.second.done.Accepted {
		t.Fatalf("the second worker: %+v", p.second)
	}
	before := p.lookup()
	if late := p.wake(); late.Decision != "STALE" || late.Accepted || !late.Applied {
		t.Errorf("the late completion: %+v", late)
	}
	if after := p.lookup(); !reflect.DeepEqual(before, after) {
		t.Errorf("the late completion changed %+v to %+v", before, after)
	}
	p.replays(2, "took 3, left 94, attempt 2", 2)
}

// TestPausedWorkerHold: nobody is let in, and the late completion settles it.
func TestPausedWorkerHold(t *testing.T) {
	t.Parallel()
	p := sleepThrough(t, hold)
	if p.second.decision() != "IN_DOUBT" || p.second.done.Accepted {
		t.Fatalf("the second worker: %+v", p.second.done)
	}
	if rec := p.lookup(); rec.State != warifu.StateInDoubt {
		t.Errorf("meanwhile: %+v", rec)
	}
	if late := p.wake(); late.Decision != "GRANTED" || !late.Accepted || !late.Applied {
		t.Errorf("the late completion: %+v", late)
	}
	p.replays(1, "took 3, left 97, attempt 1", 1)
}
