package quota

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storagetest"
)

// world is an installation in virtual time: it is made inside a bubble.
type world struct {
	*storagetest.RegistryModel
	t       *testing.T
	records *storagetest.Model
	mu      struct {
		sync.Mutex
		tenants []Tenant
		tallied []claim.TenantID // in order of steps
		applied int              // changes, whatever became of them
		pages   int              // of jobs that were read
		taken   int              // calls for the lease
		tally   func(claim.TenantID) error
		apply   func(registry.Change) (before, after error)
	}
}

func newWorld(t *testing.T, tenants int) *world {
	t.Helper()
	w := &world{t: t, RegistryModel: storagetest.NewRegistryModel(time.Now), records: storagetest.NewModel(time.Now, claim.SweepGrace)}
	change := registry.Change{ID: newChangeID(), Audit: []registry.AuditEntry{{Actor: "test", Action: "begin"}}}
	for i := range tenants {
		id := claim.TenantID(i + 1)
		w.mu.tenants = append(w.mu.tenants, Tenant{ID: id})
		change.Tenants = append(change.Tenants, registry.Put(registry.Tenant{ID: id, Name: fmt.Sprint("t", id), State: registry.TenantActive}))
	}
	if _, err := w.RegistryModel.Apply(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) tenants() []Tenant {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.mu.tenants)
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) Tally(ctx context.Context, step storage.TenantStep) (storage.Tallied, error) {
	w.mu.Lock()
	w.mu.tallied = append(w.mu.tallied, step.Tenant)
	hook := w.mu.tally
	w.mu.Unlock()
	if hook != nil {
		if err := hook(step.Tenant); err != nil {
			return storage.Tallied{}, err
		}
	}
	return w.records.Tally(ctx, step)
}

func (w *world) Apply(ctx context.Context, c registry.Change) (registry.Applied, error) {
	w.mu.Lock()
	w.mu.applied++
	hook := w.mu.apply
	w.mu.Unlock()
	var before, after error
	if hook != nil {
		before, after = hook(c)
	}
	if before != nil {
		return registry.Applied{}, before
	}
	made, err := w.RegistryModel.Apply(ctx, c)
	if after != nil {
		return registry.Applied{}, after
	}
	return made, err
}

func (w *world) Jobs(ctx context.Context, q registry.JobQuery) (registry.JobPage, error) {
	w.set(func() { w.mu.pages++ })
	return w.RegistryModel.Jobs(ctx, q)
}

func (w *world) Lease(ctx context.Context, name, owner string, ttl time.Duration) (registry.Lease, bool, error) {
	w.set(func() { w.mu.taken++ })
	return w.RegistryModel.Lease(ctx, name, owner, ttl)
}

// fill stores n fresh keys of a tenant.
func (w *world) fill(id claim.TenantID, consumer string, n int) {
	w.t.Helper()
	for from := 0; from < n; from += claim.BatchItemsMax {
		var reqs []claim.Request
		for i := from; i < min(n, from+claim.BatchItemsMax); i++ {
			r := request(fmt.Sprint(consumer, i))
			r.Key.Tenant, r.Key.Consumer, r.Lease = id, consumer, time.Hour
			reqs = append(reqs, r)
		}
		if _, err := w.records.InsertOrGet(w.t.Context(), reqs); err != nil {
			w.t.Fatal(err)
		}
	}
}

type replica struct {
	*Census
	quotas *Quotas
	stop   func()
}

// replica starts a process of the installation.
func (w *world) replica(owner string) *replica {
	w.t.Helper()
	return w.replicaOf(owner, w.tenants)
}

func (w *world) replicaOf(owner string, tenants func() []Tenant) *replica {
	w.t.Helper()
	began := time.Now()
	q, err := New(Config{Monotonic: func() time.Duration { return time.Since(began) }})
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := NewCensus(CensusConfig{Quotas: q, Registry: w, Store: w, Tenants: tenants, Owner: owner})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return &replica{Census: c, quotas: q, stop: stop}
}

func (w *world) findings() []registry.Finding {
	w.t.Helper()
	page, err := w.Findings(w.t.Context(), registry.FindingQuery{Scope: registry.Platform(), Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	return page.Findings
}

func (w *world) jobs(states ...registry.JobState) map[claim.TenantID]registry.Job {
	w.t.Helper()
	page, err := w.Jobs(w.t.Context(), registry.JobQuery{Scope: registry.Platform(), States: states, Limit: registry.PageMax})
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[claim.TenantID]registry.Job{}
	for _, j := range page.Jobs {
		all[j.Tenant] = j
	}
	return all
}
