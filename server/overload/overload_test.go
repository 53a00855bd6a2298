package overload

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestOverload: at three times the load that the store can answer, as many are
// answered in time as at its best; then it is back to normal by itself.
func TestOverload(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		workers int
		service time.Duration
	}{
		{"fast store", 2, 4 * time.Millisecond},
		{"database", 10, 20 * time.Millisecond},
		{"one slow worker", 1, 5 * time.Millisecond},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, row.workers, row.service)
				capacity := float64(row.workers) / row.service.Seconds()
				call := func(int) {
					ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
					defer cancel()
					_ = s.serve(ctx, Claim)
				}
				s.arrive(capacity*1.05, 10*time.Second, call)
				peak := s.goodput(4, 10)
				s.arrive(3*capacity, 20*time.Second, call)
				under := s.goodput(11, 30)
				limit := s.limiter.Limit()
				s.arrive(capacity*0.7, 30*time.Second, call)
				shed := s.limiter.Shed(Claim)
				s.arrive(capacity*0.7, 10*time.Second, call)
				after := s.goodput(60, 70)
				t.Logf("per second: capacity %.0f, peak %.0f, at three times the load %.0f (limit %d), after it %.0f", capacity, peak, under, limit, after)
				if under < 0.9*peak {
					t.Errorf("goodput falls from %.0f to %.0f per second", peak, under)
				}
				if n := s.limiter.Shed(Claim) - shed; n > 0 || after < 0.65*capacity {
					t.Errorf("30 s later %d are refused, and %.0f per second answered", n, after)
				}
				s.finish()
			})
		})
	}
}

// TestColdStart: a server that starts in the middle of an overload, and so has
// never seen how fast its store can be, finds out.
func TestColdStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const workers, service = 10, 100 * time.Millisecond
		s := newSim(t, workers, service)
		capacity := float64(workers) / service.Seconds()
		var waited, served atomic.Int64
		call := func(int) {
			ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
			defer cancel()
			began := time.Now()
			if s.serve(ctx, Claim) == nil && s.second() >= 40 {
				waited.Add(int64(time.Since(began)))
				served.Add(1)
			}
		}
		s.arrive(3*capacity, 60*time.Second, call)
		good, mean := s.goodput(20, 60), time.Duration(waited.Load()/max(1, served.Load()))
		t.Logf("per second: %.0f of %.0f, in %v on average; limit %d", good, capacity, mean, s.limiter.Limit())
		if good < 0.9*capacity || mean > 6*service {
			t.Errorf("%.0f of %.0f per second are answered, after %v on average", good, capacity, mean)
		}
		s.finish()
	})
}

// TestStall: the store answers nothing for 30 s at 70 % load, while clients
// retry. It recovers without help, and the retries cost next to nothing.
func TestStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 10, 20*time.Millisecond)
		const capacity, load = 500, 350
		clients := s.clients(20)
		call := func(n int) { clients[n%len(clients)].call(Claim) }
		s.arrive(load, 10*time.Second, call)
		before := s.goodput(3, 10)
		attempts, logical := s.attempts.Load(), s.logical.Load()
		stalled := make(chan struct{})
		s.store.stall.Store(&stalled)
		s.arrive(load, 30*time.Second, call)
		stuck := s.goodput(42-1, 42)
		amplified := float64(s.attempts.Load()-attempts) / float64(s.logical.Load()-logical)
		limit := s.limiter.Limit()
		close(stalled)
		ended := s.second()
		s.arrive(load, 30*time.Second, call)
		back := ended
		for s.goodput(back, back+1) < 0.9*before && back < ended+29 {
			back++
		}
		after := s.goodput(ended+20, ended+30)
		total := float64(s.attempts.Load()) / float64(s.logical.Load())
		t.Logf("per second: before %.0f, during %.0f, after %.0f; back after %d s; limit %d; amplification %.3f in the stall, %.3f in all",
			before, stuck, after, back-ended, limit, amplified, total)
		if after < 0.95*before || back-ended > 10 {
			t.Errorf("goodput was %.0f and is %.0f per second; back after %d s", before, after, back-ended)
		}
		if amplified > 1.2 || total > 1.2 {
			t.Errorf("retries amplify the load %.2f times in the stall, %.2f in all", amplified, total)
		}
		if limit != limitMin {
			t.Errorf("in the stall the limit is %d, want %d", limit, limitMin)
		}
		s.finish()
	})
}

// TestClasses: under three times the load the higher class is served in full,
// and only what is left goes to the lower ones.
func TestClasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 10, 20*time.Millisecond)
		const capacity = 500
		s.arrive(3*capacity, 20*time.Second, func(n int) {
			ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
			defer cancel()
			switch class := n % 10; { // of 1500: 300 finish, 600 claim, 300 read, 300 list
			case class < 2:
				_ = s.serve(ctx, Finish)
			case class < 6:
				_ = s.serve(ctx, Claim)
			case class < 8:
				_ = s.serve(ctx, Read)
			default:
				_ = s.serve(ctx, Console)
			}
		})
		var good [Classes]float64
		for second := 5; second < 20; second++ {
			for c := range good {
				good[c] += float64(s.good[second][c].Load()) / 15
			}
		}
		t.Logf("per second: finish %.0f of 300, claim %.0f of 600, read %.0f of 300, console %.0f of 300",
			good[Finish], good[Claim], good[Read], good[Console])
		if good[Finish] < 0.97*300 {
			t.Errorf("%.0f of 300 finish calls per second are served", good[Finish])
		}
		if n := s.limiter.Shed(Finish); n > 0 {
			t.Errorf("%d finish calls were refused", n)
		}
		if good[Claim] < 5*(good[Read]+good[Console]) || good[Claim] < 150 {
			t.Errorf("lower classes are served instead of claims")
		}
		s.finish()
	})
}
