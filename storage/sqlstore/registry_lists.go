package sqlstore

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storetime"
)

// endOfTime is behind every instant that is stored.
var endOfTime = pgtype.Timestamptz{Time: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), Valid: true}

// place is where a list of the registry goes on: behind this entry.
type place struct {
	at       pgtype.Timestamptz
	revision int64
	n        int16
	name     string
}

var listStart = place{at: endOfTime}

// The first byte of a cursor says what it is of; for findings and jobs it is
// followed by the kind.
const (
	auditCursor = 'A'
	rowCursor   = 'R'
)

// encode binds the cursor to its list and to whose list it is.
func (p place) encode(list byte, kind registry.Kind, scope registry.Scope) []byte {
	b := binary.AppendVarint([]byte{list, byte(kind)}, int64(scope.Mark()))
	b = binary.AppendVarint(b, p.at.Time.UnixMicro())
	b = binary.AppendVarint(binary.AppendVarint(b, p.revision), int64(p.n))
	b = codec.AppendBytes(b, p.name)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodePlace refuses what encode did not make for this list with
// storage.ErrCursor. No bytes are the beginning.
func decodePlace(list byte, kind registry.Kind, scope registry.Scope, b []byte) (place, error) {
	if len(b) == 0 {
		return listStart, nil
	}
	const sum = 4
	if len(b) <= 2+sum || b[0] != list || b[1] != byte(kind) {
		return place{}, storage.ErrCursor
	}
	body, end := b[:len(b)-sum], b[len(b)-sum:]
	if binary.BigEndian.Uint32(end) != crc32.Checksum(body, castagnoli) {
		return place{}, storage.ErrCursor
	}
	r := codec.NewReader(body[2:])
	mark := claim.TenantID(r.Varint())
	p := place{at: floor(claim.Time(r.Varint())), revision: r.Varint(), n: int16(r.Varint()), name: string(r.Bytes())}
	if !r.Done() || mark != scope.Mark() {
		return place{}, storage.ErrCursor
	}
	return p, nil
}

// Audit implements registry.Registry.
func (s registryStore) Audit(ctx context.Context, q registry.AuditQuery) (page registry.AuditPage, err error) {
	if err := q.Check(); err != nil {
		return page, err
	}
	after, err := decodePlace(auditCursor, 0, q.Scope, q.Cursor)
	if err != nil {
		return page, err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return page, err
	}
	defer leave()
	until := endOfTime
	if q.Until != 0 {
		until = floor(q.Until)
	}
	sql, args := sqlRegistryAuditAll, []any{}
	if tenant, all := q.Scope.Tenant(); !all {
		sql, args = sqlRegistryAudit, []any{int64(tenant)}
	}
	args = append(args, floor(q.From), until, after.at, after.revision, after.n, int64(q.Limit+1))
	err = s.trip(ctx, s.sweeps, reads, func(storetime.Bounds) []query {
		page = registry.AuditPage{}
		return []query{{sql: sql, args: args, row: func(r row) error {
			var e registry.AuditEntry
			e.Change, e.N, e.Tenant = r.uuid(), int(r.int2()), claim.TenantID(r.int8())
			e.At, e.Revision = r.time(), registry.Revision(r.int8())
			doc := r.value()
			if err := r.end(); err != nil {
				return err
			}
			if len(page.Entries) == q.Limit {
				last := &page.Entries[q.Limit-1]
				page.Cursor = place{floor(last.At), int64(last.Revision), int16(last.N), ""}.encode(auditCursor, 0, q.Scope)
				return nil
			}
			err := registry.DecodeAudit(doc, &e)
			page.Entries = append(page.Entries, e)
			return asRow(err)
		}}}
	})
	if err != nil {
		return registry.AuditPage{}, err
	}
	return page, nil
}

// Findings implements registry.Registry.
func (s registryStore) Findings(ctx context.Context, q registry.FindingQuery) (registry.FindingPage, error) {
	l, err := q.List()
	if err != nil {
		return registry.FindingPage{}, err
	}
	rows, cursor, err := s.list(ctx, &l)
	if err != nil {
		return registry.FindingPage{}, err
	}
	page := registry.FindingPage{Cursor: cursor}
	for i := range rows {
		f, err := registry.DecodeFinding(&rows[i])
		if err != nil {
			return registry.FindingPage{}, err
		}
		page.Findings = append(page.Findings, f)
	}
	return page, nil
}

// Jobs implements registry.Registry.
func (s registryStore) Jobs(ctx context.Context, q registry.JobQuery) (registry.JobPage, error) {
	l, err := q.List()
	if err != nil {
		return registry.JobPage{}, err
	}
	rows, cursor, err := s.list(ctx, &l)
	if err != nil {
		return registry.JobPage{}, err
	}
	page := registry.JobPage{Cursor: cursor}
	for i := range rows {
		j, err := registry.DecodeJob(&rows[i])
		if err != nil {
			return registry.JobPage{}, err
		}
		page.Jobs = append(page.Jobs, j)
	}
	return page, nil
}

// list reads one page of findings or jobs.
func (s registryStore) list(ctx context.Context, l *registry.List) (rows []registry.Stored, cursor []byte, err error) {
	after, err := decodePlace(rowCursor, l.Kind, l.Scope, l.Cursor)
	if err != nil {
		return nil, nil, err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	sql, args := sqlRegistryListAll, []any{int16(l.Kind)}
	if tenant, all := l.Scope.Tenant(); !all {
		sql, args = sqlRegistryList, append(args, int64(tenant))
	}
	args = append(args, after.at, after.name, l.States, int64(l.Limit+1))
	err = s.trip(ctx, s.sweeps, reads, func(storetime.Bounds) []query {
		rows, cursor = nil, nil
		return []query{{sql: sql, args: args, row: func(r row) error {
			row, err := r.stored()
			if err != nil {
				return err
			}
			if len(rows) < l.Limit {
				rows = append(rows, row)
				return nil
			}
			last := &rows[l.Limit-1]
			cursor = place{at: floor(last.Created), name: last.Ref.Name}.encode(rowCursor, l.Kind, l.Scope)
			return nil
		}}}
	})
	return rows, cursor, err
}
