// Package codec writes and reads the parts of a record that every driver stores
// as bytes: digest sets and metadata, and the primitives under them. Their form
// is on disk: it only grows.
package codec

import (
	"encoding/binary"

	"github.com/warifu/warifu/storage/claim"
)

// AppendBytes appends the length of b and b.
func AppendBytes[T string | []byte](dst []byte, b T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// AppendDigests appends a digest set.
func AppendDigests(dst []byte, ds []claim.Digest) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ds)))
	for i := range ds {
		dst = AppendBytes(dst, ds[i].Scheme)
		dst = AppendBytes(dst, ds[i].Value)
	}
	return dst
}

// AppendMetadata appends the metadata of a completion.
func AppendMetadata(dst []byte, ps []claim.Pair) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ps)))
	for i := range ps {
		dst = AppendBytes(dst, ps[i].Name)
		dst = AppendBytes(dst, ps[i].Value)
	}
	return dst
}

// Reader reads what the Append functions wrote, and remembers whether anything
// was cut off or out of bounds. What it returns after that is zero.
type Reader struct {
	rest []byte
	bad  bool
}

// NewReader reads from b, which it does not change.
func NewReader(b []byte) Reader { return Reader{rest: b} }

// Done reports whether everything was read, and was well formed.
func (r *Reader) Done() bool { return !r.bad && len(r.rest) == 0 }

// Varint reads a signed integer.
func (r *Reader) Varint() int64 {
	v, n := binary.Varint(r.rest)
	return advance(r, v, n)
}

// Uvarint reads an unsigned integer.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	return advance(r, v, n)
}

func advance[T int64 | uint64](r *Reader, v T, n int) T {
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *Reader) fail() { r.bad, r.rest = true, nil }

// count reads a number of elements, at most limit.
func (r *Reader) count(limit int) int {
	n := r.Uvarint()
	if n > uint64(limit) {
		r.fail()
		return 0
	}
	return int(n)
}

// Bytes reads what AppendBytes wrote. It shares memory with the reader's.
func (r *Reader) Bytes() []byte {
	n := r.Uvarint()
	if n > uint64(len(r.rest)) {
		r.fail()
		return nil
	}
	return r.Fixed(int(n))
}

// Fixed reads n bytes. It shares memory with the reader's.
func (r *Reader) Fixed(n int) []byte {
	if n > len(r.rest) {
		r.fail()
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

// Digests reads a digest set; an empty one is nil.
func (r *Reader) Digests() []claim.Digest {
	n := r.count(claim.DigestsMax)
	if n == 0 {
		return nil
	}
	ds := make([]claim.Digest, n)
	for i := range ds {
		ds[i] = claim.Digest{Scheme: string(r.Bytes()), Value: Clone(r.Bytes())}
	}
	return ds
}

// Metadata reads the metadata of a completion; none is nil.
func (r *Reader) Metadata() []claim.Pair {
	n := r.count(claim.MetadataMax)
	if n == 0 {
		return nil
	}
	ps := make([]claim.Pair, n)
	for i := range ps {
		ps[i] = claim.Pair{Name: string(r.Bytes()), Value: string(r.Bytes())}
	}
	return ps
}

// Clone copies b; an empty one becomes nil, as it was before it was stored.
func Clone(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}
