package reliability_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	warifu "github.com/warifu/warifu/sdk/go"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
	"github.com/warifu/warifu/storage/sqlstore/pgtest"
)

const (
	replicaCount = 3
	// recoveryMax is how soon a server answers again once its database does.
	recoveryMax = 5 * time.Second
	lookPause   = 5 * time.Millisecond // between two looks at something that is waited for
	// tripFaultShare of the trips through a proxy fail in one way or another.
	tripFaultShare = 0.04
)

// tripFaults are what befalls trips at any time. Most of them hide that the trip
// was written.
var tripFaults = []mitm.Fault{
	{Kind: mitm.Refuse, Code: "40001"}, {Kind: mitm.DropBefore}, {Kind: mitm.DropAfter}, {Kind: mitm.DropMidRow},
	// An applied trip that is answered with 40001 is left to the matrix of faults of
	// the store, where nobody acts meanwhile: supported databases keep to its word.
	{Kind: mitm.Lose, Code: "40003"}, {Kind: mitm.LoseAtSync, Code: "40003"},
}

// cluster is a database and the servers that share it.
type cluster struct {
	t        *testing.T
	database *pgtest.Server
	url      string // of the database itself, past all proxies
	replicas []*replica
	runs     int         // of servers, so far
	calm     atomic.Bool // trips through proxies do not fail any more
}

// replica is a server that is replaced by another run of it when it dies.
type replica struct {
	*host
	seat
	name    string      // as the database knows it
	proxy   *mitm.Proxy // nil: it reaches the database directly
	process *process
	address atomic.Pointer[string] // of the run of the moment
	network *http.Transport
	sdk     *warifu.Client
}

// newCluster starts a database that keeps what it acknowledged, and servers on
// it: the first directly, the others behind proxies.
func newCluster(t *testing.T, rng *rand.Rand) *cluster {
	t.Helper()
	c := newDatabase(t)
	key := newCredential()
	for i := range replicaCount {
		r, store := &replica{name: fmt.Sprint("replica-", i)}, c.url
		if i > 0 {
			r.proxy = c.newProxy(fork(rng))
			var err error
			if store, err = r.proxy.URL(c.url); err != nil {
				t.Fatal(err)
			}
		}
		r.host = hostOn(t, key, named(t, store, r.name))
		r.connect()
		c.start(r)
		c.replicas = append(c.replicas, r)
	}
	return c
}

// newDatabase is a cluster without servers.
func newDatabase(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t}
	var err error
	if c.database, err = pgtest.New(t.Context(), pgtest.Config{Durable: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.database.Close(); err != nil {
			t.Error(err)
		}
	})
	if c.url, _, err = c.database.Database(t.Context()); err != nil {
		t.Fatal(err)
	}
	migrate := exec.CommandContext(t.Context(), program, "migrate", "up", "--store", c.url)
	migrate.Env, migrate.Dir = cleanEnv(), t.TempDir()
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	return c
}

// named has the database know whose connections these are.
func named(t *testing.T, store, name string) string {
	t.Helper()
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("application_name", name)
	u.RawQuery = q.Encode()
	return u.String()
}

func (c *cluster) newProxy(rng *rand.Rand) *mitm.Proxy {
	c.t.Helper()
	var mu sync.Mutex
	p, err := mitm.New(mitm.Config{Upstream: c.database.Addr(), Decide: func(mitm.Trip) mitm.Fault {
		mu.Lock()
		defer mu.Unlock()
		if c.calm.Load() || rng.Float64() >= tripFaultShare {
			return mitm.Fault{}
		}
		return tripFaults[rng.IntN(len(tripFaults))]
	}})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := p.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			c.t.Errorf("close a proxy: %v", err)
		}
	})
	return p
}

// connect makes the replica's clients, which outlive its runs: all of these
// have one name, as behind a load balancer.
func (r *replica) connect() {
	r.t.Helper()
	const base = "http://127.0.0.1"
	r.network = newNetwork()
	r.network.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, *r.address.Load())
	}
	r.t.Cleanup(r.network.CloseIdleConnections)
	raw := connecthttp.NewTransport(&http.Client{Transport: bearer{r.key, r.network}}, base, connecthttp.WithCompressors())
	r.client = warifuv1connect.NewClaimServiceClient(connect.NewClient(raw))
	var err error
	r.sdk, err = warifu.New(base, warifu.WithAPIKey(r.key), warifu.WithHTTPClient(&http.Client{Transport: r.network}))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := r.sdk.Close(); err != nil {
			r.t.Errorf("close the client of %s: %v", r.name, err)
		}
	})
}

// start starts a run of a replica and waits until it is ready.
func (c *cluster) start(r *replica) {
	c.t.Helper()
	r.process = r.host.start()
	address := strings.TrimPrefix(r.process.url, "http://")
	r.address.Store(&address)
	r.server = c.runs
	c.runs++
}

// kill is kill -9 of a replica. When it returns, also what it had sent to the
// database has happened or never will.
func (c *cluster) kill(r *replica) {
	c.t.Helper()
	r.process.kill()
	r.process.mustBeKilled()
	r.network.CloseIdleConnections()
}

// mustRecover fails the test unless each of the replicas grants a new key soon
// after a moment, without having been started again.
func (c *cluster) mustRecover(from time.Time, what string, which ...*replica) {
	c.t.Helper()
	took := make([]time.Duration, len(which))
	var all sync.WaitGroup
	for i, r := range which {
		all.Go(func() { took[i] = r.answers(from) })
	}
	all.Wait()
	var report []string
	for i, r := range which {
		report = append(report, fmt.Sprintf("%s after %v", r.name, took[i].Round(time.Millisecond)))
		if took[i] > recoveryMax {
			c.t.Errorf("%s: %s does not answer soon enough: %v\n%s", what, r.name, took[i], tail(r.process.output()))
		}
		select {
		case <-r.process.ended:
			c.t.Errorf("%s: %s ended by itself\n%s", what, r.name, tail(r.process.output()))
		default:
		}
	}
	c.t.Logf("%s: grants again: %s", what, strings.Join(report, ", "))
}

// answers asks until a claim is granted, and returns when that was.
func (r *replica) answers(from time.Time) time.Duration {
	ctx, cancel := context.WithDeadline(r.t.Context(), from.Add(2*recoveryMax))
	defer cancel()
	ticker := time.NewTicker(lookPause)
	defer ticker.Stop()
	for {
		got, err := send(ctx, r.client, op{kind: claimCall, consumer: regrant, event: uuid.NewString(), attempt: uuid.NewString()})
		if err != nil {
			r.t.Error(err)
		}
		if got.verdict == "GRANTED" || ctx.Err() != nil {
			return time.Since(from)
		}
		<-ticker.C
	}
}

// tailMax is how much of a server's log is shown.
const tailMax = 4000

func tail(text string) string { return text[max(0, len(text)-tailMax):] }

// backends counts the connections that the database has from each server.
func (c *cluster) backends() map[string]int {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.url)
	if err != nil {
		c.t.Fatal(err)
	}
	counts := map[string]int{}
	rows, err := conn.Query(ctx, "SELECT application_name FROM pg_stat_activity WHERE backend_type = 'client backend'")
	if err == nil {
		var name string
		_, err = pgx.ForEachRow(rows, []any{&name}, func() error { counts[name]++; return nil })
	}
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		c.t.Fatal(err)
	}
	return counts
}

// await looks until the counts are as they have to be.
func (c *cluster) await(what string, ok func(map[string]int) bool) {
	c.t.Helper()
	ticker := time.NewTicker(lookPause)
	defer ticker.Stop()
	end := time.Now().Add(patience)
	counts := c.backends()
	for ; !ok(counts); counts = c.backends() {
		if time.Now().After(end) {
			c.t.Fatalf("%s: the database has connections %v", what, counts)
		}
		<-ticker.C
	}
}

// mustAnswer sends one of a crowd until it is answered: a server that has no
// connection free in time says so, and connections that do not come back to
// their pool are missed again and again.
func (c *cluster) mustAnswer(r *replica, o op) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	for {
		got, err := send(ctx, r.client, o)
		switch {
		case err == nil && (got.verdict == "GRANTED" || got.verdict == "ABSENT"):
			return
		case err == nil && got.verdict == notApplied && ctx.Err() == nil:
			continue
		}
		c.t.Errorf("%s, one of a crowd: %v: %+v %v\n%s", r.name, o, got, err, tail(r.process.output()))
		return
	}
}

// connsOfReplica is what the two pools of a server allow by default.
const connsOfReplica = sqlstore.ConnsDefault + sqlstore.SweepConnsDefault

// mustHaveRoom fails the test where a server cannot answer many at once, or has
// more connections than it may have.
func (c *cluster) mustHaveRoom() {
	c.t.Helper()
	const crowd = 64
	var all sync.WaitGroup
	for _, r := range c.replicas {
		for _, k := range []kind{claimCall, lookupCall} {
			for range crowd {
				all.Go(func() {
					c.mustAnswer(r, op{kind: k, consumer: hold, event: uuid.NewString(), attempt: uuid.NewString()})
				})
			}
		}
	}
	all.Wait()
	c.await("after a burst", func(counts map[string]int) bool {
		for _, r := range c.replicas {
			if n := counts[r.name]; n < 1 || n > connsOfReplica {
				return false
			}
		}
		return true
	})
	c.t.Logf("connections: %v, at most %d each", c.backends(), connsOfReplica)
}
