package tenant

import (
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// Rows are what the registry is known to hold, and the tenants of a
// configuration. They make tables, in which only what has changed is new: with
// ten thousand tenants a revoked key costs a copy of two maps.
//
// A row that breaks rules is left out. Where that is a consumer its claims are
// answered with ErrFaultyConsumer, not under the default policy; where it is a
// tenant or a key, nobody is let in by it.
//
// Rows are safe for concurrent use.
type Rows struct {
	configured *Table
	fallback   *Consumer // of registered tenants
	mu         struct {
		sync.Mutex
		revision registry.Revision
		tenants  map[claim.TenantID]*tenantRows
		keys     map[string]keyRow
		faults   map[registry.Ref]struct{}

		table        *Table // the last one made
		whole        bool   // the next one is made from nothing
		dirtyTenants map[claim.TenantID]struct{}
		dirtyKeys    map[string]struct{}
	}
}

// tenantRows are the rows of one tenant, in whatever order they came.
type tenantRows struct {
	bare      *Tenant // without consumers; nil: there is no row, or it is faulty
	consumers map[string]*Consumer
	keys      map[string]struct{}
}

type keyRow struct {
	tenant claim.TenantID
	key    *Key // nil: it is faulty
	prefix string
}

// NewRows returns rows without any from the registry. A configured tenant goes
// before one of the registry with the same ID or name, and so does its key; nil
// is none.
func NewRows(configured *Table) (*Rows, error) {
	if configured == nil {
		configured = &Table{}
	}
	fallback, faults := newConsumer(&ConsumerConfig{})
	if len(faults) > 0 {
		return nil, fmt.Errorf("the default policy: %w", errors.Join(faults...))
	}
	r := &Rows{configured: configured, fallback: fallback}
	r.mu.table = configured
	r.forget()
	return r, nil
}

// Revision is what the next Load has to be asked for.
func (r *Rows) Revision() registry.Revision {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.revision
}

// Faulty is how many rows are left out because they break rules.
func (r *Rows) Faulty() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.faults)
}

// Merge takes what a Load returned. The errors say what is wrong with rows that
// are left out, or not followed in all; they are for the log.
func (r *Rows) Merge(c *registry.Changes) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.revision = c.Revision
	if c.Full && len(r.mu.tenants)+len(r.mu.keys) > 0 {
		r.forget()
		r.mu.whole = true
	}
	var faults []error
	note := func(ref registry.Ref, errs ...error) {
		delete(r.mu.faults, ref)
		if err := errors.Join(errs...); err != nil {
			r.mu.faults[ref] = struct{}{}
			faults = append(faults, fmt.Errorf("%s: %w", ref, err))
		}
	}
	for i := range c.Tenants {
		row := &c.Tenants[i]
		note(registry.TenantRef(row.ID), r.mergeTenant(row))
	}
	for i := range c.Consumers {
		row := &c.Consumers[i]
		note(registry.ConsumerRef(row.Tenant, row.Name), r.mergeConsumer(row)...)
	}
	for i := range c.Keys {
		row := &c.Keys[i]
		note(registry.Ref{Kind: registry.KindKey, Name: row.ID}, r.mergeKey(row)...)
	}
	return faults
}

// forget drops all rows of the registry. When keys were used is known to the
// last table, and goes from there into the next.
func (r *Rows) forget() {
	r.mu.tenants, r.mu.keys = map[claim.TenantID]*tenantRows{}, map[string]keyRow{}
	r.mu.faults = map[registry.Ref]struct{}{}
	r.mu.dirtyTenants, r.mu.dirtyKeys = map[claim.TenantID]struct{}{}, map[string]struct{}{}
}

// of returns the rows of a tenant, and has the tenant made anew.
func (r *Rows) of(id claim.TenantID) *tenantRows {
	r.mu.dirtyTenants[id] = struct{}{}
	t := r.mu.tenants[id]
	if t == nil {
		t = &tenantRows{consumers: map[string]*Consumer{}, keys: map[string]struct{}{}}
		r.mu.tenants[id] = t
	}
	return t
}

func (r *Rows) mergeTenant(row *registry.Tenant) error {
	t := r.of(row.ID)
	t.bare = nil
	switch {
	case row.Deleted || row.State == registry.TenantDeleted:
		return nil // its name is free, whoever has it now
	case row.ID <= 0:
		return errors.New("its ID is not positive")
	case row.State < registry.TenantActive || row.State > registry.TenantDeleted:
		return fmt.Errorf("its state %d is unknown", row.State)
	case !ValidConsumer(row.Name): // the rule of stored names
		return errors.New("its name is not one")
	}
	if other, taken := r.configured.byID[row.ID]; taken {
		return fmt.Errorf("its ID is that of the configured tenant %q", other.Name)
	}
	if _, taken := r.configured.tenants[row.Name]; taken {
		return fmt.Errorf("its name is that of the configured tenant %q", row.Name)
	}
	t.bare = &Tenant{
		ID: row.ID, Name: row.Name, Strict: row.StrictConsumers, State: row.State, Limits: row.Limits,
		Version: row.Version, fallback: r.fallback,
	}
	return nil
}

func (r *Rows) mergeConsumer(row *registry.Consumer) []error {
	t := r.of(row.Tenant)
	if row.Deleted {
		delete(t.consumers, row.Name)
		return nil
	}
	c, faults := rowConsumer(row)
	t.consumers[row.Name] = c // nil where there are faults
	return faults
}

func (r *Rows) mergeKey(row *registry.Key) []error {
	r.mu.dirtyKeys[row.ID] = struct{}{}
	if old, was := r.mu.keys[row.ID]; was && r.mu.tenants[old.tenant] != nil {
		delete(r.mu.tenants[old.tenant].keys, row.ID)
	}
	delete(r.mu.keys, row.ID)
	if row.Deleted {
		return nil
	}
	k := keyRow{tenant: row.Tenant, prefix: row.ConsumerPrefix}
	key, usable, faults := rowKey(row)
	if _, taken := r.configured.keys[row.ID]; taken {
		usable, faults = false, append(faults, errors.New("its ID is that of a configured key"))
	}
	if usable {
		k.key = key
	}
	r.mu.keys[row.ID] = k
	if row.Tenant != 0 {
		t := r.mu.tenants[row.Tenant]
		if t == nil { // the tenant itself may still come
			t = r.of(row.Tenant)
		}
		t.keys[row.ID] = struct{}{}
	}
	return faults
}

// Table returns the table of all rows; the last one where nothing has changed.
func (r *Rows) Table() *Table {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.whole && len(r.mu.dirtyTenants)+len(r.mu.dirtyKeys) == 0 {
		return r.mu.table
	}
	last, from := r.mu.table, r.mu.table
	if r.mu.whole {
		from = r.configured
	}
	t := &Table{tenants: from.tenants, byID: from.byID, keys: copyOf(from.keys)}
	if len(r.mu.dirtyTenants) > 0 {
		t.tenants, t.byID = copyOf(from.tenants), copyOf(from.byID)
	}
	r.placeTenants(t)
	r.placeKeys(t, last)
	r.mu.table, r.mu.whole = t, false
	clear(r.mu.dirtyTenants)
	clear(r.mu.dirtyKeys)
	return t
}

func copyOf[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}

// placeTenants makes the changed tenants. All old ones go before a new one
// comes: a name may have passed from one to another.
func (r *Rows) placeTenants(t *Table) {
	for id := range r.mu.dirtyTenants {
		old := t.byID[id]
		if old == nil || old == r.configured.byID[id] {
			continue
		}
		delete(t.byID, id)
		if t.tenants[old.Name] == old {
			delete(t.tenants, old.Name)
		}
	}
	for id := range r.mu.dirtyTenants {
		rows := r.mu.tenants[id]
		for key := range rows.keys {
			r.mu.dirtyKeys[key] = struct{}{} // their principals lead to the tenant
		}
		if rows.bare == nil {
			if len(rows.consumers)+len(rows.keys) == 0 {
				delete(r.mu.tenants, id)
			}
			continue
		}
		built := *rows.bare
		built.consumers = maps.Clone(rows.consumers)
		t.byID[id], t.tenants[built.Name] = &built, &built
	}
}

func (r *Rows) placeKeys(t, last *Table) {
	for id := range r.mu.dirtyKeys {
		if _, taken := r.configured.keys[id]; taken {
			continue
		}
		delete(t.keys, id)
		k, ok := r.mu.keys[id]
		if !ok || k.key == nil {
			continue
		}
		var owner *Tenant
		if k.tenant != 0 {
			if owner = t.byID[k.tenant]; owner == nil || !owner.serves() || owner == r.configured.byID[k.tenant] {
				continue
			}
		}
		c := newCredential(k.key, owner)
		c.stored, c.principal.Scopes, c.principal.ConsumerPrefix = true, k.key.Scopes, k.prefix
		if before, was := last.keys[id]; was {
			c.use = before.use
		}
		t.keys[id] = c
	}
}
