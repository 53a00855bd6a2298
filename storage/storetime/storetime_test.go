package storetime

import (
	"testing"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

var epoch = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// wall is a clock that a test moves apart from the monotonic one.
type wall struct{ at time.Time }

func (w *wall) Advance(d time.Duration) { w.at = w.at.Add(d) }

type hands struct {
	wall wall
	mono time.Duration
}

func newHands() *hands { return &hands{wall: wall{epoch}} }

func (h *hands) pass(d time.Duration) { h.wall.Advance(d); h.mono += d }

// clock reads the hands' wall clock.
type clock struct {
	*Clock
	h *hands
}

func (c *clock) now() (claim.Time, bool) { return c.Read(claim.FromTime(c.h.wall.at)) }

func (h *hands) clock() *clock {
	return &clock{Clock: New(func() time.Duration { return h.mono }), h: h}
}

func TestClock(t *testing.T) {
	t.Parallel()
	start := claim.FromTime(epoch)
	at := func(d time.Duration) claim.Time { return start.Add(d) }
	for _, c := range []struct {
		rule    string
		move    func(h *hands, c *clock)
		want    claim.Time
		suspect bool
	}{
		{"follows the wall clock", func(h *hands, _ *clock) { h.pass(time.Minute) }, at(time.Minute), false},
		{"is held when the wall clock runs backwards", func(h *hands, _ *clock) { h.wall.Advance(-time.Hour) }, at(0), false},
		{"goes on where it was once the wall clock has caught up", func(h *hands, _ *clock) {
			h.wall.Advance(-time.Hour)
			h.pass(time.Hour + time.Second)
		}, at(time.Second), false},
		{"believes a step of exactly an hour", func(h *hands, _ *clock) { h.wall.Advance(JumpMax) }, at(JumpMax), false},
		{"suspects a longer one", func(h *hands, _ *clock) { h.wall.Advance(JumpMax + time.Microsecond) }, at(0), true},
		{"runs at the monotonic pace while suspect", func(h *hands, c *clock) {
			h.wall.Advance(10 * 365 * 24 * time.Hour)
			c.now()
			h.pass(5 * time.Second)
		}, at(5 * time.Second), true},
		{"forgets a jump that was taken back", func(h *hands, c *clock) {
			h.wall.Advance(10 * 365 * 24 * time.Hour)
			c.now()
			h.pass(5 * time.Second)
			c.now()
			h.wall.Advance(-10 * 365 * 24 * time.Hour)
		}, at(5 * time.Second), false},
		{"is not believed one microsecond before ten minutes", func(h *hands, c *clock) {
			h.wall.Advance(2 * time.Hour)
			c.now()
			h.pass(SteadyMin - time.Microsecond)
		}, at(SteadyMin - time.Microsecond), true},
		{"believes ten minutes of steady running", func(h *hands, c *clock) {
			h.wall.Advance(2 * time.Hour)
			c.now()
			h.pass(SteadyMin)
		}, at(2*time.Hour + SteadyMin), false},
		{"counts anew after a second jump", func(h *hands, c *clock) {
			h.wall.Advance(2 * time.Hour)
			c.now()
			h.pass(9 * time.Minute)
			h.wall.Advance(2 * time.Hour)
			c.now()
			h.pass(time.Minute)
		}, at(10 * time.Minute), true},
		{"believes an operator", func(h *hands, c *clock) {
			h.wall.Advance(2 * time.Hour)
			c.now()
			c.Confirm()
		}, at(2 * time.Hour), false},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			h := newHands()
			cl := h.clock()
			cl.now()
			c.move(h, cl)
			if now, suspect := cl.now(); now != c.want || suspect != c.suspect {
				t.Fatalf("got %v suspect=%v, want %v suspect=%v", now.Std(), suspect, c.want.Std(), c.suspect)
			}
		})
	}
}

// TestBounds: what a statement holds a reading to is what Read makes of it.
func TestBounds(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{0, time.Second, -time.Hour, JumpMax, JumpMax + time.Microsecond, 48 * time.Hour, -48 * time.Hour} {
		h := newHands()
		c := h.clock()
		if b := c.Bounds(); b != (Bounds{}) {
			t.Errorf("bounds before the first reading: %+v", b)
		}
		c.now()
		h.pass(time.Minute)
		h.wall.Advance(jump)
		reading := claim.FromTime(h.wall.at)
		held := c.Bounds().Hold(reading)
		if now, _ := c.Read(reading); now != held {
			t.Errorf("jump of %v: held to %v, read as %v", jump, held.Std(), now.Std())
		}
	}
	blind := New(nil)
	blind.Raise(7)
	if b := blind.Bounds(); b != (Bounds{Low: 7}) || b.Hold(3) != 7 || b.Hold(claim.Never) != claim.Never {
		t.Errorf("without a monotonic clock: %+v", b)
	}
}
