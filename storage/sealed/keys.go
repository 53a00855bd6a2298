package sealed

import (
	"context"
	"errors"
	"fmt"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// ErrShredded says that a data key was destroyed, and what is sealed with it is
// gone for good.
var ErrShredded = errors.New("the data key was shredded")

// KeyRing gives data keys. Implementations are safe for concurrent use. Any
// error that is not ErrShredded means that the key cannot be had now.
type KeyRing interface {
	// DataKey returns the key that new results of a consumer are sealed with. It
	// is asked for every result that is written.
	DataKey(ctx context.Context, tenant claim.TenantID, consumer string) (DataKey, error)
	// Open returns the key of that ID that a consumer's results may be sealed
	// with, or ErrShredded.
	Open(ctx context.Context, tenant claim.TenantID, consumer string, id uint32) (DataKey, error)
}

// DataKey is a key that results are sealed with.
type DataKey struct {
	ID     uint32 // never 0
	secret [32]byte
}

// NewDataKey returns the key of 256 random bits that is known by id.
func NewDataKey(id uint32, secret [32]byte) DataKey { return DataKey{ID: id, secret: secret} }

// String keeps the key out of whatever is printed.
func (k DataKey) String() string { return fmt.Sprintf("data key %d", k.ID) }

// GoString does the same for %#v.
func (k DataKey) GoString() string { return k.String() }

// noKeys is the ring of an installation without key-encryption keys.
type noKeys struct{}

func (noKeys) DataKey(context.Context, claim.TenantID, string) (DataKey, error) {
	return DataKey{}, fmt.Errorf("%w: no key-encryption key is configured", storage.ErrUnavailable)
}

func (noKeys) Open(context.Context, claim.TenantID, string, uint32) (DataKey, error) {
	return DataKey{}, fmt.Errorf("%w: a result is sealed, and no key-encryption key is configured", storage.ErrUnavailable)
}
