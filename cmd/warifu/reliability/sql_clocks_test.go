package reliability_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/sqlstore"
)

const (
	clockRounds = 2
	clockSends  = 300 // of each
)

// clockShifts are how wrong the clocks of the servers are.
var clockShifts = [replicaCount]time.Duration{-10 * time.Minute, 0, 10 * time.Minute}

// TestServerClocksApart has the clocks of three servers minutes apart. Time is
// the database's: leases end for all of them at once, and everything else is as
// it would be. They run in this process, because a program's clock is the
// machine's.
func TestServerClocksApart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	c := newDatabase(t)
	c.startApart()
	f.seats = nil
	for _, r := range c.replicas {
		f.seats = append(f.seats, &r.seat)
	}
	s := newShop(t, fork(f.rng), c.replicas)
	defer s.wait()
	for range times(clockRounds) {
		f.play(clockSends, func() { c.handOver(f.rng) })
	}
	s.wait()
	f.history.add(c.stored(f.history)...)
	f.history.mustBeLinear(t)
	f.history.mustHave(t, reachedSoon)
	s.mustKeepPromises(c)
}

// startApart starts the servers.
func (c *cluster) startApart() {
	c.t.Helper()
	key := newCredential()
	for i, shift := range clockShifts {
		r := &replica{name: fmt.Sprintf("replica at %v", shift), host: &host{t: c.t, key: key.text}}
		address := c.runShifted(key.key, shift)
		r.address.Store(&address)
		r.connect()
		r.server = i
		c.replicas = append(c.replicas, r)
	}
}

// runShifted runs a server whose clock is wrong, until the test ends, and
// returns where it listens.
func (c *cluster) runShifted(key tenant.Key, shift time.Duration) (address string) {
	c.t.Helper()
	began := time.Now()
	store, err := sqlstore.Open(c.t.Context(), sqlstore.Config{URL: c.url, Monotonic: func() time.Duration { return time.Since(began) }})
	if err != nil {
		c.t.Fatal(err)
	}
	table, err := tenant.NewTable([]tenant.Config{{ID: shopID, Name: "shop", Strict: true, Keys: []tenant.Key{key}, Consumers: []tenant.ConsumerConfig{
		{Name: regrant, Window: 4 * time.Hour}, {Name: hold, Window: 4 * time.Hour, Hold: true},
	}}})
	if err != nil {
		c.t.Fatal(err)
	}
	srv, err := server.New(server.Config{
		Store: store, Directory: tenant.NewDirectory(table), Logger: slog.New(slog.DiscardHandler),
		Clock: func() time.Time { return time.Now().Add(shift) },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	front := httptest.NewServer(srv.Handler())
	c.t.Cleanup(func() {
		front.Close()
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("a server ended with %v", err)
		}
		if err := store.Close(); err != nil {
			c.t.Errorf("close a store: %v", err)
		}
	})
	for ready := false; !ready; {
		w := httptest.NewRecorder()
		srv.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if ready = w.Code == http.StatusOK; !ready && c.t.Context().Err() != nil {
			c.t.Fatalf("a server does not become ready: %s", w.Body)
		}
	}
	return front.Listener.Addr().String()
}

// handOver has one server grant a short lease, all refuse the key to others as
// long as that lives, each say that as much of it is left, and another hand the
// key on as soon as it is over.
func (c *cluster) handOver(rng *rand.Rand) {
	c.t.Helper()
	order := rng.Perm(replicaCount)
	ask := func(i int, attempt string) (*warifuv1.ClaimResponse, time.Time) {
		c.t.Helper()
		m, err := c.replicas[i].client.Claim(c.t.Context(), &warifuv1.ClaimRequest{
			Consumer: regrant, EventId: fmt.Sprint("handed over by ", order, " ", c.runs), AttemptId: attempt, Lease: durationpb.New(shortLease),
		})
		if err != nil {
			c.t.Fatal(err)
		}
		return m, time.Now()
	}
	c.runs++
	mine, theirs := uuid.NewString(), uuid.NewString()
	began := time.Now()
	first, granted := ask(order[0], mine)
	for _, i := range order {
		again, _ := ask(i, mine)
		left := again.GetGrant().GetLeaseRemaining().AsDuration()
		if left > shortLease || left < shortLease-time.Since(began) || again.GetGrant().GetFence() != first.GetGrant().GetFence() {
			c.t.Errorf("%s: %v of a lease of %v is left after %v: %v", c.replicas[i].name, left, shortLease, time.Since(began), again)
		}
	}
	ticker := time.NewTicker(lookPause)
	defer ticker.Stop()
	for i := 0; ; i++ {
		r := c.replicas[order[i%replicaCount]]
		m, at := ask(order[i%replicaCount], theirs)
		if g := m.GetGrant(); g != nil {
			if at.Sub(began) < shortLease || g.GetTakeover() != warifuv1.Takeover_TAKEOVER_LEASE_LAPSED || g.GetFence() <= first.GetGrant().GetFence() {
				c.t.Errorf("%s handed the key on %v after %v: %v", r.name, at.Sub(began), granted.Sub(began), m)
			}
			return
		}
		if at.Sub(granted) > shortLease+patience {
			c.t.Fatalf("%s does not hand the key on: %v", r.name, m)
		}
		<-ticker.C
	}
}
