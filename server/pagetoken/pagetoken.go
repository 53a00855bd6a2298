// Package pagetoken seals the cursors of lists. A token is bound to whose list
// it continues and to the filter it was made for: it can be neither made up nor
// used elsewhere. Replicas that share a key take each other's tokens.
package pagetoken

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
)

const (
	// CharsMax bounds what is decoded before its MAC is checked; a cursor holds
	// a consumer, an event ID and little more.
	CharsMax = 4096
	macBytes = 16
	// SizeMax is the largest page that may be asked for.
	SizeMax = 500
	// SizeDefault is what 0 stands for.
	SizeDefault = 50
	// KeyBytesMin is what a key must have at least.
	KeyBytesMin = 16
)

// LimitSize is the rule of page sizes as callers read it.
var LimitSize = fmt.Sprintf("1-%d, or 0 for %d", SizeMax, SizeDefault)

// Size is how many rows a page is to have; false where there may not be as many.
func Size(asked uint32) (rows int, ok bool) {
	if asked == 0 {
		return SizeDefault, true
	}
	return int(asked), asked <= SizeMax
}

// Sealer makes and opens tokens. It is safe for concurrent use.
type Sealer struct{ key []byte }

// New returns a sealer; key has at least KeyBytesMin random bytes.
func New(key []byte) *Sealer { return &Sealer{key: slices.Clone(key)} }

// Seal returns the token of a cursor. bound are whose list it is and its
// filter, in an order of the caller's.
func (s *Sealer) Seal(cursor []byte, bound ...[]byte) string {
	return base64.RawURLEncoding.EncodeToString(append(s.mac(cursor, bound), cursor...))
}

// Open returns the cursor of a token that was made with the same bound.
func (s *Sealer) Open(token string, bound ...[]byte) (cursor []byte, ok bool) {
	if len(token) > CharsMax {
		return nil, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) < macBytes {
		return nil, false
	}
	cursor = raw[macBytes:]
	return cursor, hmac.Equal(raw[:macBytes], s.mac(cursor, bound))
}

// mac covers every part with its length before it, so that no two lists of
// parts look alike.
func (s *Sealer) mac(cursor []byte, bound [][]byte) []byte {
	h := hmac.New(sha256.New, s.key)
	b := binary.AppendUvarint(nil, uint64(len(bound)))
	for _, part := range bound {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	h.Write(append(b, cursor...))
	return h.Sum(nil)[:macBytes:macBytes]
}
