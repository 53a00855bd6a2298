// Package overload decides which calls are worked on when there are more than
// the store can answer. It keeps goodput flat beyond saturation: what would be
// too late anyhow is refused early, cheaply, and before anything was applied.
//
// A call passes two bounds. It needs room before its body is read: that bounds
// memory, and never changes. It needs a slot before it asks the store: how many
// slots there are follows from how long calls take (Controller). The two are
// apart because a body that drips in, or an answer that nobody reads, must
// neither keep work out nor look like a slow store.
//
//	var t overload.Ticket
//	if err := limiter.Enter(&t, class); err != nil { … }   // then read the body
//	defer t.Leave()                                        // also after a panic
//	if err := t.Work(ctx); err != nil { … }                // may wait
//	… ask the store …
//	t.Done(overload.Answered, items)                       // then send the answer
//
// A call that only waits for something else says Park. It gives everything
// back, and nothing of its duration is taken for the store's.
//
// Whoever finds no slot waits in the queue of its class, for at most
// Config.QueueWait, or ten times that to finish granted work. Free slots go to the highest class first. A fifth of the
// room and of the slots is for Finish alone, so a Finish call is refused only
// while no call of a lower class is given a slot, or when Finish calls hold
// all of their fifth of the room.
//
// The package knows no transport, no store and no metrics library.
package overload

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds and their defaults.
const (
	// QueueWaitDefault is how long a call may wait for a slot. A call that is
	// refused after it has lost little of its caller's time; longer queues only
	// add to the latency of those who are served.
	QueueWaitDefault = 50 * time.Millisecond
	// QueueWaitMax is the longest that may be configured.
	QueueWaitMax = time.Second
	// finishPatience is how many times as long a Finish call may wait, QueueWaitMax
	// at most: a slot comes with the end of whole batches of a slow store, and a
	// completion that is refused meanwhile may be work that is done twice.
	finishPatience = 10
	// CeilingMax is the largest Config.Ceiling.
	CeilingMax = 1 << 20
	// reserve is the part (one in reserve) of room and slots that is kept for
	// Finish.
	reserve = 5
	// consoleShare is the part (one in consoleShare) of the slots that Console
	// calls may hold together: a list reads far more than a claim does.
	consoleShare = 4
	// retryUnit is the mean retry_after for each time that the load exceeds
	// what is admitted; retryMin and RetryAfterMax bound what comes of it.
	retryUnit     = 100 * time.Millisecond
	retryMin      = 100 * time.Millisecond
	RetryAfterMax = 3200 * time.Millisecond
)

// Reasons to be refused. In each case nothing was asked of the store. A call
// whose own context ends while it waits gets the error of its context.
var (
	// ErrOverloaded: no room, no place in the queue, or no slot in time. Ask
	// again after RetryAfter.
	ErrOverloaded = errors.New("too many calls are in flight")
	// ErrTooLate: the caller would have left before the answer. Asking again
	// with more time may help.
	ErrTooLate = errors.New("the time left is shorter than a call takes now")
)

// Config of a Limiter.
type Config struct {
	// Ceiling bounds the calls that have room, and is the most that the number
	// of slots grows to: 1 to CeilingMax. Required.
	Ceiling int
	// Clock tells the time by which contexts end: time.Now outside of
	// simulations. Required.
	Clock func() time.Time
	// Rand draws from [0, 1) for the jitter of RetryAfter; safe for concurrent
	// use. Default rand.Float64.
	Rand func() float64
	// QueueWait bounds the wait for a slot; Finish calls have ten times as long,
	// QueueWaitMax at most. Default QueueWaitDefault, at most QueueWaitMax.
	QueueWait time.Duration
}

// validate fills in the defaults and reports all faults at once.
func (c *Config) validate() error {
	var faults []error
	if c.Ceiling < 1 || c.Ceiling > CeilingMax {
		faults = append(faults, fmt.Errorf("the Ceiling is %d; it must be 1 to %d", c.Ceiling, CeilingMax))
	}
	if c.Clock == nil {
		faults = append(faults, errors.New("the Clock is missing"))
	}
	if c.QueueWait < 0 || c.QueueWait > QueueWaitMax {
		faults = append(faults, fmt.Errorf("the QueueWait is %v; it must be 0 to %v", c.QueueWait, QueueWaitMax))
	}
	if c.QueueWait == 0 {
		c.QueueWait = QueueWaitDefault
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return errors.Join(faults...)
}

// patience is how long a call of class c may wait for a slot.
func (c *Config) patience(of Class) time.Duration {
	if of == Finish {
		return min(finishPatience*c.QueueWait, QueueWaitMax)
	}
	return c.QueueWait
}

// Limiter gives out room and slots. It is safe for concurrent use, and starts
// no goroutines.
type Limiter struct {
	cfg     Config
	start   time.Time
	waiters sync.Pool // of *waiter, queued nowhere

	inFlight atomic.Int64 // calls that have room
	queueMax atomic.Int64 // waiters of one class, as of now
	dense    atomic.Bool  // only one call in denseStep is timed
	refused  atomic.Int64 // since the controller's window began
	overload atomic.Int64 // thousandths: calls that came for each that was admitted
	classes  [Classes]counters

	mu struct {
		sync.Mutex
		working int // calls that have a slot
		waiting int // calls in all queues
		byClass [Classes]int
		queues  [Classes]queue
		control *Controller
		waited  time.Duration
	}
}

// counters of one class. They change under mu, except shed, and are read
// without it.
type counters struct {
	queued, admitted, shed atomic.Int64
}

// New checks the configuration and returns a Limiter that has given out
// nothing.
func New(cfg Config) (*Limiter, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("overload: %w", err)
	}
	l := &Limiter{cfg: cfg, start: cfg.Clock()}
	l.waiters.New = func() any { return newWaiter(cfg.QueueWait) }
	l.mu.control = NewController(cfg.Ceiling)
	l.queueMax.Store(int64(cfg.Ceiling)) // nothing is known of how long calls take
	l.overload.Store(1000)
	return l, nil
}

// RetryAfter is when a refused caller should come back: on average in
// proportion to how far the load exceeds what is admitted, and spread as
// widely, so that those refused together do not come back together. From 100 ms
// to RetryAfterMax.
func (l *Limiter) RetryAfter() time.Duration {
	mean := retryUnit * time.Duration(l.overload.Load()) / 1000
	after := mean/2 + time.Duration(l.cfg.Rand()*float64(mean))
	return min(max(after, retryMin), RetryAfterMax)
}

// InFlight is how many calls have room now; those that parked have none.
func (l *Limiter) InFlight() int64 { return l.inFlight.Load() }

// Queued is how many calls of class c wait for a slot now.
func (l *Limiter) Queued(c Class) int64 { return l.classes[c].queued.Load() }

// Admitted is how many calls of class c were given a slot so far.
func (l *Limiter) Admitted(c Class) int64 { return l.classes[c].admitted.Load() }

// Shed is how many calls of class c were refused so far. Those whose own
// context ended while they waited are not among them.
func (l *Limiter) Shed(c Class) int64 { return l.classes[c].shed.Load() }

// Limit is how many slots there are now.
func (l *Limiter) Limit() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.control.Limit()
}

// Working is how many calls have a slot now.
func (l *Limiter) Working() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.working
}

// WaitSeconds is how long calls have waited for slots so far, in all.
func (l *Limiter) WaitSeconds() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.waited.Seconds()
}

// now is the time since the limiter was made.
func (l *Limiter) now() time.Duration { return l.cfg.Clock().Sub(l.start) }
