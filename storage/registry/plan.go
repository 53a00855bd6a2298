package registry

import (
	"cmp"
	"slices"

	"github.com/warifu/warifu/storage/claim"
)

// Prepared is a Change that was checked, in the form that drivers work with.
type Prepared struct {
	ID     ID
	writes []write
	// Audit has documents; Change and N are set.
	Audit []AuditEntry
	Docs  [][]byte // of Audit
}

type write struct {
	Stored // Version is what is expected
	delete bool
}

// Prepare checks a Change: whatever a store would refuse of it whatever is
// stored, it refuses here.
func (c *Change) Prepare() (*Prepared, error) {
	p := &Prepared{ID: c.ID}
	if c.ID == (ID{}) {
		return nil, invalid("change.id", "is missing")
	}
	size, err := p.rows(c)
	if err != nil {
		return nil, err
	}
	n, err := p.audit(c.Audit)
	if err != nil {
		return nil, err
	}
	if size += n; size > ChangeBytesMax {
		return nil, invalid("change", "has %d bytes; at most %d", size, ChangeBytesMax)
	}
	return p, p.check()
}

// rows takes all writes, in one order for everybody.
func (p *Prepared) rows(c *Change) (size int, err error) {
	err = first(
		take(p, c.Tenants, func(t *Tenant) row { return t }), take(p, c.Consumers, func(v *Consumer) row { return v }),
		take(p, c.Keys, func(k *Key) row { return k }), take(p, c.Findings, func(f *Finding) row { return f }),
		take(p, c.Jobs, func(j *Job) row { return j }),
	)
	if err != nil {
		return 0, err
	}
	slices.SortFunc(p.writes, func(a, b write) int {
		return cmp.Or(cmp.Compare(a.Ref.Kind, b.Ref.Kind), cmp.Compare(a.Ref.Name, b.Ref.Name))
	})
	for i := range p.writes {
		size += len(p.writes[i].Doc)
	}
	return size, nil
}

func take[R any](p *Prepared, writes []Write[R], as func(*R) row) error {
	for i := range writes {
		r := as(&writes[i].Row)
		w := write{Stored: r.stored(), delete: writes[i].Delete}
		if err := checkWrite(r, &w); err != nil {
			return err
		}
		if w.Version = r.head().Version; w.Version < 0 || w.delete && w.Version == 0 {
			return invalid(w.Ref.String(), "has version %d", w.Version)
		}
		if !w.delete {
			doc, err := encode(r)
			if err != nil {
				return invalid(w.Ref.String(), "is no JSON: %v", err)
			}
			if len(doc) > DocumentMax {
				return invalid(w.Ref.String(), "has %d bytes; at most %d", len(doc), DocumentMax)
			}
			w.Doc = doc
		}
		p.writes = append(p.writes, w)
	}
	return nil
}

// checkWrite: what is deleted may be anything but a name that no row can have.
func checkWrite(r row, w *write) error {
	if w.delete {
		return checkChars(kindNames[w.Ref.Kind], w.Ref.Name)
	}
	return r.check()
}

func (p *Prepared) audit(entries []AuditEntry) (size int, err error) {
	if len(entries) > ChangeAuditMax {
		return 0, invalid("change.audit", "has %d entries; at most %d", len(entries), ChangeAuditMax)
	}
	for n, e := range entries {
		if err := e.check(); err != nil {
			return 0, err
		}
		e.Change, e.N = p.ID, n
		doc, err := EncodeAudit(&e)
		if err != nil {
			return 0, invalid("audit", "is no JSON: %v", err)
		}
		if len(doc) > DocumentMax {
			return 0, invalid("audit", "has %d bytes; at most %d", len(doc), DocumentMax)
		}
		p.Audit, p.Docs = append(p.Audit, e), append(p.Docs, doc)
		size += len(doc)
	}
	return size, nil
}

// check looks at all writes together.
func (p *Prepared) check() error {
	if len(p.writes) > ChangeRowsMax {
		return invalid("change", "has %d rows; at most %d", len(p.writes), ChangeRowsMax)
	}
	if len(p.writes)+len(p.Audit) == 0 {
		return invalid("change", "is empty")
	}
	labels := map[string]bool{}
	for i := range p.writes {
		w := &p.writes[i]
		switch {
		case i > 0 && w.Ref == p.writes[i-1].Ref:
			return invalid(w.Ref.String(), "is written twice in one change")
		case len(p.Audit) == 0 && (w.Ref.Kind.Loaded() || w.delete):
			return invalid(w.Ref.String(), "is changed without an audit entry")
		case w.Label != "" && !w.delete && labels[w.Label]:
			return invalid(w.Ref.String(), "has the name of another in this change")
		case !w.delete:
			labels[w.Label] = true
		}
	}
	return nil
}

// Reads returns the rows that Plan has to see: those that are written, and the
// tenants that they belong to.
func (p *Prepared) Reads() []Ref {
	var refs []Ref
	for i := range p.writes {
		refs = append(refs, p.writes[i].Ref)
		if t := p.writes[i].Tenant; t != 0 {
			refs = append(refs, TenantRef(t))
		}
	}
	slices.SortFunc(refs, func(a, b Ref) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return slices.Compact(refs)
}

// Labels returns the names of tenants whose holders Plan has to see.
func (p *Prepared) Labels() []string {
	var labels []string
	for i := range p.writes {
		if w := &p.writes[i]; w.Label != "" && !w.delete {
			labels = append(labels, w.Label)
		}
	}
	return labels
}

// World is what a driver has read for Plan, with no other writer since.
type World struct {
	Rows       map[Ref]Stored // tombstones included
	Holders    map[string]Ref // of labels
	LastTenant claim.TenantID
	// Proof is the answer that the audit entry of this Change gave, if there
	// is one.
	Proof *Applied
	// Next is what this Apply will be, if it is made.
	Next Applied
}

// Next is one row to write.
type Next struct {
	Stored
	Old  *Stored // nil: there is none
	Drop bool    // delete it without a tombstone
}

// Plan says what to write. Done is set, and there is nothing to write, when the
// Change was made before. The error is a *ConflictError or an *InvalidError.
func (p *Prepared) Plan(w *World) (next []Next, done *Applied, err error) {
	if w.Proof != nil {
		return nil, w.Proof, nil
	}
	if made, ok := p.madeBefore(w); ok {
		return nil, made, nil
	}
	for i := range p.writes {
		n, err := p.next(&p.writes[i], w)
		if err != nil {
			return nil, nil, err
		}
		next = append(next, n)
	}
	return next, nil, nil
}

// madeBefore looks for the proof in the rows: all were written together.
func (p *Prepared) madeBefore(w *World) (*Applied, bool) {
	if len(p.Audit) > 0 {
		return nil, false
	}
	for i := range p.writes {
		if s, ok := w.Rows[p.writes[i].Ref]; ok && s.Change == p.ID {
			return &Applied{Revision: s.Revision, At: s.Updated}, true
		}
	}
	return nil, false
}

func (p *Prepared) next(v *write, w *World) (Next, error) {
	n := Next{Stored: v.Stored}
	old, exists := w.Rows[v.Ref]
	if exists {
		n.Old = &old
	}
	live := exists && !old.Deleted
	switch {
	case live != (v.Version > 0), live && old.Version != v.Version, live && old.Tenant != v.Tenant:
		return n, &ConflictError{v.Ref}
	}
	if err := p.guard(v, n.Old, w); err != nil {
		return n, err
	}
	n.Version, n.Revision, n.Change = old.Version+1, w.Next.Revision, p.ID
	n.Created, n.Updated = w.Next.At, w.Next.At
	if live {
		n.Created = old.Created
	}
	if v.delete {
		n.Deleted, n.Label, n.State, n.Doc = true, "", 0, nil
		n.Drop = !v.Ref.Kind.Loaded()
	}
	return n, KeepsDataKeys(n.Old, &n.Stored)
}

// guard holds the rules that are about more than one row, or about states.
func (p *Prepared) guard(v *write, old *Stored, w *World) error {
	if v.Ref.Kind == KindTenant {
		return p.guardTenant(v, old, w)
	}
	// What is written for a tenant that is gone would outlive its purge; the job
	// that purges it does.
	if v.Tenant == 0 || v.delete || v.Ref.Kind == KindJob {
		return nil
	}
	t, ok := w.Rows[TenantRef(v.Tenant)]
	state, there := t.State, ok && !t.Deleted
	for i := range p.writes {
		if o := &p.writes[i]; o.Ref == TenantRef(v.Tenant) {
			state, there = o.State, !o.delete
		}
	}
	if !there || state == int16(TenantDeleted) {
		return &ConflictError{TenantRef(v.Tenant)}
	}
	return nil
}

func (p *Prepared) guardTenant(v *write, old *Stored, w *World) error {
	switch {
	case old == nil && v.Tenant <= w.LastTenant:
		return &ConflictError{v.Ref} // somebody took the number
	case old == nil:
	case old.Deleted:
		return &ConflictError{v.Ref} // numbers are used once
	case v.delete && old.State != int16(TenantDeleted):
		return invalid(v.Ref.String(), "is deleted before its state is")
	case !v.delete && old.State == int16(TenantDeleted):
		return invalid(v.Ref.String(), "is deleted and does not change")
	case !v.delete && old.State == int16(TenantDeleting) && v.State < int16(TenantDeleting):
		return invalid(v.Ref.String(), "is being deleted, which is not taken back")
	}
	holder, taken := w.Holders[v.Label]
	if v.delete || v.Label == "" || !taken || holder == v.Ref {
		return nil
	}
	for i := range p.writes { // the holder may be giving the name up
		if o := &p.writes[i]; o.Ref == holder && (o.delete || o.Label != v.Label) {
			return nil
		}
	}
	return &ConflictError{holder}
}
