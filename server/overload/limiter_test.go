package overload

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTest(t testing.TB, ceiling int) *Limiter {
	t.Helper()
	l, err := New(Config{Ceiling: ceiling, Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := New(Config{QueueWait: -1})
	if err == nil {
		t.Fatal("an empty configuration is accepted")
	}
	for _, want := range []string{"Ceiling", "Clock", "QueueWait"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if _, err := New(Config{Ceiling: CeilingMax + 1, Clock: time.Now, QueueWait: QueueWaitMax + 1}); err == nil {
		t.Error("a configuration above the bounds is accepted")
	}
}

func TestClassNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for c := range Class(Classes) {
		if seen[c.String()] || c.String() == "unknown" {
			t.Errorf("class %d is %q", c, c)
		}
		seen[c.String()] = true
	}
	if Class(Classes).String() != "unknown" {
		t.Error("what is no class has a name")
	}
}

// crowd are calls of a test, in a bubble.
type crowd struct {
	t       *testing.T
	limiter *Limiter
	calls   sync.WaitGroup
	mu      sync.Mutex
	served  []string
}

// hold takes a slot that must be free, until the returned function is called.
func (c *crowd) hold(class Class) (release func()) {
	c.t.Helper()
	ticket := &Ticket{}
	if err := c.limiter.Enter(ticket, class); err != nil {
		c.t.Fatal(err)
	}
	if err := ticket.Work(context.Background()); err != nil {
		c.t.Fatal(err)
	}
	return func() {
		ticket.Done(Answered, 1)
		ticket.Leave()
	}
}

// fill takes all slots that class may have.
func (c *crowd) fill(class Class) (releases []func()) {
	c.t.Helper()
	for c.limiter.free(class) {
		releases = append(releases, c.hold(class))
	}
	return releases
}

// queue starts a call that has to wait. When it is served its name is noted,
// and it is done at once.
func (c *crowd) queue(ctx context.Context, name string, class Class) <-chan error {
	c.t.Helper()
	before := c.limiter.Queued(class)
	result := make(chan error, 1)
	c.calls.Go(func() {
		var ticket Ticket
		if err := c.limiter.Enter(&ticket, class); err != nil {
			result <- err
			return
		}
		defer ticket.Leave()
		err := ticket.Work(ctx)
		if err == nil {
			c.mu.Lock()
			c.served = append(c.served, name)
			c.mu.Unlock()
		}
		result <- err
	})
	synctest.Wait()
	if c.limiter.Queued(class) != before+1 {
		c.t.Fatalf("%s does not wait", name)
	}
	return result
}

func (c *crowd) end(releases []func()) {
	for _, release := range releases {
		release()
		synctest.Wait() // one slot at a time, so that the order shows
	}
	c.calls.Wait()
	demandIdle(c.t, c.limiter)
}

func bubble(t *testing.T, ceiling int, run func(*crowd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(&crowd{t: t, limiter: newTest(t, ceiling)}) })
}

// TestHighestFirst: whatever the order of arrival, free slots go to the highest
// class that waits.
func TestHighestFirst(t *testing.T) {
	t.Parallel()
	bubble(t, 1000, func(c *crowd) {
		reserved := c.fill(Finish)
		for class := range Class(Classes) {
			c.queue(context.Background(), class.String(), class)
		}
		c.end(reserved)
		if got := strings.Join(c.served, " "); got != "finish claim read console" {
			t.Errorf("served in the order %s", got)
		}
	})
}

// TestReserve: lower classes leave a fifth of the slots to Finish, and lists
// have a quarter of them at most.
func TestReserve(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		class Class
		want  int
	}{
		{Console, limitStart / consoleShare}, {Read, limitStart - limitStart/reserve},
		{Claim, limitStart - limitStart/reserve}, {Finish, limitStart},
	} {
		bubble(t, 1000, func(c *crowd) {
			releases := c.fill(row.class)
			if len(releases) != row.want {
				t.Errorf("%v calls get %d of %d slots, want %d", row.class, len(releases), limitStart, row.want)
			}
			if row.class != Finish {
				c.hold(Finish)()
			}
			c.end(releases)
		})
	}
}

// TestNewestUnderPressure: a queue that moves is served in order of arrival; one
// that stands, the other way round.
func TestNewestUnderPressure(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		stands time.Duration
		want   string
	}{{QueueWaitDefault / 4, "a b c"}, {QueueWaitDefault/2 + time.Millisecond, "c b a"}} {
		bubble(t, 1000, func(c *crowd) {
			releases := c.fill(Claim)
			for _, name := range []string{"a", "b", "c"} {
				c.queue(context.Background(), name, Claim)
				time.Sleep(time.Microsecond)
			}
			time.Sleep(row.stands)
			c.end(releases)
			if got := strings.Join(c.served, " "); got != row.want {
				t.Errorf("after %v served in the order %s, want %s", row.stands, got, row.want)
			}
		})
	}
}

// TestTooLate: at dequeue, who has less time left than a call takes is refused
// and the slot goes to the next.
func TestTooLate(t *testing.T) {
	t.Parallel()
	bubble(t, 1000, func(c *crowd) {
		const service = 20 * time.Millisecond
		for range 10 { // what a claim takes
			releases := []func(){c.hold(Claim), c.hold(Claim)}
			time.Sleep(service)
			releases[0]()
			releases[1]()
		}
		time.Sleep(windowMax)
		c.hold(Claim)() // ends the window
		if got := c.limiter.mu.control.Median(Claim); got != service {
			t.Fatalf("the median is %v", got)
		}
		releases := c.fill(Claim)
		var cancels []context.CancelFunc
		within := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(context.Background(), d)
			cancels = append(cancels, cancel)
			return ctx
		}
		late := c.queue(within(10*time.Millisecond+service-1), "late", Claim)
		soon := c.queue(within(10*time.Millisecond+service), "in time", Claim)
		time.Sleep(10 * time.Millisecond)
		shed := c.limiter.Shed(Claim)
		releases[0]()
		if err := <-late; !errors.Is(err, ErrTooLate) {
			t.Errorf("a call without time for the answer: %v", err)
		}
		if err := <-soon; err != nil {
			t.Errorf("a call with just enough time: %v", err)
		}
		if n := c.limiter.Shed(Claim) - shed; n != 1 {
			t.Errorf("%d were counted as refused", n)
		}
		c.end(releases[1:])
		for _, cancel := range cancels {
			cancel()
		}
	})
}

// TestWaitEnds: a wait ends after QueueWait, or with the caller; neither keeps
// anything, and both are counted as waiting.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	bubble(t, 1000, func(c *crowd) {
		releases := c.fill(Claim)
		began := time.Now()
		ctx, leave := context.WithCancel(context.Background())
		left, waits := c.queue(ctx, "left", Claim), c.queue(context.Background(), "waits", Claim)
		time.Sleep(QueueWaitDefault / 2)
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) || c.limiter.Shed(Claim) != 0 {
			t.Errorf("who left: %v, %d refused", err, c.limiter.Shed(Claim))
		}
		if err := <-waits; !errors.Is(err, ErrOverloaded) || time.Since(began) != QueueWaitDefault || c.limiter.Shed(Claim) != 1 {
			t.Errorf("who waited: %v after %v, %d refused", err, time.Since(began), c.limiter.Shed(Claim))
		}
		if got := c.limiter.WaitSeconds(); got != 0.075 {
			t.Errorf("waited for %v s in all", got)
		}
		c.end(releases)
	})
}

// TestSlotMeetsLeaver: a slot that comes in the moment in which its waiter leaves
// goes to the next; one that comes with the end of the wait is used.
func TestSlotMeetsLeaver(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		left error
		want error
	}{{context.Canceled, context.Canceled}, {ErrOverloaded, nil}} {
		l := newTest(t, 1000)
		l.mu.Lock()
		for l.free(Claim) {
			l.take(Claim)
		}
		w, err := l.admit(Claim, 0)
		next, nextErr := l.admit(Claim, 0)
		if err != nil || nextErr != nil || w == nil || next == nil {
			t.Fatal(err, nextErr, w, next)
		}
		l.release(Claim, 1)
		if err := l.end(w, 1, row.left); !errors.Is(err, row.want) || len(w.ready) != 0 {
			t.Errorf("%v: %v; %d tokens are left", row.left, err, len(w.ready))
		}
		if next.decided != (row.want != nil) || l.mu.working != below(limitStart) {
			t.Errorf("%v: the next was told: %v; %d have a slot", row.left, next.decided, l.mu.working)
		}
		l.mu.Unlock()
	}
}

// TestQueueIsBounded: a queue holds what is served within the wait. Who finds it
// full is refused at once, before it has read anything.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	bubble(t, 1000, func(c *crowd) {
		const service = 100 * time.Millisecond
		for range 2 * windowSamples {
			c.calls.Go(func() {
				release := c.hold(Claim)
				time.Sleep(service)
				release()
			})
		}
		time.Sleep(windowMax)
		c.hold(Claim)()
		limit := c.limiter.Limit()
		releases := c.fill(Claim)
		for range limit / 2 { // 50 ms of calls that take 100 ms
			c.queue(context.Background(), "", Claim)
		}
		var ticket Ticket
		if err := c.limiter.Enter(&ticket, Claim); !errors.Is(err, ErrOverloaded) {
			t.Errorf("the queue of %d with %d slots takes another: %v", c.limiter.Queued(Claim), limit, err)
		}
		if err := c.limiter.Enter(&ticket, Finish); err != nil {
			t.Errorf("the queue of claims keeps a completion out: %v", err)
		}
		ticket.Leave()
		c.end(releases)
	})
}

// TestRoom: room is bounded whatever the slots; a fifth is for Finish.
func TestRoom(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ ceiling, lower, all int }{{1, 1, 1}, {4, 4, 4}, {5, 4, 5}, {1024, 820, 1024}} {
		l := newTest(t, row.ceiling)
		tickets := make([]Ticket, row.ceiling+1)
		held := 0
		for held < len(tickets) && l.Enter(&tickets[held], Read) == nil {
			held++
		}
		lower := held
		for held < len(tickets) && l.Enter(&tickets[held], Finish) == nil {
			held++
		}
		if lower != row.lower || held != row.all || l.InFlight() != int64(held) {
			t.Errorf("ceiling %d: %d lower and %d in all have room, want %d and %d", row.ceiling, lower, held, row.lower, row.all)
		}
		for i := range tickets {
			tickets[i].Leave()
			tickets[i].Leave()
		}
		demandIdle(t, l)
	}
}

// TestRetryAfter: it grows with the load beyond what is admitted, within its
// bounds, and spreads as widely.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ overload, rand, want float64 }{
		{1, 0, 0.1}, {1, 0.999, 0.1499}, {3, 0, 0.15}, {3, 0.5, 0.3}, {3, 0.999, 0.4497}, {32, 0, 1.6}, {32, 0.999, 3.2},
	} {
		l, err := New(Config{Ceiling: 10, Clock: time.Now, Rand: func() float64 { return row.rand }})
		if err != nil {
			t.Fatal(err)
		}
		l.overload.Store(int64(row.overload * 1000))
		if got := l.RetryAfter().Seconds(); got < row.want-1e-9 || got > row.want+1e-9 {
			t.Errorf("overload %v, jitter %v: %v s, want %v", row.overload, row.rand, got, row.want)
		}
	}
}

// TestClockReads: with enough samples in a window one call in eight is timed,
// and that one still is.
func TestClockReads(t *testing.T) {
	t.Parallel()
	reads := 0
	l, err := New(Config{Ceiling: 100, Clock: func() time.Time { reads++; return time.Unix(0, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	for range windowDense {
		admitOnce(t.Context(), t, l)
	}
	if reads != 1+2*windowDense {
		t.Errorf("%d reads for %d calls in a quiet window", reads, windowDense)
	}
	reads = 0
	for range 10 * denseStep {
		admitOnce(t.Context(), t, l)
	}
	if reads != 20 || l.mu.control.samples.seen != windowDense+10 {
		t.Errorf("%d reads and %d samples for %d calls in a busy window", reads, l.mu.control.samples.seen-windowDense, 10*denseStep)
	}
}

// TestCheap: a call that gets its slot at once allocates nothing, and neither
// does one that is refused. It counts allocations, and so runs alone.
func TestCheap(t *testing.T) {
	l := newTest(t, 10)
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() { admitOnce(ctx, t, l) }); n != 0 {
		t.Errorf("an admission allocates %v times", n)
	}
	held := make([]Ticket, 8)
	for i := range held {
		if err := l.Enter(&held[i], Claim); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(1000, func() {
		var ticket Ticket
		if l.Enter(&ticket, Claim) == nil {
			t.Fatal("there is room")
		}
	}); n != 0 {
		t.Errorf("a refusal allocates %v times", n)
	}
}

func admitOnce(ctx context.Context, tb testing.TB, l *Limiter) {
	tb.Helper()
	var ticket Ticket
	if err := l.Enter(&ticket, Claim); err != nil {
		tb.Fatal(err)
	}
	if err := ticket.Work(ctx); err != nil {
		tb.Fatal(err)
	}
	ticket.Done(Answered, 1)
	ticket.Leave()
}
