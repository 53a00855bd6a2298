package sealed

import (
	"context"
	"errors"
	"fmt"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// kind is how one method's items are looked at.
type kind[I any] struct {
	key func(*I) *claim.Key
	// given is the completion that the item may write, or nil, and what it is
	// bound to.
	given func(*I) (*claim.Completion, bind)
	// with returns the item with another completion, and leaves the one that was
	// passed as it is: it is the caller's.
	with func(I, *claim.Completion) I
	call func(context.Context, []I) ([]storage.Found, error)
}

// each is every batch call: results are sealed, or left out for want of a key,
// operators' items that could not be sealed are held back and fail alone, and
// what comes back is opened.
func each[I any](ctx context.Context, s *Store, items []I, k kind[I]) ([]storage.Found, error) {
	out := make([]storage.Found, len(items))
	send, wrote, held := s.sealAll(ctx, out, func(i int) (*claim.Key, *claim.Completion, bind) {
		c, b := k.given(&items[i])
		return k.key(&items[i]), c, b
	})
	if held { // the store will not see the whole batch
		if err := storage.CheckBatch(len(items), func(i int) claim.Key { return *k.key(&items[i]) }); err != nil {
			return nil, err
		}
	}
	sent := items // mostly nothing has changed
	if held || wrote != nil {
		sent = make([]I, len(send))
		for j, i := range send {
			if sent[j] = items[i]; wrote[i] != nil {
				sent[j] = k.with(items[i], wrote[i])
			}
		}
	}
	if len(sent) == 0 && len(items) > 0 {
		return out, nil
	}
	found, err := k.call(ctx, sent)
	if err != nil {
		return nil, err
	}
	if len(found) != len(sent) {
		return nil, fmt.Errorf("%w: the store answered %d of %d items", storage.ErrUnknown, len(found), len(sent))
	}
	for j := range found {
		i := j
		if held {
			i = send[j]
		}
		out[i] = found[j]
		c, _ := k.given(&items[i])
		var w *claim.Completion
		if wrote != nil {
			w = wrote[i]
		}
		s.reveal(ctx, &out[i], c, w)
	}
	return out, nil
}

// sealAll seals what the items of a call bring. send are the items that may go
// on, wrote what is written instead of what they brought; both are nil where
// nothing was brought. held: some failed, and out says so.
//
// Whoever reports what it has done is not sent away for want of a key: after the
// lease the effect would run again. A person who decides can come back.
func (s *Store) sealAll(ctx context.Context, out []storage.Found, item func(int) (*claim.Key, *claim.Completion, bind)) (send []int, wrote []*claim.Completion, held bool) {
	for i := range out {
		key, c, b := item(i)
		if c == nil || !s.changes(c) {
			continue
		}
		if wrote == nil {
			wrote = make([]*claim.Completion, len(out))
		}
		w, err := s.seal(ctx, key, c, b)
		switch {
		case err == nil:
			wrote[i] = w
		case b.operator():
			s.count.unavailable.Add(1)
			out[i], held = storage.Found{Err: err}, true
		default:
			s.notices.note(ctx, unkept, key, err)
			wrote[i] = withoutKey(c)
		}
	}
	if wrote == nil {
		return nil, nil, false
	}
	for i := range out {
		if out[i].Err == nil {
			send = append(send, i)
		}
	}
	return send, wrote, held
}

// changes reports whether a completion is stored as another than it is.
func (s *Store) changes(c *claim.Completion) bool {
	return len(c.Body) > 0 && !s.plain || reserved(c.ContentType)
}

// seal returns what is stored of a completion.
func (s *Store) seal(ctx context.Context, key *claim.Key, c *claim.Completion, b bind) (*claim.Completion, error) {
	if len(c.Body) == 0 || s.plain {
		w := *c
		w.ContentType = escape(c.ContentType)
		return &w, nil
	}
	dk, err := s.keys.DataKey(ctx, key.Tenant, key.Consumer)
	if err != nil {
		return nil, noKey("seal a result", err)
	}
	w, err := sealCompletion(dk, key, b, c)
	if err != nil {
		return nil, fmt.Errorf("seal a result: %w", err)
	}
	s.count.sealed.Add(1)
	s.count.plainBytes.Add(int64(len(c.Body)))
	s.count.storedBytes.Add(int64(len(w.Body)))
	return w, nil
}

// noKey says that a key could not be had, and that nothing was applied: what is
// held back was not sent.
func noKey(action string, err error) error {
	if errors.Is(err, storage.ErrUnavailable) {
		return fmt.Errorf("%s: %w", action, err)
	}
	return fmt.Errorf("%s: %w (%v)", action, storage.ErrUnavailable, err) //nolint:errorlint // the cause's class must not speak for the item
}
