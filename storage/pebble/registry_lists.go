package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// Audit implements registry.Registry. The cursor is the last key.
func (s adminStore) Audit(ctx context.Context, q registry.AuditQuery) (page registry.AuditPage, err error) {
	if err := q.Check(); err != nil {
		return page, err
	}
	tenant, all := q.Scope.Tenant()
	prefix := auditPrefix(tenant)
	if all {
		prefix = adminKey(adminAll, 0)
	}
	lower, err := behind(prefix, q.Cursor, auditPlaceLen)
	if err != nil || len(q.Cursor) > 0 && len(q.Cursor) != len(prefix)+auditPlaceLen {
		return page, storage.ErrCursor
	}
	upper := successor(prefix)
	if q.Until != 0 { // newest first: what is before Until comes behind it
		lower = slices.MaxFunc([][]byte{lower, newest(slices.Clone(prefix), q.Until-1)}, bytes.Compare)
	}
	if q.From != 0 {
		upper = newest(slices.Clone(prefix), q.From-1)
	}
	end, err := s.begin(ctx)
	if err != nil {
		return page, err
	}
	defer end()
	var last []byte
	err = s.each(ctx, lower, upper, func(key, payload []byte) (bool, error) {
		if len(page.Entries) == q.Limit {
			page.Cursor = last
			return false, nil
		}
		last = slices.Clone(key)
		e, err := s.auditEntry(key, payload, all)
		page.Entries = append(page.Entries, e)
		return true, err
	})
	if err == nil {
		err = s.durable(ctx, s.latest(nil))
	}
	if err != nil {
		return registry.AuditPage{}, err
	}
	return page, nil
}

// auditEntry reads the entry that a list stands at.
func (s adminStore) auditEntry(key, payload []byte, all bool) (e registry.AuditEntry, err error) {
	place := key[len(key)-auditPlaceLen:]
	number := func(at int) int64 { return int64(^binary.BigEndian.Uint64(place[at:])) }
	e.At, e.Revision, e.N = claim.Time(number(0)), registry.Revision(number(8)), int(number(16))
	if all {
		if len(payload) != 8 {
			return e, badAdmin(key)
		}
		e.Tenant = claim.TenantID(^binary.BigEndian.Uint64(payload))
		key = auditKey(&e)
		if payload, err = s.read(key); err != nil {
			return e, err
		}
	}
	if len(payload) < len(e.Change) {
		return e, badAdmin(key)
	}
	copy(e.Change[:], payload)
	return e, asDamage(registry.DecodeAudit(payload[len(e.Change):], &e))
}

// Findings implements registry.Registry.
func (s adminStore) Findings(ctx context.Context, q registry.FindingQuery) (registry.FindingPage, error) {
	l, err := q.List()
	if err != nil {
		return registry.FindingPage{}, err
	}
	var page registry.FindingPage
	page.Cursor, err = s.list(ctx, &l, func(row *registry.Stored) error {
		f, err := registry.DecodeFinding(row)
		page.Findings = append(page.Findings, f)
		return err
	})
	if err != nil {
		return registry.FindingPage{}, err
	}
	return page, nil
}

// Jobs implements registry.Registry.
func (s adminStore) Jobs(ctx context.Context, q registry.JobQuery) (registry.JobPage, error) {
	l, err := q.List()
	if err != nil {
		return registry.JobPage{}, err
	}
	var page registry.JobPage
	page.Cursor, err = s.list(ctx, &l, func(row *registry.Stored) error {
		j, err := registry.DecodeJob(row)
		page.Jobs = append(page.Jobs, j)
		return err
	})
	if err != nil {
		return registry.JobPage{}, err
	}
	return page, nil
}

// list calls take with the rows of one page. The cursor is the last key looked
// at.
func (s adminStore) list(ctx context.Context, l *registry.List, take func(*registry.Stored) error) (cursor []byte, err error) {
	tenant, all := l.Scope.Tenant()
	prefix := ownerPrefix(l.Kind, tenant)
	if all {
		prefix = timePrefix(l.Kind)
	}
	const created = 8
	lower, err := behind(prefix, l.Cursor, created+1)
	if err != nil {
		return nil, err
	}
	end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	taken, looked := 0, 0
	var last []byte
	err = s.each(ctx, lower, successor(prefix), func(key, _ []byte) (bool, error) {
		if taken == l.Limit || looked == listLookedMax {
			cursor = last
			return false, nil
		}
		looked++
		last = slices.Clone(key)
		row, ok, err := s.row(registry.Ref{Kind: l.Kind, Name: string(mirrored(nil, key[len(prefix)+created:]))})
		if err != nil || !ok {
			if err == nil {
				err = badAdmin(key)
			}
			return false, err
		}
		if !slices.Contains(l.States, row.State) {
			return true, nil
		}
		taken++
		return true, take(&row)
	})
	if err == nil {
		err = s.durable(ctx, s.latest(nil))
	}
	return cursor, err
}
