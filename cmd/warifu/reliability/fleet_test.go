package reliability_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
)

const (
	// fleetClients is how many ask at once; never more than that for one key,
	// or the checker's search explodes.
	fleetClients = 8
	// fleetKeys are asked about in one round; every round has keys of its own,
	// because long histories of one key are hard to judge.
	fleetKeys    = 24
	fleetBatch   = 5
	abandonShare = 0.03 // of the calls are left by their callers
	fleetBodies  = 3    // different results in all: conflicts are likely
	// wrongFenceShare of what names a grant names its attempt with a fence that
	// lies beside its own.
	wrongFenceShare = 0.1
)

// fleet are clients that share keys, attempts and grants with each other, as
// badly behaved as they like: they claim, complete, release and extend what is
// theirs and what is not. All that they see goes into one history.
type fleet struct {
	t       *testing.T
	rng     *rand.Rand
	history *history
	seats   []*seat // one for each server; a call takes any of them
	round   int
	sends   atomic.Int64
	mu      struct {
		sync.Mutex
		grants map[string][]op // acknowledged in this round, by key
		tries  []op            // claims of this round
	}
}

// seat is the server of the moment. While one is replaced, clients go to another,
// or wait where there is none.
type seat struct {
	sync.RWMutex
	client api
	server int
	// void, if set, tells whether a reply came too late to count.
	void func() bool
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	return &fleet{t: t, rng: newRandom(t), history: newHistory(), seats: []*seat{{}}}
}

// sit takes a seat that nobody replaces; the caller leaves it with RUnlock.
func (f *fleet) sit(rng *rand.Rand) *seat {
	order := rng.Perm(len(f.seats))
	for _, i := range order {
		if f.seats[i].TryRLock() {
			return f.seats[i]
		}
	}
	s := f.seats[order[0]]
	s.RLock()
	return s
}

// play lets the clients make so many sends, about fresh keys. At a random one of
// them trouble begins, which may replace the server while they go on.
func (f *fleet) play(sends int64, trouble func()) {
	f.round++
	f.mu.grants, f.mu.tries = map[string][]op{}, nil
	f.sends.Store(sends)
	begin := f.rng.Int64N(sends)
	due := make(chan struct{})
	begun := sync.OnceFunc(func() { close(due) })
	var clients sync.WaitGroup
	defer clients.Wait()
	for number := range fleetClients {
		rng := fork(f.rng)
		clients.Go(func() {
			defer begun() // also when a finding ends the round early
			for left := f.sends.Add(-1); left > 0 && !f.t.Failed(); left = f.sends.Add(-1) {
				if left <= begin {
					begun()
				}
				f.turn(number, rng)
			}
		})
	}
	<-due
	trouble()
}

// turn makes one call.
func (f *fleet) turn(number int, rng *rand.Rand) {
	ops := f.choose(rng)
	s := f.sit(rng)
	client, server, void := s.client, s.server, s.void
	s.RUnlock()
	ctx, leave := context.WithTimeout(f.t.Context(), patience)
	defer leave()
	if rng.Float64() < abandonShare {
		go leave()
	}
	call := f.history.now()
	replies := make([]reply, 1)
	var err error
	if len(ops) == 1 {
		replies[0], err = send(ctx, client, ops[0])
	} else {
		replies, err = sendBatch(ctx, client, ops)
	}
	lost := void != nil && void()
	end := f.history.now()
	if err != nil && !lost {
		f.t.Error(err)
		return
	}
	for i, o := range ops {
		e := event{number, o, reply{verdict: unknown}, call, never, server}
		if !lost {
			e.reply = replies[i]
		}
		if e.reply.verdict != unknown {
			e.end = end
		}
		f.history.add(e)
		f.learn(e)
	}
}

func (f *fleet) choose(rng *rand.Rand) []op {
	kinds := []kind{claimCall, claimCall, claimCall, recordCall, completeCall, completeCall, extendCall, releaseCall, releaseCall, lookupCall}
	k := kinds[rng.IntN(len(kinds))]
	n := 1
	if k != releaseCall && k != lookupCall && rng.IntN(3) == 0 {
		n = fleetBatch
	}
	var ops []op
	for _, key := range rng.Perm(fleetKeys)[:n] {
		ops = append(ops, f.about(rng, k, key))
	}
	return ops
}

// about is a call of a kind about a key: with a new attempt, an old one, a
// grant of anybody's, or one that nobody has.
func (f *fleet) about(rng *rand.Rand, k kind, key int) op {
	o := f.naming(k, key)
	f.mu.Lock()
	defer f.mu.Unlock()
	grants := f.mu.grants[o.consumer+o.event]
	switch k {
	case claimCall, recordCall:
		o.attempt = uuid.NewString()
		if len(grants) > 0 && rng.IntN(2) == 0 {
			o.attempt = grants[rng.IntN(len(grants))].attempt
		} else if len(f.mu.tries) > 0 && rng.IntN(2) == 0 {
			old := f.mu.tries[rng.IntN(len(f.mu.tries))]
			o.consumer, o.event, o.attempt = old.consumer, old.event, old.attempt
		}
	case completeCall, extendCall, releaseCall:
		o.attempt, o.fence = uuid.NewString(), 1
		if len(grants) > 0 {
			g := grants[max(rng.IntN(len(grants)), rng.IntN(len(grants)))] // mostly late ones
			o.attempt, o.fence = g.attempt, g.fence
			if rng.Float64() < wrongFenceShare {
				o.fence += int64(2*rng.IntN(2) - 1)
			}
		}
	case lookupCall, lapse:
	}
	if k == completeCall || k == recordCall {
		o.body = fmt.Sprint("result ", rng.IntN(fleetBodies))
	}
	return o
}

// naming is a call of a kind about one of the round's keys.
func (f *fleet) naming(k kind, key int) op {
	return op{kind: k, consumer: []string{regrant, hold}[key%2], event: fmt.Sprintf("%d-%d", f.round, key)}
}

// learn remembers what a client was told, for all of them.
func (f *fleet) learn(e event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case e.reply.verdict == unknown && e.op.kind == claimCall:
		f.mu.tries = append(f.mu.tries, e.op) // to be resent
	case e.granted() != 0:
		o := e.op
		o.fence = e.reply.fence
		f.mu.grants[o.consumer+o.event] = append(f.mu.grants[o.consumer+o.event], o)
	}
}
