package reliability_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"

	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/pebble"
	"github.com/warifu/warifu/storage/storagetest"
)

const (
	cloneRounds = 40  // each with a crash or a lapse, and keys of its own
	cloneSends  = 300 // of each
	cloneData   = "data"
)

// TestLinearizableAcrossPowerCuts is TestLinearizable in one process, so that
// the machine can lose what was never synced, and time can be moved: at every
// crash a random part of the unsynced bytes survives, and at every lapse all
// leases are over, which hands keys on under REGRANT and holds them under HOLD.
func TestLinearizableAcrossPowerCuts(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	clock := storagetest.NewClock(storagetest.Start)
	m := bootMachine(t, vfs.NewCrashableMem(), clock)
	f.seats[0].give(m)
	crashes, lapses := 0, 0
	for range times(cloneRounds) {
		f.play(cloneSends, func() {
			if f.rng.IntN(2) == 0 {
				f.lapse(clock)
				lapses++
				return
			}
			m = f.crash(m, clock)
			crashes++
		})
	}
	f.settles(clock)
	m.halt()
	f.history.died(f.seats[0].server)
	t.Logf("%d crashes, %d lapses", crashes, lapses)
	f.history.mustBeLinear(t)
	f.history.mustReach(t)
	// Few leases lapse, and what becomes of one is chance.
	f.history.mustHaveOne(t, "claim GRANTED after LEASE_LAPSED", "claim IN_DOUBT", "lookup IN_DOUBT")
}

func (s *seat) give(m *machine) { s.client, s.void = m.client, m.dead.Load }

// lapse moves the clock to where every lease is over. Each key of the round is
// told so in its history.
func (f *fleet) lapse(clock *storagetest.Clock) {
	call := f.history.now()
	clock.Advance(leaseLength + time.Second)
	end := f.history.now()
	for key := range fleetKeys {
		o := f.naming(lapse, key)
		f.history.add(event{client: fleetClients, op: o, call: call, end: max(end, call+1), server: f.seats[0].server})
	}
}

// settles demands that no key is left in progress by what happened: once leases
// are over, everybody gets an answer that ends the matter or lets them act.
func (f *fleet) settles(clock *storagetest.Clock) {
	f.t.Helper()
	clock.Advance(leaseLength + time.Second)
	for key, events := range f.history.all() {
		o := events[0].op
		r, err := send(f.t.Context(), f.seats[0].client, op{kind: claimCall, consumer: o.consumer, event: o.event, attempt: uuid.NewString()})
		want := []string{"GRANTED", "DUPLICATE", map[string]string{regrant: "GRANTED", hold: "IN_DOUBT"}[o.consumer]}
		if err != nil || !slices.Contains(want, r.verdict) {
			f.t.Errorf("%s, after all faults: %+v %v\n%s", key, r, err, lines(events))
		}
	}
}

// crash cuts the power: what is answered from now on does not count, and the
// next machine has what was on the disk.
func (f *fleet) crash(m *machine, clock *storagetest.Clock) *machine {
	m.dead.Store(true)
	disk := m.disk.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: []int{0, 0, 30, 70, 100}[f.rng.IntN(5)], RNG: rand.New(rand.NewPCG(f.rng.Uint64(), 1)),
	})
	seat := f.seats[0]
	seat.Lock()
	defer seat.Unlock()
	m.halt()
	f.history.died(seat.server)
	next := bootMachine(f.t, disk, clock)
	seat.server++
	seat.give(next)
	return next
}

// machine is a server with its disk.
type machine struct {
	disk   *vfs.MemFS
	client api
	dead   atomic.Bool // the power was cut
	halt   func()      // ends everything; once
}

func bootMachine(t *testing.T, disk *vfs.MemFS, clock *storagetest.Clock) *machine {
	t.Helper()
	store, err := pebble.Open(pebble.Config{Dir: cloneData, FS: disk, Clock: clock.Now})
	if err != nil {
		t.Fatalf("open what the crash left: %v", err)
	}
	key, stored := tenant.NewKey("test")
	table, err := tenant.NewTable([]tenant.Config{{ID: 1, Name: "shop", Strict: true, Keys: []tenant.Key{stored}, Consumers: []tenant.ConsumerConfig{
		{Name: regrant, Window: yearLong}, {Name: hold, Window: yearLong, Hold: true},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{Store: store, Directory: tenant.NewDirectory(table), Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{disk: disk}
	m.client = warifuv1connect.NewClaimServiceClient(connect.NewClient(connectinprocess.New(s.Connect()), authorize(key)))
	m.halt = runMachine(t, s, store)
	return m
}

// yearLong is a redelivery window that no number of lapses reaches the end of.
const yearLong = 365 * 24 * time.Hour

// runMachine runs the loops until the function that it returns is called.
func runMachine(t *testing.T, s *server.Server, store *pebble.Store) (halt func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- s.Run(ctx) }()
	go func() { ended <- store.Run(ctx) }()
	for ready := false; !ready; {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if ready = w.Code == http.StatusOK; !ready && t.Context().Err() != nil {
			t.Fatalf("the server does not become ready: %s", w.Body)
		}
	}
	return func() {
		cancel()
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Errorf("a loop ended with %v", err)
			}
		}
		if err := store.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	}
}

func authorize(key string) connect.ClientInterceptor {
	return func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			info, _ := connect.CallInfoForClientContext(ctx)
			info.RequestHeader().Set("Authorization", "Bearer "+key)
			return next(ctx, spec)
		}
	}
}
