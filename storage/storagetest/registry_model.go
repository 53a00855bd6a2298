package storagetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// RegistryModel is the oracle of registries: maps behind one mutex.
type RegistryModel struct {
	clock func() time.Time

	mu struct {
		sync.Mutex
		last   registry.Applied
		tenant claim.TenantID
		rows   map[registry.Ref]registry.Stored
		audit  []registry.AuditEntry // oldest first
		seen   map[string]claim.Time
		leases map[string]registry.Lease
	}
}

var _ registry.Registry = (*RegistryModel)(nil)

// NewRegistryModel returns an empty model whose time is that of clock.
func NewRegistryModel(clock func() time.Time) *RegistryModel {
	m := &RegistryModel{clock: clock}
	m.mu.rows, m.mu.seen = map[registry.Ref]registry.Stored{}, map[string]claim.Time{}
	m.mu.leases = map[string]registry.Lease{}
	return m
}

func (m *RegistryModel) now() claim.Time { return claim.FromTime(m.clock()) }

// Load implements registry.Registry.
func (m *RegistryModel) Load(_ context.Context, since registry.Revision) (registry.Changes, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := registry.Changes{Revision: m.mu.last.Revision, LastTenant: m.mu.tenant}
	if since <= 0 || since > c.Revision {
		c.Full, since = true, 0
	}
	for _, s := range m.mu.rows {
		if !s.Ref.Kind.Loaded() || s.Revision <= since || c.Full && s.Deleted {
			continue
		}
		if err := c.Decode(&s); err != nil {
			return registry.Changes{}, err
		}
	}
	return c, nil
}

// Apply implements registry.Registry.
func (m *RegistryModel) Apply(_ context.Context, c registry.Change) (registry.Applied, error) {
	p, err := c.Prepare()
	if err != nil {
		return registry.Applied{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.world(p.ID)
	next, done, err := p.Plan(w)
	if err != nil || done != nil {
		return *cmp.Or(done, &registry.Applied{}), err
	}
	m.mu.last = w.Next
	for _, n := range next {
		if m.mu.rows[n.Ref] = n.Stored; n.Drop {
			delete(m.mu.rows, n.Ref)
		}
		if n.Ref.Kind == registry.KindTenant {
			m.mu.tenant = max(m.mu.tenant, n.Tenant)
		}
	}
	for i, doc := range p.Docs {
		e := registry.AuditEntry{Change: p.ID, N: i, Revision: w.Next.Revision, At: w.Next.At}
		if err := registry.DecodeAudit(doc, &e); err != nil {
			return registry.Applied{}, err
		}
		m.mu.audit = append(m.mu.audit, e)
	}
	return w.Next, nil
}

func (m *RegistryModel) world(change registry.ID) *registry.World {
	w := &registry.World{Rows: m.mu.rows, Holders: map[string]registry.Ref{}, LastTenant: m.mu.tenant}
	w.Next = registry.Applied{Revision: m.mu.last.Revision + 1, At: max(m.mu.last.At, m.now())}
	for ref, s := range m.mu.rows {
		if s.Label != "" {
			w.Holders[s.Label] = ref
		}
	}
	for _, e := range m.mu.audit {
		if e.Change == change {
			w.Proof = &registry.Applied{Revision: e.Revision, At: e.At}
		}
	}
	return w
}

// Audit implements registry.Registry.
func (m *RegistryModel) Audit(_ context.Context, q registry.AuditQuery) (registry.AuditPage, error) {
	if err := q.Check(); err != nil {
		return registry.AuditPage{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	from, err := registryCursor("audit", q.Scope, q.Cursor)
	if err != nil {
		return registry.AuditPage{}, err
	}
	var page registry.AuditPage
	for _, e := range slices.Backward(m.mu.audit) {
		id := fmt.Sprintf("%020d/%020d/%05d", e.At, e.Revision, e.N)
		if !q.Scope.Shows(e.Tenant) || e.At < q.From || q.Until != 0 && e.At >= q.Until || from != "" && id >= from {
			continue
		}
		if len(page.Entries) == q.Limit {
			last := page.Entries[q.Limit-1]
			page.Cursor = modelCursor("audit", q.Scope, fmt.Sprintf("%020d/%020d/%05d", last.At, last.Revision, last.N))
			break
		}
		page.Entries = append(page.Entries, e)
	}
	return page, nil
}

// Findings implements registry.Registry.
func (m *RegistryModel) Findings(_ context.Context, q registry.FindingQuery) (registry.FindingPage, error) {
	l, err := q.List()
	if err != nil {
		return registry.FindingPage{}, err
	}
	rows, cursor, err := m.list(&l)
	page := registry.FindingPage{Cursor: cursor}
	for i := range rows {
		f, ferr := registry.DecodeFinding(&rows[i])
		page.Findings, err = append(page.Findings, f), cmp.Or(err, ferr)
	}
	return page, err
}

// Jobs implements registry.Registry.
func (m *RegistryModel) Jobs(_ context.Context, q registry.JobQuery) (registry.JobPage, error) {
	l, err := q.List()
	if err != nil {
		return registry.JobPage{}, err
	}
	rows, cursor, err := m.list(&l)
	page := registry.JobPage{Cursor: cursor}
	for i := range rows {
		j, jerr := registry.DecodeJob(&rows[i])
		page.Jobs, err = append(page.Jobs, j), cmp.Or(err, jerr)
	}
	return page, err
}

func (m *RegistryModel) list(l *registry.List) (page []registry.Stored, cursor []byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kind := fmt.Sprintf("list%d", l.Kind)
	from, err := registryCursor(kind, l.Scope, l.Cursor)
	if err != nil {
		return nil, nil, err
	}
	id := func(s *registry.Stored) string { return fmt.Sprintf("%020d/%s", s.Created, s.Ref.Name) }
	rows := slices.SortedFunc(maps.Values(m.mu.rows), func(a, b registry.Stored) int { return cmp.Compare(id(&b), id(&a)) })
	for i := range rows {
		s := &rows[i]
		if s.Ref.Kind != l.Kind || !l.Scope.Shows(s.Tenant) || !slices.Contains(l.States, s.State) || from != "" && id(s) >= from {
			continue
		}
		if len(page) == l.Limit {
			return page, modelCursor(kind, l.Scope, id(&page[l.Limit-1])), nil
		}
		page = append(page, *s)
	}
	return page, nil, nil
}

func modelCursor(kind string, s registry.Scope, id string) []byte {
	return fmt.Appendf(nil, "%s/%d/%s", kind, s.Mark(), id)
}

func registryCursor(kind string, s registry.Scope, cursor []byte) (string, error) {
	prefix := string(modelCursor(kind, s, ""))
	if len(cursor) == 0 {
		return "", nil
	}
	if len(cursor) <= len(prefix) || string(cursor[:len(prefix)]) != prefix {
		return "", storage.ErrCursor
	}
	return string(cursor[len(prefix):]), nil
}

// Seen implements registry.Registry.
func (m *RegistryModel) Seen(_ context.Context, used map[string]claim.Time) error {
	if err := registry.CheckSeen(len(used)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, at := range used {
		s, ok := m.mu.rows[registry.Ref{Kind: registry.KindKey, Name: id}]
		old, noted := m.mu.seen[id]
		at = min(at, m.now())
		if ok && !s.Deleted && (!noted || at >= old.Add(registry.SeenGrain)) {
			m.mu.seen[id] = at
		}
	}
	return nil
}

// Used implements registry.Registry.
func (m *RegistryModel) Used(_ context.Context, keys []string) (map[string]claim.Time, error) {
	if err := registry.CheckSeen(len(keys)); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]claim.Time{}
	for _, id := range keys {
		if at, ok := m.mu.seen[id]; ok {
			out[id] = at
		}
	}
	return out, nil
}

// Lease implements registry.Registry.
func (m *RegistryModel) Lease(_ context.Context, name, owner string, ttl time.Duration) (registry.Lease, bool, error) {
	if err := registry.CheckLease(name, owner, ttl); err != nil {
		return registry.Lease{}, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l, held := m.mu.leases[name].Taken(name, owner, ttl, m.now())
	m.mu.leases[name] = l
	return l, held, nil
}

// SaveCursor implements registry.Registry.
func (m *RegistryModel) SaveCursor(_ context.Context, name string, fence claim.Fence, cursor []byte) (bool, error) {
	if err := registry.CheckCursor(name, cursor); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.mu.leases[name]
	if !ok || l.Fence != fence {
		return false, nil
	}
	l.Cursor = slices.Clone(cursor)
	m.mu.leases[name] = l
	return true, nil
}

// Unlease implements registry.Registry.
func (m *RegistryModel) Unlease(_ context.Context, name string, fence claim.Fence) error {
	if err := registry.CheckLeaseName(name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if l, ok := m.mu.leases[name]; ok && l.Fence == fence {
		l.Owner, l.Until = "", min(l.Until, m.now())
		m.mu.leases[name] = l
	}
	return nil
}

// Leases implements registry.Registry.
func (m *RegistryModel) Leases(context.Context) (registry.Leases, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := registry.Leases{Now: m.now()}
	for _, name := range slices.Sorted(maps.Keys(m.mu.leases)) {
		out.Leases = append(out.Leases, m.mu.leases[name])
	}
	return out, nil
}
