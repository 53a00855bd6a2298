package sealed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

const (
	// CallTimeoutDefault bounds a call of a KEK or of the registry that a claim
	// waits for.
	CallTimeoutDefault = 2 * time.Second
	// RetryAfterDefault is for how long a key that could not be unwrapped, or all
	// keys of a KEK that did not answer, are refused without asking again.
	RetryAfterDefault = time.Second
	// SecretsMax bounds the unwrapped keys in memory. Beyond it all are dropped,
	// and unwrapped again as they are asked for.
	SecretsMax = 1 << 16
	// conflictsMax bounds how often a change of keys is tried again because others
	// have changed the row.
	conflictsMax = 8
	// unknownsMax bounds how often a change is sent again of which it is not known
	// whether it was made.
	unknownsMax = 3
)

// RingConfig of a Ring.
type RingConfig struct {
	// Registry keeps the wrapped keys. Required.
	Registry registry.Registry
	// KEKs are all that something may be wrapped with, at least one. The first
	// wraps new keys.
	KEKs []KEK
	// Clock dates keys, and pauses. Required.
	Clock func() time.Time
	// CallTimeout, above 0; CallTimeoutDefault when 0.
	CallTimeout time.Duration
	// RetryAfter, above 0; RetryAfterDefault when 0.
	RetryAfter time.Duration
	// Logger is told when a KEK fails, and of nothing secret. Nil: no log.
	Logger *slog.Logger
}

// Ring is a KeyRing of the data keys in registry rows: a declared consumer has
// keys of its own, made when its first result is sealed, and all others share
// their tenant's. What was sealed with the tenant's key before a consumer was
// declared stays readable.
//
// It knows the rows by Update, and looks itself where something is missing: a
// record may name a key that another server has made a moment ago. A row or a
// key that is gone after such a look was deleted, and counts as shredded.
//
// A key that was shredded on another server is used here until the next Update:
// results that are completed until then are gone too, and old ones can be read.
type Ring struct {
	cfg  RingConfig
	keks map[string]KEK

	table   atomic.Pointer[table]
	loading loading
	making  flights[owner]
	opening flights[secretID]

	mu struct {
		sync.RWMutex
		updated registry.Revision // of the last Update
		secrets map[secretID]DataKey
		gone    map[secretID]struct{}  // asked for, and not there after a look
		failed  map[secretID]time.Time // until when not to ask again
		down    map[string]time.Time   // the same, of KEKs
	}
}

var _ KeyRing = (*Ring)(nil)

// owner is whose keys they are: a consumer's, or the tenant's own where consumer
// is empty.
type owner struct {
	tenant   claim.TenantID
	consumer string
}

func (o owner) String() string {
	if o.consumer == "" {
		return fmt.Sprintf("tenant %d", o.tenant)
	}
	return fmt.Sprintf("consumer %s of tenant %d", o.consumer, o.tenant)
}

type secretID struct {
	owner
	id uint32
}

// NewRing returns a ring that knows no rows yet.
func NewRing(c RingConfig) (*Ring, error) {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("sealed: "+format, args...))
		}
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = CallTimeoutDefault
	}
	if c.RetryAfter == 0 {
		c.RetryAfter = RetryAfterDefault
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	check(c.Registry != nil, "Registry is required")
	check(c.Clock != nil, "Clock is required")
	check(c.CallTimeout > 0, "CallTimeout %v is not positive", c.CallTimeout)
	check(c.RetryAfter > 0, "RetryAfter %v is not positive", c.RetryAfter)
	check(len(c.KEKs) > 0, "KEKs are required: at least one")
	r := &Ring{cfg: c, keks: map[string]KEK{}}
	for _, k := range c.KEKs {
		check(r.keks[k.ID()] == nil, "two KEKs have the ID %q", k.ID())
		r.keks[k.ID()] = k
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	r.table.Store(newTable())
	r.mu.secrets, r.mu.gone = map[secretID]DataKey{}, map[secretID]struct{}{}
	r.mu.failed, r.mu.down = map[secretID]time.Time{}, map[string]time.Time{}
	return r, nil
}

// DataKey implements KeyRing. The first result of a consumer waits until a key
// was made and kept; of several servers that make one, all use the same.
func (r *Ring) DataKey(ctx context.Context, tenant claim.TenantID, consumer string) (DataKey, error) {
	for range conflictsMax {
		o, keys, ok := r.table.Load().writer(tenant, consumer)
		if k, live := newest(keys); ok && live {
			return r.secret(ctx, o, k)
		}
		if err := r.making.do(ctx, o, func() error { return r.first(context.WithoutCancel(ctx), tenant, consumer) }); err != nil {
			return DataKey{}, fmt.Errorf("make a data key: %w: %v", storage.ErrUnavailable, err) //nolint:errorlint // nothing was sealed, whatever became of the key
		}
	}
	return DataKey{}, fmt.Errorf("make a data key: %w (others keep shredding it)", storage.ErrUnavailable)
}

// Open implements KeyRing.
func (r *Ring) Open(ctx context.Context, tenant claim.TenantID, consumer string, id uint32) (DataKey, error) {
	o, k, ok := r.table.Load().find(tenant, consumer, id)
	if !ok {
		asked := secretID{owner{tenant, consumer}, id}
		if r.isGone(asked) {
			return DataKey{}, ErrShredded
		}
		if err := r.lookFor(ctx, asked); err != nil {
			return DataKey{}, fmt.Errorf("look for a data key: %w: %v", storage.ErrUnavailable, err) //nolint:errorlint // only read
		}
		if o, k, ok = r.table.Load().find(tenant, consumer, id); !ok {
			r.noteGone(asked)
			r.cfg.Logger.WarnContext(ctx, "results are sealed with a data key that is gone",
				slog.Int64("tenant", int64(tenant)), slog.String("consumer", consumer), slog.Int64("data_key", int64(id)))
			return DataKey{}, ErrShredded
		}
	}
	if k.Shredded != 0 {
		return DataKey{}, ErrShredded
	}
	return r.secret(ctx, o, k)
}

// lookFor looks for a key in the registry, and not again for a while where that
// fails.
func (r *Ring) lookFor(ctx context.Context, id secretID) error {
	if r.rests(id, "") {
		return errResting
	}
	err := r.look(ctx)
	if err != nil {
		r.rest(id, "", false)
	}
	return err
}

func (r *Ring) isGone(id secretID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, gone := r.mu.gone[id]
	return gone
}

// noteGone remembers what is not there, for good: IDs are random, and none is
// used again.
func (r *Ring) noteGone(id secretID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.gone) >= SecretsMax {
		clear(r.mu.gone)
	}
	r.mu.gone[id] = struct{}{}
}
