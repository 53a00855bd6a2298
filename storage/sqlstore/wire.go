package sqlstore

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/warifu/warifu/storage/claim"
)

// array is a parameter that writes itself in the binary format of the wire.
// The driver's own arrays cost an allocation or two for each of their elements,
// and a claim is an element of a dozen.
type array interface {
	// element is the OID of the type of the elements.
	element() uint32
	// appendTo appends the array. The driver does not ask a nil one: it is NULL.
	appendTo(buf []byte) []byte
}

// The arrays that statements take, by the types that they have there.
type (
	int2s     []int16
	int8s     []int64
	bools     []bool
	texts     []string
	byteas    [][]byte // nil is NULL
	uuids     [][16]byte
	instants  []claim.Time // Never is NULL
	intervals []time.Duration
)

func (int2s) element() uint32     { return pgtype.Int2OID }
func (int8s) element() uint32     { return pgtype.Int8OID }
func (bools) element() uint32     { return pgtype.BoolOID }
func (texts) element() uint32     { return pgtype.TextOID }
func (byteas) element() uint32    { return pgtype.ByteaOID }
func (uuids) element() uint32     { return pgtype.UUIDOID }
func (instants) element() uint32  { return pgtype.TimestamptzOID }
func (intervals) element() uint32 { return pgtype.IntervalOID }

const (
	// arrayHead is the size of the header of an array, in bytes.
	arrayHead = 20
	// sizeLen is what stands before each element: its size, in bytes.
	sizeLen = 4
	// null is the size of an element that is NULL.
	null = ^uint32(0)
)

// appendHead appends the header of n elements which have about size bytes each.
func appendHead(buf []byte, oid uint32, n, size int, nulls bool) []byte {
	be := binary.BigEndian
	buf = slices.Grow(buf, arrayHead+n*(sizeLen+size))
	buf = be.AppendUint32(buf, 1) // dimensions
	has := uint32(0)
	if nulls {
		has = 1
	}
	buf = be.AppendUint32(be.AppendUint32(buf, has), oid)
	return be.AppendUint32(be.AppendUint32(buf, uint32(n)), 1) // the first index
}

func (a int2s) appendTo(buf []byte) []byte {
	buf = appendHead(buf, a.element(), len(a), 2, false)
	for _, v := range a {
		buf = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(buf, 2), uint16(v))
	}
	return buf
}

func (a int8s) appendTo(buf []byte) []byte {
	buf = appendHead(buf, a.element(), len(a), 8, false)
	for _, v := range a {
		buf = appendInt8(buf, v)
	}
	return buf
}

func appendInt8(buf []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(buf, 8), uint64(v))
}

func (a bools) appendTo(buf []byte) []byte {
	buf = appendHead(buf, a.element(), len(a), 1, false)
	for _, v := range a {
		b := byte(0)
		if v {
			b = 1
		}
		buf = append(binary.BigEndian.AppendUint32(buf, 1), b)
	}
	return buf
}

func (a texts) appendTo(buf []byte) []byte {
	all := 0
	for _, v := range a {
		all += len(v)
	}
	buf = slices.Grow(appendHead(buf, a.element(), len(a), 0, false), all+sizeLen*len(a))
	for _, v := range a {
		buf = append(binary.BigEndian.AppendUint32(buf, uint32(len(v))), v...)
	}
	return buf
}

func (a byteas) appendTo(buf []byte) []byte {
	all, nulls := 0, false
	for _, v := range a {
		all, nulls = all+len(v), nulls || v == nil
	}
	buf = slices.Grow(appendHead(buf, a.element(), len(a), 0, nulls), all+sizeLen*len(a))
	for _, v := range a {
		if v == nil {
			buf = binary.BigEndian.AppendUint32(buf, null)
			continue
		}
		buf = append(binary.BigEndian.AppendUint32(buf, uint32(len(v))), v...)
	}
	return buf
}

func (a uuids) appendTo(buf []byte) []byte {
	buf = appendHead(buf, a.element(), len(a), 16, false)
	for i := range a {
		buf = append(binary.BigEndian.AppendUint32(buf, 16), a[i][:]...)
	}
	return buf
}

func (a instants) appendTo(buf []byte) []byte {
	buf = appendHead(buf, a.element(), len(a), 8, slices.Contains(a, claim.Never))
	for _, v := range a {
		if v == claim.Never {
			buf = binary.BigEndian.AppendUint32(buf, null)
			continue
		}
		buf = appendInt8(buf, int64(v)-epoch2000)
	}
	return buf
}

// appendTo writes microseconds only, as interval reads them: no days, no months.
func (a intervals) appendTo(buf []byte) []byte {
	buf = appendHead(buf, a.element(), len(a), 16, false)
	for _, v := range a {
		buf = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(buf, 16), uint64(v.Microseconds()))
		buf = binary.BigEndian.AppendUint64(buf, 0)
	}
	return buf
}

// arrayCodec lets arrays of this package write themselves, and leaves all else
// to the codec of the driver.
type arrayCodec struct{ pgtype.Codec }

// arrayTypes are the types of parameters whose codecs are replaced.
var arrayTypes = []uint32{
	pgtype.Int2ArrayOID, pgtype.Int8ArrayOID, pgtype.BoolArrayOID, pgtype.TextArrayOID, pgtype.ByteaArrayOID,
	pgtype.UUIDArrayOID, pgtype.TimestamptzArrayOID, pgtype.IntervalArrayOID,
}

// teachArrays makes a connection's types know the arrays of this package, unless
// they do.
func teachArrays(m *pgtype.Map) {
	for _, oid := range arrayTypes {
		t, ok := m.TypeForOID(oid)
		if !ok {
			continue // the driver's own way is slower, and as good
		}
		if _, ok := t.Codec.(arrayCodec); ok {
			return // all or none
		}
		m.RegisterType(&pgtype.Type{Name: t.Name, OID: t.OID, Codec: arrayCodec{t.Codec}})
	}
}

// PlanEncode implements pgtype.Codec.
func (c arrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	a, ok := value.(array)
	of, known := c.Codec.(*pgtype.ArrayCodec)
	if ok && known && format == pgtype.BinaryFormatCode && of.ElementType.OID == a.element() {
		return arrayPlan{}
	}
	return c.Codec.PlanEncode(m, oid, format, value)
}

type arrayPlan struct{}

// Encode implements pgtype.EncodePlan.
func (arrayPlan) Encode(value any, buf []byte) ([]byte, error) {
	return value.(array).appendTo(buf), nil //nolint:forcetypeassert // the plan was made for it
}
