package warifu

import (
	"time"
)

// Event names one business event of one consumer.
type Event struct {
	// Consumer is the logical handler: 1-128 characters of [A-Za-z0-9._/-].
	Consumer string
	// ID is the event's own stable ID: 1-512 bytes of UTF-8, compared byte for
	// byte. It must be the same on every redelivery.
	ID string
	// Digests are fingerprints of the content, at most 8, no scheme twice. They
	// tell a redelivery from another event that reuses the ID.
	Digests []Digest
	// Time is when the event was made; the same on every redelivery. With it,
	// events older than what is remembered are found out (TooOld). Zero: not
	// given.
	Time time.Time
}

// Digest is a fingerprint of an event's content under a named scheme.
type Digest struct {
	Scheme string // 1-64 characters, with its version: "sha256/order.v2"
	Value  []byte // 1-64 bytes
}

// Decision is the one answer to a claim.
type Decision uint8

// The decisions. Only Granted lets the caller act.
const (
	// Undecided is the zero value: there was no answer.
	Undecided Decision = iota
	// Granted: this attempt may act until its lease ends.
	Granted
	// Duplicate: done before; use the stored result and ack.
	Duplicate
	// InProgress: another attempt holds a live lease; come back later.
	InProgress
	// Mismatch: the event ID is known with other content; stop.
	Mismatch
	// InDoubt: nobody knows whether the effect happened; do not act.
	InDoubt
	// TooOld: older than what is remembered; do not treat it as new.
	TooOld
	// Unprotected: the store cannot be asked and the policy is to fail open.
	Unprotected
)

var decisionNames = [...]string{
	"UNDECIDED", "GRANTED", "DUPLICATE", "IN_PROGRESS", "MISMATCH", "IN_DOUBT", "TOO_OLD", "UNPROTECTED",
}

// String returns the decision's name in the contract.
func (d Decision) String() string { return name(decisionNames[:], int(d)) }

// State is the state of an event as the server keeps it.
type State uint8

// The states.
const (
	StateUnknown State = iota
	StateAbsent
	StateInProgress
	StateReleased
	StateInDoubt
	StateCompleted
	StateForgotten
)

var stateNames = [...]string{
	"UNKNOWN", "ABSENT", "IN_PROGRESS", "RELEASED", "IN_DOUBT", "COMPLETED", "FORGOTTEN",
}

// String returns the state's name in the contract.
func (s State) String() string { return name(stateNames[:], int(s)) }

// Takeover says why a grant follows an earlier attempt's.
type Takeover uint8

// The causes of a takeover; NoTakeover is the first grant of an event.
const (
	NoTakeover Takeover = iota
	LeaseLapsed
	AttemptReleased
)

var takeoverNames = [...]string{"NONE", "LEASE_LAPSED", "RELEASED"}

// String returns the cause's name in the contract.
func (t Takeover) String() string { return name(takeoverNames[:], int(t)) }

// Outcome says how an event ended, for good.
type Outcome uint8

// The outcomes. The zero value of a Completion stands for Succeeded.
const (
	NoOutcome Outcome = iota
	// Succeeded: the effect happened.
	Succeeded
	// Rejected: a final business refusal, replayed like a success.
	Rejected
)

var outcomeNames = [...]string{"NONE", "SUCCEEDED", "REJECTED"}

// String returns the outcome's name in the contract.
func (o Outcome) String() string { return name(outcomeNames[:], int(o)) }

// Omission says why a completed event has no body to replay. The event is done
// all the same and must not run again.
type Omission uint8

// The reasons for a missing body.
const (
	NotOmitted Omission = iota
	// TooLarge: the body was larger than the consumer's limit.
	TooLarge
	// Shredded: the body was destroyed on purpose.
	Shredded
	// BatchBudget: the bodies of one reply were larger than 1 MiB together.
	BatchBudget
	// StoreFull: the store was short of space and kept the outcome only.
	StoreFull
	// Unreadable: the server cannot decrypt the body now, and may later; or it
	// had no key to encrypt it with when the event was completed, and kept the
	// outcome only.
	Unreadable
)

var omissionNames = [...]string{"NONE", "TOO_LARGE", "SHREDDED", "BATCH_BUDGET", "STORE_FULL", "UNREADABLE"}

// String returns the reason's name in the contract.
func (o Omission) String() string { return name(omissionNames[:], int(o)) }

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "UNKNOWN"
}

// Grant is the right to act on one event.
type Grant struct {
	Consumer  string
	EventID   string
	AttemptID string // the UUID of this attempt
	// Fence is strictly larger at every grant of an event. Pass it to your own
	// resources and let them refuse a smaller one than they have seen.
	Fence int64
	// Attempt is 1 for the first attempt at this event.
	Attempt  uint32
	Takeover Takeover
	// LeaseUntil is when the lease ends at the latest, on this process's
	// monotonic clock: counted from when the request was sent, plus what the
	// server says it waited before it decided, so that the true end is not
	// earlier. It is zero when Recorded is set.
	LeaseUntil time.Time
	// Recorded: the completion given with [Client.Record] is stored.
	Recorded bool
}

// Completion is the outcome of an attempt and what duplicates replay.
type Completion struct {
	// Outcome is Succeeded when left out.
	Outcome Outcome
	// Body is at most the consumer's limit (256 KiB by default). A larger one is
	// not stored: the event is completed with TooLarge and the body's SHA-256.
	Body []byte
	// ContentType is at most 255 characters.
	ContentType string
	// Metadata has at most 16 entries, 4 KiB together.
	Metadata map[string]string
}

// Stored is what the completing attempt left.
type Stored struct {
	Outcome     Outcome
	Body        []byte
	ContentType string
	Metadata    map[string]string
	// Omitted says why Body is missing.
	Omitted Omission
	// CompletedAt is in the store's time; zero for what this call completed.
	CompletedAt time.Time
}

func (c *Completion) stored() Stored {
	s := Stored{Outcome: c.Outcome, Body: c.Body, ContentType: c.ContentType, Metadata: c.Metadata}
	if s.Outcome == NoOutcome {
		s.Outcome = Succeeded
	}
	return s
}

// Claim is the answer to a claim.
type Claim struct {
	Decision Decision
	// Accepted: the sender of the event may stop sending it.
	Accepted bool
	// Grant is set with Granted.
	Grant Grant
	// Stored is set with Duplicate.
	Stored Stored
	// OwnAttempt, with Duplicate: it was this attempt that completed.
	OwnAttempt bool
	// RetryAfter, with InProgress and InDoubt: when asking again may help.
	RetryAfter time.Duration
	// ExpiresAt is until when the event is remembered, in the store's time, as
	// things stand; zero when nothing is kept or it never expires.
	ExpiresAt time.Time
}

// Err returns nil for Granted and a Duplicate that succeeded, and the error
// that fits the decision otherwise.
func (c *Claim) Err() error {
	switch c.Decision {
	case Granted:
		return nil
	case Duplicate:
		if c.Stored.Outcome == Rejected {
			return &RejectedError{Stored: c.Stored}
		}
		return nil
	case InProgress, Mismatch, InDoubt, TooOld, Unprotected, Undecided:
	}
	return c.refusal()
}

var refusals = map[Decision]error{
	InProgress: ErrInProgress, Mismatch: ErrMismatch, InDoubt: ErrInDoubt,
	TooOld: ErrTooOld, Unprotected: ErrUnprotected,
}

func (c *Claim) refusal() *Error {
	kind, ok := refusals[c.Decision]
	if !ok {
		return distrust(opClaim, "no decision")
	}
	e := answered(opClaim, kind)
	e.RetryAfter = c.RetryAfter
	return e
}

// Record is what the server keeps of one event.
type Record struct {
	State         State
	AttemptID     string
	Attempt       uint32
	Fence         int64
	Takeover      Takeover
	DigestSchemes []string
	ClaimedAt     time.Time
	GrantedAt     time.Time
	LeaseUntil    time.Time // in the store's time
	ExpiresAt     time.Time
	EventTime     time.Time
	Stored        Stored // with StateCompleted
	Hold          bool   // a lapsed lease puts the event in doubt
}
