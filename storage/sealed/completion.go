package sealed

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// What content types begin with in the store where they are not just that: the
// reserved byte, and what it means.
const (
	reservedByte  = "\x01"
	sealedPrefix  = reservedByte + "s" // then the sealed digest, then the content type
	escapedPrefix = reservedByte + "p" // then a content type that begins with the reserved byte
)

var (
	sumText   = base64.RawURLEncoding
	markerLen = len(sealedPrefix) + sumText.EncodedLen(Overhead+sha256.Size)
)

// reserved reports whether a content type is not to be taken as it is.
func reserved(contentType string) bool { return strings.HasPrefix(contentType, reservedByte) }

// isSealed reports whether the body beside a stored content type is an envelope.
func isSealed(contentType string) bool { return strings.HasPrefix(contentType, sealedPrefix) }

func escape(contentType string) string {
	if reserved(contentType) {
		return escapedPrefix + contentType
	}
	return contentType
}

func unescape(contentType string) string { return strings.TrimPrefix(contentType, escapedPrefix) }

// original is the content type that a completion had.
func original(contentType string) string {
	if isSealed(contentType) {
		return contentType[min(markerLen, len(contentType)):]
	}
	return unescape(contentType)
}

// marked returns the sealed digest in a content type.
func marked(contentType string) ([]byte, error) {
	if len(contentType) < markerLen {
		return nil, fmt.Errorf("%w: the seal of a result is cut off", storage.ErrDamaged)
	}
	b, err := sumText.DecodeString(contentType[len(sealedPrefix):markerLen])
	if err != nil {
		return nil, fmt.Errorf("%w: the seal of a result cannot be read", storage.ErrDamaged)
	}
	return b, nil
}

// markedID returns the ID of the data key that a content type names.
func markedID(contentType string) (uint32, error) {
	b, err := marked(contentType)
	if err != nil {
		return 0, err
	}
	e, err := parseEnvelope(b)
	return e.id, err
}

// sealCompletion returns what is stored of a completion that has a body. c stays
// as it is.
func sealCompletion(dk DataKey, key *claim.Key, b bind, c *claim.Completion) (*claim.Completion, error) {
	r, err := newRow(dk, key, b, c, c.ContentType)
	if err != nil {
		return nil, err
	}
	plain, flags := shrink(c.Body), b.flag()
	if plain == nil {
		plain = c.Body
	} else {
		flags |= flagZstd
	}
	w := *c
	w.Body = r.seal(make([]byte, 0, Overhead+len(plain)), flags, holdsBody, plain, c.Sum[:])
	w.Sum = sha256.Sum256(w.Body)
	var buf [Overhead + sha256.Size]byte
	mark := r.seal(buf[:0], b.flag(), holdsSum, c.Sum[:], nil)
	text := make([]byte, 0, markerLen+len(c.ContentType))
	text = sumText.AppendEncode(append(text, sealedPrefix...), mark)
	w.ContentType = string(append(text, c.ContentType...))
	return &w, nil
}

// openCompletion returns the plain completion of a record that has a sealed one.
// Where the driver has dropped the body, or does not load it, the digest is what
// is left to open.
func openCompletion(dk DataKey, rec *claim.Record) (*claim.Completion, error) {
	c := *rec.Completion
	b, err := marked(c.ContentType)
	if err != nil {
		return nil, err
	}
	mark, err := parseEnvelope(b)
	if err != nil {
		return nil, err
	}
	c.ContentType = original(c.ContentType)
	r, err := newRow(dk, &rec.Key, bindOf(rec, mark.flags), &c, c.ContentType)
	if err != nil {
		return nil, err
	}
	sum, err := r.open(&mark, holdsSum, nil)
	if err != nil {
		return nil, err
	}
	if copy(c.Sum[:], sum) != len(sum) || len(sum) != len(c.Sum) {
		return nil, fmt.Errorf("%w: the digest of a result has %d bytes", storage.ErrDamaged, len(sum))
	}
	if len(c.Body) > 0 {
		c.Body, err = openBody(r, &mark, c.Body, c.Sum[:])
	}
	return &c, err
}

func openBody(r *row, mark *envelope, stored, sum []byte) ([]byte, error) {
	e, err := parseEnvelope(stored)
	if err != nil {
		return nil, err
	}
	if e.id != mark.id || (e.flags^mark.flags)&flagByFence != 0 {
		return nil, fmt.Errorf("%w: a result and its digest are sealed differently", storage.ErrDamaged)
	}
	plain, err := r.open(&e, holdsBody, sum)
	if err != nil || e.flags&flagZstd == 0 {
		return plain, err
	}
	return grow(plain)
}
