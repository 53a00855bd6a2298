package overload

import (
	"context"
	"errors"
	"time"
)

// waiter is one call that waits for a slot. All but ready and timer is guarded
// by the limiter's mu.
type waiter struct {
	ready chan struct{} // one token: verdict is there
	timer *time.Timer

	class    Class
	verdict  error // nil: it has a slot
	decided  bool
	since    time.Duration
	deadline time.Duration // 0: none

	older, newer *waiter
}

func newWaiter(wait time.Duration) *waiter {
	w := &waiter{ready: make(chan struct{}, 1), timer: time.NewTimer(wait)}
	w.timer.Stop() // it runs while the waiter is queued
	return w
}

// queue holds the waiters of one class.
type queue struct {
	oldest, newest *waiter
}

func (q *queue) push(w *waiter) {
	w.older, w.newer = q.newest, nil
	if q.newest != nil {
		q.newest.newer = w
	} else {
		q.oldest = w
	}
	q.newest = w
}

func (q *queue) remove(w *waiter) {
	if w.older != nil {
		w.older.newer = w.newer
	} else {
		q.oldest = w.newer
	}
	if w.newer != nil {
		w.newer.older = w.older
	} else {
		q.newest = w.older
	}
	w.older, w.newer = nil, nil
}

// admit gives class c a slot, or a waiter in its queue, or ErrOverloaded. mu is
// held. Whoever could be given a slot has been given one before the lock was
// released last, so a free slot has no waiter that goes before c.
func (l *Limiter) admit(c Class, now time.Duration) (*waiter, error) {
	if now != unread {
		l.advance(now)
	}
	if l.free(c) {
		l.take(c)
		return nil, nil
	}
	if now == unread {
		now = l.now()
	}
	if l.queueFull(c) {
		return nil, l.refuse(c)
	}
	w := l.waiters.Get().(*waiter)
	w.class, w.since, w.decided, w.verdict, w.deadline = c, now, false, nil, 0
	l.mu.queues[c].push(w)
	l.mu.waiting++
	l.classes[c].queued.Add(1)
	return w, nil
}

// queueFull reports whether whoever of class c queued now would wait for longer
// than it may.
func (l *Limiter) queueFull(c Class) bool {
	most := l.queueMax.Load()
	if c == Finish {
		most *= finishPatience
	}
	return l.classes[c].queued.Load() >= most
}

// free reports whether a call of class c may have a slot now. mu is held.
func (l *Limiter) free(c Class) bool {
	limit := l.mu.control.Limit()
	switch c {
	case Finish:
		return l.mu.working < limit
	case Console:
		return l.mu.working < below(limit) && l.mu.byClass[Console] < max(1, limit/consoleShare)
	case Claim, Read:
	}
	return l.mu.working < below(limit)
}

func (l *Limiter) take(c Class) {
	l.mu.working++
	l.mu.byClass[c]++
	l.classes[c].admitted.Add(1)
	l.mu.control.Admitted(l.mu.working)
}

// release takes a slot back and hands out what is free. mu is held.
func (l *Limiter) release(c Class, now time.Duration) {
	l.mu.working--
	l.mu.byClass[c]--
	if now == unread {
		if l.mu.waiting == 0 {
			return
		}
		now = l.now()
	}
	if !l.advance(now) {
		l.dispatch(now)
	}
}

// advance lets the controller look at its window if that is over, and reports
// whether it did. mu is held.
func (l *Limiter) advance(now time.Duration) bool {
	control := l.mu.control
	if !control.Due(now) {
		return false
	}
	control.Close(now, int(l.refused.Swap(0)))
	l.overload.Store(int64(control.Overload() * 1000))
	l.queueMax.Store(int64(control.Queue(l.cfg.QueueWait)))
	l.dense.Store(control.Dense())
	l.dispatch(now)
	return true
}

// dispatch gives free slots to waiters, the highest class first. Who would not
// live to see the answer is refused instead: the work would be for nobody.
func (l *Limiter) dispatch(now time.Duration) {
	if l.mu.waiting == 0 {
		return
	}
	for c := Finish; ; c-- {
		for l.mu.queues[c].oldest != nil && l.free(c) {
			w := l.next(c, now)
			if w.deadline != 0 && w.deadline-now < l.mu.control.Median(c) {
				l.decide(w, now, ErrTooLate)
				continue
			}
			l.take(c)
			l.decide(w, now, nil)
		}
		if c == 0 {
			return
		}
	}
}

// next is the oldest waiter, or under pressure the newest. In order of arrival
// a standing queue makes everybody wait for as long as is allowed, and serves
// those who have the least time left; the other way round most are served at
// once, and those who leave unserved would have been late. Without pressure
// the order of arrival is fair and costs nothing.
func (l *Limiter) next(c Class, now time.Duration) *waiter {
	q := &l.mu.queues[c]
	if now-q.oldest.since > l.cfg.patience(c)/2 {
		return q.newest
	}
	return q.oldest
}

// decide takes a waiter out of its queue and tells it. mu is held.
func (l *Limiter) decide(w *waiter, now time.Duration, verdict error) {
	l.unqueue(w, now)
	if verdict != nil {
		l.count(w.class)
	}
	w.verdict, w.decided = verdict, true
	w.ready <- struct{}{} // has room: one token for each time it is queued
}

// wait returns when the waiter has a slot, and since when, or why it has none.
func (l *Limiter) wait(ctx context.Context, w *waiter) (time.Duration, error) {
	w.timer.Reset(l.cfg.patience(w.class))
	var left error // why it stopped waiting, if it was not told to
	select {
	case <-w.ready:
	case <-w.timer.C:
		left = ErrOverloaded
	case <-ctx.Done():
		left = ctx.Err()
	}
	w.timer.Stop()
	now := l.now()
	l.mu.Lock()
	err := l.end(w, now, left)
	l.mu.Unlock()
	l.waiters.Put(w)
	return now, err
}

// end ends a wait. A slot that came at the same moment as the end of the wait
// is used, unless the caller is gone. mu is held.
func (l *Limiter) end(w *waiter, now time.Duration, left error) error {
	gone := left != nil && !errors.Is(left, ErrOverloaded)
	switch {
	case left == nil:
		return w.verdict
	case w.decided: // at the same moment
		<-w.ready
		if gone && w.verdict == nil {
			l.release(w.class, now)
			return left
		}
		return w.verdict
	}
	l.unqueue(w, now)
	if gone {
		return left
	}
	return l.refuse(w.class)
}

func (l *Limiter) unqueue(w *waiter, now time.Duration) {
	l.mu.queues[w.class].remove(w)
	l.mu.waiting--
	l.classes[w.class].queued.Add(-1)
	l.mu.waited += now - w.since
}
