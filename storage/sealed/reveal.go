package sealed

import (
	"context"
	"errors"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// reveal makes of what was found what the caller of the store is to see. given
// is what the item brought, wrote what was written instead of it.
func (s *Store) reveal(ctx context.Context, f *storage.Found, given, wrote *claim.Completion) {
	rec := &f.Record
	if f.Err != nil || rec.Completion == nil {
		return
	}
	// An insert does not say whether it was this call's; its time does.
	if wrote != nil && isUnkept(wrote) && isUnkept(rec.Completion) && (f.Applied || rec.EndedAt == f.Now) {
		s.count.unkept.Add(1)
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
	rec.Completion = s.openOr(ctx, rec, given)
}

// openOr returns the plain completion of a record, or what is known of it
// without its bytes: that the event is done needs no key. given is what the call
// brought, or nil.
func (s *Store) openOr(ctx context.Context, rec *claim.Record, given *claim.Completion) *claim.Completion {
	stored := rec.Completion
	switch {
	case isUnkept(stored):
		return without(stored, claim.Unreadable, given)
	case !reserved(stored.ContentType):
		return stored
	}
	c, err := s.open(ctx, rec)
	switch {
	case err == nil:
		return c
	case errors.Is(err, ErrShredded):
		s.count.shredded.Add(1)
		return without(stored, claim.Shredded, given)
	case errors.Is(err, storage.ErrDamaged):
		s.count.damaged.Add(1)
		s.notices.note(ctx, damaged, &rec.Key, err)
	default:
		s.count.unavailable.Add(1)
		s.notices.note(ctx, unavailable, &rec.Key, err)
	}
	if c != nil { // only the bytes are damaged: the digest has opened, and binds the rest
		return c.Without(claim.Unreadable)
	}
	return without(stored, claim.Unreadable, given)
}

// open returns the plain completion of a record. With an error it may return
// what is known of it all the same.
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

// without is a stored completion whose bytes, and their digest, are gone or out
// of reach. Whether a resend brings the same result cannot be found out: the
// owner, who alone can be answered with it, is taken at its word.
func without(stored *claim.Completion, why claim.Omission, given *claim.Completion) *claim.Completion {
	c := *stored
	c.ContentType, c.Sum, c.Body = original(c.ContentType), [32]byte{}, nil
	if c.Omitted == claim.NotOmitted {
		c.Omitted = why
	}
	if given != nil {
		c.Sum = given.Sum
	}
	return &c
}

// withoutKey returns what is stored of a completion that cannot be sealed.
func withoutKey(c *claim.Completion) *claim.Completion {
	w := c.Without(claim.Unreadable)
	w.ContentType, w.Sum = escape(c.ContentType), [32]byte{}
	return w
}

// isUnkept reports whether a completion is what withoutKey has made of another.
func isUnkept(c *claim.Completion) bool {
	return c.Omitted == claim.Unreadable && c.Sum == [32]byte{} && !isSealed(c.ContentType)
}
