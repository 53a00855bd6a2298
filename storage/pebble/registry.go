package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/cockroachdb/pebble/v2"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
	"github.com/warifu/warifu/storage/registry"
)

// adminStore is the registry of a Store. Its writes go where those of claims go,
// to the log and to memory: the engine has no log of its own, and a registry
// beside ours would lose its last changes, without a word, with the end of the
// engine's manifest. Whoever writes holds Store.admin from the first read on.
type adminStore struct{ *Store }

var _ registry.Registry = adminStore{}

// Registry returns the store's registry. It lives as long as the store.
func (s *Store) Registry() registry.Registry { return adminStore{s} }

// begin admits a call that has the registry for itself until it ends.
func (s adminStore) begin(ctx context.Context) (end func(), err error) {
	if err := s.enter(ctx, 0); err != nil {
		return nil, err
	}
	select {
	case s.admin <- struct{}{}:
		return func() { <-s.admin; s.life.RUnlock() }, nil
	case <-s.closing:
		err = storage.ErrClosed
	case <-ctx.Done():
		err = fmt.Errorf("wait for the registry: %w: %w", storage.ErrUnavailable, context.Cause(ctx))
	}
	s.life.RUnlock()
	return nil, err
}

// read returns the payload under key; nil where there is none.
func (s adminStore) read(key []byte) ([]byte, error) {
	s.mu.Lock()
	value := s.memory(maphash.Bytes(s.seed, key), key)
	s.mu.Unlock()
	if value == nil {
		engine, closer, err := s.db.Get(key)
		if errors.Is(err, pebble.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, s.failed("read the registry", err)
		}
		value = bytes.Clone(engine)
		if err := closer.Close(); err != nil {
			return nil, s.failed("read the registry", err)
		}
	}
	if len(value) == 0 {
		return nil, nil // deleted
	}
	payload, err := unsealed(key, value)
	return payload, s.failed("read the registry", err)
}

// each calls do with the keys and payloads of a range in order, until it
// returns false. The payload is valid during the call.
func (s adminStore) each(ctx context.Context, lower, upper []byte, do func(key, payload []byte) (bool, error)) (err error) {
	v, err := s.view(ctx, lower, upper)
	if err != nil {
		return s.failed("read the registry", err)
	}
	defer func() { err = errors.Join(err, s.failed("read the registry", v.close())) }()
	for v.next() {
		payload, err := unsealed(v.key, v.value)
		if err == nil {
			var more bool
			if more, err = do(v.key, payload); err == nil && !more {
				return nil
			}
		}
		if err != nil {
			return s.failed("read the registry", asDamage(err))
		}
	}
	return nil
}

// asDamage: a document that cannot be read is as bad as a record.
func asDamage(err error) error {
	if errors.Is(err, registry.ErrDocument) {
		return fmt.Errorf("%w: %w", errBadRecord, err)
	}
	return err
}

// write commits what fill puts into the builder; nothing, if it puts nothing.
// It is called with the registry held, and waits for the disk by wait.
func (s adminStore) write(ctx context.Context, fill func(*builder)) (wait func() error, err error) {
	if err := s.lockToWrite(ctx); err != nil {
		return nil, err
	}
	now, _ := s.clock.now()
	b := newBuilder(now)
	fill(b)
	c := s.apply(b)
	s.Store.mu.Unlock()
	return func() error { return s.durable(ctx, c) }, nil
}

// set puts a registry value.
func (b *builder) set(key, payload []byte) {
	start := len(b.ops)
	b.ops = append(beginOp(b.ops, opBody, 0, key), sealed(key, payload)...)
	endOp(b.ops, start)
}

func (s adminStore) state() (a adminState, err error) {
	key := adminKey(adminMeta, 0)
	payload, err := s.read(key)
	if payload == nil || err != nil {
		return a, err
	}
	r := codec.NewReader(payload)
	a.last, a.lastTenant = readApplied(&r), claim.TenantID(r.Varint())
	if !r.Done() {
		return a, s.failed("read the registry", badAdmin(key))
	}
	return a, nil
}

// Load implements registry.Registry.
func (s adminStore) Load(ctx context.Context, since registry.Revision) (registry.Changes, error) {
	end, err := s.begin(ctx) // nothing is written while the view is made
	if err != nil {
		return registry.Changes{}, err
	}
	defer end()
	a, err := s.state()
	if err != nil {
		return registry.Changes{}, err
	}
	c := registry.Changes{Revision: a.last.Revision, LastTenant: a.lastTenant}
	if since <= 0 || since > c.Revision {
		c.Full, since = true, 0
	}
	if s.cfg.hooks.adminRead != nil {
		s.cfg.hooks.adminRead()
	}
	if since < c.Revision {
		err = s.loadRows(ctx, &c, since)
	}
	if err == nil {
		err = s.durable(ctx, s.latest(nil))
	}
	if err != nil {
		return registry.Changes{}, err
	}
	return c, nil
}

func (s adminStore) loadRows(ctx context.Context, c *registry.Changes, since registry.Revision) error {
	lower := adminKey(adminRow, 1)
	upper := append(adminKey(adminRow, 1), byte(registry.KindKey)+1)
	return s.each(ctx, lower, upper, func(key, payload []byte) (bool, error) {
		row, err := readRow(key, payload)
		if err != nil || row.Revision <= since || c.Full && row.Deleted {
			return true, err
		}
		return true, c.Decode(&row)
	})
}

// Apply implements registry.Registry.
func (s adminStore) Apply(ctx context.Context, c registry.Change) (registry.Applied, error) {
	p, err := c.Prepare()
	if err != nil {
		return registry.Applied{}, err
	}
	answer, wait, err := s.applyHeld(ctx, p)
	if err != nil {
		return registry.Applied{}, err
	}
	if err := wait(); err != nil {
		return registry.Applied{}, err
	}
	return answer, nil
}

// applyHeld does what needs the registry for itself; the disk is waited for
// without it.
func (s adminStore) applyHeld(ctx context.Context, p *registry.Prepared) (registry.Applied, func() error, error) {
	end, err := s.begin(ctx)
	if err != nil {
		return registry.Applied{}, nil, err
	}
	defer end()
	w, err := s.world(p)
	if err != nil {
		return registry.Applied{}, nil, err
	}
	next, done, err := p.Plan(w)
	switch {
	case err != nil:
		// What was refused depends on what was read.
		return registry.Applied{}, nil, errors.Join(s.durable(ctx, s.latest(nil)), err)
	case done != nil:
		return *done, func() error { return s.durable(ctx, s.latest(nil)) }, nil
	}
	wait, err := s.write(ctx, func(b *builder) { put(b, p, w, next) })
	return w.Next, wait, err
}

// world reads what Plan has to see.
func (s adminStore) world(p *registry.Prepared) (*registry.World, error) {
	a, err := s.state()
	if err != nil {
		return nil, err
	}
	now, _ := s.clock.now()
	w := &registry.World{Rows: map[registry.Ref]registry.Stored{}, Holders: map[string]registry.Ref{}, LastTenant: a.lastTenant}
	w.Next = registry.Applied{Revision: a.last.Revision + 1, At: max(a.last.At, now)}
	for _, ref := range p.Reads() {
		row, ok, err := s.row(ref)
		if err != nil {
			return nil, err
		}
		if ok {
			w.Rows[ref] = row
		}
	}
	for _, label := range p.Labels() {
		payload, err := s.read(labelKey(registry.KindTenant, label))
		if err != nil {
			return nil, err
		}
		if payload != nil {
			w.Holders[label] = registry.Ref{Kind: registry.KindTenant, Name: string(payload)}
		}
	}
	w.Proof, err = s.proof(p.ID)
	return w, err
}

func (s adminStore) row(ref registry.Ref) (row registry.Stored, ok bool, err error) {
	key := rowKey(ref)
	payload, err := s.read(key)
	if payload == nil || err != nil {
		return row, false, err
	}
	row, err = readRow(key, payload)
	return row, true, s.failed("read the registry", err)
}

func (s adminStore) proof(id registry.ID) (*registry.Applied, error) {
	key := append(adminKey(adminProof, len(id)), id[:]...)
	payload, err := s.read(key)
	if payload == nil || err != nil {
		return nil, err
	}
	r := codec.NewReader(payload)
	a := readApplied(&r)
	if !r.Done() {
		return nil, s.failed("read the registry", badAdmin(key))
	}
	return &a, nil
}

// put writes a change as one commit.
func put(b *builder, p *registry.Prepared, w *registry.World, next []registry.Next) {
	a := adminState{last: w.Next, lastTenant: w.LastTenant}
	for i := range next {
		if next[i].Ref.Kind == registry.KindTenant {
			a.lastTenant = max(a.lastTenant, next[i].Tenant)
		}
		if o := next[i].Old; o != nil && o.Label != "" && o.Label != next[i].Label {
			b.delete(labelKey(o.Ref.Kind, o.Label))
		}
	}
	for i := range next { // after all labels that were given up
		putRow(b, &next[i])
	}
	for i := range p.Audit {
		e := &p.Audit[i]
		e.At, e.Revision = w.Next.At, w.Next.Revision
		b.set(auditKey(e), append(e.Change[:], p.Docs[i]...))
		b.set(allKey(e), newest(nil, e.Tenant))
	}
	if len(p.Audit) > 0 {
		b.set(append(adminKey(adminProof, len(p.ID)), p.ID[:]...), appliedPayload(w.Next))
	}
	key := adminKey(adminMeta, 0)
	b.set(key, a.payload())
}

func putRow(b *builder, n *registry.Next) {
	listed := !n.Ref.Kind.Loaded()
	if n.Drop {
		b.delete(rowKey(n.Ref))
		b.delete(ownerKey(&n.Stored))
		b.delete(timeKey(&n.Stored))
		return
	}
	b.set(rowKey(n.Ref), rowPayload(&n.Stored))
	if n.Label != "" {
		b.set(labelKey(n.Ref.Kind, n.Label), []byte(n.Ref.Name))
	}
	if listed && n.Old == nil {
		b.set(ownerKey(&n.Stored), nil)
		b.set(timeKey(&n.Stored), nil)
	}
}
