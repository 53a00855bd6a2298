package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
)

// An envelope is
//
//	version 1 | flags 1 | data key ID 4, big endian | nonce 12 | AES-256-GCM ciphertext and tag
//
// It is encrypted with a key of its row: HMAC-SHA-256 of the data key over what
// the row is. Random nonces then have to differ within a row only, and a data
// key is never used up, however many results it seals.
const (
	envelopeVersion = 1
	headLen         = 1 + 1 + 4
	nonceLen        = 12
	tagLen          = 16
	// Overhead is by how much a sealed body is longer than the plain one, where
	// compression does not make it shorter.
	Overhead = headLen + nonceLen + tagLen
)

const (
	flagZstd    = 1 << iota // the plain bytes are compressed
	flagByFence             // bound to the fence, not the attempt
	flagsKnown  = flagZstd | flagByFence
)

// What an envelope holds; it is part of what is authenticated, so that a digest
// cannot be taken for a result.
const (
	holdsBody = 'b'
	holdsSum  = 's'
)

var errEnvelope = errors.New("it is no envelope of this version")

// envelope is one that was parsed. Its slices are those it was parsed from.
type envelope struct {
	head       []byte // version, flags, key ID: authenticated
	flags      byte
	id         uint32
	nonce      []byte
	ciphertext []byte
}

// parseEnvelope takes an envelope apart. It says nothing about whether it opens.
func parseEnvelope(b []byte) (envelope, error) {
	if len(b) < Overhead || b[0] != envelopeVersion || b[1]&^flagsKnown != 0 {
		return envelope{}, fmt.Errorf("%w: %w", storage.ErrDamaged, errEnvelope)
	}
	e := envelope{
		head: b[:headLen], flags: b[1], id: binary.BigEndian.Uint32(b[2:headLen]),
		nonce: b[headLen : headLen+nonceLen], ciphertext: b[headLen+nonceLen:],
	}
	if e.id == 0 {
		return envelope{}, fmt.Errorf("%w: %w", storage.ErrDamaged, errEnvelope)
	}
	return e, nil
}

// bind is what ties a ciphertext to one grant of a key.
type bind struct {
	attempt claim.AttemptID
	fence   claim.Fence
	byFence bool // the fence and not the attempt
}

// operator reports whether it is a person who writes the result, and not the
// attempt whose it is.
func (b bind) operator() bool { return b.byFence }

func (b bind) flag() byte {
	if b.byFence {
		return flagByFence
	}
	return 0
}

// bindOf is what a record's envelope with these flags is bound to.
func bindOf(rec *claim.Record, flags byte) bind {
	return bind{attempt: rec.AttemptID, fence: rec.Fence, byFence: flags&flagByFence != 0}
}

// row is the cipher of one record, and what its envelopes are bound to beside
// their own heads.
type row struct {
	gcm   cipher.AEAD
	id    uint32
	about []byte // outcome, content type, metadata
}

func newRow(dk DataKey, key *claim.Key, b bind, c *claim.Completion, contentType string) (*row, error) {
	mac := hmac.New(sha256.New, dk.secret[:])
	place := make([]byte, 0, 192)
	place = append(place, "warifu result\x00"...)
	place = binary.BigEndian.AppendUint64(place, uint64(key.Tenant)) //nolint:gosec // its bits
	place = codec.AppendBytes(place, key.Consumer)
	place = codec.AppendBytes(place, key.EventID)
	if b.byFence {
		place = append(place, 'f')
		place = binary.BigEndian.AppendUint64(place, uint64(b.fence)) //nolint:gosec // its bits
	} else {
		place = append(place, 'a')
		place = append(place, b.attempt[:]...)
	}
	_, _ = mac.Write(place) // a hash never fails
	var secret [32]byte
	block, err := aes.NewCipher(mac.Sum(secret[:0]))
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	about := append(make([]byte, 0, 64), byte(c.Outcome))
	about = codec.AppendBytes(about, contentType)
	about = codec.AppendMetadata(about, c.Metadata)
	return &row{gcm: gcm, id: dk.ID, about: about}, nil
}

// aad is what an envelope is authenticated with: its head, what it holds, the
// digest of the plain bytes where it holds those, and what is stored beside it.
func (r *row) aad(head []byte, holds byte, sum []byte) []byte {
	aad := make([]byte, 0, len(head)+1+len(sum)+len(r.about))
	aad = append(append(aad, head...), holds)
	return append(append(aad, sum...), r.about...)
}

// seal appends an envelope to dst.
func (r *row) seal(dst []byte, flags, holds byte, plain, sum []byte) []byte {
	at := len(dst)
	dst = append(dst, envelopeVersion, flags)
	dst = binary.BigEndian.AppendUint32(dst, r.id)
	var nonce [nonceLen]byte
	_, _ = rand.Read(nonce[:]) // never fails: the process ends before
	dst = append(dst, nonce[:]...)
	return r.gcm.Seal(dst, nonce[:], plain, r.aad(dst[at:at+headLen], holds, sum))
}

// open returns what an envelope of this row holds.
func (r *row) open(e *envelope, holds byte, sum []byte) ([]byte, error) {
	plain, err := r.gcm.Open(nil, e.nonce, e.ciphertext, r.aad(e.head, holds, sum))
	if err != nil {
		return nil, fmt.Errorf("%w: a result does not belong where it is, or was changed", storage.ErrDamaged)
	}
	return plain, nil
}
