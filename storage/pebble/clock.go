package pebble

import (
	"sync"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

const (
	// jumpMax is how far the wall clock may run ahead of elapsed monotonic time
	// before it is suspect.
	jumpMax = time.Hour
	// steadyMin is how long a jumped clock must run steadily before it is
	// believed without an operator.
	steadyMin = 10 * time.Minute
)

// clock is the store's time. It never runs backwards: a wall clock that does is
// held at its high-water mark. While a wall clock that jumped ahead is suspect,
// time goes on at the pace of the monotonic clock from where it was, so that a
// jump that turns out to be an error has harmed nobody.
type clock struct {
	wall      func() time.Time
	monotonic func() time.Duration // nil: jumps are not looked for

	mu struct {
		sync.Mutex
		now     claim.Time    // last time given out
		trusted claim.Time    // wall time at the last trusted reading
		mono    time.Duration // monotonic time at the last trusted reading
		suspect bool
		since   time.Duration // monotonic time at which the jump was seen
		jumped  time.Duration // size of the jump at that moment
		started bool
	}
}

// now returns the store's time and whether it is suspect.
func (c *clock) now() (claim.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall := claim.FromTime(c.wall())
	if c.monotonic != nil {
		wall = c.check(wall, c.monotonic())
	}
	c.mu.now = max(c.mu.now, wall)
	return c.mu.now, c.mu.suspect
}

// check returns the time to believe.
func (c *clock) check(wall claim.Time, mono time.Duration) claim.Time {
	m := &c.mu
	if !m.started {
		m.started = true
		m.trusted, m.mono = wall, mono
		return wall
	}
	expected := m.trusted.Add(mono - m.mono)
	ahead := wall.Sub(expected)
	if ahead <= jumpMax {
		m.suspect = false
		m.trusted, m.mono = wall, mono
		return wall
	}
	if !m.suspect || (ahead-m.jumped).Abs() > jumpMax { // a new jump
		m.suspect, m.since, m.jumped = true, mono, ahead
	}
	if mono-m.since >= steadyMin {
		m.suspect = false
		m.trusted, m.mono = wall, mono
		return wall
	}
	return expected
}

// confirm makes the wall clock trusted as it is now.
func (c *clock) confirm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.started = false
	c.mu.suspect = false
}

// raise makes the clock run no earlier than t.
func (c *clock) raise(t claim.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.now = max(c.mu.now, t)
}

func (c *clock) suspect() bool {
	_, s := c.now()
	return s
}
