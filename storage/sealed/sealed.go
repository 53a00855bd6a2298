// Package sealed encrypts the results of claims on their way into a store and
// decrypts them on their way out. It decorates any storage.Store; drivers see
// completions like others, only that nobody without the keys can read them.
//
// # What is sealed, and what is not
//
// A result that has bytes: those, and their digest (Completion.Sum), which would
// give a short result away to whoever can guess. Outcome, content type and
// metadata stay as they are, for listings; they are bound to the bytes, so that
// changing them in the store is noticed. Keys, event IDs and digests of payloads
// stay as they are too. A completion without bytes is not sealed: there is
// nothing in it, or only the digest of a result that was too large to guess.
//
// # What is stored
//
// The body is an envelope: see envelope.go. That a body is one says the content
// type, which then begins with a byte that no content type can begin with, and
// carries the sealed digest. It is not the body that says so: a client chooses
// its bodies, and may make one that looks like an envelope. The server refuses
// control characters in content types, and what comes with one all the same is
// escaped here, so neither can be made from outside. Results from before sealing
// was on have no such content type, and are given as they are.
//
// Drivers keep Completion.Sum too, and compare it with the body that they read.
// For them it is the digest of the envelope. The caller sees the digest of the
// plain bytes; it stands in the content type and not with the body, because
// drivers drop bodies (STORE_FULL, BATCH_BUDGET) and resends must be recognised
// all the same. Limits are those of the plain bytes; a stored body is at most
// Overhead longer, and shorter where compression helped. So a body of just under
// a driver's inline limit may go aside.
//
// # Whose ciphertext it is
//
// Every envelope is bound to tenant, consumer and event ID, and to the attempt
// that completes, which every write knows but one: an operator who resolves a
// doubt names the fence, so there it is the fence. The fence alone would not do:
// a claim that brings its outcome along is written before it has one. A
// ciphertext that was moved to another row, another tenant or another attempt of
// the same event does not open.
//
// # When there is no key
//
// Nothing here turns a completed event into a new grant, or into an error, which
// consumers answer by trying again or by going on unprotected. A result whose
// key was destroyed is answered as omitted, SHREDDED. One whose key cannot be
// had at the moment, or that does not open, is answered as omitted, UNREADABLE:
// the event is done, and that is known without a key. So is what follows from
// it: what is expired begins anew, and what an operator forgets is forgotten.
//
// A completion that cannot be sealed is stored without its bytes, UNREADABLE for
// good, as a store that is full keeps the outcome only: the effect has happened,
// and if that were refused, it would happen again after the lease. It is stored
// without their digest too, which could not be sealed either. An operator who
// resolves a doubt is refused instead: storage.ErrUnavailable, and nothing was
// applied. People can come back.
//
// Where the digest is gone or cannot be read, the owner that sends its result
// again is taken at its word.
//
// # Wiring
//
//	ring, err := sealed.NewRing(sealed.RingConfig{Registry: reg, KEKs: keks, Clock: clock})
//	ring.Update(changes)                // with every registry.Changes of the sync loop, from the first
//	store, err = sealed.New(sealed.Config{Store: driver, Keys: ring})
//
// Inside a bloom.Store, where there is one: then what is only read is not sealed.
// An installation without key-encryption keys uses Config.WritePlain, and must
// not leave the decorator out once something was sealed: without it, clients
// would be given envelopes.
package sealed

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Config of a Store.
type Config struct {
	Store storage.Store // required
	// Keys are the data keys. Required, but with WritePlain, where nil means that
	// sealed results are out of reach: omitted, UNREADABLE.
	Keys KeyRing
	// WritePlain: new results are not sealed; those that are stay readable.
	WritePlain bool
	// Logger is told what is answered or stored without its bytes, once for each
	// cause and NoticeEvery, and nothing of the bytes. Nil: the Logger and the
	// Clock of Keys where that is a Ring, and otherwise no log.
	Logger *slog.Logger
	// Clock tells when that was. Required with Logger.
	Clock func() time.Time
}

// Store is a storage.Store whose results are sealed in the store inside. It is
// safe for concurrent use.
type Store struct {
	storage.Store
	keys    KeyRing
	plain   bool
	notices notices

	count struct{ sealed, opened, plainBytes, storedBytes, shredded, unavailable, damaged, unkept atomic.Int64 }
}

var _ storage.Store = (*Store)(nil)

// New returns a decorator of c.Store.
func New(c Config) (*Store, error) {
	var faults []error
	if c.Store == nil {
		faults = append(faults, errors.New("sealed: Store is required"))
	}
	if c.Keys == nil && !c.WritePlain {
		faults = append(faults, errors.New("sealed: Keys are required, or WritePlain"))
	}
	if c.Logger != nil && c.Clock == nil {
		faults = append(faults, errors.New("sealed: Clock is required with Logger"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if c.Keys == nil {
		c.Keys = noKeys{}
	}
	if ring, ok := c.Keys.(*Ring); ok && c.Logger == nil {
		c.Logger, c.Clock = ring.cfg.Logger, ring.cfg.Clock
	}
	return &Store{Store: c.Store, keys: c.Keys, plain: c.WritePlain, notices: notices{logger: c.Logger, clock: c.Clock}}, nil
}

// Stats are counters since New.
type Stats struct {
	Sealed, Opened          int64 // results
	PlainBytes, StoredBytes int64 // of those sealed: before and after
	Shredded                int64 // answered without their bytes, which are gone
	Unavailable             int64 // answered without their bytes, or an operator refused, for want of a key
	Damaged                 int64 // answered without their bytes, which do not open
	Unkept                  int64 // completed, and stored without their bytes, for want of a key
}

// SealStats returns the counters. Stats is the store's inside.
func (s *Store) SealStats() Stats {
	c := &s.count
	return Stats{
		Sealed: c.sealed.Load(), Opened: c.opened.Load(), PlainBytes: c.plainBytes.Load(), StoredBytes: c.storedBytes.Load(),
		Shredded: c.shredded.Load(), Unavailable: c.unavailable.Load(), Damaged: c.damaged.Load(), Unkept: c.unkept.Load(),
	}
}

// InsertOrGet implements storage.Store.
func (s *Store) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	return each(ctx, s, reqs, kind[claim.Request]{
		key: func(r *claim.Request) *claim.Key { return &r.Key },
		given: func(r *claim.Request) (*claim.Completion, bind) {
			return r.Record, bind{attempt: r.Attempt}
		},
		with: func(r claim.Request, c *claim.Completion) claim.Request { r.Record = c; return r },
		call: s.Store.InsertOrGet,
	})
}

// Get implements storage.Store.
func (s *Store) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	return each(ctx, s, keys, kind[claim.Key]{
		key:   func(k *claim.Key) *claim.Key { return k },
		given: func(*claim.Key) (*claim.Completion, bind) { return nil, bind{} },
		call:  s.Store.Get,
	})
}

// Transition implements storage.Store.
func (s *Store) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	return each(ctx, s, ts, kind[claim.Transition]{
		key: func(t *claim.Transition) *claim.Key { return &t.Key },
		given: func(t *claim.Transition) (*claim.Completion, bind) {
			return t.Completion, bind{attempt: t.Attempt}
		},
		with: func(t claim.Transition, c *claim.Completion) claim.Transition { t.Completion = c; return t },
		call: s.Store.Transition,
	})
}

// Replace implements storage.Store.
func (s *Store) Replace(ctx context.Context, swaps []claim.Swap) ([]storage.Found, error) {
	return each(ctx, s, swaps, kind[claim.Swap]{
		key: func(w *claim.Swap) *claim.Key { return &w.Key },
		given: func(w *claim.Swap) (*claim.Completion, bind) {
			if w.Request != nil && w.Request.Record != nil {
				return w.Request.Record, bind{attempt: w.Request.Attempt}
			}
			return w.Result, bind{byFence: true, fence: w.Fence}
		},
		with: func(w claim.Swap, c *claim.Completion) claim.Swap {
			if w.Request == nil || w.Request.Record == nil {
				w.Result = c
				return w
			}
			req := *w.Request
			req.Record, w.Request = c, &req
			return w
		},
		call: s.Store.Replace,
	})
}

// List implements storage.Store.
func (s *Store) List(ctx context.Context, l storage.List) (storage.Page, error) {
	page, err := s.Store.List(ctx, l)
	for i := range page.Records {
		if rec := &page.Records[i]; rec.Completion != nil {
			rec.Completion = s.openOr(ctx, rec, nil)
		}
	}
	return page, err
}
