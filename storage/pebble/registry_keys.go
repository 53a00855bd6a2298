package pebble

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
	"github.com/warifu/warifu/storage/registry"
)

// The keys of the registry. They begin with adminPrefix, which comes before all
// others, so that they are a run of their own in every table, and with one of
// these. Numbers that lists are in the order of are inverted: newest first.
const (
	adminMeta    = 'm' // → last revision and its time, last tenant
	adminRow     = 'r' // kind, name → row
	adminLabel   = 'n' // kind, label → name
	adminByOwner = 'o' // kind, tenant, created, name → nothing: findings and jobs
	adminByTime  = 't' // kind, created, name → nothing
	adminAudit   = 'u' // tenant, at, revision, n → audit entry
	adminAll     = 'v' // at, revision, n → its tenant
	adminProof   = 'p' // change → what an audited change was answered
	adminLease   = 'l' // name → lease
	adminSeen    = 's' // key ID → when it was last used
)

// adminFormat is the first byte of every value.
const adminFormat = 1

const adminHead = 5 // format and checksum

func adminKey(of byte, size int) []byte {
	return append(make([]byte, 0, 2+size), adminPrefix, of)
}

func named(of byte, name string) []byte { return append(adminKey(of, len(name)), name...) }

func rowKey(r registry.Ref) []byte {
	return append(append(adminKey(adminRow, 1+len(r.Name)), byte(r.Kind)), r.Name...)
}

func labelKey(kind registry.Kind, label string) []byte {
	return append(append(adminKey(adminLabel, 1+len(label)), byte(kind)), label...)
}

// newest appends n so that larger numbers come first.
func newest[T ~int64 | ~int](dst []byte, n T) []byte {
	return binary.BigEndian.AppendUint64(dst, ^uint64(n))
}

// mirrored appends a name so that names come in the reverse of their order, if
// they are of one length. Doing it twice gives the name.
func mirrored[T string | []byte](dst []byte, name T) []byte {
	for i := range len(name) {
		dst = append(dst, ^name[i])
	}
	return dst
}

// ownerKey and timeKey are the entries of a finding or a job in the lists.
func ownerKey(s *registry.Stored) []byte {
	return mirrored(newest(ownerPrefix(s.Ref.Kind, s.Tenant), s.Created), s.Ref.Name)
}

func ownerPrefix(kind registry.Kind, tenant claim.TenantID) []byte {
	return binary.BigEndian.AppendUint64(append(adminKey(adminByOwner, 64), byte(kind)), uint64(tenant))
}

func timeKey(s *registry.Stored) []byte {
	return mirrored(newest(timePrefix(s.Ref.Kind), s.Created), s.Ref.Name)
}

func timePrefix(kind registry.Kind) []byte { return append(adminKey(adminByTime, 64), byte(kind)) }

func auditKey(e *registry.AuditEntry) []byte { return auditPlace(auditPrefix(e.Tenant), e) }

func auditPrefix(tenant claim.TenantID) []byte {
	return binary.BigEndian.AppendUint64(adminKey(adminAudit, 32), uint64(tenant))
}

func allKey(e *registry.AuditEntry) []byte { return auditPlace(adminKey(adminAll, 24), e) }

// auditPlaceLen is the length of what auditPlace appends.
const auditPlaceLen = 24

func auditPlace(dst []byte, e *registry.AuditEntry) []byte {
	return newest(newest(newest(dst, e.At), e.Revision), e.N)
}

// sealed is a value with its checksum, which is over the key too: a value that
// turns up under another one is damage.
func sealed(key, payload []byte) []byte {
	out := make([]byte, adminHead, adminHead+len(payload))
	out[0] = adminFormat
	binary.BigEndian.PutUint32(out[1:], adminSum(key, payload))
	return append(out, payload...)
}

func adminSum(key, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, payload)
}

// unsealed returns the payload of a value.
func unsealed(key, value []byte) ([]byte, error) {
	if len(value) < adminHead || value[0] != adminFormat ||
		binary.BigEndian.Uint32(value[1:]) != adminSum(key, value[adminHead:]) {
		return nil, badAdmin(key)
	}
	return value[adminHead:], nil
}

// badAdmin says that what is stored under key cannot be read.
func badAdmin(key []byte) error { return fmt.Errorf("%w: registry key %x", errBadRecord, key) }

// adminState is the registry's row of its own.
type adminState struct {
	last       registry.Applied
	lastTenant claim.TenantID
}

func (a adminState) payload() []byte {
	return binary.AppendVarint(appliedPayload(a.last), int64(a.lastTenant))
}

func appliedPayload(a registry.Applied) []byte {
	return binary.AppendVarint(binary.AppendVarint(nil, int64(a.Revision)), int64(a.At))
}

func readApplied(r *codec.Reader) registry.Applied {
	return registry.Applied{Revision: registry.Revision(r.Varint()), At: claim.Time(r.Varint())}
}

func rowPayload(s *registry.Stored) []byte {
	b := make([]byte, 0, 64+len(s.Doc))
	deleted := byte(0)
	if s.Deleted {
		deleted = 1
	}
	b = append(append(b, deleted), s.Change[:]...)
	for _, n := range [...]int64{s.Version, int64(s.Revision), int64(s.Created), int64(s.Updated), int64(s.Tenant), int64(s.State)} {
		b = binary.AppendVarint(b, n)
	}
	return codec.AppendBytes(codec.AppendBytes(b, s.Label), s.Doc)
}

// readRow reads a row out of its key and payload. It copies what it keeps.
func readRow(key, payload []byte) (registry.Stored, error) {
	var s registry.Stored
	if len(key) < 3 || len(payload) < 1+len(s.Change) {
		return s, badAdmin(key)
	}
	s.Ref = registry.Ref{Kind: registry.Kind(key[2]), Name: string(key[3:])}
	s.Deleted = payload[0] == 1
	copy(s.Change[:], payload[1:])
	r := codec.NewReader(payload[1+len(s.Change):])
	s.Version, s.Revision = r.Varint(), registry.Revision(r.Varint())
	s.Created, s.Updated = claim.Time(r.Varint()), claim.Time(r.Varint())
	s.Tenant, s.State = claim.TenantID(r.Varint()), int16(r.Varint())
	s.Label, s.Doc = string(r.Bytes()), codec.Clone(r.Bytes())
	if !r.Done() {
		return s, badAdmin(key)
	}
	return s, nil
}

func leasePayload(l *registry.Lease) []byte {
	b := binary.AppendVarint(binary.AppendVarint(nil, int64(l.Fence)), int64(l.Until))
	return codec.AppendBytes(codec.AppendBytes(b, l.Owner), l.Cursor)
}

func readLease(key, payload []byte) (registry.Lease, error) {
	r := codec.NewReader(payload)
	l := registry.Lease{Name: string(key[2:]), Fence: claim.Fence(r.Varint()), Until: claim.Time(r.Varint())}
	l.Owner, l.Cursor = string(r.Bytes()), codec.Clone(r.Bytes())
	if !r.Done() {
		return l, badAdmin(key)
	}
	return l, nil
}

// behind returns where a list goes on: behind the key that its cursor is.
func behind(prefix, cursor []byte, length int) (lower []byte, err error) {
	if len(cursor) == 0 {
		return prefix, nil
	}
	if len(cursor) < len(prefix)+length || string(cursor[:len(prefix)]) != string(prefix) {
		return nil, storage.ErrCursor
	}
	return append(append([]byte{}, cursor...), 0), nil
}
