package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storetime"
)

// registryStore is the registry of a Store, on its connections.
type registryStore struct{ *Store }

var _ registry.Registry = registryStore{}

// Registry returns the store's registry. It lives as long as the store.
func (s *Store) Registry() registry.Registry { return registryStore{s} }

// Load implements registry.Registry: one trip, or two behind a restore.
func (s registryStore) Load(ctx context.Context, since registry.Revision) (registry.Changes, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return registry.Changes{}, err
	}
	defer leave()
	c, err := s.load(ctx, max(since, 0))
	if err == nil && since > c.Revision {
		c, err = s.load(ctx, 0)
	}
	if err != nil {
		return registry.Changes{}, err
	}
	return c, nil
}

func (s registryStore) load(ctx context.Context, since registry.Revision) (c registry.Changes, err error) {
	err = s.trip(ctx, s.traffic, reads, func(storetime.Bounds) []query {
		c = registry.Changes{Full: since == 0}
		return []query{{sql: sqlRegistryLoad, args: []any{int64(since)}, row: func(r row) error {
			c.Revision = registry.Revision(r.int8())
			last, err := tenantNamed(r.text())
			if c.LastTenant = last; err != nil {
				return err
			}
			if r.next < len(r.values) && r.values[r.next] == nil {
				return nil // nothing of this kind
			}
			row, err := r.stored()
			if err != nil {
				return err
			}
			return asRow(c.Decode(&row))
		}}}
	})
	return c, err
}

// stored reads the columns of a row in the order of queries/registry_load.sql.
func (r *row) stored() (registry.Stored, error) {
	var s registry.Stored
	s.Ref = registry.Ref{Kind: registry.Kind(r.int2()), Name: r.text()}
	s.Tenant, s.Version, s.Revision = claim.TenantID(r.int8()), r.int8(), registry.Revision(r.int8())
	s.Change, s.Created, s.Updated = r.uuid(), r.time(), r.time()
	s.Deleted, s.State, s.Label, s.Doc = r.bool(), r.int2(), r.text(), r.bytes()
	return s, r.end()
}

// tenantNamed returns the number in the name of a tenant's row; "" is 0.
func tenantNamed(name string) (claim.TenantID, error) {
	if name == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(name, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: tenant %q", errRow, name)
	}
	return claim.TenantID(n), nil
}

// asRow: a document that cannot be read does not become readable by another
// try.
func asRow(err error) error {
	if err != nil && errors.Is(err, registry.ErrDocument) {
		return fmt.Errorf("%w: %w", errRow, err)
	}
	return err
}

// Apply implements registry.Registry: three trips and a commit.
func (s registryStore) Apply(ctx context.Context, c registry.Change) (registry.Applied, error) {
	p, err := c.Prepare()
	if err != nil {
		return registry.Applied{}, err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return registry.Applied{}, err
	}
	defer leave()
	var answer registry.Applied
	err = s.transact(ctx, s.traffic, func(ctx context.Context, tx pgx.Tx) error {
		answer = registry.Applied{}
		w, err := s.world(ctx, tx, p)
		if err != nil {
			return err
		}
		next, done, err := p.Plan(w)
		switch {
		case err != nil:
			return refusal{err}
		case done != nil:
			answer = *done
			return refusal{errMade}
		}
		answer = w.Next
		return s.put(ctx, tx, p, w, next)
	})
	if err != nil && !errors.Is(err, errMade) {
		return registry.Applied{}, err
	}
	return answer, nil
}

// errMade: the change was made before, and the transaction has nothing to do.
var errMade = errors.New("made before")

// world begins the change: it waits until no other is under way, and reads what
// Plan has to see. Each statement behind the first sees what was committed
// before the wait ended, or the transaction is refused as a whole.
func (s registryStore) world(ctx context.Context, tx pgx.Tx, p *registry.Prepared) (*registry.World, error) {
	w := &registry.World{Rows: map[registry.Ref]registry.Stored{}, Holders: map[string]registry.Ref{}}
	var kinds []int16
	var names []string
	for _, ref := range p.Reads() {
		kinds, names = append(kinds, int16(ref.Kind)), append(names, ref.Name)
	}
	labels := append([]string{}, p.Labels()...)
	err := s.send(ctx, tx, []query{
		{sql: sqlRegistryMetaSeed},
		{sql: sqlRegistryMetaNext, args: held(s.bounds()), row: func(r row) error {
			w.Next = registry.Applied{Revision: registry.Revision(r.int8()), At: r.time()}
			return r.end()
		}},
		{sql: sqlRegistryProof, args: []any{[16]byte(p.ID)}, row: func(r row) error {
			w.Proof = &registry.Applied{Revision: registry.Revision(r.int8()), At: r.time()}
			return r.end()
		}},
		{sql: sqlRegistryRowsGet, args: []any{kinds, names}, row: func(r row) error {
			row, err := r.stored()
			w.Rows[row.Ref] = row
			return err
		}},
		{sql: sqlRegistryLabels, args: []any{labels}, row: func(r row) (err error) {
			label, name := r.text(), r.text()
			if r.bool() {
				w.Holders[label] = registry.Ref{Kind: registry.KindTenant, Name: name}
			} else if w.LastTenant, err = tenantNamed(name); err != nil {
				return err
			}
			return r.end()
		}},
	})
	if err == nil && w.Next.Revision == 0 {
		err = errAgain // the row was not there, and another has made it
	}
	return w, err
}

// put writes what Plan returned.
func (s registryStore) put(ctx context.Context, tx pgx.Tx, p *registry.Prepared, w *registry.World, next []registry.Next) error {
	var puts, drops rowArrays
	for i := range next {
		if next[i].Drop {
			drops.add(&next[i])
		} else {
			puts.add(&next[i])
		}
	}
	changed := int64(0)
	count := func(n int64) { changed += n }
	at := instant(w.Next.At)
	var queries []query
	if len(puts.name) > 0 {
		queries = append(queries, query{sql: sqlRegistryRowsPut, tag: count, args: []any{
			int64(w.Next.Revision), [16]byte(p.ID), at,
			puts.kind, puts.name, puts.tenant, puts.version, puts.created, puts.deleted, puts.state, puts.label, puts.doc,
		}})
	}
	if len(drops.name) > 0 {
		queries = append(queries, query{sql: sqlRegistryRowsDrop, tag: count, args: []any{drops.kind, drops.name, drops.old}})
	}
	if n := len(p.Audit); n > 0 {
		places, tenants := make([]int16, n), make([]int64, n)
		for i := range p.Audit {
			places[i], tenants[i] = int16(i), int64(p.Audit[i].Tenant)
		}
		queries = append(queries, query{sql: sqlRegistryAuditPut, args: []any{
			[16]byte(p.ID), at, int64(w.Next.Revision), places, tenants, p.Docs,
		}})
	}
	if err := s.send(ctx, tx, queries); err != nil {
		return err
	}
	if changed != int64(len(next)) {
		return errAgain
	}
	return nil
}

// rowArrays are the arrays of rows that a statement takes.
type rowArrays struct {
	kind, state          []int16
	name, label          []string
	tenant, version, old []int64
	created              []pgtype.Timestamptz
	deleted              []bool
	doc                  [][]byte
}

func (a *rowArrays) add(n *registry.Next) {
	a.kind, a.state = append(a.kind, int16(n.Ref.Kind)), append(a.state, n.State)
	a.name, a.label = append(a.name, n.Ref.Name), append(a.label, n.Label)
	a.tenant, a.version, a.old = append(a.tenant, int64(n.Tenant)), append(a.version, n.Version), append(a.old, n.Version-1)
	a.created, a.deleted = append(a.created, floor(n.Created)), append(a.deleted, n.Deleted)
	a.doc = append(a.doc, append([]byte{}, n.Doc...)) // never NULL
}
