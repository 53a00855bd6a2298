// Package observe measures a store: how often each operation is called, how
// long it takes, how many items it has, what it changed and how it fails; and,
// for calls that are traced, a span of each.
//
// It decorates any storage.Store and changes no answer. It belongs directly
// around the driver, or around the filter where there is one, so that it sees
// what the engine is asked and nothing that is answered before:
//
//	store, err = observe.New(observe.Config{Store: driver, Registry: registry, Clock: time.Now})
//
// # Names
//
// Metrics begin with warifu_store_. Their labels are the operation and how it
// ended, both of a fixed set: no tenant, no consumer and no event. The same is
// true of spans, which also do not carry the texts of errors: a database quotes
// the keys that it fails on.
//
// # What is counted apart
//
// An operation that was served and one that changed something are different
// numbers: warifu_store_operation_items_total counts what was asked,
// warifu_store_applied_items_total what was written. A claim that meets its own
// record, or a completion that is sent again, is in the first and not in the
// second.
package observe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Config of a Store. Store, Registry and Clock are required.
type Config struct {
	Store storage.Store
	// Registry takes the metrics.
	Registry prometheus.Registerer
	// Clock measures durations; it has to carry the monotonic clock.
	Clock func() time.Time
	// Tracer begins a span for each operation whose context has one that is
	// sampled. Nil: there are no spans, and nothing is spent on them.
	Tracer trace.TracerProvider
}

// Store is a storage.Store that is measured. It is safe for concurrent use.
type Store struct {
	storage.Store
	clock  func() time.Time
	tracer trace.Tracer // nil: no spans
	ops    [operations]opMetrics
}

var _ storage.Store = (*Store)(nil)

// New registers the metrics and returns a decorator of c.Store.
func New(c Config) (*Store, error) {
	var faults []error
	refuse := func(missing bool, what string) {
		if missing {
			faults = append(faults, errors.New(what+" is missing"))
		}
	}
	refuse(c.Store == nil, "Store")
	refuse(c.Registry == nil, "Registry")
	refuse(c.Clock == nil, "Clock")
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	s := &Store{Store: c.Store, clock: c.Clock}
	if c.Tracer != nil {
		s.tracer = c.Tracer.Tracer("github.com/warifu/warifu/storage/observe")
	}
	if err := s.register(c.Registry); err != nil {
		return nil, fmt.Errorf("observe: register metrics: %w", err)
	}
	return s, nil
}

// InsertOrGet implements storage.Store. A record that this call's attempt was
// granted at the very time of the answer counts as applied.
func (s *Store) InsertOrGet(ctx context.Context, reqs []claim.Request) ([]storage.Found, error) {
	o := s.begin(ctx, insertOrGet)
	found, err := s.Store.InsertOrGet(o.ctx, reqs)
	applied := 0
	for i := range min(len(found), len(reqs)) {
		if r := &found[i].Record; found[i].Err == nil && r.State != claim.Absent && r.Version == 1 && r.AttemptID == reqs[i].Attempt && r.ClaimedAt == found[i].Now {
			applied++
		}
	}
	o.items(found)
	o.end(len(reqs), applied, err)
	return found, err
}

// Get implements storage.Store.
func (s *Store) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	o := s.begin(ctx, get)
	found, err := s.Store.Get(o.ctx, keys)
	o.items(found)
	o.end(len(keys), 0, err)
	return found, err
}

// Transition implements storage.Store.
func (s *Store) Transition(ctx context.Context, ts []claim.Transition) ([]storage.Found, error) {
	o := s.begin(ctx, transition)
	found, err := s.Store.Transition(o.ctx, ts)
	o.end(len(ts), o.items(found), err)
	return found, err
}

// Replace implements storage.Store.
func (s *Store) Replace(ctx context.Context, swaps []claim.Swap) ([]storage.Found, error) {
	o := s.begin(ctx, replace)
	found, err := s.Store.Replace(o.ctx, swaps)
	o.end(len(swaps), o.items(found), err)
	return found, err
}

// Sweep implements storage.Store; its items are the candidates looked at.
func (s *Store) Sweep(ctx context.Context, step storage.Sweep) (storage.Swept, error) {
	o := s.begin(ctx, sweep)
	swept, err := s.Store.Sweep(o.ctx, step)
	o.end(swept.Looked, swept.Deleted, err)
	return swept, err
}

// List implements storage.Store; its items are the records of the page.
func (s *Store) List(ctx context.Context, l storage.List) (storage.Page, error) {
	o := s.begin(ctx, list)
	page, err := s.Store.List(o.ctx, l)
	o.end(len(page.Records), 0, err)
	return page, err
}

// Scan implements storage.Store; its items are the keys it was called with.
func (s *Store) Scan(ctx context.Context, each func(claim.Key) error) error {
	o := s.begin(ctx, scan)
	keys := 0
	err := s.Store.Scan(o.ctx, func(k claim.Key) error {
		keys++
		return each(k)
	})
	o.end(keys, 0, err)
	return err
}

// Tally implements storage.Store; its items are the records counted.
func (s *Store) Tally(ctx context.Context, step storage.TenantStep) (storage.Tallied, error) {
	o := s.begin(ctx, tally)
	tallied, err := s.Store.Tally(o.ctx, step)
	keys := 0
	for _, counts := range tallied.Counts {
		keys += int(counts.Keys)
	}
	o.end(keys, 0, err)
	return tallied, err
}

// Purge implements storage.Store; its items are the records looked at.
func (s *Store) Purge(ctx context.Context, step storage.TenantStep) (storage.Purged, error) {
	o := s.begin(ctx, purge)
	purged, err := s.Store.Purge(o.ctx, step)
	o.end(purged.Looked, purged.Deleted, err)
	return purged, err
}
