package sqlstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
)

var errRow = errors.New("a row cannot be read")

// row is one row in the binary format of the wire, read from left to right. Its
// memory is the connection's: what is kept is copied. Reading it by hand costs
// no allocation and no reflection, which at thousands of rows is most of the
// time of a read.
type row struct {
	values [][]byte
	next   int
	bad    bool
}

const (
	binaryFormat = 1
	// epoch2000 is the wire's zero of time.
	epoch2000 = 946_684_800_000_000
)

// readable reports an error unless the columns of rows come in the format that
// row reads.
func readable(rows pgx.Rows) error {
	for i, f := range rows.FieldDescriptions() {
		if f.Format != binaryFormat && f.DataTypeOID != pgtype.TextOID { // texts are the same in both
			return fmt.Errorf("%w: column %d is sent as text", errRow, i)
		}
	}
	return nil
}

// value returns the next column; nil is NULL.
func (r *row) value() []byte {
	if r.next >= len(r.values) {
		r.bad = true
		return nil
	}
	v := r.values[r.next]
	r.next++
	return v
}

// sized returns the next column, which has n bytes, or is NULL: then all zeros
// are read.
func (r *row) sized(n int) []byte {
	v := r.value()
	if len(v) != n {
		r.bad = r.bad || v != nil
		return zeros[:n]
	}
	return v
}

var zeros [16]byte

func (r *row) int2() int16        { return int16(binary.BigEndian.Uint16(r.sized(2))) }
func (r *row) int8() int64        { return int64(binary.BigEndian.Uint64(r.sized(8))) }
func (r *row) bool() bool         { return r.sized(1)[0] != 0 }
func (r *row) text() string       { return string(r.value()) }
func (r *row) bytes() []byte      { return codec.Clone(r.value()) }
func (r *row) uuid() (u [16]byte) { copy(u[:], r.sized(16)); return u }

// time reads an instant; NULL is 0.
func (r *row) time() claim.Time {
	v := r.value()
	if v == nil {
		return 0
	}
	if len(v) != 8 {
		r.bad = true
		return 0
	}
	return claim.Time(int64(binary.BigEndian.Uint64(v)) + epoch2000)
}

// interval reads a length of time. Only exact ones are written.
func (r *row) interval() time.Duration {
	v := r.sized(16)
	micros, days, months := int64(binary.BigEndian.Uint64(v)), binary.BigEndian.Uint32(v[8:]), binary.BigEndian.Uint32(v[12:])
	r.bad = r.bad || months != 0
	return time.Duration(micros)*time.Microsecond + time.Duration(int32(days))*24*time.Hour
}

// digests reads a digest set; no bytes are none.
func (r *row) digests() []claim.Digest {
	v := r.value()
	if len(v) == 0 {
		return nil
	}
	d := codec.NewReader(v)
	ds := d.Digests()
	r.bad = r.bad || !d.Done()
	return ds
}

// metadata reads the metadata of a completion; no bytes are none.
func (r *row) metadata() []claim.Pair {
	v := r.value()
	if len(v) == 0 {
		return nil
	}
	d := codec.NewReader(v)
	ps := d.Metadata()
	r.bad = r.bad || !d.Done()
	return ps
}

// end reports what was wrong with the row.
func (r *row) end() error {
	if r.bad || r.next != len(r.values) {
		return fmt.Errorf("%w: column %d of %d", errRow, r.next, len(r.values))
	}
	return nil
}

// record reads the columns of a record in the order of queries/get.sql into
// rec, and returns the size of a body that is stored aside. withResult: the
// inline body is among them.
func (r *row) record(rec *claim.Record, withResult bool) (aside int64) {
	rec.Version = r.int8()
	rec.State, rec.Takeover = claim.State(r.int2()), claim.Takeover(r.int2())
	rec.Attempt = uint32(r.int8())
	rec.AttemptID, rec.Fence = r.uuid(), claim.Fence(r.int8())
	rec.Digests = r.digests()
	rec.EventTime = r.time()
	rec.ClaimedAt, rec.GrantedAt, rec.LeaseUntil = r.time(), r.time(), r.time()
	rec.HoldUntil, rec.ExpiresAt, rec.EndedAt = r.time(), r.time(), r.time()
	p := &rec.Policy
	p.Hold, p.AttemptsMax = r.bool(), uint32(r.int8())
	p.Window, p.Retention, p.HoldMax = r.interval(), r.interval(), r.interval()
	p.ResultBytesMax = int32(r.int8())
	return r.completion(rec, withResult)
}

func (r *row) completion(rec *claim.Record, withResult bool) (aside int64) {
	c := claim.Completion{Outcome: claim.Outcome(r.int2()), Omitted: claim.Omission(r.int2()), ContentType: r.text()}
	c.Metadata = r.metadata()
	sum := r.value()
	if withResult {
		c.Body = r.bytes()
	}
	aside = r.int8()
	if rec.State == claim.Completed {
		r.bad = r.bad || len(sum) != len(c.Sum)
		copy(c.Sum[:], sum)
		rec.Completion = &c
	}
	return aside
}
