package quota

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBucket(t *testing.T) {
	t.Parallel()
	type step struct {
		at     time.Duration
		rate   int64
		take   int64
		charge int64
		got    int64
		wait   time.Duration // for what was not got, or for one more
	}
	for name, steps := range map[string][]step{
		"a burst of two seconds, then the rate": {
			{0, 10, 25, 0, 20, 500 * time.Millisecond},
			{99 * time.Millisecond, 10, 1, 0, 0, time.Millisecond},
			{100 * time.Millisecond, 10, 1, 0, 1, 100 * time.Millisecond},
		},
		"idle fills up to the burst and no further": {
			{0, 10, 20, 0, 20, 100 * time.Millisecond},
			{time.Hour, 10, 100, 0, 20, 2 * time.Second},
		},
		"charges go into debt, and are paid before anything is admitted": {
			{0, 10, 0, 50, 0, 3100 * time.Millisecond},
			{3 * time.Second, 10, 1, 0, 0, 100 * time.Millisecond},
			{3100 * time.Millisecond, 10, 1, 0, 1, 100 * time.Millisecond},
		},
		"debt is bounded": {
			{0, 10, 0, 1 << 40, 0, DebtMax + 100*time.Millisecond},
			{0, 10, 0, 1 << 40, 0, DebtMax + 100*time.Millisecond},
			{DebtMax + time.Second, 10, 30, 0, 10, 2 * time.Second},
		},
		"a lower limit holds at the next call": {
			{0, 100, 0, 0, 0, 0},
			{0, 10, 100, 0, 20, 2 * time.Second},
		},
		"a higher limit holds from the next call on, not before": {
			{0, 10, 20, 0, 20, 100 * time.Millisecond},
			{time.Second, 1000, 2000, 0, 10, 1990 * time.Millisecond},
			{2 * time.Second, 1000, 2000, 0, 1000, time.Second},
		},
		"a higher limit does not make up for a long time": {
			{0, 10, 20, 0, 20, 100 * time.Millisecond},
			{100 * time.Second, 1000, 2000, 0, 1000, time.Second},
		},
		"a lower limit shortens debt": {
			{0, 100, 0, 1 << 40, 0, DebtMax + 10*time.Millisecond},
			{0, 1, 1, 0, 0, DebtMax + time.Second},
		},
		"the largest rate does not overflow": {
			{0, RateMax * 50, 1 << 40, 0, 2 * RateMax, 2 * time.Second},
			{1000 * time.Hour, RateMax, 0, 1 << 60, 0, DebtMax + 10*time.Nanosecond},
			{2000 * time.Hour, RateMax, 1 << 40, 0, 2 * RateMax, 2 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b bucket
			for i, s := range steps {
				form := shapeOf(s.rate, 1)
				b.turn(s.at, form)
				if got := b.take(s.take); got != s.got {
					t.Errorf("step %d: got %d, want %d", i, got, s.got)
				}
				if s.charge > 0 {
					b.charge(s.charge, form)
				}
				if wait := b.wait(max(s.take-s.got, 1), form); wait != s.wait {
					t.Errorf("step %d: wait %v, want %v", i, wait, s.wait)
				}
			}
		})
	}
}

func TestItemsHaveABurstOfABatch(t *testing.T) {
	t.Parallel()
	q, clock := setup(t)
	l := &Limits{Items: 10}
	if n, after := q.TakeItems(shop, l, 500); n != 500 || after != 0 {
		t.Errorf("a whole batch: %d, %v", n, after)
	}
	if n, after := q.TakeItems(shop, l, 3); n != 0 || after != 300*time.Millisecond {
		t.Errorf("after it: %d, %v", n, after)
	}
	clock.now += 200 * time.Millisecond
	if n, after := q.TakeItems(shop, l, 3); n != 2 || after != 100*time.Millisecond {
		t.Errorf("a part: %d, %v", n, after)
	}
}

// TestNeverMoreThanAgreed: in every stretch of time at most rate × time + burst
// is admitted, whatever is charged beside it; debt is bounded; and what the
// caller is told to wait is exact.
func TestNeverMoreThanAgreed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Int64Range(1, 2000).Draw(t, "rate")
		least := rapid.SampledFrom([]int64{1, 500}).Draw(t, "least")
		form := shapeOf(rate, least)
		type event struct {
			at       time.Duration
			admitted int64 // up to here, this one included
		}
		events := []event{{}}
		var b bucket
		now, admitted := time.Duration(0), int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "pause"))
			b.turn(now, form)
			n := rapid.Int64Range(1, 1000).Draw(t, "n")
			if rapid.Bool().Draw(t, "finishes") {
				b.charge(n, form)
			} else {
				before := admitted
				admitted += b.take(n)
				for _, e := range events {
					most := form.burst + rate*int64(now-e.at)
					if got := (admitted - e.admitted) * token; got > most {
						t.Fatalf("%d admitted from %v to %v: more than %d", admitted-e.admitted, e.at, now, most/token)
					}
				}
				events = append(events, event{now, before}, event{now, admitted})
			}
			if b.tokens < -form.debtMax() || b.tokens > form.burst {
				t.Fatalf("tokens are %d", b.tokens)
			}
			later, wait := b, b.wait(1, form)
			if later.turn(now+wait, form); later.take(1) != 1 {
				t.Fatalf("after the wait of %v nothing is admitted", wait)
			}
			if early := b; wait > 0 {
				if early.turn(now+wait-1, form); early.take(1) != 0 {
					t.Fatalf("the wait of %v is too long", wait)
				}
			}
		}
	})
}
