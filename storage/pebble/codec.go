package pebble

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// recordFormat is the first byte of every stored record. A binary refuses a
// format that it does not know instead of guessing.
const recordFormat = 1

var errBadRecord = errors.New("a stored record cannot be decoded")

// What follows the fixed part of a record.
const (
	flagHold = 1 << iota
	flagCompletion
	flagBodyAside // the body is stored under the body key
)

// appendRecord encodes r without its key, and without its body where that is
// stored aside. Times are written as differences, which are mostly small.
func appendRecord(dst []byte, r *claim.Record, bodyAside bool) []byte {
	var flags byte
	if r.Policy.Hold {
		flags |= flagHold
	}
	if r.Completion != nil {
		flags |= flagCompletion
	}
	if bodyAside {
		flags |= flagBodyAside
	}
	dst = append(dst, recordFormat, flags, byte(r.State), byte(r.Takeover))
	dst = append(dst, r.AttemptID[:]...)
	dst = binary.AppendVarint(dst, r.Version)
	dst = binary.AppendUvarint(dst, uint64(r.Attempt))
	dst = appendTimes(dst, r)
	dst = appendPolicy(dst, &r.Policy)
	dst = binary.AppendUvarint(dst, uint64(len(r.Digests)))
	for i := range r.Digests {
		dst = appendBytes(dst, r.Digests[i].Scheme)
		dst = appendBytes(dst, r.Digests[i].Value)
	}
	if r.Completion != nil {
		dst = appendCompletion(dst, r.Completion, bodyAside)
	}
	return dst
}

func appendTimes(dst []byte, r *claim.Record) []byte {
	base := r.ClaimedAt
	dst = binary.AppendVarint(dst, int64(base))
	dst = binary.AppendVarint(dst, int64(r.Fence)-int64(base))
	for _, t := range [...]claim.Time{r.GrantedAt, r.LeaseUntil, r.HoldUntil, r.ExpiresAt} {
		dst = binary.AppendVarint(dst, int64(t-base))
	}
	dst = binary.AppendVarint(dst, int64(r.EventTime))
	return binary.AppendVarint(dst, int64(r.EndedAt))
}

func appendPolicy(dst []byte, p *claim.Policy) []byte {
	dst = binary.AppendUvarint(dst, uint64(p.AttemptsMax))
	for _, d := range [...]time.Duration{p.Window, p.Retention, p.HoldMax} {
		dst = binary.AppendVarint(dst, int64(d))
	}
	return binary.AppendVarint(dst, int64(p.ResultBytesMax))
}

func appendCompletion(dst []byte, c *claim.Completion, bodyAside bool) []byte {
	dst = append(dst, byte(c.Outcome), byte(c.Omitted))
	dst = append(dst, c.Sum[:]...)
	dst = appendBytes(dst, c.ContentType)
	dst = binary.AppendUvarint(dst, uint64(len(c.Metadata)))
	for i := range c.Metadata {
		dst = appendBytes(dst, c.Metadata[i].Name)
		dst = appendBytes(dst, c.Metadata[i].Value)
	}
	if bodyAside {
		return dst
	}
	return appendBytes(dst, c.Body)
}

func appendBytes[T string | []byte](dst []byte, b T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// decodeRecord decodes a stored value of key. It copies what it keeps. With
// bodyAside true the completion's body has to be loaded by the caller.
func decodeRecord(r *claim.Record, key claim.Key, value []byte) (bodyAside bool, err error) {
	if len(value) < 20 || value[0] != recordFormat {
		return false, errBadRecord
	}
	d := decoder{rest: value[20:]}
	flags := value[1]
	r.Key, r.State, r.Takeover = key, claim.State(value[2]), claim.Takeover(value[3])
	copy(r.AttemptID[:], value[4:20])
	r.Version = d.varint()
	r.Attempt = uint32(d.uvarint())
	d.times(r)
	d.policy(&r.Policy)
	r.Policy.Hold = flags&flagHold != 0
	if n := d.count(claim.DigestsMax); n > 0 {
		r.Digests = make([]claim.Digest, n)
		for i := range r.Digests {
			r.Digests[i] = claim.Digest{Scheme: string(d.bytes()), Value: clone(d.bytes())}
		}
	}
	if flags&flagCompletion != 0 {
		r.Completion = d.completion(flags&flagBodyAside != 0)
	}
	if d.bad || len(d.rest) > 0 || r.State == claim.Absent || r.State > claim.Forgotten {
		return false, errBadRecord
	}
	return flags&flagBodyAside != 0, nil
}

// decoder reads fields and remembers whether any was cut off.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.rest)
	return advance(d, v, n)
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	return advance(d, v, n)
}

func advance[T int64 | uint64](d *decoder, v T, n int) T {
	if n <= 0 {
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) count(limit int) int {
	n := d.uvarint()
	if n > uint64(limit) {
		d.bad, d.rest = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) times(r *claim.Record) {
	base := claim.Time(d.varint())
	r.ClaimedAt = base
	r.Fence = claim.Fence(d.varint() + int64(base))
	r.GrantedAt = base + claim.Time(d.varint())
	r.LeaseUntil = base + claim.Time(d.varint())
	r.HoldUntil = base + claim.Time(d.varint())
	r.ExpiresAt = base + claim.Time(d.varint())
	r.EventTime = claim.Time(d.varint())
	r.EndedAt = claim.Time(d.varint())
}

func (d *decoder) policy(p *claim.Policy) {
	p.AttemptsMax = uint32(d.uvarint())
	p.Window = time.Duration(d.varint())
	p.Retention = time.Duration(d.varint())
	p.HoldMax = time.Duration(d.varint())
	p.ResultBytesMax = int32(d.varint())
}

func (d *decoder) completion(bodyAside bool) *claim.Completion {
	if len(d.rest) < 2+32 {
		d.bad = true
		return nil
	}
	c := &claim.Completion{Outcome: claim.Outcome(d.rest[0]), Omitted: claim.Omission(d.rest[1])}
	copy(c.Sum[:], d.rest[2:34])
	d.rest = d.rest[34:]
	c.ContentType = string(d.bytes())
	if n := d.count(claim.MetadataMax); n > 0 {
		c.Metadata = make([]claim.Pair, n)
		for i := range c.Metadata {
			c.Metadata[i] = claim.Pair{Name: string(d.bytes()), Value: string(d.bytes())}
		}
	}
	if !bodyAside {
		c.Body = clone(d.bytes())
	}
	return c
}

// clone copies b; an empty one becomes nil, as it was before it was stored.
func clone(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}
