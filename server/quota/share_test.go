package quota

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

func TestFits(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		mine, all, limit int64
		share            float64
		alone, fits      bool
	}{
		"slots are free":           {60, 63, 64, 0.5, false, true},
		"slots are short":          {32, 64, 64, 0.5, false, false},
		"one below the share":      {31, 64, 64, 0.5, false, true},
		"alone":                    {500, 500, 64, 0.5, true, true},
		"one slot":                 {0, 1, 1, 0.5, false, true},
		"one slot, and one inside": {1, 1, 1, 0.5, false, false},
		"switched off":             {63, 64, 64, 1, false, true},
		"a newcomer always fits":   {0, 10_000, 8, 0.5, false, true},
	} {
		if got := fits(row.mine, row.all, row.limit, row.share, row.alone); got != row.fits {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestEnter(t *testing.T) {
	t.Parallel()
	q, clock := setup(t)
	var slots []Slot
	enter := func(id claim.TenantID, finishes, want bool) {
		t.Helper()
		s, ok := q.Enter(id, 4, finishes)
		if ok != want {
			t.Errorf("tenant %d enters: %v, want %v", id, ok, want)
		}
		slots = append(slots, s)
	}
	for range 6 {
		enter(1, false, true) // alone
	}
	enter(2, false, true)
	enter(1, false, false) // somebody else is there
	enter(1, true, true)   // finishing is never refused
	enter(2, false, true)
	enter(2, false, false)
	clock.now += OthersMax - 1
	enter(1, false, false)
	clock.now += OthersMax // tenant 2 has not called for that long
	enter(1, false, true)
	for i := range slots {
		slots[i].Leave()
		slots[i].Leave() // only the first counts
	}
	if all := q.fair.mu.all; all != 0 || q.entry(1).running != 0 || q.entry(2).running != 0 {
		t.Errorf("%d calls are still inside", all)
	}
	if e := ShareExceeded(); !e.Over() || e.RetryAfter <= 0 {
		t.Errorf("%+v", e)
	}
}

// TestNoisyTenant: a tenant that sends three times what the server can do
// leaves the p50 of the others within 20 %; without shares it does not, and
// then this test would prove nothing.
func TestNoisyTenant(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, quiet := range []time.Duration{33 * time.Millisecond, 200 * time.Millisecond, time.Second} {
		base := simulate(t, seed, quiet, 0, ShareDefault)
		fair := simulate(t, seed, quiet, 3, ShareDefault)
		free := simulate(t, seed, quiet, 3, 1e6)
		t.Logf("a call every %v: p50 %v alone, %v beside a noisy tenant, %v without shares", quiet, base, fair, free)
		if fair > base*12/10 {
			t.Errorf("a call every %v: p50 is %v, and %v alone", quiet, fair, base)
		}
		if free < base*2 {
			t.Errorf("a call every %v: without shares p50 is %v: the simulation does not load", quiet, free)
		}
	}
}

// The simulated server: slots of one service time each, and a queue before
// them that is bounded and first come, first served, which is the worst for
// whoever comes late.
const (
	simSlots   = 16
	simService = 16 * time.Millisecond // a tenth less to a tenth more
	simQueue   = 50                    // 50 ms of work
	simLength  = 20 * time.Second
)

type simEvent struct {
	at    time.Duration
	who   claim.TenantID
	ends  bool // of a call; otherwise one arrives
	came  time.Duration
	place Slot
}

type simEvents []simEvent

func (e simEvents) Len() int           { return len(e) }
func (e simEvents) Less(i, j int) bool { return e[i].at < e[j].at }
func (e simEvents) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *simEvents) Push(v any)        { *e = append(*e, v.(simEvent)) }
func (e *simEvents) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// simulate returns the p50 of ten quiet tenants, each with a call every quiet
// on average, beside a tenant that sends noise times what the server can do.
func simulate(t *testing.T, seed uint64, quiet time.Duration, noise, share float64) time.Duration {
	t.Helper()
	var now time.Duration
	q, err := New(Config{Monotonic: func() time.Duration { return now }})
	if err != nil {
		t.Fatal(err)
	}
	q.fair.share = share
	draw := rand.New(rand.NewPCG(seed, 1))
	every := func(mean time.Duration) time.Duration { return time.Duration(draw.ExpFloat64() * float64(mean)) }
	const noisy = 99
	pause := func(who claim.TenantID) time.Duration {
		if who == noisy {
			return every(time.Duration(float64(simService) / simSlots / noise))
		}
		return every(quiet)
	}
	events := &simEvents{}
	for who := claim.TenantID(1); who <= 10; who++ {
		heap.Push(events, simEvent{at: pause(who), who: who})
	}
	if noise > 0 {
		heap.Push(events, simEvent{who: noisy})
	}
	var queue []simEvent
	var took []time.Duration
	busy := 0
	start := func(e simEvent) {
		busy++
		e.at, e.ends = now+simService*9/10+time.Duration(draw.Int64N(int64(simService/5))), true
		heap.Push(events, e)
	}
	for events.Len() > 0 {
		e := heap.Pop(events).(simEvent)
		if now = e.at; now > simLength {
			break
		}
		if e.ends {
			e.place.Leave()
			if busy--; e.who != noisy {
				took = append(took, now-e.came)
			}
			if len(queue) > 0 {
				start(queue[0])
				queue = queue[1:]
			}
			continue
		}
		heap.Push(events, simEvent{at: now + max(pause(e.who), 1), who: e.who})
		var ok bool
		if e.place, ok = q.Enter(e.who, simSlots, false); !ok {
			continue
		}
		switch e.came = now; {
		case busy < simSlots:
			start(e)
		case len(queue) < simQueue:
			queue = append(queue, e)
		default:
			e.place.Leave() // shed
		}
	}
	slices.Sort(took)
	if len(took) < 20 {
		t.Fatalf("only %d calls were served", len(took))
	}
	return took[len(took)/2]
}
