// Package storage is the contract between the claim rules and the places that
// keep claims. Drivers compare and set; they do not decide: what a write makes
// of a record is Request → claim.Fresh, Swap.Apply and Transition.Apply, and a
// driver that cannot call these functions (SQL) states the same thing in its
// own language and proves it with the suite in storage/storagetest.
//
// # What every driver promises
//
// Durable on return. When a method returns without an error, and a Found
// without one, its writes survive the death of the process and of the machine,
// and so does everything that its answer depends on.
//
// Linearizable per key. Of any number of concurrent calls for one key exactly
// one order explains all answers. Different keys have no order.
//
// Store time. Now is read once per call, after the call began and before it
// returned, and is not before what the record says has happened; guards are
// evaluated and instants computed with it. It never runs backwards for one key,
// except where several processes share a database and its clock steps back:
// that is followed, so that all of them agree.
//
// Unknown is said. An error means unknown unless it is one of the sentinels
// documented as "nothing was applied". Resending the same call is always safe:
// the attempt ID in the record is the proof.
//
// Batches are of distinct keys, at most claim.BatchItemsMax; a repeated key is
// refused with ErrRepeatedKey. Items are independent of each other: a batch is
// not atomic. Results come in the order of the batch, one for each item.
//
// Requests share memory with the call that they came in: a store copies what it
// keeps. Records handed out are shared and must not be changed.
package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// Sentinels. Drivers translate their own errors to these at their edge.
var (
	// ErrUnavailable: the store cannot answer now and nothing was applied.
	// Retry as is.
	ErrUnavailable = errors.New("store unavailable, nothing was applied; retry")
	// ErrUnknown: the call may or may not have been applied. Resend it with the
	// same attempt ID.
	ErrUnknown = errors.New("outcome unknown; resend with the same attempt ID")
	// ErrFull: the store is short of space and refuses new claims; nothing was
	// applied. Completions, extensions and releases are still taken.
	ErrFull = errors.New("store is short of disk space and takes no new claims; free space or add some")
	// ErrClockSuspect: the store's clock jumped, and this answer would depend
	// on an expiry or a lapsed lease. Nothing was applied. Retry later, or have
	// an operator confirm the clock.
	ErrClockSuspect = errors.New("the store's clock jumped and is not confirmed yet")
	// ErrDamaged: what is stored cannot be read back. Nothing is answered from
	// a damaged store; restore it.
	ErrDamaged = errors.New("store is damaged")
	// ErrClosed: the store was closed; nothing was applied.
	ErrClosed = errors.New("store is closed")
	// ErrRepeatedKey: a batch names a key twice; a bug of the caller.
	ErrRepeatedKey = errors.New("a key is repeated in one batch")
	// ErrBatchTooLarge: a batch has more than claim.BatchItemsMax items; a bug
	// of the caller.
	ErrBatchTooLarge = errors.New("batch is too large")
	// ErrCursor: a cursor is not one of this store's.
	ErrCursor = errors.New("unknown cursor")
)

// Found is what a store holds of one key after a call.
type Found struct {
	// Record is the stored record; its zero State means that none is.
	Record claim.Record
	// Now is the store's time at which the record was read or written.
	Now claim.Time
	// Applied: this Transition or Replace wrote Record. Never set by Get, and
	// not by InsertOrGet, where a resend and a first send are the same case:
	// there the record's attempt ID says whose it is.
	Applied bool
	// Err is set, and nothing else, where this item alone failed with one of
	// the sentinels.
	Err error
}

// Store keeps claims. Implementations are safe for concurrent use.
type Store interface {
	// InsertOrGet stores claim.Fresh of each request whose key is taken by no
	// record, expired or not, unless store time has reached its InsertBefore;
	// it returns what is stored then. A record that is absent afterwards is too
	// old. Of any concurrent callers with different attempts exactly one finds
	// its own.
	InsertOrGet(ctx context.Context, reqs []claim.Request) ([]Found, error)

	// Get is an authoritative read: it sees every acknowledged write.
	Get(ctx context.Context, keys []claim.Key) ([]Found, error)

	// Transition applies each claim.Transition to the stored record. On a miss
	// it returns the record so that claim.Transition.Explain can say why.
	Transition(ctx context.Context, ts []claim.Transition) ([]Found, error)

	// Replace applies each claim.Swap to the stored record. On a miss it
	// returns the record so that the caller can decide again.
	Replace(ctx context.Context, swaps []claim.Swap) ([]Found, error)

	// Sweep deletes records that are sweepable (claim.Record.Sweepable, with
	// the store's grace), looking at no more than s.Limit candidates. Deleting
	// re-checks the record. It only reclaims space: no answer depends on it.
	Sweep(ctx context.Context, s Sweep) (Swept, error)

	// List returns one page of a tenant's records, ordered by consumer and
	// event ID byte for byte. Bodies are not loaded.
	List(ctx context.Context, l List) (Page, error)

	// Scan calls each with every stored key, in no promised order, including
	// those written before Scan began and not deleted since. It stops at the
	// first error of each and returns it. The filter is rebuilt from it.
	Scan(ctx context.Context, each func(claim.Key) error) error

	// Tally counts one step of a tenant's records, in no promised order. Sum the
	// steps until Cursor is nil. Records written or deleted meanwhile may be
	// counted or not; all others are counted once. Nothing is loaded but sizes.
	Tally(ctx context.Context, step TenantStep) (Tallied, error)

	// Purge deletes one step of whatever is stored of a tenant, results
	// included and whatever the state: only for a tenant for which nobody can
	// act any more, and whose ID is never used again. Repeat it until Cursor is
	// nil; then nothing of the tenant is found, nor after a restart. Until then
	// what was deleted may still be found. A step may be sent again, and a purge
	// whose cursor is lost begins anew. It is safe beside calls for other
	// tenants. What is written to the tenant meanwhile may stay: a caller that
	// cannot exclude it runs the purge again until nothing was looked at.
	Purge(ctx context.Context, step TenantStep) (Purged, error)

	// Stats returns counters that cost no scan.
	Stats(ctx context.Context) (Stats, error)

	// Ready reports whether the store would take a claim now.
	Ready(ctx context.Context) error

	// Close ends the store's work. Calls under way finish or fail with a
	// sentinel; later ones fail with ErrClosed.
	Close() error
}

// Sweep asks for one bounded step of a sweep.
type Sweep struct {
	Shard  int    // 0 ≤ Shard < Stats.Shards
	Cursor []byte // nil begins; Swept.Cursor goes on
	Limit  int    // candidates looked at; 1–SweepLimitMax
}

// Swept is what one step did.
type Swept struct {
	Cursor  []byte // nil: the shard is done for now
	Looked  int
	Deleted int
	Now     claim.Time
	// OldestExpired is the earliest expiry among candidates left behind because
	// their grace has not passed; 0 when none was seen.
	OldestExpired claim.Time
}

// SweepLimitMax bounds one step of a sweep.
const SweepLimitMax = 1000

// List asks for one page of a tenant's records.
type List struct {
	Tenant   claim.TenantID
	Consumer string        // "" lists all
	Prefix   string        // of event IDs; needs Consumer
	States   []claim.State // as decisions see them at Page.Now; nil lists all
	Cursor   []byte        // nil begins
	Limit    int           // 1–ListLimitMax
}

// ListLimitMax bounds one page.
const ListLimitMax = 500

// Page is one page. A nil Cursor ends the list. A page may hold fewer records
// than asked for, even none, and still have a cursor: filters are bounded in
// what they look at.
type Page struct {
	Records []claim.Record
	Now     claim.Time
	Cursor  []byte
}

// TenantStep asks for one bounded step over a tenant's records.
type TenantStep struct {
	Tenant claim.TenantID
	Cursor []byte // nil begins; that of the step before goes on
	Limit  int    // records looked at; 1–TenantStepMax
}

// TenantStepMax bounds one step over a tenant's records.
const TenantStepMax = 1000

// Check refuses a step that no store takes; action is what it is a step of.
func (t *TenantStep) Check(action string) error {
	if t.Limit < 1 || t.Limit > TenantStepMax {
		return fmt.Errorf("%s: limit %d is not in 1–%d", action, t.Limit, TenantStepMax)
	}
	return nil
}

// Tallied is what one step counted.
type Tallied struct {
	Cursor []byte // nil: the tenant is done
	Now    claim.Time
	Counts map[string]Counts // by consumer; only those met in this step
}

// Counts are of records as decisions see them at Tallied.Now. What is expired
// takes space until it is swept: it counts in Keys and Bytes and nowhere else.
type Counts struct {
	Keys      int64
	Live      int64 // leases that are held
	Lapsed    int64 // leases that are over, and not in doubt
	InDoubt   int64 // written or not: see claim.Record.Effective
	Completed int64
	Bytes     int64 // what records take: see codec.RecordBytes
}

// Count adds one record, whose size is given, as it is at now.
func (c *Counts) Count(r *claim.Record, now claim.Time, bytes int64) {
	c.Keys++
	c.Bytes += bytes
	if r.Expired(now) {
		return
	}
	switch r.Effective(now) {
	case claim.InProgress:
		if r.Live(now) {
			c.Live++
		} else {
			c.Lapsed++
		}
	case claim.InDoubt:
		c.InDoubt++
	case claim.Completed:
		c.Completed++
	case claim.Absent, claim.Released, claim.Forgotten:
	}
}

// Plus returns the sum of both.
func (c Counts) Plus(o Counts) Counts {
	return Counts{
		Keys: c.Keys + o.Keys, Live: c.Live + o.Live, Lapsed: c.Lapsed + o.Lapsed,
		InDoubt: c.InDoubt + o.InDoubt, Completed: c.Completed + o.Completed, Bytes: c.Bytes + o.Bytes,
	}
}

// Purged is what one step deleted. Both count records; after a failure that was
// retried Deleted may be too low.
type Purged struct {
	Cursor  []byte // nil: the tenant is done
	Looked  int
	Deleted int
}

// Stats are counters for metrics and operators.
type Stats struct {
	Engine     string
	Shards     int
	SweepGrace time.Duration
	// ClockSuspect: grants that depend on an expiry or a lapse are refused.
	ClockSuspect bool
	// RecordsEstimate and DiskBytes are estimates; -1 where the engine cannot
	// say without a scan.
	RecordsEstimate int64
	DiskBytes       int64
	// Filter is the state of the driver's own negative-lookup filter.
	Filter FilterStats
}

// FilterStats describe a negative-lookup filter.
type FilterStats struct {
	Ready          bool
	Keys           int64
	Bytes          int64
	Fill           float64 // share of bits set
	Skipped        int64   // reads a negative made unnecessary
	Passed         int64   // "maybe": the read was made
	FalsePositives int64
	Audited        int64 // negatives that were read all the same
	AuditHits      int64 // negatives that were wrong: corruption
	Rebuilds       int64
}
