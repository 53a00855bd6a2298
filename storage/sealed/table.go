package sealed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// table is what is known of the rows. It does not change.
type table struct {
	revision  registry.Revision // up to which all is known
	tenants   map[claim.TenantID]registry.Tenant
	consumers map[owner]registry.Consumer
}

func newTable() *table {
	return &table{tenants: map[claim.TenantID]registry.Tenant{}, consumers: map[owner]registry.Consumer{}}
}

// writer returns whose keys a consumer's new results are sealed with. ok says
// that there is a row for them.
func (t *table) writer(tenant claim.TenantID, consumer string) (o owner, keys []registry.DataKey, ok bool) {
	o = owner{tenant, consumer}
	if c, ok := t.consumers[o]; ok {
		return o, c.DataKeys, true
	}
	row, ok := t.tenants[tenant]
	return owner{tenant: tenant}, row.DataKeys, ok
}

// keys are those of one owner.
func (t *table) keys(o owner) ([]registry.DataKey, bool) {
	if o.consumer != "" {
		c, ok := t.consumers[o]
		return c.DataKeys, ok
	}
	row, ok := t.tenants[o.tenant]
	return row.DataKeys, ok
}

// find returns the key that a consumer's results name. The consumer's row comes
// first: it may say that the tenant's key is shredded for this consumer.
func (t *table) find(tenant claim.TenantID, consumer string, id uint32) (owner, registry.DataKey, bool) {
	for _, o := range [...]owner{{tenant, consumer}, {tenant: tenant}} {
		keys, _ := t.keys(o)
		if i := indexOf(keys, id); i >= 0 {
			return o, keys[i], true
		}
	}
	return owner{}, registry.DataKey{}, false
}

// live reports whether a key is there and was not shredded.
func (t *table) live(id secretID) bool {
	keys, _ := t.keys(id.owner)
	i := indexOf(keys, id.id)
	return i >= 0 && keys[i].Shredded == 0
}

func indexOf(keys []registry.DataKey, id uint32) int {
	return slices.IndexFunc(keys, func(k registry.DataKey) bool { return k.ID == id })
}

// newest returns the key that seals: the last that was not shredded.
func newest(keys []registry.DataKey) (registry.DataKey, bool) {
	for _, k := range slices.Backward(keys) {
		if k.Shredded == 0 {
			return k, true
		}
	}
	return registry.DataKey{}, false
}

// Update tells the ring what a Load has returned. It keeps the newer of two rows,
// so that one that it has looked up itself meanwhile stays. It keeps the rows:
// nobody may change them.
func (r *Ring) Update(c registry.Changes) {
	if !c.Full && len(c.Tenants)+len(c.Consumers) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.merge(c, r.table.Load().revision)
}

// merge holds Ring.mu. known is the revision up to which all is known after it,
// unless c says that it is everything.
func (r *Ring) merge(c registry.Changes, known registry.Revision) {
	old, next := r.table.Load(), newTable()
	if c.Full {
		known = c.Revision
		clear(r.mu.gone) // the store may have been restored
	} else {
		next.tenants, next.consumers = maps.Clone(old.tenants), maps.Clone(old.consumers)
	}
	next.revision = known
	for _, row := range c.Tenants {
		put(next.tenants, row.ID, row, row.Head, old.tenants[row.ID].Revision, c.Full)
	}
	for _, row := range c.Consumers {
		o := owner{row.Tenant, row.Name}
		put(next.consumers, o, row, row.Head, old.consumers[o].Revision, c.Full)
	}
	r.table.Store(next)
	for id := range r.mu.secrets {
		if !next.live(id) {
			delete(r.mu.secrets, id)
		}
	}
}

func put[K comparable, R any](rows map[K]R, key K, row R, head registry.Head, known registry.Revision, full bool) {
	switch {
	case !full && head.Revision < known:
	case head.Deleted:
		delete(rows, key)
	default:
		rows[key] = row
	}
}

// loading is one look at the registry at a time. Whoever comes while one is made
// waits for the next, and of those that wait one makes it for all.
type loading struct {
	sync.Mutex
	begun atomic.Int64
	err   error // of the last
}

// look loads what has changed. What it finds is not older than the call.
func (r *Ring) look(ctx context.Context) error {
	l := &r.loading
	before := l.begun.Load()
	l.Lock()
	defer l.Unlock()
	if l.begun.Load() > before {
		return l.err // made since the call began
	}
	l.begun.Add(1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.CallTimeout)
	defer cancel()
	c, err := r.cfg.Registry.Load(ctx, r.table.Load().revision)
	if err != nil {
		l.err = fmt.Errorf("load data keys: %w", err)
		return l.err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.merge(c, c.Revision)
	l.err = nil
	return nil
}
