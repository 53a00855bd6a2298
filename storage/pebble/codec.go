package pebble

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
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
	dst = codec.AppendDigests(dst, r.Digests)
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
	dst = codec.AppendBytes(dst, c.ContentType)
	dst = codec.AppendMetadata(dst, c.Metadata)
	if bodyAside {
		return dst
	}
	return codec.AppendBytes(dst, c.Body)
}

// decodeRecord decodes a stored value of key. It copies what it keeps. With
// bodyAside true the completion's body has to be loaded by the caller.
func decodeRecord(r *claim.Record, key claim.Key, value []byte) (bodyAside bool, err error) {
	if len(value) < 20 || value[0] != recordFormat {
		return false, errBadRecord
	}
	d := decoder{codec.NewReader(value[20:])}
	flags := value[1]
	r.Key, r.State, r.Takeover = key, claim.State(value[2]), claim.Takeover(value[3])
	copy(r.AttemptID[:], value[4:20])
	r.Version = d.Varint()
	r.Attempt = uint32(d.Uvarint())
	d.times(r)
	d.policy(&r.Policy)
	r.Policy.Hold = flags&flagHold != 0
	r.Digests = d.Digests()
	if flags&flagCompletion != 0 {
		r.Completion = d.completion(flags&flagBodyAside != 0)
	}
	if !d.Done() || r.State == claim.Absent || r.State > claim.Forgotten {
		return false, errBadRecord
	}
	return flags&flagBodyAside != 0, nil
}

// decoder reads the parts of a record.
type decoder struct{ codec.Reader }

func (d *decoder) times(r *claim.Record) {
	base := claim.Time(d.Varint())
	r.ClaimedAt = base
	r.Fence = claim.Fence(d.Varint() + int64(base))
	r.GrantedAt = base + claim.Time(d.Varint())
	r.LeaseUntil = base + claim.Time(d.Varint())
	r.HoldUntil = base + claim.Time(d.Varint())
	r.ExpiresAt = base + claim.Time(d.Varint())
	r.EventTime = claim.Time(d.Varint())
	r.EndedAt = claim.Time(d.Varint())
}

func (d *decoder) policy(p *claim.Policy) {
	p.AttemptsMax = uint32(d.Uvarint())
	p.Window = time.Duration(d.Varint())
	p.Retention = time.Duration(d.Varint())
	p.HoldMax = time.Duration(d.Varint())
	p.ResultBytesMax = int32(d.Varint())
}

func (d *decoder) completion(bodyAside bool) *claim.Completion {
	c := &claim.Completion{}
	if head := d.Fixed(2 + len(c.Sum)); head != nil {
		c.Outcome, c.Omitted = claim.Outcome(head[0]), claim.Omission(head[1])
		copy(c.Sum[:], head[2:])
	}
	c.ContentType = string(d.Bytes())
	c.Metadata = d.Metadata()
	if !bodyAside {
		c.Body = codec.Clone(d.Bytes())
	}
	return c
}
