// Package claim holds the words and the whole state machine of a claim: what
// is stored of a key, and what every request does to it, as pure functions of
// a record, a request and the store's time.
//
// It refuses to know clocks, contexts, stores and transports. Drivers compare
// and set with what Apply returns; the arbiter answers with what Decide
// returns; nothing else decides.
package claim

import (
	"crypto/sha256"
	"math"
	"time"
)

// Time is an instant of the store's clock in microseconds since the Unix
// epoch, the precision every store can keep.
type Time int64

// Never is later than every instant.
const Never Time = math.MaxInt64

// FromTime truncates t to the store's precision.
func FromTime(t time.Time) Time { return Time(t.UnixMicro()) }

// Std returns t as a time.Time in UTC.
func (t Time) Std() time.Time { return time.UnixMicro(int64(t)).UTC() }

// Add returns t+d, truncated to microseconds and held at Never.
func (t Time) Add(d time.Duration) Time {
	sum := t + Time(d/time.Microsecond)
	if d > 0 && sum < t {
		return Never
	}
	return sum
}

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t-u) * time.Microsecond }

// Fence is strictly larger at every grant of a key. Callers pass it to their
// own resources, which refuse a smaller one than they have seen.
type Fence int64

// TenantID is the isolation boundary. It comes from the credential only and is
// never reused, not even for a tenant of the same name.
type TenantID int64

// Key names one event of one consumer of one tenant.
type Key struct {
	Tenant   TenantID
	Consumer string
	EventID  string // opaque, compared byte for byte
}

// AttemptID is the UUID of one try to handle an event, made by the client
// before its first send and reused on every resend.
type AttemptID [16]byte

// IsZero reports the nil UUID, which is no attempt.
func (a AttemptID) IsZero() bool { return a == AttemptID{} }

// State is the stored state of a record.
type State uint8

// The states of a record. A stored IN_PROGRESS whose lease has lapsed under
// HOLD counts as InDoubt: see Record.Effective.
const (
	Absent State = iota
	InProgress
	Released
	InDoubt
	Completed
	Forgotten
)

var stateNames = [...]string{"ABSENT", "IN_PROGRESS", "RELEASED", "IN_DOUBT", "COMPLETED", "FORGOTTEN"}

// String returns the state's name in the contract.
func (s State) String() string { return name(stateNames[:], uint8(s)) }

func name(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return "UNKNOWN"
}

// Takeover says why a grant follows an earlier attempt's.
type Takeover uint8

// The causes of a takeover; NoTakeover is the first grant of a key's life.
const (
	NoTakeover Takeover = iota
	LeaseLapsed
	AttemptReleased
)

// Outcome says how an event ended, for good.
type Outcome uint8

// The outcomes. A refusal that may change later is a release instead.
const (
	NoOutcome Outcome = iota
	Succeeded
	Rejected
)

// Omission says why a completion has no body.
type Omission uint8

// The reasons for a missing body; the event is done all the same.
const (
	NotOmitted Omission = iota
	TooLarge
	Shredded
	BatchBudget
	StoreFull
	// Unreadable: the body cannot be decrypted now, or there was no key to
	// encrypt it with when the event was completed. Its Sum may be zero then:
	// unknown.
	Unreadable
)

// Pair is one entry of a completion's metadata.
type Pair struct{ Name, Value string }

// Completion is an outcome and what duplicates replay. It is immutable once
// made: records, answers and requests share it.
type Completion struct {
	Outcome     Outcome
	Omitted     Omission
	ContentType string
	Metadata    []Pair // sorted by Name, no name twice
	Body        []byte
	Sum         [32]byte // SHA-256 of the plain body, kept when the body is not
}

// Summed returns c with Sum computed from its body.
func (c Completion) Summed() Completion {
	c.Sum = sha256.Sum256(c.Body)
	return c
}

// Without returns c with its body replaced by the reason why it is missing.
func (c Completion) Without(why Omission) *Completion {
	c.Body, c.Omitted = nil, why
	return &c
}

// Same reports whether two completions are the same result: outcome, content
// type, metadata and digest of the plain bytes.
func (c *Completion) Same(o *Completion) bool {
	if c == nil || o == nil {
		return c == o
	}
	if c.Outcome != o.Outcome || c.ContentType != o.ContentType || c.Sum != o.Sum || len(c.Metadata) != len(o.Metadata) {
		return false
	}
	for i := range c.Metadata {
		if c.Metadata[i] != o.Metadata[i] {
			return false
		}
	}
	return true
}

// Policy holds the policy values that decisions need. They are snapshotted on
// the record when a key's life begins: a later policy change touches new
// records only.
type Policy struct {
	Hold           bool          // a lapsed lease is in doubt rather than granted again
	AttemptsMax    uint32        // attempts until lapsed leases are in doubt; 0: no cap
	Window         time.Duration // how long the upstream can redeliver
	Retention      time.Duration // how long a key is remembered; at least Window
	HoldMax        time.Duration // how long one grant may be extended in all
	ResultBytesMax int32
}

// Record is what a store keeps of a key. The zero State means that nothing is
// kept.
type Record struct {
	Key       Key
	Version   int64 // +1 with every write
	State     State
	Takeover  Takeover
	Attempt   uint32 // 1 for the first attempt of this life
	AttemptID AttemptID
	Fence     Fence
	Digests   []Digest
	EventTime Time // 0: not given

	ClaimedAt  Time // first grant of this life
	GrantedAt  Time // this grant
	LeaseUntil Time // half open: at exactly LeaseUntil the lease is over
	HoldUntil  Time // no extension goes beyond
	ExpiresAt  Time // half open: at exactly ExpiresAt the record is expired
	EndedAt    Time // completed, released, put in doubt or forgotten

	Policy     Policy
	Completion *Completion // nil unless Completed
}

// Live reports whether the record's attempt holds a lease at now.
func (r *Record) Live(now Time) bool { return r.State == InProgress && now < r.LeaseUntil }

// Lapsed reports whether the record's attempt has outlived its lease.
func (r *Record) Lapsed(now Time) bool { return r.State == InProgress && now >= r.LeaseUntil }

// Effective is the state as decisions see it: a lease lapsed under HOLD is in
// doubt before the lease monitor has written so.
func (r *Record) Effective(now Time) State {
	if r.Lapsed(now) && r.Policy.Hold {
		return InDoubt
	}
	return r.State
}

// Expirable reports whether the record may expire at all: what is in doubt,
// written or not, never does, and neither does a live lease.
func (r *Record) Expirable(now Time) bool {
	switch r.Effective(now) {
	case Completed, Released, Forgotten:
		return true
	case InProgress:
		return r.Lapsed(now)
	case Absent, InDoubt:
	}
	return false
}

// Expired reports whether claims by other attempts see the record as absent.
func (r *Record) Expired(now Time) bool { return now >= r.ExpiresAt && r.Expirable(now) }

// Sweepable reports whether the record may be deleted: expired for at least
// grace, which keeps fences growing and late packets harmless.
func (r *Record) Sweepable(now Time, grace time.Duration) bool {
	return r.Expirable(now) && now >= r.ExpiresAt.Add(grace)
}

// AtCap reports whether a further attempt would exceed the attempt cap.
func (r *Record) AtCap() bool {
	return r.Policy.AttemptsMax > 0 && r.Attempt >= r.Policy.AttemptsMax
}

// Owner reports whether attempt and fence are the record's.
func (r *Record) Owner(a AttemptID, f Fence) bool {
	return r.State != Absent && r.AttemptID == a && r.Fence == f
}

// keep holds the one expiry rule after a write: never less than one window
// after now or the end of the lease.
func (r *Record) keep(now Time) {
	r.ExpiresAt = max(r.ExpiresAt, max(now, r.LeaseUntil).Add(r.Policy.Window))
}
