package overload

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// groupStore commits whatever waits together, as arbiter and store do: the more
// come at once the larger the group, and the throughput.
type groupStore struct {
	queue chan chan struct{}
	done  sync.WaitGroup
}

func newGroupStore(senders int) *groupStore {
	s := &groupStore{queue: make(chan chan struct{}, 1<<16)}
	for range senders {
		s.done.Go(func() {
			for first := range s.queue {
				group := []chan struct{}{first}
				for len(s.queue) > 0 && len(group) < 500 {
					if next, ok := <-s.queue; ok {
						group = append(group, next)
					}
				}
				time.Sleep(12*time.Millisecond + time.Duration(len(group))*40*time.Microsecond)
				for _, done := range group {
					close(done)
				}
			}
		})
	}
	return s
}

// groupRate is how many claims per second 256 callers in a loop get.
func groupRate(t *testing.T, limited bool) (perSecond float64) {
	t.Helper()
	const warmUp, measured = 6 * time.Second, 2 * time.Second
	synctest.Test(t, func(t *testing.T) {
		l, store := newTest(t, 1024), newGroupStore(2)
		began := time.Now()
		var served atomic.Int64
		var callers sync.WaitGroup
		claim := func() {
			var ticket Ticket
			defer ticket.Leave()
			if limited {
				if err := errors.Join(l.Enter(&ticket, Claim), ticket.Work(context.Background())); err != nil {
					time.Sleep(l.RetryAfter())
					return
				}
			}
			done := make(chan struct{})
			store.queue <- done
			<-done
			ticket.Done(Answered, 1)
			if time.Since(began) > warmUp {
				served.Add(1)
			}
		}
		for range 256 {
			callers.Go(func() {
				for time.Since(began) < warmUp+measured {
					claim()
				}
			})
		}
		callers.Wait()
		close(store.queue)
		store.done.Wait()
		perSecond = float64(served.Load()) / measured.Seconds()
		demandIdle(t, l)
	})
	return perSecond
}

// TestGroupCommit: a store that gets better the more calls it has at once is
// not kept from it.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	without, with := groupRate(t, false), groupRate(t, true)
	t.Logf("claims per second: %.0f without a limiter, %.0f with one", without, with)
	if with < 0.75*without { // how calls fall into groups differs from run to run
		t.Errorf("the limiter costs throughput: %.0f claims per second instead of %.0f", with, without)
	}
}
