package sealed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// place is what a wrapped data key is bound to: in another row it does not
// unwrap.
func (o owner) place(id uint32) []byte {
	aad := append([]byte(nil), "warifu data key\x00"...)
	aad = binary.BigEndian.AppendUint64(aad, uint64(o.tenant)) //nolint:gosec // its bits
	aad = binary.BigEndian.AppendUint32(aad, id)
	return append(aad, o.consumer...)
}

// secret returns a data key, unwrapped. Callers that need the same one wait for
// one unwrapping; where it fails, none is tried again for RetryAfter.
func (r *Ring) secret(ctx context.Context, o owner, k registry.DataKey) (DataKey, error) {
	id := secretID{o, k.ID}
	r.mu.RLock()
	dk, ok := r.mu.secrets[id]
	r.mu.RUnlock()
	if ok {
		return dk, nil
	}
	err := r.opening.do(ctx, id, func() error { return r.unwrap(context.WithoutCancel(ctx), id, k) })
	if err != nil {
		return DataKey{}, fmt.Errorf("unwrap a data key: %w: %v", storage.ErrUnavailable, err) //nolint:errorlint // only read
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if dk, ok = r.mu.secrets[id]; !ok { // shredded meanwhile, or dropped with all others
		return DataKey{}, fmt.Errorf("unwrap a data key: %w (it has just been dropped)", storage.ErrUnavailable)
	}
	return dk, nil
}

var errResting = errors.New("it failed a moment ago and is not asked again yet")

func (r *Ring) unwrap(ctx context.Context, id secretID, k registry.DataKey) error {
	kek := r.keks[k.KEK]
	if kek == nil {
		return fmt.Errorf("the key-encryption key %q is not configured", k.KEK)
	}
	if r.rests(id, k.KEK) {
		return errResting
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	plain, err := kek.Unwrap(ctx, k.Wrapped, id.place(k.ID))
	dk := DataKey{ID: k.ID}
	if err == nil && (len(plain) != len(dk.secret) || copy(dk.secret[:], plain) != len(plain)) {
		err = fmt.Errorf("a data key has %d bytes", len(plain))
	}
	if err != nil {
		r.rest(id, k.KEK, ctx.Err() != nil)
		r.cfg.Logger.WarnContext(ctx, "a data key cannot be unwrapped", slog.String("kek", k.KEK), slog.String("owner", id.String()), slog.Any("error", err))
		return err
	}
	r.keepSecret(id, dk)
	return nil
}

// keepSecret holds an unwrapped key, unless it was shredded while it was
// unwrapped.
func (r *Ring) keepSecret(id secretID, dk DataKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.table.Load().live(id) {
		return
	}
	if len(r.mu.secrets) >= SecretsMax {
		clear(r.mu.secrets)
	}
	r.mu.secrets[id] = dk
}

// rests reports whether a key, or everything of its KEK, is left alone.
func (r *Ring) rests(id secretID, kek string) bool {
	now := r.cfg.Clock()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return now.Before(r.mu.failed[id]) || now.Before(r.mu.down[kek])
}

// rest leaves a key alone for a while. A KEK that did not answer in time is left
// alone altogether: a call with many keys would wait for each of them. One that
// said no may have a reason that is this key's alone.
func (r *Ring) rest(id secretID, kek string, silent bool) {
	until := r.cfg.Clock().Add(r.cfg.RetryAfter)
	r.mu.Lock()
	defer r.mu.Unlock()
	if silent {
		r.mu.down[kek] = until
		return
	}
	if len(r.mu.failed) >= SecretsMax {
		clear(r.mu.failed)
	}
	r.mu.failed[id] = until
}

// wrap encrypts a data key.
func (r *Ring) wrap(ctx context.Context, kek KEK, o owner, dk DataKey, created claim.Time) (registry.DataKey, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	wrapped, err := kek.Wrap(ctx, dk.secret[:], o.place(dk.ID))
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			r.rest(secretID{}, kek.ID(), true)
		}
		return registry.DataKey{}, fmt.Errorf("wrap a data key with %q: %w: %v", kek.ID(), storage.ErrUnavailable, err) //nolint:errorlint // nothing was applied
	}
	return registry.DataKey{ID: dk.ID, Wrapped: wrapped, KEK: kek.ID(), Created: created}, nil
}

// flights lets callers that want the same thing done wait for one who does it.
type flights[K comparable] struct {
	mu     sync.Mutex
	flying map[K]*flight
}

type flight struct {
	done chan struct{}
	err  error
}

// do runs f, or waits for somebody who runs it for the same key. f must have a
// bound of its own; the wait ends with ctx.
func (f *flights[K]) do(ctx context.Context, key K, run func() error) error {
	f.mu.Lock()
	if f.flying == nil {
		f.flying = map[K]*flight{}
	}
	if other, ok := f.flying[key]; ok {
		f.mu.Unlock()
		select {
		case <-other.done:
			return other.err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	mine := &flight{done: make(chan struct{}), err: errors.New("the caller that did it has ended")}
	f.flying[key] = mine
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.flying, key)
		f.mu.Unlock()
		close(mine.done)
	}()
	mine.err = run()
	return mine.err
}
