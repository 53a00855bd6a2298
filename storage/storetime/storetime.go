// Package storetime turns readings of a clock into store time, which never runs
// backwards, and does not follow a clock that jumped ahead before somebody or
// ten minutes of steady running have confirmed it.
//
// The clock that is read belongs to the driver: that of the machine, or that of
// the database.
package storetime

import (
	"sync"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

const (
	// JumpMax is how far a clock may run ahead of elapsed monotonic time before
	// it is suspect.
	JumpMax = time.Hour
	// SteadyMin is how long a jumped clock must run steadily before it is
	// believed without an operator.
	SteadyMin = 10 * time.Minute
)

// Clock is the store's time. It never runs backwards: a reading that does is
// held at its high-water mark. While a clock that jumped ahead is suspect, time
// goes on at the pace of the monotonic clock from where it was, so that a jump
// that turns out to be an error has harmed nobody. It is safe for concurrent
// use.
type Clock struct {
	monotonic func() time.Duration // nil: jumps are not looked for

	mu struct {
		sync.Mutex
		now     claim.Time    // last time given out
		trusted claim.Time    // the last trusted reading
		mono    time.Duration // monotonic time at the last trusted reading
		suspect bool
		since   time.Duration // monotonic time at which the jump was seen
		jumped  time.Duration // size of the jump at that moment
		started bool
	}
}

// New returns a clock that has not been read yet. monotonic is elapsed time
// from anywhere; nil does not look for jumps.
func New(monotonic func() time.Duration) *Clock { return &Clock{monotonic: monotonic} }

// Read takes a reading and returns the store's time and whether it is suspect.
func (c *Clock) Read(reading claim.Time) (now claim.Time, suspect bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.monotonic != nil {
		reading = c.check(reading, c.monotonic())
	}
	c.mu.now = max(c.mu.now, reading)
	return c.mu.now, c.mu.suspect
}

// check returns the time to believe.
func (c *Clock) check(reading claim.Time, mono time.Duration) claim.Time {
	m := &c.mu
	if !m.started {
		m.started = true
		m.trusted, m.mono = reading, mono
		return reading
	}
	expected := m.trusted.Add(mono - m.mono)
	ahead := reading.Sub(expected)
	if ahead <= JumpMax {
		m.suspect = false
		m.trusted, m.mono = reading, mono
		return reading
	}
	if !m.suspect || (ahead-m.jumped).Abs() > JumpMax { // a new jump
		m.suspect, m.since, m.jumped = true, mono, ahead
	}
	if mono-m.since >= SteadyMin {
		m.suspect = false
		m.trusted, m.mono = reading, mono
		return reading
	}
	return expected
}

// Bounds are what a reading that is taken elsewhere is held to there, in the
// statement that depends on it; see Bounds.Hold.
type Bounds struct {
	Low      claim.Time // store time is never below
	Expected claim.Time // where the monotonic clock puts it; 0: jumps are not looked for
}

// Bounds returns the bounds for a reading that is taken now.
func (c *Clock) Bounds() Bounds {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := Bounds{Low: c.mu.now}
	if c.monotonic != nil && c.mu.started {
		b.Expected = c.mu.trusted.Add(c.monotonic() - c.mu.mono)
	}
	return b
}

// Hold returns the store's time for a reading. A statement in SQL says the same
// in its words:
//
//	greatest(low, CASE WHEN now() > expected + INTERVAL '1 hour' THEN expected ELSE now() END)
func (b Bounds) Hold(reading claim.Time) claim.Time {
	if b.Expected != 0 && reading.Sub(b.Expected) > JumpMax {
		reading = b.Expected
	}
	return max(b.Low, reading)
}

// Confirm makes the clock trusted as it is at its next reading.
func (c *Clock) Confirm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.started = false
	c.mu.suspect = false
}

// Raise makes the clock run no earlier than t.
func (c *Clock) Raise(t claim.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.now = max(c.mu.now, t)
}

// Suspect reports whether the last reading was suspect.
func (c *Clock) Suspect() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.suspect
}
