// Package arbiter runs the one loop between requests and a store: gather what
// arrives together, ask the store once, decide by the pure rules of
// storage/claim, write what a decision needs, and decide again on what is
// stored then.
//
// Concurrent callers share batches. Nobody lingers for company: a free sender
// takes all that is queued, and while its batch waits for the disk the next
// one gathers. A key that is named twice in a batch is asked once; the later
// items are decided, in order, on what the store returned. Every queue is
// bounded in items and says ErrOverloaded when it is full.
//
// It refuses to know transports, tenants and drivers.
package arbiter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Bounds and their defaults.
const (
	// SendersDefault lets one batch gather and be decided while another waits
	// for the disk.
	SendersDefault = 2
	// SendersFullDefault lets full batches wait for the disk together.
	SendersFullDefault = 8
	// SendersMax bounds how many store calls of one kind run at once.
	SendersMax = 64
	// QueueItemsDefault is about 50 ms of work of an embedded store on 2 cores.
	QueueItemsDefault = 8192
	// StoreTimeoutDefault bounds the store calls of one batch.
	StoreTimeoutDefault = 5 * time.Second
	// WaitersPerKeyDefault and WaitersDefault bound long polls.
	WaitersPerKeyDefault = 64
	WaitersDefault       = 10_000
	// PollMax is the longest time between two looks at a key that somebody
	// waits for; it finds endings on other replicas. Half of it is jitter.
	PollMax = 500 * time.Millisecond
	// patience is how long a caller waits before it listens to its context. The
	// channel of a context is made when it is first asked for, which costs more
	// than the rest of the wait; few calls take as long.
	patience = 50 * time.Millisecond
	// lostRacesMax bounds how often a call asks again because somebody else
	// wrote between its read and its write.
	lostRacesMax = 4
)

// Config of an Arbiter. Zero values are the documented defaults.
type Config struct {
	// Store is required. Its calls must end when their context ends: a sender
	// waits for them.
	Store storage.Store
	// Senders is how many store calls run at once, for claims, transitions and
	// look-ups each. More would only make batches smaller, except where a whole
	// batch is waiting: then up to SendersFull run. Defaults SendersDefault and
	// SendersFullDefault; SendersFull is not less than Senders.
	Senders     int
	SendersFull int
	// QueueItemsMax bounds the items that wait for a sender, for claims,
	// transitions and look-ups each. Default QueueItemsDefault; not less than
	// claim.BatchItemsMax.
	QueueItemsMax int
	// StoreTimeout bounds the store calls of one batch. They do not end with
	// their callers: what was sent may be written. Default StoreTimeoutDefault.
	StoreTimeout time.Duration
	// WaitersPerKeyMax and WaitersMax bound ClaimWait; whoever comes above them
	// is answered without waiting. Defaults WaitersPerKeyDefault and
	// WaitersDefault.
	WaitersPerKeyMax int
	WaitersMax       int
	// Poll is the longest time between two looks at a key that somebody waits
	// for. Default and maximum PollMax.
	Poll time.Duration
	// Rand draws from [0, 1) for the jitter of polls; safe for concurrent use.
	// Default rand.Float64.
	Rand func() float64
	// Trace is told of each batch before the store is asked: what it asks, the
	// contexts of the calls in it, and how many items they have together. It
	// returns the context of the store calls, which is the given one or derived
	// from it, and what to call when they are over. Nil: nothing is told.
	Trace func(ctx context.Context, action string, calls iter.Seq[context.Context], items int) (context.Context, func())
}

// validate fills in the defaults and reports all faults at once.
func (c *Config) validate() error {
	var faults []error
	if c.Store == nil {
		faults = append(faults, errors.New("the Store is missing"))
	}
	bounded(&faults, "Senders", &c.Senders, SendersDefault, 1, SendersMax)
	bounded(&faults, "SendersFull", &c.SendersFull, max(SendersFullDefault, c.Senders), max(1, c.Senders), SendersMax)
	bounded(&faults, "QueueItemsMax", &c.QueueItemsMax, QueueItemsDefault, claim.BatchItemsMax, 1<<20)
	bounded(&faults, "StoreTimeout", &c.StoreTimeout, StoreTimeoutDefault, time.Millisecond, time.Minute)
	bounded(&faults, "WaitersPerKeyMax", &c.WaitersPerKeyMax, WaitersPerKeyDefault, 1, 1<<20)
	bounded(&faults, "WaitersMax", &c.WaitersMax, WaitersDefault, 1, 1<<20)
	bounded(&faults, "Poll", &c.Poll, PollMax, time.Millisecond, PollMax)
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return errors.Join(faults...)
}

func bounded[T int | time.Duration](faults *[]error, field string, v *T, otherwise, least, most T) {
	if *v == 0 {
		*v = otherwise
	}
	if *v < least || *v > most {
		*faults = append(*faults, fmt.Errorf("%s is %v; it must be %v to %v", field, *v, least, most))
	}
}

// Answered is the answer to one claim. Where Err is set nothing else is.
type Answered struct {
	claim.Answer
	Err error
}

// Failed reports whether Err is set.
func (a Answered) Failed() bool { return a.Err != nil }

// Replied is the answer to one transition. Where Err is set nothing else is.
type Replied struct {
	claim.Reply
	Err error
}

// Failed reports whether Err is set.
func (r Replied) Failed() bool { return r.Err != nil }

// Arbiter answers claims, transitions and look-ups from a store. It is safe
// for concurrent use.
//
// Errors of items are the sentinels of package storage, ErrOverloaded, or
// ErrNotSent. All but storage.ErrUnknown and storage.ErrDamaged mean that
// nothing was applied for that item.
//
// Slices passed in are read until the call returns, and also after that where
// an item is answered with storage.ErrUnknown, or Lookup with an error: do not
// use those again. What they point to (digests, completions) may be stored and
// must never change.
type Arbiter struct {
	cfg         Config
	claims      *lane[claim.Request, Answered]
	transitions *lane[claim.Transition, Replied]
	lookups     *lane[claim.Key, storage.Found]
	waits       *waits
	started     chan struct{}
	once        sync.Once
}

// New returns an Arbiter that answers storage.ErrUnavailable until Run is
// called.
func New(cfg Config) (*Arbiter, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("arbiter: %w", err)
	}
	return &Arbiter{
		cfg:         cfg,
		claims:      newLane("claim", &cfg, storage.ErrUnknown, requestKey, failAnswered),
		transitions: newLane("transition", &cfg, storage.ErrUnknown, transitionKey, failReplied),
		lookups:     newLane("lookup", &cfg, storage.ErrUnavailable, lookupKey, failFound),
		waits:       newWaits(cfg.WaitersPerKeyMax, cfg.WaitersMax),
		started:     make(chan struct{}),
	}, nil
}

// Run sends until ctx ends. It returns when everything accepted before has
// been answered; calls that come later answer storage.ErrClosed. Run can be
// called once.
func (a *Arbiter) Run(ctx context.Context) error {
	first := false
	a.once.Do(func() { first = true })
	if !first {
		return errors.New("arbiter: Run was called before")
	}
	var senders sync.WaitGroup
	for range a.cfg.SendersFull {
		senders.Go(func() { a.claims.send((&claimWork{a: a}).do) })
		senders.Go(func() { a.transitions.send(a.transitionBatch) })
		senders.Go(func() { a.lookups.send(a.lookupBatch) })
	}
	a.claims.open()
	a.transitions.open()
	a.lookups.open()
	close(a.started)

	<-ctx.Done()
	a.waits.close()
	a.claims.close()
	a.transitions.close()
	a.lookups.close()
	senders.Wait()
	a.waits.watches.Wait()
	return nil
}

// Started is closed when Run has begun to take calls.
func (a *Arbiter) Started() <-chan struct{} { return a.started }

// Claim answers each request, in order. Requests for one key are decided one
// after the other, in the order of the batch. At most claim.BatchItemsMax
// requests; more are refused with storage.ErrBatchTooLarge.
func (a *Arbiter) Claim(ctx context.Context, reqs []claim.Request) []Answered {
	return a.claims.do(ctx, reqs)
}

// ClaimOne answers one request without waiting for its key to end.
func (a *Arbiter) ClaimOne(ctx context.Context, req claim.Request) Answered {
	return a.claims.one(ctx, req)
}

// Transition answers each transition, in order. Transitions of one key are
// applied one after the other, in the order of the batch. At most
// claim.BatchItemsMax transitions; more are refused with
// storage.ErrBatchTooLarge.
func (a *Arbiter) Transition(ctx context.Context, ts []claim.Transition) []Replied {
	return a.transitions.do(ctx, ts)
}

// Lookup reads what is stored of each key, in order; keys may repeat. A Found
// may carry an error of its own. An error is that of the whole call.
func (a *Arbiter) Lookup(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	found := make([]storage.Found, len(keys))
	if err := a.lookups.ask(ctx, keys, found); err != nil {
		return nil, err
	}
	return found, nil
}
