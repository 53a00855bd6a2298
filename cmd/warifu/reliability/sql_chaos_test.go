package reliability_test

import (
	"syscall"
	"testing"
	"time"
)

const (
	// chaosSends are made in each round: one for each blow, with keys of its own.
	chaosSends = 200
	// shortLease is what the workers ask for, the shortest there is; a server
	// that sleeps does so for longer.
	shortLease  = time.Second
	sleepMin    = shortLease + 500*time.Millisecond
	cutsOfBlow  = 5
	cutPauseMax = 100 * time.Millisecond
)

// outageMax bounds an outage of the database: in the long form it lasts longer
// than a server's calls, with all their retries.
func outageMax() time.Duration { return time.Duration(times(1)) * time.Second }

// TestThreeServersOneDatabase has three servers share a PostgreSQL, and one blow
// after another fall on servers, connections and database while clients of two
// kinds go on: a fleet, whose whole history is judged, and workers that use the
// SDK under leases that really end.
func TestThreeServersOneDatabase(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	c := &chaos{cluster: newCluster(t, f.rng), fleet: f}
	f.seats = nil
	for _, r := range c.replicas {
		f.seats = append(f.seats, &r.seat)
	}
	s := newShop(t, fork(f.rng), c.replicas)
	defer s.wait()
	for range times(1) {
		for _, i := range f.rng.Perm(len(blows)) {
			f.play(chaosSends, func() { blows[i].fall(c) })
			c.bury()
			if t.Failed() {
				return
			}
		}
	}
	s.wait()
	c.calm.Store(true)
	c.mustHaveRoom()
	f.history.add(c.stored(f.history)...)
	f.history.mustBeLinear(t)
	f.history.mustHave(t, reachedSoon)
	s.mustKeepPromises(c.cluster)
}

type chaos struct {
	*cluster
	fleet *fleet
	dead  []int // runs that were killed
}

// blows are what befalls the cluster. Each returns when it is over and the
// servers that it hit have recovered.
var blows = []struct {
	name string
	fall func(*chaos)
}{
	{"a server is killed", (*chaos).killServer},
	{"a server sleeps", (*chaos).stopServer},
	{"the database crashes", (*chaos).crashDatabase},
	{"the database stalls", (*chaos).stallDatabase},
	{"connections are cut", (*chaos).cut},
	{"connections are refused", (*chaos).refuse},
	{"the database crashes while a server sleeps", (*chaos).crashBehindSleeper},
	{"a server is killed while the database stalls", (*chaos).killInStall},
}

// pass lets a random time go by, which is part of a blow.
func (c *chaos) pass(least, most time.Duration) {
	timer := time.NewTimer(least + time.Duration(c.fleet.rng.Int64N(int64(most-least))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.t.Context().Done():
	}
}

func (c *chaos) anyone() *replica { return c.replicas[c.fleet.rng.IntN(len(c.replicas))] }

// proxied is a server whose connections can be cut.
func (c *chaos) proxied() *replica { return c.replicas[1+c.fleet.rng.IntN(len(c.replicas)-1)] }

func (c *chaos) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *chaos) killServer() {
	r := c.anyone()
	r.Lock()
	defer r.Unlock()
	c.kill(r)
	c.replace(r)
}

// replace starts a new run of a server that was killed.
func (c *chaos) replace(r *replica) {
	// What it had sent is written or not once its connections are gone.
	c.await("after "+r.name+" was killed", func(counts map[string]int) bool { return counts[r.name] == 0 })
	c.dead = append(c.dead, r.server)
	c.fleet.history.died(r.server)
	began := time.Now()
	c.start(r)
	c.mustRecover(began, "started anew", r)
}

// bury settles what clients noted of dead runs after these had died.
func (c *chaos) bury() {
	for _, run := range c.dead {
		c.fleet.history.died(run)
	}
}

func (c *chaos) stopServer() {
	r := c.anyone()
	c.signal(r, syscall.SIGSTOP)
	c.pass(sleepMin, sleepMin+shortLease)
	c.signal(r, syscall.SIGCONT)
	c.mustRecover(time.Now(), "a server woke up", r)
}

func (c *chaos) signal(r *replica, s syscall.Signal) {
	c.t.Helper()
	c.must(r.process.cmd.Process.Signal(s))
}

func (c *chaos) crashDatabase() {
	c.must(c.database.Kill())
	c.pass(0, outageMax())
	c.must(c.database.Start())
	c.mustRecover(time.Now(), "the database is back", c.replicas...)
}

func (c *chaos) stallDatabase() {
	c.must(c.database.Pause())
	c.pass(0, outageMax())
	c.must(c.database.Resume())
	c.mustRecover(time.Now(), "the database goes on", c.replicas...)
}

func (c *chaos) cut() {
	r := c.proxied()
	for range cutsOfBlow {
		r.proxy.Cut()
		c.pass(0, cutPauseMax)
	}
	c.mustRecover(time.Now(), "connections were cut", r)
}

func (c *chaos) refuse() {
	r := c.proxied()
	r.proxy.Refusing(true)
	r.proxy.Cut()
	c.pass(0, outageMax())
	r.proxy.Refusing(false)
	c.mustRecover(time.Now(), "connections are taken again", r)
}

func (c *chaos) crashBehindSleeper() {
	r := c.anyone()
	c.signal(r, syscall.SIGSTOP)
	c.must(c.database.Kill())
	c.pass(sleepMin, sleepMin+outageMax())
	c.must(c.database.Start())
	c.signal(r, syscall.SIGCONT)
	c.mustRecover(time.Now(), "the database is back and a server woke up", c.replicas...)
}

func (c *chaos) killInStall() {
	r := c.anyone()
	c.must(c.database.Pause())
	c.pass(0, outageMax())
	r.Lock()
	defer r.Unlock()
	c.kill(r)
	c.must(c.database.Resume())
	c.replace(r)
	c.mustRecover(time.Now(), "the database goes on", c.replicas...)
}
