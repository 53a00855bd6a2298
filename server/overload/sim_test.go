package overload

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The simulations run limiter, store and clients in virtual time, with real
// goroutines, contexts and timers.

// simStore answers with a fixed number of workers. Work that was handed over is
// done also when its caller has left: that is what makes overloads last.
type simStore struct {
	work    chan chan struct{}
	service func() time.Duration
	workers sync.WaitGroup
	stall   atomic.Pointer[chan struct{}] // workers wait until it is closed
}

func newSimStore(workers int, service func() time.Duration) *simStore {
	s := &simStore{work: make(chan chan struct{}, 1<<20), service: service}
	open := make(chan struct{})
	close(open)
	s.stall.Store(&open)
	for range workers {
		s.workers.Go(func() {
			for done := range s.work {
				<-*s.stall.Load()
				time.Sleep(s.service())
				close(done)
			}
		})
	}
	return s
}

func (s *simStore) do(ctx context.Context) error {
	done := make(chan struct{})
	s.work <- done
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *simStore) close() {
	close(s.work)
	s.workers.Wait()
}

// sim is a server with its clients.
type sim struct {
	t        *testing.T
	limiter  *Limiter
	store    *simStore
	began    time.Time
	calls    sync.WaitGroup
	attempts atomic.Int64               // calls that reached the server
	good     [120][Classes]atomic.Int64 // answered in time, by second and class
	logical  atomic.Int64
	rand     *rand.Rand // of the one goroutine that makes arrivals
}

const simSeed = 20261130

func newSim(t *testing.T, workers int, service time.Duration) *sim {
	t.Helper()
	t.Logf("seed %d", simSeed)
	s := &sim{t: t, began: time.Now(), rand: rand.New(rand.NewPCG(simSeed, 1))}
	durations := &lockedRand{rand: rand.New(rand.NewPCG(simSeed, 2))}
	s.store = newSimStore(workers, func() time.Duration {
		return service/2 + time.Duration(durations.exp()*float64(service/2))
	})
	jitter := &lockedRand{rand: rand.New(rand.NewPCG(simSeed, 3))}
	var err error
	if s.limiter, err = New(Config{Ceiling: 1024, Clock: time.Now, Rand: jitter.float}); err != nil {
		t.Fatal(err)
	}
	return s
}

type lockedRand struct {
	mu   sync.Mutex
	rand *rand.Rand
}

func (l *lockedRand) exp() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rand.ExpFloat64()
}

func (l *lockedRand) float() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rand.Float64()
}

// serve is what a server does with one call.
func (s *sim) serve(ctx context.Context, class Class) error {
	s.attempts.Add(1)
	var ticket Ticket
	if err := s.limiter.Enter(&ticket, class); err != nil {
		return err
	}
	defer ticket.Leave()
	if err := ticket.Work(ctx); err != nil {
		return err
	}
	err := s.store.do(ctx)
	if err != nil {
		ticket.Done(Abandoned, 1)
		return err
	}
	ticket.Done(Answered, 1)
	s.good[int(time.Since(s.began)/time.Second)][class].Add(1)
	return nil
}

// client retries with a budget: 10 tokens, one for each failure, a tenth back
// for each success, and no retries below half.
type client struct {
	sim    *sim
	mu     sync.Mutex
	tokens float64
	rand   *lockedRand
}

const (
	clientTokens   = 10
	clientRatio    = 0.1
	clientAttempts = 3
	clientTimeout  = time.Second
)

func (c *client) spend(err error) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.tokens = min(clientTokens, c.tokens+clientRatio)
		return false
	}
	c.tokens = max(0, c.tokens-1)
	return c.tokens > clientTokens/2
}

func (c *client) call(class Class) {
	c.sim.logical.Add(1)
	for attempt := range clientAttempts {
		ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
		err := c.sim.serve(ctx, class)
		cancel()
		if !c.spend(err) || attempt == clientAttempts-1 {
			return
		}
		pause := time.Duration(c.rand.float() * float64(50*time.Millisecond<<attempt))
		if errors.Is(err, ErrOverloaded) {
			pause = max(pause, c.sim.limiter.RetryAfter())
		}
		time.Sleep(pause)
	}
}

func (s *sim) clients(n int) []*client {
	out := make([]*client, n)
	for i := range out {
		out[i] = &client{sim: s, tokens: clientTokens, rand: &lockedRand{rand: rand.New(rand.NewPCG(simSeed, uint64(i)+10))}}
	}
	return out
}

// arrive makes arrivals at a rate per second for a time, at random instants,
// and calls each in a goroutine of its own.
func (s *sim) arrive(rate float64, passed time.Duration, call func(n int)) {
	end := time.Now().Add(passed)
	for n := 0; ; n++ {
		time.Sleep(time.Duration(s.rand.ExpFloat64() / rate * float64(time.Second)))
		if !time.Now().Before(end) {
			return
		}
		s.calls.Go(func() { call(n) })
	}
}

// goodput is how many calls were answered in time from second from until to,
// per second.
func (s *sim) goodput(from, to int) float64 {
	total := int64(0)
	for second := from; second < to; second++ {
		for class := range s.good[second] {
			total += s.good[second][class].Load()
		}
	}
	return float64(total) / float64(to-from)
}

func (s *sim) second() int { return int(time.Since(s.began) / time.Second) }

// finish waits for all calls, and demands that nothing was leaked.
func (s *sim) finish() {
	s.calls.Wait()
	s.store.close()
	demandIdle(s.t, s.limiter)
}

func demandIdle(t *testing.T, l *Limiter) {
	t.Helper()
	if l.InFlight() != 0 || l.Working() != 0 {
		t.Errorf("after all calls %d have room and %d a slot", l.InFlight(), l.Working())
	}
	for c := range Class(Classes) {
		if n := l.Queued(c); n != 0 || l.mu.byClass[c] != 0 {
			t.Errorf("after all calls %d of class %v are queued and %d have a slot", n, c, l.mu.byClass[c])
		}
	}
}
