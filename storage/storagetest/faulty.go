package storagetest

import (
	"context"
	"sync"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Call is a call that is about to be made on a faulty store.
type Call struct {
	Method Method
	Index  int // how many calls of this method came before
	Keys   []claim.Key
}

// Fault is what happens to one call. The zero Fault lets it pass.
type Fault struct {
	// Before fails the call without making it. Use a sentinel that says so:
	// storage.ErrUnavailable, ErrFull, ErrClockSuspect.
	Before error
	// After fails the call once it is made: its reply is lost. Use
	// storage.ErrUnknown.
	After error
	// Withhold fails items, by their place in the batch, that are not sent;
	// Lose fails items that are.
	Withhold, Lose map[int]error
	// Then is called between the call and its answer: to wait, or to let
	// somebody else write.
	Then func()
}

// Hook decides what happens to a call. It may wait: it is called before the
// call, without a lock, by the goroutine that calls.
type Hook func(ctx context.Context, c Call) Fault

// Faulty is a store whose calls fail as a hook says. Close, Stats and Ready
// always pass.
type Faulty struct {
	storage.Store
	hook Hook

	mu struct {
		sync.Mutex
		calls map[Method]int
	}
}

// NewFaulty returns a decorator of store that asks hook about every call.
func NewFaulty(store storage.Store, hook Hook) *Faulty {
	f := &Faulty{Store: store, hook: hook}
	f.mu.calls = map[Method]int{}
	return f
}

// FaultAt returns a hook that lets one call of m fail, the one with the given
// index.
func FaultAt(m Method, index int, fault Fault) Hook {
	return func(_ context.Context, c Call) Fault {
		if c.Method == m && c.Index == index {
			return fault
		}
		return Fault{}
	}
}

func (f *Faulty) ask(ctx context.Context, m Method, keys []claim.Key) Fault {
	f.mu.Lock()
	index := f.mu.calls[m]
	f.mu.calls[m]++
	f.mu.Unlock()
	return f.hook(ctx, Call{Method: m, Index: index, Keys: keys})
}

// InsertOrGet implements storage.Store.
func (f *Faulty) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	return faultyBatch(ctx, f, InsertOrGet, reqs, func(r *claim.Request) claim.Key { return r.Key }, f.Store.InsertOrGet)
}

// Get implements storage.Store.
func (f *Faulty) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	return faultyBatch(ctx, f, Get, keys, func(k *claim.Key) claim.Key { return *k }, f.Store.Get)
}

// Transition implements storage.Store.
func (f *Faulty) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	return faultyBatch(ctx, f, Transition, ts, func(t *claim.Transition) claim.Key { return t.Key }, f.Store.Transition)
}

// Replace implements storage.Store.
func (f *Faulty) Replace(ctx context.Context, swaps []claim.Swap) ([]storage.Found, error) {
	return faultyBatch(ctx, f, Replace, swaps, func(s *claim.Swap) claim.Key { return s.Key }, f.Store.Replace)
}

func faultyBatch[I any](ctx context.Context, f *Faulty, m Method, items []I, key func(*I) claim.Key,
	call func(context.Context, []I) ([]storage.Found, error),
) ([]storage.Found, error) {
	keys := make([]claim.Key, len(items))
	for i := range items {
		keys[i] = key(&items[i])
	}
	fault := f.ask(ctx, m, keys)
	if fault.Before != nil {
		return nil, fault.Before
	}
	var sent []I
	var places []int
	out := make([]storage.Found, len(items))
	for i := range items {
		if err := fault.Withhold[i]; err != nil {
			out[i] = storage.Found{Err: err}
			continue
		}
		sent, places = append(sent, items[i]), append(places, i)
	}
	found, err := call(ctx, sent)
	if fault.Then != nil {
		fault.Then()
	}
	if err != nil {
		return nil, err
	}
	if fault.After != nil {
		return nil, fault.After
	}
	for i := range found {
		out[places[i]] = found[i]
		if err := fault.Lose[places[i]]; err != nil {
			out[places[i]] = storage.Found{Err: err}
		}
	}
	return out, nil
}

// whole makes a call that has no items.
func whole[R any](ctx context.Context, f *Faulty, m Method, call func() (R, error)) (R, error) {
	var none R
	fault := f.ask(ctx, m, nil)
	if fault.Before != nil {
		return none, fault.Before
	}
	r, err := call()
	if fault.Then != nil {
		fault.Then()
	}
	if err == nil && fault.After != nil {
		return none, fault.After
	}
	return r, err
}

// Sweep implements storage.Store.
func (f *Faulty) Sweep(ctx context.Context, s storage.Sweep) (storage.Swept, error) {
	return whole(ctx, f, SweepStep, func() (storage.Swept, error) { return f.Store.Sweep(ctx, s) })
}

// List implements storage.Store.
func (f *Faulty) List(ctx context.Context, l storage.List) (storage.Page, error) {
	return whole(ctx, f, ListPage, func() (storage.Page, error) { return f.Store.List(ctx, l) })
}

// Tally implements storage.Store.
func (f *Faulty) Tally(ctx context.Context, step storage.TenantStep) (storage.Tallied, error) {
	return whole(ctx, f, TallyStep, func() (storage.Tallied, error) { return f.Store.Tally(ctx, step) })
}

// Purge implements storage.Store.
func (f *Faulty) Purge(ctx context.Context, step storage.TenantStep) (storage.Purged, error) {
	return whole(ctx, f, PurgeStep, func() (storage.Purged, error) { return f.Store.Purge(ctx, step) })
}

// Scan implements storage.Store.
func (f *Faulty) Scan(ctx context.Context, each func(claim.Key) error) error {
	_, err := whole(ctx, f, Scan, func() (struct{}, error) { return struct{}{}, f.Store.Scan(ctx, each) })
	return err
}
