package main

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"sync/atomic"

	"github.com/warifu/warifu/storage/claim"
)

// The event that every side is asked about: a UUID-like ID and one SHA-256
// digest, of one consumer.
const (
	consumer     = "inventory"
	digestScheme = "jcs-sha256/order.v2"
	digestLen    = 32
	eventIDLen   = 33
)

// events makes the IDs of a run: event n of a seed is always the same, and no
// two are alike.
type events struct {
	seed uint64
	next atomic.Uint64
}

// newEvents returns events that no earlier run has had.
func newEvents() *events { return &events{seed: rand.Uint64()} }

// take returns the number of the first of n events that nobody else takes.
func (e *events) take(n int) uint64 { return e.next.Add(uint64(n)) - uint64(n) } //nolint:gosec // a count

// mix is splitmix64: a bijection, so that different numbers stay different.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// appendID appends the event ID of event n.
func (e *events) appendID(dst []byte, n uint64) []byte {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], mix(e.seed^n))
	dst = append(hex.AppendEncode(dst, raw[:]), '-')
	binary.BigEndian.PutUint64(raw[:], mix(e.seed)+n)
	return hex.AppendEncode(dst, raw[:])
}

func (e *events) id(n uint64) string {
	var room [eventIDLen]byte
	return string(e.appendID(room[:0], n))
}

// appendDigest appends the digest of event n.
func (e *events) appendDigest(dst []byte, n uint64) []byte {
	for i := range uint64(digestLen / 8) {
		dst = binary.BigEndian.AppendUint64(dst, mix(e.seed^n^(i+1)<<56))
	}
	return dst
}

// requests fills a batch for the layers below the wire with fresh events. Like
// a decoded message it is new memory each time, in few pieces.
func (e *events) requests(n int) []claim.Request { return e.requestsFrom(e.take(n), n) }

// requestsFrom is requests with the events from first on.
func (e *events) requestsFrom(first uint64, n int) []claim.Request {
	ids := make([]byte, 0, n*eventIDLen)
	digests := make([]byte, 0, n*digestLen)
	for i := range uint64(n) { //nolint:gosec // an index
		ids = e.appendID(ids, first+i)
		digests = e.appendDigest(digests, first+i)
	}
	allIDs := string(ids)
	listed := make([]claim.Digest, n)
	reqs := make([]claim.Request, n)
	for i := range reqs {
		listed[i] = claim.Digest{Scheme: digestScheme, Value: digests[i*digestLen : (i+1)*digestLen : (i+1)*digestLen]}
		r := &reqs[i]
		r.Key = claim.Key{Tenant: 1, Consumer: consumer, EventID: allIDs[i*eventIDLen : (i+1)*eventIDLen]}
		binary.BigEndian.PutUint64(r.Attempt[:], mix(first+uint64(i)))
		binary.BigEndian.PutUint64(r.Attempt[8:], e.seed+first+uint64(i))
		r.Digests = listed[i : i+1 : i+1]
		r.InsertBefore, r.Lease, r.Policy = claim.Never, claim.LeaseDefault, claim.DefaultPolicy()
	}
	return reqs
}
