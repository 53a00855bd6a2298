package overload

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world drives a limiter without goroutines, on a clock of its own, and keeps
// its own books of who has and who waits for a slot.
type world struct {
	t       *rapid.T
	l       *Limiter
	now     time.Duration
	step    int
	held    []holder
	waiting []*queuer
	// lower is the step in which a class below Finish was last given a slot.
	lower int
}

type holder struct {
	class Class
	since time.Duration
}

type queuer struct {
	w        *waiter
	class    Class
	step     int
	deadline time.Duration
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t}
	var err error
	w.l, err = New(Config{
		Ceiling: rapid.IntRange(1, 200).Draw(t, "ceiling"),
		Clock:   func() time.Time { return time.Unix(0, 0).Add(w.now) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) do(op func()) {
	w.step++
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	op()
	w.settle()
	w.check()
}

// arrive is a call of some class, with or without a deadline, that is timed or
// not.
func (w *world) arrive() {
	c := Class(rapid.IntRange(0, Classes-1).Draw(w.t, "class"))
	now := w.now
	if rapid.IntRange(0, 3).Draw(w.t, "untimed") == 0 {
		now = unread
	}
	waiter, err := w.l.admit(c, now)
	switch {
	case err != nil:
		if queued := w.l.Queued(c); queued < w.l.queueMax.Load() {
			w.t.Fatalf("%v refused with %d of %d queued", c, queued, w.l.queueMax.Load())
		}
	case waiter == nil:
		w.given(c, w.now)
	default:
		q := &queuer{w: waiter, class: c, step: w.step}
		if rapid.Bool().Draw(w.t, "has deadline") {
			q.deadline = max(1, w.now+time.Duration(rapid.Int64Range(0, int64(200*time.Millisecond)).Draw(w.t, "time left")))
		}
		waiter.deadline = q.deadline
		w.waiting = append(w.waiting, q)
	}
}

func (w *world) given(c Class, since time.Duration) {
	w.held = append(w.held, holder{c, since})
	limit := w.l.mu.control.Limit()
	if c != Finish {
		w.lower = w.step
		limit = below(limit)
	}
	if w.l.mu.working > limit {
		w.t.Fatalf("%v was given slot %d of %d", c, w.l.mu.working, limit)
	}
}

// finish ends one of the calls that have a slot.
func (w *world) finish() {
	if len(w.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.held)-1).Draw(w.t, "which")
	h := w.held[i]
	w.held = slices.Delete(w.held, i, i+1)
	now := w.now
	if rapid.IntRange(0, 3).Draw(w.t, "untimed") == 0 {
		now = unread
	} else {
		o := Outcome(rapid.IntRange(0, int(Dropped)).Draw(w.t, "outcome"))
		w.l.learn(h.class, o, rapid.IntRange(0, 500).Draw(w.t, "items"), w.now-h.since)
	}
	w.l.release(h.class, now)
}

// leave ends the wait of one that waits.
func (w *world) leave() {
	if len(w.waiting) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.waiting)-1).Draw(w.t, "which")
	q := w.waiting[i]
	w.waiting = slices.Delete(w.waiting, i, i+1)
	left := rapid.SampledFrom([]error{context.Canceled, ErrOverloaded}).Draw(w.t, "why")
	if err := w.l.end(q.w, w.now, left); !errors.Is(err, left) {
		w.t.Fatalf("a wait that ended with %v: %v", left, err)
	}
	w.refused(q, left)
}

// refused: a Finish call that waited in vain did so while no other was served.
func (w *world) refused(q *queuer, err error) {
	if q.class == Finish && w.lower > q.step {
		w.t.Fatalf("Finish waits since step %d and ends with %v; a lower class was given a slot in step %d", q.step, err, w.lower)
	}
}

// settle takes the verdicts in: refusals first, which make room for others.
func (w *world) settle() {
	var given []*queuer
	rest := w.waiting[:0]
	for _, q := range w.waiting {
		if !q.w.decided {
			rest = append(rest, q)
			continue
		}
		<-q.w.ready
		late := q.deadline != 0 && q.deadline-w.now < w.l.mu.control.Median(q.class)
		if late != (q.w.verdict != nil) {
			w.t.Fatalf("%v with %v left is told %v; a call takes %v", q.class, q.deadline-w.now, q.w.verdict, w.l.mu.control.Median(q.class))
		}
		if late {
			w.refused(q, q.w.verdict)
		} else {
			given = append(given, q)
		}
	}
	w.waiting = rest
	for _, q := range given {
		for _, other := range rest {
			if other.class > q.class {
				w.t.Fatalf("%v was given a slot before %v", q.class, other.class)
			}
		}
	}
	for _, q := range given {
		w.given(q.class, w.now)
	}
}

// check compares the books, and demands that no slot is kept from one who waits.
func (w *world) check() {
	var held, waiting [Classes]int
	for _, h := range w.held {
		held[h.class]++
	}
	for _, q := range w.waiting {
		waiting[q.class]++
	}
	if w.l.mu.working != len(w.held) || w.l.mu.byClass != held || w.l.mu.waiting != len(w.waiting) {
		w.t.Fatalf("%d have a slot %v and %d wait; want %v and %d", w.l.mu.working, w.l.mu.byClass, w.l.mu.waiting, held, len(w.waiting))
	}
	for c := range Class(Classes) {
		if w.l.Queued(c) != int64(waiting[c]) {
			w.t.Fatalf("%d of class %v wait, want %d", w.l.Queued(c), c, waiting[c])
		}
		if waiting[c] > 0 && w.l.free(c) {
			w.t.Fatalf("%d of class %v wait though a slot is free", waiting[c], c)
		}
	}
	if limit, ceiling := w.l.mu.control.Limit(), w.l.cfg.Ceiling; limit > ceiling || limit < min(limitMin, ceiling) {
		w.t.Fatalf("the limit is %d", limit)
	}
}

// TestBooks: whatever comes in whatever order, the books are right, classes go
// in order, nobody waits for a slot that is free, and Finish is never refused
// after others were served.
func TestBooks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"arrive":  func(*rapid.T) { w.do(w.arrive) },
			"arrives": func(*rapid.T) { w.do(w.arrive) },
			"crowd": func(t *rapid.T) {
				for range rapid.IntRange(1, 50).Draw(t, "many") {
					w.do(w.arrive)
				}
			},
			"finish": func(*rapid.T) { w.do(w.finish) },
			"leave":  func(*rapid.T) { w.do(w.leave) },
			"pass": func(t *rapid.T) {
				w.now += time.Duration(rapid.Int64Range(1, int64(300*time.Millisecond)).Draw(t, "passes"))
			},
		})
		for len(w.held)+len(w.waiting) > 0 {
			w.do(w.finish)
			w.do(w.leave)
		}
		if w.l.mu.working != 0 || w.l.mu.waiting != 0 {
			t.Fatalf("in the end %d have a slot and %d wait", w.l.mu.working, w.l.mu.waiting)
		}
	})
}
