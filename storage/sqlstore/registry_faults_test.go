package sqlstore_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
	"github.com/warifu/warifu/storage/storagetest"
)

// asCockroach makes a proxy pass for CockroachDB, so that its branch of the code
// runs. What answers is PostgreSQL all the same.
func asCockroach(c *mitm.Config) {
	c.Announce = map[string]string{"crdb_version": "CockroachDB CCL v26.2.0 (x86_64-linux)"}
}

// faulty is a registry behind a proxy.
type faulty struct {
	registry.Registry
	proxy *mitm.Proxy
	fault atomic.Pointer[mitm.Fault]
	text  string       // what a trip has to execute to meet the fault
	times atomic.Int32 // how many more trips meet it
}

func (f *faulty) decide(trip mitm.Trip) mitm.Fault {
	fault := f.fault.Load()
	if fault == nil {
		return mitm.Fault{}
	}
	for _, sql := range trip.SQL {
		if strings.Contains(strings.ToLower(sql), f.text) && f.times.Add(-1) >= 0 {
			return *fault
		}
	}
	return mitm.Fault{}
}

// inject makes the next trips with this text meet the fault.
func (f *faulty) inject(text string, times int32, fault mitm.Fault) {
	f.text = text
	f.times.Store(times)
	f.fault.Store(&fault)
}

func behindProxy(t storagetest.T, url string, clock *storagetest.Clock, cockroach bool, change func(*sqlstore.Config)) *faulty {
	t.Helper()
	f := &faulty{}
	cfg := mitm.Config{Upstream: server.Addr(), Decide: f.decide}
	if cockroach {
		asCockroach(&cfg)
	}
	proxy, err := mitm.New(cfg)
	if err == nil {
		err = proxy.Start(t.Context())
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
	})
	if url, err = proxy.URL(url); err != nil {
		t.Fatalf("%v", err)
	}
	if cockroach {
		url = strings.Replace(url, "postgres://", "cockroach://", 1)
	}
	f.proxy, f.Registry = proxy, open(t, url, clock, 0, change).Registry()
	return f
}

// TestRegistryInTheOtherRunner runs the suite with the transactions that
// CockroachDB gets, against a proxy that imitates its savepoint.
func TestRegistryInTheOtherRunner(t *testing.T) {
	t.Parallel()
	storagetest.RunRegistry(t, func(t storagetest.T, clock *storagetest.Clock) storagetest.RegistryHandle {
		url := cleanSchema(t)
		return storagetest.RegistryHandle{
			Registry: behindProxy(t, url, clock, true, nil),
			Reopen: func(t storagetest.T) registry.Registry {
				return behindProxy(t, url, clock, true, nil)
			},
		}
	})
}

func aChange(n byte, name string) registry.Change {
	c := registry.Change{ID: registry.ID{n}, Audit: []registry.AuditEntry{{Actor: "a", Action: "b"}}}
	c.Tenants = []registry.Write[registry.Tenant]{registry.Put(registry.Tenant{ID: 1, Name: name, State: registry.TenantActive})}
	return c
}

// TestApplyIsMadeOnce: whatever becomes of a trip or of its reply, the change is
// made once and answered as if nothing had been.
func TestApplyIsMadeOnce(t *testing.T) {
	t.Parallel()
	for _, cockroach := range []bool{false, true} {
		commit, name := "commit", "postgres"
		if cockroach {
			commit, name = "release", "cockroach"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			early := []mitm.Fault{
				{Kind: mitm.Refuse, Code: "40001"}, {Kind: mitm.Lose, Code: "40003"}, {Kind: mitm.DropBefore}, {Kind: mitm.DropAfter},
			}
			for text, faults := range map[string][]mitm.Fault{
				"registry_meta": early, "insert into registry_rows": early,
				commit: append(early[:len(early):len(early)], []mitm.Fault{
					{Kind: mitm.RefuseAtSync, Code: "40001"}, {Kind: mitm.Lose, Code: "40001"}, {Kind: mitm.LoseAtSync, Code: "40003"},
					{Kind: mitm.Lose, Code: "57P01"}, {Kind: mitm.Refuse, Code: "57014"}, {Kind: mitm.DropMidRow}, {Kind: mitm.Late},
				}...),
			} {
				for _, fault := range faults {
					t.Run(text+" "+fault.String(), func(t *testing.T) {
						t.Parallel()
						madeOnce(t, cockroach, text, fault)
					})
				}
			}
		})
	}
}

func madeOnce(t *testing.T, cockroach bool, text string, fault mitm.Fault) {
	t.Helper()
	f := behindProxy(t, cleanSchema(t), nil, cockroach, func(c *sqlstore.Config) { c.CallTimeout = 20 * time.Second })
	if fault.Kind == mitm.Late {
		// Nobody waits that long for an answer: the caller's time is up first.
		f.inject(text, 1, fault)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := f.Apply(ctx, aChange(1, "one")); !errors.Is(err, storage.ErrUnknown) && !errors.Is(err, storage.ErrUnavailable) {
			t.Fatalf("Apply: %v", err)
		}
	} else {
		f.inject(text, 1, fault)
	}
	got, err := f.Apply(t.Context(), aChange(1, "one"))
	if err != nil || got.Revision != 1 || got.At == 0 {
		t.Fatalf("Apply: %+v, %v", got, err)
	}
	if f.times.Load() > 0 {
		t.Fatal("no trip met the fault")
	}
	again, err := f.Apply(t.Context(), aChange(1, "one"))
	if err != nil || again != got {
		t.Fatalf("sent again: %+v, %v; want %+v", again, err, got)
	}
	if _, err := f.Apply(t.Context(), aChange(2, "two")); !errors.Is(err, registry.ErrConflict) {
		t.Fatalf("another: %v", err)
	}
	c, err := f.Load(t.Context(), 0)
	if err != nil || c.Revision != 1 || len(c.Tenants) != 1 || c.Tenants[0].Version != 1 || c.Tenants[0].Name != "one" {
		t.Fatalf("%+v, %v", c, err)
	}
	page, err := f.Audit(t.Context(), registry.AuditQuery{Scope: registry.Platform(), Limit: 10})
	if err != nil || len(page.Entries) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
}

// TestApplySaysWhatItDoesNotKnow: when time is up, an error in front of the
// commit says that nothing was applied, and one from the commit on says that it
// is unknown.
func TestApplySaysWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		fault mitm.Fault
		want  error
		made  bool
	}{
		{"begin", mitm.Fault{Kind: mitm.Refuse, Code: "53300"}, storage.ErrUnavailable, false},
		{"registry_meta", mitm.Fault{Kind: mitm.DropAfter}, storage.ErrUnavailable, false},
		{"insert into registry_rows", mitm.Fault{Kind: mitm.Refuse, Code: "40001"}, storage.ErrUnavailable, false},
		{"commit", mitm.Fault{Kind: mitm.DropBefore}, storage.ErrUnknown, false},
		{"commit", mitm.Fault{Kind: mitm.Refuse, Code: "40001"}, storage.ErrUnknown, false},
	} {
		t.Run(c.text+" "+c.fault.String(), func(t *testing.T) {
			t.Parallel()
			f := behindProxy(t, cleanSchema(t), nil, false, func(c *sqlstore.Config) { c.CallTimeout = time.Second })
			f.inject(c.text, 1<<20, c.fault)
			_, err := f.Apply(t.Context(), aChange(1, "one"))
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if errors.Is(err, storage.ErrUnknown) && errors.Is(err, storage.ErrUnavailable) {
				t.Fatalf("error %v says both", err)
			}
			f.times.Store(0)
			if got, err := f.Apply(t.Context(), aChange(1, "one")); err != nil || got.Revision != 1 {
				t.Fatalf("sent again: %+v, %v", got, err)
			}
		})
	}
}

// TestRegistryTrips counts what calls cost.
func TestRegistryTrips(t *testing.T) {
	t.Parallel()
	f := behindProxy(t, cleanSchema(t), nil, false, nil)
	a, err := f.Apply(t.Context(), aChange(1, "one"))
	if err != nil {
		t.Fatal(err)
	}
	changes := byte(1)
	for _, c := range []struct {
		what string
		call func() error
		want int
	}{
		{"Load", func() error { _, err := f.Load(t.Context(), 0); return err }, 1},
		{"Load of nothing", func() error { _, err := f.Load(t.Context(), a.Revision); return err }, 1},
		{"Apply", func() error {
			changes++
			_, err := f.Apply(t.Context(), registry.Change{ID: registry.ID{changes}, Audit: []registry.AuditEntry{{Actor: "a", Action: "b"}}})
			return err
		}, 4},
		{"Lease", func() error { _, _, err := f.Lease(t.Context(), "a", "me", time.Minute); return err }, 1},
	} {
		if err := c.call(); err != nil { // statements are prepared
			t.Fatalf("%s: %v", c.what, err)
		}
		f.proxy.Reset()
		if err := c.call(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if got := f.proxy.Count(func(trip mitm.Trip) bool { return len(trip.SQL) > 0 }); got != c.want {
			t.Errorf("%s takes %d trips, want %d", c.what, got, c.want)
		}
	}
}
