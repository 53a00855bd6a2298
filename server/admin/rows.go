package admin

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// rows are tenants, consumers and keys as the registry has them. Every call
// looks again first, which reads one row where nothing has changed: what an
// administrator is shown, and decides on, is never stale.
type rows struct {
	turn chan struct{} // one looks at a time; its holder may use the rest
	at   registry.Revision
	known
}

// known is what one look knows. Its maps are replaced, never changed.
type known struct {
	tenants    map[claim.TenantID]*registry.Tenant
	byName     map[string]*registry.Tenant
	consumers  map[claim.TenantID]map[string]*registry.Consumer
	keys       map[string]*registry.Key
	lastTenant claim.TenantID
}

// look returns the rows as they are now.
func (a *Admin) look(ctx context.Context) (*known, error) {
	r := &a.rows
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c, err := a.cfg.Registry.Load(ctx, r.at)
	if err != nil {
		return nil, err
	}
	if c.Revision != r.at || c.Full {
		r.known = r.merged(&c)
		r.at = c.Revision
	}
	k := r.known
	return &k, nil
}

// merged is a copy with the changes made.
func (k *known) merged(c *registry.Changes) known {
	out := known{lastTenant: c.LastTenant}
	if c.Full {
		out.tenants, out.consumers, out.keys = map[claim.TenantID]*registry.Tenant{}, map[claim.TenantID]map[string]*registry.Consumer{}, map[string]*registry.Key{}
	} else {
		out.tenants, out.consumers, out.keys = maps.Clone(k.tenants), maps.Clone(k.consumers), maps.Clone(k.keys)
	}
	for i := range c.Tenants {
		put(out.tenants, c.Tenants[i].ID, &c.Tenants[i], c.Tenants[i].Deleted)
	}
	copied := map[claim.TenantID]bool{}
	for i := range c.Consumers {
		row := &c.Consumers[i]
		if !copied[row.Tenant] {
			copied[row.Tenant] = true
			if out.consumers[row.Tenant] = maps.Clone(out.consumers[row.Tenant]); out.consumers[row.Tenant] == nil {
				out.consumers[row.Tenant] = map[string]*registry.Consumer{}
			}
		}
		put(out.consumers[row.Tenant], row.Name, row, row.Deleted)
	}
	for i := range c.Keys {
		put(out.keys, c.Keys[i].ID, &c.Keys[i], c.Keys[i].Deleted)
	}
	out.byName = make(map[string]*registry.Tenant, len(out.tenants))
	for _, t := range out.tenants {
		if t.State != registry.TenantDeleted {
			out.byName[t.Name] = t
		}
	}
	return out
}

func put[K comparable, R any](rows map[K]*R, at K, row *R, deleted bool) {
	if deleted {
		delete(rows, at)
		return
	}
	rows[at] = row
}

// consumersOf returns a tenant's consumers after a name, in order.
func (k *known) consumersOf(id claim.TenantID, prefix, after string) []*registry.Consumer {
	var out []*registry.Consumer
	for _, c := range k.consumers[id] {
		if !c.Retired && c.Name > after && strings.HasPrefix(c.Name, prefix) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *registry.Consumer) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// declared returns a consumer that is declared now; nil where it is not.
func (k *known) declared(id claim.TenantID, name string) *registry.Consumer {
	if c := k.consumers[id][name]; c != nil && !c.Retired {
		return c
	}
	return nil
}

// keysOf returns a tenant's keys after an ID, in order; those of the platform
// where it is 0.
func (k *known) keysOf(id claim.TenantID, after string) []*registry.Key {
	var out []*registry.Key
	for _, key := range k.keys {
		if key.Tenant == id && key.ID > after {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b *registry.Key) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// tenantsAfter returns tenants after an ID, in order.
func (k *known) tenantsAfter(after claim.TenantID) []*registry.Tenant {
	var out []*registry.Tenant
	for _, t := range k.tenants {
		if t.ID > after {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b *registry.Tenant) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
