package sealed

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
)

// KEK is a key-encryption key: it wraps data keys, and is kept elsewhere than
// they are. Implementations are safe for concurrent use, and their calls end
// when their context does.
type KEK interface {
	// ID names the key in what it has wrapped: 1–64 characters of
	// [A-Za-z0-9._/-], and never that of another key.
	ID() string
	// Wrap encrypts plain, bound to aad. What it returns has at most
	// registry.WrappedBytesMax bytes.
	Wrap(ctx context.Context, plain, aad []byte) ([]byte, error)
	// Unwrap is its inverse. Any error means that the key is out of reach now.
	Unwrap(ctx context.Context, wrapped, aad []byte) ([]byte, error)
}

// kekLen is the length of a local key, in bytes.
const kekLen = 32

// ErrKEK says that a key-encryption key cannot be used as it is given.
var ErrKEK = errors.New("a key-encryption key is 32 random bytes, as 64 hexadecimal digits or in base64")

// ParseKEK returns the local key in the text of a file or a variable; blanks
// around it do not count. A text that is no key is never part of the error.
func ParseKEK(id string, text []byte) (*LocalKEK, error) {
	text = bytes.TrimSpace(text)
	if len(text) == hex.EncodedLen(kekLen) {
		if b, err := hex.AppendDecode(nil, text); err == nil {
			return NewLocalKEK(id, b)
		}
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if b, err := enc.Strict().DecodeString(string(text)); err == nil && len(b) == kekLen {
			return NewLocalKEK(id, b)
		}
	}
	return nil, fmt.Errorf("key-encryption key %q: %w", id, ErrKEK)
}

// LocalKEK is a key that this process knows. It wraps with AES-256-GCM.
type LocalKEK struct {
	id  string
	gcm cipher.AEAD
}

var _ KEK = (*LocalKEK)(nil)

// NewLocalKEK returns a local key of 32 bytes; all the same are refused, as what
// somebody has filled in to get started.
func NewLocalKEK(id string, key []byte) (*LocalKEK, error) {
	if len(key) != kekLen || bytes.Count(key, key[:1]) == kekLen {
		return nil, fmt.Errorf("key-encryption key %q: %w", id, ErrKEK)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("key-encryption key %q: %w", id, err)
	}
	gcm, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("key-encryption key %q: %w", id, err)
	}
	return &LocalKEK{id: id, gcm: gcm}, nil
}

// ID implements KEK.
func (k *LocalKEK) ID() string { return k.id }

// String keeps the key out of whatever is printed.
func (k *LocalKEK) String() string { return "key-encryption key " + k.id }

// GoString does the same for %#v.
func (k *LocalKEK) GoString() string { return k.String() }

// Wrap implements KEK.
func (k *LocalKEK) Wrap(_ context.Context, plain, aad []byte) ([]byte, error) {
	return k.gcm.Seal(nil, nil, plain, aad), nil //nolint:gosec // G407: no nonce is given: this cipher draws one itself
}

// Unwrap implements KEK.
func (k *LocalKEK) Unwrap(_ context.Context, wrapped, aad []byte) ([]byte, error) {
	plain, err := k.gcm.Open(nil, nil, wrapped, aad)
	if err != nil {
		return nil, fmt.Errorf("unwrap: not wrapped by the key-encryption key %q, or for another row", k.id)
	}
	return plain, nil
}

// newSecret draws a data key.
func newSecret() (secret [32]byte) {
	_, _ = rand.Read(secret[:]) // never fails: the process ends before
	return secret
}
