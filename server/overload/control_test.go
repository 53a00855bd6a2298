package overload

import (
	"testing"
	"time"
)

// windows runs windows of a controller.
type windows struct {
	*Controller
	now time.Duration
}

// pass runs n windows in which calls keep all slots busy.
func (w *windows) pass(n int, call func()) {
	for range n {
		for range windowSamples {
			w.Admitted(w.Limit())
			call()
		}
		w.now += windowMin
		w.Close(w.now, 0)
	}
}

// know lets the controller see calls while nearly all slots are free.
func know(ceiling int) *windows {
	w := &windows{Controller: NewController(ceiling)}
	for range windowSamples {
		w.Admitted(0)
		w.Answered(Claim, 1, steady)
	}
	w.now = windowMin
	w.Close(w.now, 0)
	return w
}

func (w *windows) answered(took time.Duration) func() {
	return func() { w.Answered(Claim, 1, took) }
}

const steady = 20 * time.Millisecond

// TestLimitMoves: what the limit does after 20 windows of each kind of trouble.
func TestLimitMoves(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		call func(*windows) func()
		want func(before, after int) bool
	}{
		"as usual":             {func(w *windows) func() { return w.answered(steady) }, func(before, after int) bool { return after > before+40 }},
		"as slow as tolerated": {func(w *windows) func() { return w.answered(tolerance * steady) }, func(before, after int) bool { return after > before+40 }},
		"six times as slow":    {func(w *windows) func() { return w.answered(6 * steady) }, func(before, after int) bool { return after < before/2 && after > limitMin }},
		"dropped":              {func(w *windows) func() { return w.Dropped }, func(_, after int) bool { return after == limitMin }},
		"left after long":      {func(w *windows) func() { return func() { w.Abandoned(Claim, 1, time.Second) } }, func(_, after int) bool { return after == limitMin }},
		"left before long":     {func(w *windows) func() { return func() { w.Abandoned(Claim, 1, 2*steady) } }, func(before, after int) bool { return after == before }},
		"large batches":        {func(w *windows) func() { return func() { w.Answered(Claim, 500, 10*steady) } }, func(before, after int) bool { return after > before }},
		"another class":        {func(w *windows) func() { return func() { w.Answered(Finish, 1, 10*steady) } }, func(before, after int) bool { return after > before }},
		"faster than ever":     {func(w *windows) func() { return w.answered(steady / 4) }, func(before, after int) bool { return after > before+40 }},
		"back from faster":     {func(w *windows) func() { w.pass(5, w.answered(1)); return w.answered(steady / 2) }, func(before, after int) bool { return after > before }},
		"slow, but never large": {func(w *windows) func() {
			w.usual[kindOf(Claim, 1)] = time.Microsecond
			return w.answered(tolerance * durationFine)
		}, func(before, after int) bool { return after > before }},
	} {
		w := know(1024)
		w.limit = 100
		before := w.Limit()
		w.pass(20, row.call(w))
		if after := w.Limit(); !row.want(before, after) {
			t.Errorf("%s: the limit went from %d to %d", name, before, after)
		}
	}
}

// TestLimitIsBounded by the ceiling, also below the usual minimum, and by 8.
func TestLimitIsBounded(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ ceiling, start, most, least int }{{1, 1, 1, 1}, {5, 5, 5, 5}, {40, 40, 40, 8}, {1024, 64, 1024, 8}} {
		w := know(row.ceiling)
		start := w.Limit()
		w.pass(500, w.answered(steady))
		most := w.Limit()
		w.pass(500, w.Dropped)
		if least := w.Limit(); start != row.start || most != row.most || least != row.least {
			t.Errorf("ceiling %d: start %d, most %d, least %d; want %v", row.ceiling, start, most, least, row)
		}
	}
}

// TestUnusedLimitStays: a limit that nobody comes near does not grow.
func TestUnusedLimitStays(t *testing.T) {
	t.Parallel()
	w := &windows{Controller: NewController(1024)}
	for range 100 {
		for range windowSamples {
			w.Admitted(limitStart/2 - 1)
			w.Answered(Claim, 1, steady)
		}
		w.now += windowMin
		w.Close(w.now, 0)
	}
	if w.Limit() != limitStart {
		t.Errorf("the limit went from %d to %d", limitStart, w.Limit())
	}
}

// TestLastingChange: a store that has become ten times as slow for good, which
// has nothing to do with load, gets its slots back within seconds.
func TestLastingChange(t *testing.T) {
	t.Parallel()
	w := know(1024)
	w.pass(50, w.answered(steady))
	lowest, n := w.Limit(), 0
	for ; n < 300 && (n < 10 || w.Limit() < limitStart); n++ {
		w.pass(1, w.answered(10*steady))
		lowest = min(lowest, w.Limit())
	}
	if n > 100 || lowest > limitMin {
		t.Errorf("after %v the limit is %d; it was %d", time.Duration(n)*windowMin, w.Limit(), lowest)
	}
}

// TestLongOverload: what calls take while too many come does not become usual,
// however long that lasts.
func TestLongOverload(t *testing.T) {
	t.Parallel()
	w := &windows{Controller: NewController(1024)}
	const capacity = 16 // calls at once that take no longer than one alone
	took := func() time.Duration { return max(steady, steady*time.Duration(w.Limit())/capacity) }
	for range 36_000 { // an hour
		w.pass(1, w.answered(took()))
	}
	if got := w.Limit(); got < capacity*3 || got > capacity*10 {
		t.Errorf("after an hour the limit is %d, %d is the store's capacity; calls take %v instead of %v", got, capacity, took(), steady)
	}
}

// TestDrift: what is seen while slots are free becomes usual in minutes.
func TestDrift(t *testing.T) {
	t.Parallel()
	k := kindOf(Claim, 1)
	c := NewController(1024)
	c.usual[k] = steady
	for range 600 {
		for range windowSamples {
			c.Admitted(1)
			c.Answered(Claim, 1, 2*steady)
		}
		c.Close(c.began+windowMax, 0)
	}
	if got := c.usual[k]; got < 19*steady/10 || got > 2*steady {
		t.Errorf("after 10 minutes of %v %v is usual", 2*steady, got)
	}
}

// TestDue: a window ends when enough calls have ended, or when it has lasted.
func TestDue(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		calls int
		at    time.Duration
		want  bool
	}{
		{windowSamples, windowMin - 1, false}, {windowSamples - 1, windowMin, false}, {windowSamples, windowMin, true},
		{0, windowMax - 1, false}, {0, windowMax, true},
	} {
		c := NewController(100)
		for n := range row.calls {
			if n%2 == 0 {
				c.Dropped()
			} else {
				c.Answered(Claim, 1, steady)
			}
		}
		if got := c.Due(row.at); got != row.want {
			t.Errorf("%d calls, %v: due %v", row.calls, row.at, got)
		}
	}
}

// TestOverloadOf: how many come for each that is admitted, and back to 1.
func TestOverloadOf(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		admitted, shed int
		want           float64
	}{{100, 0, 1}, {100, 200, 3}, {0, 0, 1}, {0, 5, 5}, {0, 1000, overloadMax}} {
		c := NewController(100)
		for range 20 {
			for range row.admitted {
				c.Admitted(1)
			}
			c.Close(c.began+windowMin, row.shed)
		}
		if got := c.Overload(); got < row.want-0.01 || got > row.want+0.01 {
			t.Errorf("%d admitted, %d shed: %v, want %v", row.admitted, row.shed, got, row.want)
		}
		for range 20 {
			c.Close(c.began+windowMax, 0)
		}
		if got := c.Overload(); got > 1.01 {
			t.Errorf("%d admitted, %d shed, then none: %v", row.admitted, row.shed, got)
		}
	}
}

// TestKinds: each class and size is a kind of its own and knows its class.
func TestKinds(t *testing.T) {
	t.Parallel()
	seen := map[kind]bool{}
	for class := range Class(Classes) {
		for _, sized := range [][]int{{0, 1}, {2, 16}, {17, 128}, {129, 500}} {
			k := kindOf(class, sized[0])
			if k != kindOf(class, sized[1]) || k.class() != class || seen[k] || int(k) >= kinds {
				t.Errorf("%v of %v items is kind %d of class %v", class, sized, k, k.class())
			}
			seen[k] = true
		}
	}
}

// TestWindowKeepsTheLatest of more samples than it has room for.
func TestWindowKeepsTheLatest(t *testing.T) {
	t.Parallel()
	var w window
	for n := range 3 * samplesMax {
		took := time.Duration(1)
		if n >= 2*samplesMax {
			took = 2
		}
		w.add(sample{kindOf(Claim, 1), took})
	}
	w.eachKind(func(_ kind, n int, median time.Duration) {
		if n != samplesMax || median != 2 {
			t.Errorf("%d samples with median %v", n, median)
		}
	})
}
