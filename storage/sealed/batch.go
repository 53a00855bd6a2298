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

// each is every batch call: results are sealed, items that could not be are
// held back, and what comes back is opened. An item that is held back fails
// alone, and so does one that does not open.
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
		if err != nil {
			s.count.unavailable.Add(1)
			out[i], held = storage.Found{Err: err}, true
			continue
		}
		wrote[i] = w
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

// reveal makes of what was found what the caller of the store is to see. given
// is what the item brought, wrote what was written instead of it.
func (s *Store) reveal(ctx context.Context, f *storage.Found, given, wrote *claim.Completion) {
	rec := &f.Record
	if f.Err != nil || rec.Completion == nil || !reserved(rec.Completion.ContentType) {
		return
	}
	// What this call has written needs no key, and must not fail for want of one.
	// No two sealed content types are the same.
	if wrote != nil && isSealed(wrote.ContentType) && wrote.ContentType == rec.Completion.ContentType {
		plain := *given
		if plain.Omitted = rec.Completion.Omitted; len(rec.Completion.Body) == 0 {
			plain.Body = nil
		}
		rec.Completion = &plain
		return
	}
	c, err := s.open(ctx, rec)
	switch {
	case errors.Is(err, ErrShredded):
		s.count.shredded.Add(1)
		rec.Completion = shredded(rec, given)
	case errors.Is(err, storage.ErrDamaged):
		s.count.damaged.Add(1)
		*f = storage.Found{Err: fmt.Errorf("open a stored result: %w", err)}
	case err != nil:
		s.count.unavailable.Add(1)
		*f = storage.Found{Err: noKey("open a stored result", err)}
	default:
		rec.Completion = c
	}
}

// open returns the plain completion of a record.
func (s *Store) open(ctx context.Context, rec *claim.Record) (*claim.Completion, error) {
	if !isSealed(rec.Completion.ContentType) {
		c := *rec.Completion
		c.ContentType = unescape(c.ContentType)
		return &c, nil
	}
	id, err := markedID(rec.Completion.ContentType)
	if err != nil {
		return nil, err
	}
	dk, err := s.keys.Open(ctx, rec.Key.Tenant, rec.Key.Consumer, id)
	if err != nil {
		return nil, err
	}
	c, err := openCompletion(dk, rec)
	if err == nil {
		s.count.opened.Add(1)
	}
	return c, err
}

// describe is reveal for listings, which cannot fail one item alone.
func (s *Store) describe(ctx context.Context, rec *claim.Record) {
	if rec.Completion == nil || !reserved(rec.Completion.ContentType) {
		return
	}
	c, err := s.open(ctx, rec)
	switch {
	case err == nil:
		rec.Completion = c
	case errors.Is(err, ErrShredded):
		rec.Completion = shredded(rec, nil)
	default:
		c := *rec.Completion
		c.ContentType, c.Sum = original(c.ContentType), [32]byte{}
		rec.Completion = &c
	}
}

// shredded is a completion whose bytes, and their digest, are gone. Whether a
// resend brings the same result cannot be found out any more: the owner, who
// alone can be answered with it, is taken at its word.
func shredded(rec *claim.Record, given *claim.Completion) *claim.Completion {
	c := *rec.Completion
	c.ContentType, c.Sum, c.Body = original(c.ContentType), [32]byte{}, nil
	if c.Omitted == claim.NotOmitted {
		c.Omitted = claim.Shredded
	}
	if given != nil {
		c.Sum = given.Sum
	}
	return &c
}

// noKey says that a key could not be had, and that nothing was applied: a
// duplicate is only read, and a completion was not sent.
func noKey(action string, err error) error {
	if errors.Is(err, storage.ErrUnavailable) {
		return fmt.Errorf("%s: %w", action, err)
	}
	return fmt.Errorf("%s: %w (%v)", action, storage.ErrUnavailable, err) //nolint:errorlint // the cause's class must not speak for the item
}
