package storagetest

import (
	"sync"
	"time"
)

// Start is where clocks of the suite begin: a date that no test depends on,
// far enough from zero for every retention to fit before it.
var Start = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// Clock is a clock that moves only when it is told to. It is safe for
// concurrent use. It hands out microseconds, the precision that stores keep,
// and readings without a monotonic part.
type Clock struct {
	mu struct {
		sync.Mutex
		now time.Time
	}
}

// NewClock returns a clock that stands at start.
func NewClock(start time.Time) *Clock {
	c := &Clock{}
	c.Set(start)
	return c
}

// Now returns where the clock stands.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.now
}

// Advance moves the clock by d; a negative d moves it back.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.now = c.mu.now.Add(d).Truncate(time.Microsecond)
}

// Set moves the clock to t, which may lie in its past.
func (c *Clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.now = t.UTC().Round(0).Truncate(time.Microsecond)
}
