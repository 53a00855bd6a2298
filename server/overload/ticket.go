package overload

import (
	"context"
	"math"
	"time"
)

// Outcome says what the duration of a call tells about the store.
type Outcome uint8

// The outcomes.
const (
	// Silent calls tell nothing: refused before the store was asked, or failed
	// in a way that has nothing to do with load.
	Silent Outcome = iota
	// Answered calls took as long as the store does.
	Answered
	// Abandoned calls ended without the store's answer for a reason of their
	// own: the caller left, or the store was away. They tell that it is slow if
	// they had waited longer than a call should take, and else nothing: a
	// caller who gives 1 ms of time must not be able to slow all others down.
	Abandoned
	// Dropped calls were refused, or not answered in time, by what is behind
	// the limiter.
	Dropped
)

// Ticket is one call's way through a Limiter. The zero value is ready for
// Limiter.Enter; it belongs to one goroutine, and is used for one call. All its
// methods may be called at any time, also twice, and then do nothing.
type Ticket struct {
	limiter *Limiter
	began   time.Duration // when it got its slot, or unread
	class   Class
	room    bool
	slot    bool
}

// Enter gives the call room, or ErrOverloaded. It also refuses where the queue
// of the class is full: the call would find no slot, and its body needs not be
// read to know that. It never waits.
func (l *Limiter) Enter(t *Ticket, c Class) error {
	most := l.cfg.Ceiling
	if c != Finish {
		most = below(most)
	}
	if l.inFlight.Add(1) > int64(most) {
		l.inFlight.Add(-1)
		return l.refuse(c)
	}
	if l.queueFull(c) {
		l.inFlight.Add(-1)
		return l.refuse(c)
	}
	*t = Ticket{limiter: l, class: c, room: true}
	return nil
}

// refuse counts a call that is told to come back.
func (l *Limiter) refuse(c Class) error {
	l.count(c)
	return ErrOverloaded
}

func (l *Limiter) count(c Class) {
	l.classes[c].shed.Add(1)
	l.refused.Add(1)
}

// Work gives the call a slot, and waits for one if it must. After an error
// (ErrOverloaded, ErrTooLate, or that of ctx) it has none, and keeps its room.
func (t *Ticket) Work(ctx context.Context) error {
	if !t.room || t.slot {
		return nil
	}
	l, now := t.limiter, unread
	if l.timed(t.class) {
		now = l.now()
	}
	l.mu.Lock()
	w, err := l.admit(t.class, now)
	if w != nil { // within the lock: a slot may come as soon as it is gone
		w.deadline = l.deadline(ctx)
	}
	l.mu.Unlock()
	if err == nil && w != nil {
		now, err = l.wait(ctx, w)
	}
	if err == nil {
		t.slot, t.began = true, now
	}
	return err
}

// unread is the time of calls for which the clock was not read.
const unread = time.Duration(math.MinInt64)

// timed reports whether the next call of class c is one that is timed.
func (l *Limiter) timed(c Class) bool {
	return !l.dense.Load() || l.classes[c].admitted.Load()%denseStep == 0
}

// deadline is when ctx ends, on the limiter's clock; 0: never.
func (l *Limiter) deadline(ctx context.Context) time.Duration {
	end, has := ctx.Deadline()
	if !has {
		return 0
	}
	return max(1, end.Sub(l.start))
}

// Done gives the slot back and keeps the room: the call still has an answer to
// send. items is the size of a batch, 1 or 0 for a single call; batches are
// compared with batches of about their size.
func (t *Ticket) Done(o Outcome, items int) {
	if !t.slot {
		return
	}
	t.slot = false
	l, now := t.limiter, unread
	if t.began != unread {
		now = l.now()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now != unread {
		l.learn(t.class, o, items, now-t.began)
	}
	l.release(t.class, now)
}

// learn tells the controller of a call that was timed. mu is held.
func (l *Limiter) learn(c Class, o Outcome, items int, took time.Duration) {
	switch o {
	case Answered:
		l.mu.control.Answered(c, items, took)
	case Abandoned:
		l.mu.control.Abandoned(c, items, took)
	case Dropped:
		l.mu.control.Dropped()
	case Silent:
		return
	}
	l.dense.Store(l.mu.control.Dense())
}

// Park gives slot and room back: from now on the call waits for something that
// is not the store, and nothing is learnt from how long.
func (t *Ticket) Park() { t.Leave() }

// Leave gives back whatever the call still holds. Nothing is learnt from it.
func (t *Ticket) Leave() {
	t.Done(Silent, 0)
	if t.room {
		t.room = false
		t.limiter.inFlight.Add(-1)
	}
}
