package reliability_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	leaseLength = time.Hour

	killLanes   = 3  // servers that are killed side by side, each on a disk of its own
	killCycles  = 52 // of each
	killClients = 6  // of each server
	// killAfterMax: a kill comes after a random number of sends up to this.
	killAfterMax = 120
	// earlyKillShare of the starts are killed on their way up, within earlyKillMax.
	earlyKillShare = 0.15
	earlyKillMax   = 150 * time.Millisecond
)

// TestKilledServer kills a server at random moments under load and starts it
// again on what is on the disk. Each client owns its keys, so it knows exactly
// what may be true of them: nothing acknowledged may be lost, whoever resends
// gets a definite answer, and everybody else is refused.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	for lane := range killLanes {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			k := &killing{t: t, host: newHost(t), rng: newRandom(t), history: newHistory()}
			k.run(times(killCycles))
		})
	}
}

type killing struct {
	t       *testing.T
	host    *host
	rng     *rand.Rand
	history *history
	clients []*owner
	sends   atomic.Int64
}

func (k *killing) run(cycles int) {
	for i := range killClients {
		k.clients = append(k.clients, &owner{killing: k, rng: fork(k.rng), number: i})
	}
	began, early := time.Now(), 0
	for cycle := range cycles {
		if k.rng.Float64() < earlyKillShare {
			k.killEarly()
			early++
		}
		p := k.host.start()
		client, hangUp := p.dial(nil)
		k.each(func(o *owner) { o.recover(client, cycle) })
		if k.t.Failed() {
			return
		}
		k.work(p, client, cycle)
		hangUp()
	}
	took := time.Since(began)
	p := k.host.start()
	client, hangUp := p.dial(nil)
	k.each(func(o *owner) { o.recover(client, cycles); o.audit(client, cycles, o.keys) })
	hangUp()
	k.t.Logf("%d kills under load and %d while starting in %v (%.1f/s); %d keys", cycles, early, took.Round(time.Millisecond),
		float64(cycles+early)/took.Seconds(), killClients*len(k.clients[0].keys))
	k.promises()
}

// killEarly kills a server that is recovering.
func (k *killing) killEarly() {
	p := k.host.launch()
	timer := time.NewTimer(time.Duration(k.rng.Int64N(int64(earlyKillMax))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ended:
	}
	p.kill()
	p.mustBeKilled()
}

// work lets the clients work until the server has been killed under them.
func (k *killing) work(p *process, c api, server int) {
	k.sends.Store(1 + k.rng.Int64N(killAfterMax))
	kill := make(chan struct{})
	due := sync.OnceFunc(func() { close(kill) })
	ctx, stop := context.WithCancel(k.t.Context())
	defer stop()
	var clients sync.WaitGroup
	for _, o := range k.clients {
		clients.Go(func() {
			for ctx.Err() == nil && o.turn(ctx, c, server) {
				if k.sends.Add(-1) <= 0 {
					due()
				}
			}
			due() // whoever stops early has found something
		})
	}
	<-kill
	p.kill()
	k.history.died(server)
	stop()
	clients.Wait()
	k.history.died(server)
	p.mustBeKilled()
}

func (k *killing) each(f func(*owner)) {
	var all sync.WaitGroup
	for _, o := range k.clients {
		all.Go(func() { f(o) })
	}
	all.Wait()
}

// promises looks at the whole history once more, without the model.
func (k *killing) promises() {
	for key, events := range k.history.all() {
		if err := keepsPromises(events); err != nil {
			k.t.Errorf("%s: %v\n%s", key, err, lines(events))
		}
	}
}
