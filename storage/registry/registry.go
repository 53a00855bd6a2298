// Package registry is the contract of what an installation keeps beside claims:
// tenants, consumers, API keys, the audit log, findings, jobs, and the leases of
// background work. It changes slowly and is small, and a store that keeps claims
// keeps it too, in the same place.
//
// # One revision
//
// Every Apply counts one number up, in the transaction that changes the rows.
// Writers therefore queue: the order of revisions is the order of commits, a
// reader that has seen revision n has seen everything up to n, and no change can
// slip in below a number that somebody has read. Administration is rare and
// comes in batches, so the queue costs nothing that is missed. In exchange each
// server keeps the whole table in memory and refreshes it with Load, which reads
// one row when nothing has changed.
//
// # The rules exist once
//
// What a Change makes of the stored rows is Change.Plan, a pure function, as
// package claim is for claims: guards, names that are taken, IDs that are not
// given out twice. A driver reads what Change.Reads names, asks Plan, and writes
// what it returns, with no other writer in between.
//
// # Versions and tombstones
//
// A row carries the version that it was read with; version 0 demands that there
// is none. Deleted tenants, consumers and keys remain as tombstones: readers who
// hold the row learn that it is gone, a name that is used again goes on
// counting, so that an old version never fits the new row, and the largest
// tenant ID stays known. Findings and jobs have random IDs, which do not come
// back: they are deleted without a trace.
//
// # The proof of a Change
//
// A caller that does not know what became of a Change sends it again, with the
// same ID. The audit entry with that ID answers for it, or, where there is none,
// the rows: each knows the Change that wrote it last. Only findings and jobs may
// change without an audit entry: the system writes them by itself, and often.
//
// # Rows are documents
//
// Drivers know what is searched and guarded: Stored. The rest is JSON. Fields
// that a binary does not know it keeps, so that the version before may run on
// the same store and write rows without cutting them.
//
// # What is not here
//
// Meaning. The store does not know what a policy may say, whose credential may
// change it, or how many consumers a tenant may have; it bounds sizes.
package registry

import (
	"context"
	"errors"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// Sentinels. The others are those of package storage: ErrUnavailable (nothing
// was applied), ErrUnknown (send the same Change again), ErrDamaged, ErrClosed,
// ErrCursor.
var (
	// ErrConflict: a row is not as the Change expects it, and nothing was
	// applied. Read again and decide anew. The error is a *ConflictError.
	ErrConflict = errors.New("the row has changed since it was read")
	// ErrInvalid: the call breaks a rule or a limit and would always be
	// refused. The error is an *InvalidError.
	ErrInvalid = errors.New("invalid")
)

// Revision counts changes. 0 is before the first.
type Revision int64

// Registry keeps rows. Implementations are safe for concurrent use; what they
// return without an error is durable, and so is everything that it depends on.
type Registry interface {
	// Load returns the tenants, consumers and keys that changed after since, as
	// of one moment. Where nothing did it costs one read.
	Load(ctx context.Context, since Revision) (Changes, error)

	// Apply makes all of a Change, or nothing of it. The same Change, by its
	// ID, is made once however often it is sent, and answered as it was first,
	// unless what has no audit entry was changed again meanwhile.
	Apply(ctx context.Context, c Change) (Applied, error)

	// Audit, Findings and Jobs return one page, newest first.
	Audit(ctx context.Context, q AuditQuery) (AuditPage, error)
	Findings(ctx context.Context, q FindingQuery) (FindingPage, error)
	Jobs(ctx context.Context, q JobQuery) (JobPage, error)

	// Seen notes when keys were last used; at most SeenMax keys. It is no
	// change: no revision, no audit. A note that is less than SeenGrain newer
	// than the stored one is dropped, and so is one of an unknown key. It may
	// be lost, and whoever calls it goes on when it fails.
	Seen(ctx context.Context, used map[string]claim.Time) error
	// Used returns what is known of when keys were last used.
	Used(ctx context.Context, keys []string) (map[string]claim.Time, error)

	// Lease gives owner, which is one process and no other, the lease of that
	// name for ttl, if nobody else has it: held says so. The owner's own live
	// lease is extended and keeps its fence; otherwise the fence is larger than
	// any before. Where it is not held, the answer is the holder's.
	Lease(ctx context.Context, name, owner string, ttl time.Duration) (l Lease, held bool, err error)
	// SaveCursor stores where the work under a lease goes on. It reports false,
	// and stores nothing, when the fence is no longer the lease's.
	//
	// A save that was given up and arrives late, from the same holder, may put an
	// older cursor back: what a cursor leads through must bear being done twice.
	SaveCursor(ctx context.Context, name string, fence claim.Fence, cursor []byte) (saved bool, err error)
	// Unlease ends the lease at once, if the fence is still the lease's. The
	// cursor stays.
	//
	// A Lease that was given up and arrives late, behind its Unlease, takes the
	// lease once more for its time: work waits, and nothing is done twice.
	Unlease(ctx context.Context, name string, fence claim.Fence) error
	// Leases returns all leases, ended ones too, by name.
	Leases(ctx context.Context) (Leases, error)
}

// Changes is what a Load returns.
type Changes struct {
	// Revision is what to give to the next Load.
	Revision Revision
	// Full: these are all rows, and what else the reader has is gone. So it is
	// when since is 0, or lies ahead: the store was restored from a backup.
	Full bool
	// LastTenant is the largest tenant ID that was ever used. A new tenant's
	// must be larger.
	LastTenant claim.TenantID
	Tenants    []Tenant
	Consumers  []Consumer
	Keys       []Key
}

// Change is what one Apply makes.
type Change struct {
	// ID is random, and the same whenever this Change is sent.
	ID        ID
	Tenants   []Write[Tenant]
	Consumers []Write[Consumer]
	Keys      []Write[Key]
	Findings  []Write[Finding]
	Jobs      []Write[Job]
	// Audit belongs to the change: neither is there without the other.
	Audit []AuditEntry
}

// Write puts a row whose stored version is Row.Version, or deletes it. Of a row
// that is deleted only its identity and version are looked at.
type Write[R any] struct {
	Row    R
	Delete bool
}

// Put writes a row.
func Put[R any](row R) Write[R] { return Write[R]{Row: row} }

// Delete deletes a row.
func Delete[R any](row R) Write[R] { return Write[R]{Row: row, Delete: true} }

// Applied says what became of a Change.
type Applied struct {
	Revision Revision
	At       claim.Time // the store's
}

// ConflictError names the row that was not as expected.
type ConflictError struct{ Ref Ref }

// Error implements error.
func (c *ConflictError) Error() string { return c.Ref.String() + ": " + ErrConflict.Error() }

// Is makes a ConflictError an ErrConflict.
func (c *ConflictError) Is(target error) bool { return target == ErrConflict }

// InvalidError names what breaks a rule.
type InvalidError struct{ Field, Rule string }

// Error implements error.
func (i *InvalidError) Error() string { return ErrInvalid.Error() + ": " + i.Field + " " + i.Rule }

// Is makes an InvalidError an ErrInvalid.
func (i *InvalidError) Is(target error) bool { return target == ErrInvalid }
