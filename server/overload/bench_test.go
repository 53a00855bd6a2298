package overload

import (
	"sync/atomic"
	"testing"
)

// ceilingOnly is the least that a limiter can be: one counter, no queue, no
// classes beside a reserve, nothing learnt.
type ceilingOnly struct {
	inFlight atomic.Int64
	max      int64
}

func (l *ceilingOnly) enter() bool {
	if l.inFlight.Add(1) > l.max-l.max/reserve {
		l.inFlight.Add(-1)
		return false
	}
	return true
}

// BenchmarkAdmit is one call through the limiter without contention for slots,
// clock reads included, beside a bare counter.
func BenchmarkAdmit(b *testing.B) {
	b.Run("serial", func(b *testing.B) {
		l, ctx := newTest(b, 1024), b.Context()
		b.ReportAllocs()
		for b.Loop() {
			admitOnce(ctx, b, l)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		l, ctx := newTest(b, 1024), b.Context()
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				admitOnce(ctx, b, l)
			}
		})
	})
	b.Run("refused", func(b *testing.B) {
		l := newTest(b, 1)
		var held, ticket Ticket
		if err := l.Enter(&held, Claim); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if l.Enter(&ticket, Claim) == nil {
				b.Fatal("there is room")
			}
		}
	})
	b.Run("counter/serial", func(b *testing.B) {
		l := &ceilingOnly{max: 1024}
		for b.Loop() {
			if !l.enter() {
				b.Fatal("there is no room")
			}
			l.inFlight.Add(-1)
		}
	})
	b.Run("counter/parallel", func(b *testing.B) {
		l := &ceilingOnly{max: 1024}
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if l.enter() {
					l.inFlight.Add(-1)
				}
			}
		})
	})
}

// BenchmarkWindow is the work at the end of a full window, ten times a second.
func BenchmarkWindow(b *testing.B) {
	c := NewController(1024)
	b.ReportAllocs()
	for b.Loop() {
		for i := range samplesMax {
			c.Answered(Class(i%Classes), 1<<(i%10), durationFine*2)
		}
		c.Close(c.began+windowMin, 0)
	}
}
