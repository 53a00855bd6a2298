package overload

import (
	"math"
	"time"
)

// Rules of the controller.
const (
	// limitStart is enough for group commits from the first call on, and few
	// enough that a slow store is not buried before it is known to be slow.
	limitStart = 64
	// limitMin keeps enough calls going to learn that the store is well again.
	limitMin = 8
	// tolerance is how many times the usual duration a call may take before
	// there are too many at once. A store that commits in groups takes up to
	// three times as long under load as for one call alone (the rest of the
	// group before, its own, and its place in it), and is at its best then.
	tolerance = 4.0
	// durationFine is a duration that is never called slow, or lower than
	// usual. The differences between a duplicate, which reads, and a grant,
	// which waits for a disk, are within it.
	durationFine = 4 * time.Millisecond
	// gradientMin is the most that one window takes away because of latency,
	// and dropFactor because of drops.
	gradientMin = 0.5
	dropFactor  = 0.7
	// dropShare is the part of a window's calls (one in dropShare) that may be
	// dropped before slots are taken away.
	dropShare = 10
	// smoothing is how far one window moves the limit to where it should be.
	smoothing = 0.5
	// drift is how long the usual duration takes to follow a lasting change that
	// shows while there are slots to spare.
	drift = 3 * time.Minute
	// overloadMax bounds what Overload says.
	overloadMax = 32
)

// Controller finds how many calls may be worked on at once. It compares the
// median duration of calls with what is usual for their kind: a slowly moving
// minimum of such medians. While calls take no longer than tolerance times
// that, the limit grows by its square root; when they do, it shrinks in
// proportion; when calls are dropped, it shrinks at once.
//
// It holds no clock, no lock and no randomness: the same calls make the same
// limits. It is not safe for concurrent use.
type Controller struct {
	ceiling   float64
	limit     float64
	overload  float64
	usual     [kinds]time.Duration   // 0: not known
	median    [Classes]time.Duration // of the last window that had any; 0: not known
	typical   time.Duration          // median of all calls of the last window
	began     time.Duration          // of the window
	busiest   int                    // the most calls at once
	admitted  int
	dropped   int
	samples   window
	dense     bool // the window before had enough
	atMinimum bool // the limit was at its minimum when the window began
}

// NewController returns a controller whose limit is never above ceiling.
func NewController(ceiling int) *Controller {
	c := &Controller{ceiling: float64(ceiling), overload: 1}
	c.limit = min(limitStart, c.ceiling)
	return c
}

// Limit is how many calls may be worked on at once: 8 to the ceiling, or the
// ceiling where that is lower.
func (c *Controller) Limit() int { return int(c.limit) }

// Median is how long a call of a class takes now, batches of the size that is
// most frequent; 0 when that is not known.
func (c *Controller) Median(class Class) time.Duration { return c.median[class] }

// Overload is how many calls came for each that was admitted: 1 when none is
// refused, at most 32.
func (c *Controller) Overload() float64 { return c.overload }

// Queue is how many calls are served within wait: longer queues end in
// refusals. At least half the limit, which a burst may bring.
func (c *Controller) Queue(wait time.Duration) int {
	if c.typical == 0 {
		return int(c.ceiling)
	}
	served := c.limit * float64(wait) / float64(c.typical)
	return int(min(max(served, c.limit/2, 1), c.ceiling))
}

// Admitted tells that a call was given a slot, and how many have one now.
func (c *Controller) Admitted(working int) {
	c.admitted++
	c.busiest = max(c.busiest, working)
}

// Answered tells of a call that the store has answered.
func (c *Controller) Answered(class Class, items int, took time.Duration) {
	c.samples.add(sample{kindOf(class, items), took})
}

// Abandoned tells of a call that ended without the store's answer. If it took
// no longer than a call may, it tells nothing.
func (c *Controller) Abandoned(class Class, items int, took time.Duration) {
	if float64(took) > tolerance*c.expected(kindOf(class, items)) {
		c.dropped++
	}
}

// Dropped tells of a call that was refused, or not answered in time, by what
// is behind the limit.
func (c *Controller) Dropped() { c.dropped++ }

// Dense reports whether enough calls are timed to time only one in eight.
func (c *Controller) Dense() bool { return c.dense || c.samples.seen >= windowDense }

// Due reports whether the window is over at now.
func (c *Controller) Due(now time.Duration) bool {
	passed := now - c.began
	return passed >= windowMin && (c.samples.seen+c.dropped >= windowSamples || passed >= windowMax)
}

// Close ends the window at now, and sets the limit for the next one. shed is
// how many calls were refused in it.
func (c *Controller) Close(now time.Duration, shed int) {
	offered := float64(c.admitted+shed) / float64(max(1, c.admitted))
	c.overload += smoothing * (min(max(1, offered), overloadMax) - c.overload)
	ratio := c.learn(now - c.began)
	before := c.limit
	switch {
	case c.dropped*dropShare > c.samples.seen+c.dropped:
		c.limit *= dropFactor
	case ratio > 0:
		target := c.limit*min(max(tolerance/ratio, gradientMin), 1) + math.Sqrt(c.limit)
		if target < c.limit || c.needed() {
			c.limit += smoothing * (target - c.limit)
		}
	}
	lowest := min(limitMin, c.ceiling)
	c.limit = min(max(c.limit, lowest), c.ceiling)
	c.dense = c.samples.seen >= windowDense
	c.atMinimum = before <= lowest && c.limit <= lowest
	c.began, c.busiest, c.admitted, c.dropped = now, 0, 0, 0
	c.samples.clear()
}

// needed reports whether at least half of the slots were in use: a limit that
// nobody comes near says nothing, and must not grow.
func (c *Controller) needed() bool { return float64(2*c.busiest) >= c.limit }

// learn takes the window's medians in. It returns how many times as long as
// usual the median call took; 0 where too few calls were answered to tell.
func (c *Controller) learn(passed time.Duration) float64 {
	var most [Classes]int
	c.samples.eachKind(func(k kind, n int, m time.Duration) {
		c.usual[k] = c.moved(c.usual[k], m, passed)
		if class := k.class(); n > most[class] {
			most[class], c.median[class] = n, m
		}
	})
	if typical := c.samples.median(func(s sample) float64 { return float64(s.took) }); typical > 0 {
		c.typical = time.Duration(typical)
	}
	return c.samples.median(func(s sample) float64 { return float64(s.took) / c.expected(s.kind) })
}

// moved is the usual duration after a window whose median was m. It follows a
// lower one at once. A higher one counts where it cannot come from too many
// calls: slowly while half of the slots are free, and by half as soon as the
// limit is at its minimum, where little of it can be our doing. So whatever
// was learnt wrongly is corrected in seconds, and a long overload does not
// become the new normal. What is seen first may be the middle of one, or a
// group commit at its best: half of it is a guess between the two.
func (c *Controller) moved(usual, m, passed time.Duration) time.Duration {
	switch {
	case usual == 0 && c.needed():
		return max(1, m/2)
	case usual == 0 || m < usual:
		return m
	case c.atMinimum:
		return max(usual, m/2)
	case c.needed():
		return usual
	}
	return usual + time.Duration(float64(m-usual)*min(1, float64(passed)/float64(drift)))
}

// expected is the usual duration of a kind, in nanoseconds.
func (c *Controller) expected(k kind) float64 { return float64(max(c.usual[k], durationFine)) }
