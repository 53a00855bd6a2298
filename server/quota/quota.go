// Package quota keeps tenants within what was agreed with them, and apart from
// each other: rates of requests and items, levels of what is kept, and a share
// of the calls that are worked on at once. It counts what tenants use, for
// quotas and for reports.
//
// # Who is refused
//
// Only claims and reads. Calls that finish granted work (complete, extend,
// release) are charged and never refused: whoever refuses them makes
// duplicates. They may push a rate into debt, which is bounded by DebtMax.
//
// # Where a level quota is decided
//
// A tenant that is over its quota of keys, bytes, leases or doubt must still
// hear about what it already has: duplicates, its own grants, what is in
// progress. Whether a claim is one of these only the store knows. There are
// three places to decide:
//
//   - after the store has answered: too late, the insert is the one trip and has
//     made the key that should not be;
//   - in the insert, by asking with an InsertBefore in the past: costs nothing
//     and stops new keys, but not takeovers, which take leases too, and its
//     answer is TOO_OLD, which then may be either;
//   - before: read the keys, and decide on what is stored by the rules of
//     storage/claim, which are pure.
//
// It is the last one. A tenant within its quotas pays a few comparisons
// (Quotas.Standing). One that is over them pays a read for each claim
// (Quotas.Screen), which for absent keys is mostly a look into a filter and
// cheaper than the insert that it replaces. What passes is asked as always.
// Between the read and the claim things may change: quotas are exact to the
// claims in flight and not further.
//
// # What is known of levels
//
// Usage is the last census, which counts all records of a tenant
// (Census), and what this process has seen since: grants, completions,
// releases. What other replicas did since is not in it, nor what expired, was
// swept, or lapsed: a level may be off by one census interval, in both
// directions. Within one process it errs to the high side.
//
// # How it is wired
//
//	after authentication       e := q.TakeRequest(tenant, limits); ChargeRequest for finishing calls
//	with the request's slot    slot, ok := q.Enter(tenant, limiter.Limit(), finishes); defer slot.Leave()
//	claims and look-ups        n, after := q.TakeItems(tenant, limits, len(items)); ChargeItems for finishing calls
//	claims                     st := q.Standing(tenant, limits, n)
//	                           if st.Tight() { errs := q.Screen(ctx, arbiter, st, requests) }
//	after an answer            q.NoteClaim(tenant, &request, &answer), q.NoteTransition(tenant, &transition, &reply)
//	admin verbs, lease monitor q.Note(tenant, Delta{InDoubt: +1})
//	beside Server.Run          census.Run(ctx)
//	usage reports              q.Usage(tenant)
package quota

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// Limits are one tenant's quotas in force; 0 is no limit.
type Limits struct {
	Requests   int64 // per second
	Items      int64 // per second; an item of a batch counts as one call does
	LiveLeases int64
	Keys       int64 // retained
	Bytes      int64 // stored, in the unit of codec.RecordBytes
	InDoubt    int64
}

// Resolve returns the limits in force for a tenant with row: what it does not
// say is the installation's default l. Do it once per change of the table and
// not once per call.
func (l Limits) Resolve(row registry.Limits) Limits {
	pick := func(own, otherwise int64) int64 {
		if own > 0 {
			return own
		}
		return max(otherwise, 0)
	}
	return Limits{
		Requests: pick(row.RequestsPerSecond, l.Requests), Items: pick(row.ItemsPerSecond, l.Items),
		LiveLeases: pick(row.LiveLeasesMax, l.LiveLeases), Keys: pick(row.KeysMax, l.Keys),
		Bytes: pick(row.BytesMax, l.Bytes), InDoubt: pick(row.InDoubtMax, l.InDoubt),
	}
}

// What names a quota.
type What uint8

// The quotas. The zero What is none.
const (
	Nothing What = iota
	Requests
	Items
	LiveLeases
	Keys
	Bytes
	InDoubt
	Share // of the calls that are worked on at once; no tenant's own limit
	whats
)

var whatNames = [whats]string{"nothing", "requests", "items", "live_leases", "keys", "bytes", "in_doubt", "share"}

// String is the quota's name in metrics and findings: "live_leases".
func (w What) String() string {
	if w < whats {
		return whatNames[w]
	}
	return "unknown"
}

// Exceeded says that a call or an item was refused, and that nothing was
// applied. Its zero value says that nothing is exceeded.
//
//nolint:errname // "exceeded" is what is said of a quota; it is an answer first
type Exceeded struct {
	What  What
	Limit int64 // per second for rates
	Used  int64 // the level; 0 for rates
	// RetryAfter is when asking again may help: exact for rates, a guess for
	// levels. It has no jitter.
	RetryAfter time.Duration
}

// Over reports whether it says that something is exceeded.
func (e Exceeded) Over() bool { return e.What != Nothing }

// Error is text for the caller: what happened and what to do.
func (e Exceeded) Error() string {
	switch e.What {
	case Requests, Items:
		return fmt.Sprintf("over the quota of %d %s per second; nothing was applied, ask again after retry_after", e.Limit, e.What)
	case LiveLeases:
		return fmt.Sprintf("over the quota: %d of %d live leases; nothing was applied, complete or release some", e.Used, e.Limit)
	case Keys:
		return fmt.Sprintf("over the quota: %d of %d retained keys; nothing was applied, raise the quota or shorten retention", e.Used, e.Limit)
	case Bytes:
		return fmt.Sprintf("over the quota: %d of %d stored bytes; nothing was applied, raise the quota or store less", e.Used, e.Limit)
	case InDoubt:
		return fmt.Sprintf("over the quota: %d of %d events in doubt; nothing was applied, resolve some", e.Used, e.Limit)
	case Share:
		return "the tenant has its share of the calls in flight; nothing was applied, ask again after retry_after"
	default:
		return "no quota is exceeded"
	}
}

// Config of Quotas.
type Config struct {
	// Monotonic is the time since some start; it never runs backwards.
	// Required.
	Monotonic func() time.Duration
	// Share is the part of the slots that one tenant may have while others
	// call: ShareDefault when 0, at most 1, which is all slots and not the queue
	// behind them.
	Share float64
}

// Quotas meter tenants. It is safe for concurrent use. It keeps about 2 KiB for
// each tenant that has called or was counted.
type Quotas struct {
	monotonic func() time.Duration
	fair      fairness
	shards    [shardsMax]shard
}

// shardsMax spreads tenants over locks that are held for a look-up.
const shardsMax = 64

type shard struct {
	mu struct {
		sync.RWMutex
		entries map[claim.TenantID]*entry
	}
}

// entry is what is metered of one tenant.
type entry struct {
	mu struct {
		sync.Mutex
		requests, items bucket
		rates           rates
		levels          levels
		report          *Report // the last census; nil before the first
	}
	running int64 // guarded by fairness.mu
}

// New returns Quotas in which nobody has used anything.
func New(cfg Config) (*Quotas, error) {
	var faults []error
	if cfg.Monotonic == nil {
		faults = append(faults, errors.New("the Monotonic clock is missing"))
	}
	if cfg.Share == 0 {
		cfg.Share = ShareDefault
	}
	if !(cfg.Share > 0 && cfg.Share <= 1) {
		faults = append(faults, fmt.Errorf("the Share is %v; it must be above 0 and at most 1", cfg.Share))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("quota: %w", err)
	}
	q := &Quotas{monotonic: cfg.Monotonic, fair: fairness{share: cfg.Share}}
	for i := range q.shards {
		q.shards[i].mu.entries = map[claim.TenantID]*entry{}
	}
	return q, nil
}

func (q *Quotas) shard(id claim.TenantID) *shard {
	// Tenant IDs count up from 1: the low bits spread them evenly.
	return &q.shards[uint64(id)%shardsMax] //nolint:gosec // only the low bits matter
}

// entry returns what is metered of a tenant, beginning it if need be.
func (q *Quotas) entry(id claim.TenantID) *entry {
	s := q.shard(id)
	s.mu.RLock()
	e := s.mu.entries[id]
	s.mu.RUnlock()
	if e != nil {
		return e
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e = s.mu.entries[id]; e == nil {
		e = &entry{}
		s.mu.entries[id] = e
	}
	return e
}

// Keep forgets all tenants but these. Census calls it; a tenant that is
// forgotten by mistake begins anew with a full burst.
func (q *Quotas) Keep(tenants []Tenant) {
	known := make(map[claim.TenantID]struct{}, len(tenants))
	for i := range tenants {
		known[tenants[i].ID] = struct{}{}
	}
	for i := range q.shards {
		s := &q.shards[i]
		s.mu.Lock()
		for id := range s.mu.entries {
			if _, ok := known[id]; !ok {
				delete(s.mu.entries, id)
			}
		}
		s.mu.Unlock()
	}
}
