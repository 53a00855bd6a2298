package sqlstore

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
)

// position is where a list or a sweep goes on: behind this key, and behind this
// expiry where one is given.
type position struct {
	expiry claim.Time
	key    claim.Key
}

// The first byte of a cursor says what it is of.
const (
	listCursor  = 'L'
	sweepCursor = 'S'
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode ends with a checksum: a cursor that was cut off or mistyped must not
// name another place.
func (p position) encode(kind byte) []byte {
	b := binary.AppendVarint([]byte{kind}, int64(p.expiry))
	b = binary.AppendVarint(b, int64(p.key.Tenant))
	b = codec.AppendBytes(codec.AppendBytes(b, p.key.Consumer), p.key.EventID)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodePosition refuses what encode did not make with storage.ErrCursor. No
// bytes are the beginning.
func decodePosition(kind byte, b []byte) (position, error) {
	if len(b) == 0 {
		return position{}, nil
	}
	const sum = 4
	if len(b) <= sum || b[0] != kind {
		return position{}, storage.ErrCursor
	}
	body, end := b[:len(b)-sum], b[len(b)-sum:]
	if binary.BigEndian.Uint32(end) != crc32.Checksum(body, castagnoli) {
		return position{}, storage.ErrCursor
	}
	r := codec.NewReader(body[1:])
	p := position{expiry: claim.Time(r.Varint())}
	p.key.Tenant = claim.TenantID(r.Varint())
	p.key.Consumer, p.key.EventID = string(r.Bytes()), string(r.Bytes())
	if !r.Done() {
		return position{}, storage.ErrCursor
	}
	return p, nil
}
