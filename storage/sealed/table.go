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

// table is what is known of the rows. It does not change. Deleted rows stay, so
// that an older copy does not bring them back; they have no keys.
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
	if c, ok := t.consumers[o]; ok && !c.Deleted {
		return o, c.DataKeys, true
	}
	row, ok := t.tenants[tenant]
	return owner{tenant: tenant}, row.DataKeys, ok && !row.Deleted
}

// keys are those of one owner.
func (t *table) keys(o owner) ([]registry.DataKey, bool) {
	if o.consumer != "" {
		c, ok := t.consumers[o]
		return c.DataKeys, ok && !c.Deleted
	}
	row, ok := t.tenants[o.tenant]
	return row.DataKeys, ok && !row.Deleted
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

// Update tells the ring what a Load has returned, of one loop that loads on from
// each. It keeps the newer of two rows, so that what it has looked up itself
// meanwhile stays: a key that was shredded here does not come back with an older
// copy of its row. All that it knew goes only where the registry itself has gone
// back, to a backup: what is Full and older than the Update before. It keeps the
// rows: nobody may change them.
func (r *Ring) Update(c registry.Changes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	back := c.Full && c.Revision < r.mu.updated
	r.mu.updated = c.Revision
	if c.Full || len(c.Tenants)+len(c.Consumers) > 0 {
		r.merge(c, r.table.Load().revision, back)
	}
}

// merge holds Ring.mu. known is the revision up to which all is known after it,
// unless c is everything. back: the registry has gone back.
func (r *Ring) merge(c registry.Changes, known registry.Revision, back bool) {
	old, next := r.table.Load(), newTable()
	if back {
		old, known = newTable(), 0
	}
	next.tenants, next.consumers = maps.Clone(old.tenants), maps.Clone(old.consumers)
	if c.Full { // what it leaves out is gone, unless it came later
		known = max(known, c.Revision)
		maps.DeleteFunc(next.tenants, func(_ claim.TenantID, row registry.Tenant) bool { return row.Revision <= c.Revision })
		maps.DeleteFunc(next.consumers, func(_ owner, row registry.Consumer) bool { return row.Revision <= c.Revision })
		clear(r.mu.gone) // and what was not there may be
	}
	next.revision = known
	for _, row := range c.Tenants {
		if was := old.tenants[row.ID]; was.Revision > row.Revision {
			row = was
		}
		next.tenants[row.ID] = row
	}
	for _, row := range c.Consumers {
		o := owner{row.Tenant, row.Name}
		if was := old.consumers[o]; was.Revision > row.Revision {
			row = was
		}
		next.consumers[o] = row
	}
	r.table.Store(next)
	for id := range r.mu.secrets {
		if !next.live(id) {
			delete(r.mu.secrets, id)
		}
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
	since := r.table.Load().revision
	c, err := r.cfg.Registry.Load(ctx, since)
	if err != nil {
		l.err = fmt.Errorf("load data keys: %w", err)
		return l.err
	}
	l.err = nil
	r.found(c, since)
	return nil
}

// found merges what a look has loaded. The registry has gone back where it had
// less than the look asked it for, and that is not known yet.
func (r *Ring) found(c registry.Changes, since registry.Revision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.table.Load().revision
	back := c.Full && c.Revision < min(since, known)
	if back {
		r.mu.updated = 0 // the loop, which has yet to find that out, need not go back again
	}
	r.merge(c, max(known, c.Revision), back)
}
