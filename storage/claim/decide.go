package claim

import "time"

// Decision is the answer to a claim.
type Decision uint8

// The decisions of the contract. AttemptEnded is not one of them on the wire:
// it is the refusal of a request whose own attempt was released or forgotten.
// Unprotected is never decided here, only by those who could not ask.
const (
	Undecided Decision = iota
	Granted
	Duplicate
	HeldByOther // IN_PROGRESS on the wire
	Mismatch
	Doubtful // IN_DOUBT on the wire
	TooOld
	Unprotected
	AttemptEnded
)

var decisionNames = [...]string{
	"UNDECIDED", "GRANTED", "DUPLICATE", "IN_PROGRESS", "MISMATCH",
	"IN_DOUBT", "TOO_OLD", "UNPROTECTED", "ATTEMPT_ENDED",
}

// String returns the decision's name in the contract.
func (d Decision) String() string { return name(decisionNames[:], uint8(d)) }

// Request is one claim as the store and the rules see it, validated once at
// the edge.
type Request struct {
	Key       Key
	Attempt   AttemptID
	Digests   []Digest
	EventTime Time // 0: not given
	// InsertBefore is the instant from which an absent key is TOO_OLD; see
	// History.InsertBefore. Never when no event time is given.
	InsertBefore Time
	Lease        time.Duration
	Policy       Policy // in force now; snapshotted when a life begins
	// AcceptNoCommonScheme is the consumer's policy for digests that share no
	// scheme with the stored ones; by default they are a mismatch.
	AcceptNoCommonScheme bool
	// Record is the outcome of a one-shot claim: it is stored with the grant,
	// in one write.
	Record *Completion
}

// Answer is a decision and what belongs to it.
type Answer struct {
	Decision   Decision
	Recorded   bool // GRANTED: the outcome given with the claim is stored
	OwnAttempt bool // DUPLICATE: completed by the asking attempt
	Takeover   Takeover
	Attempt    uint32
	Fence      Fence
	Lease      time.Duration // GRANTED: what is left of it
	RetryAfter time.Duration // IN_PROGRESS: what is left of the holder's lease
	ExpiresAt  Time          // 0 where nothing is kept
	EndedAt    Time
	Completion *Completion // DUPLICATE
}

// Step is what a claim needs next: nothing (the answer stands), a swap (the
// answer to it is found by deciding again on what the store then returns), or
// an insert (the key is absent and not too old).
type Step struct {
	Answer Answer
	Swap   Swap // Kind NoSwap: none
	Insert bool
}

// Decide answers request r on the stored record, which may be what r itself
// has just inserted: a fresh grant and the resend of one are the same case.
// The zero record means that the key is absent.
func Decide(rec *Record, r *Request, now Time) Step {
	own := rec.State != Absent && rec.AttemptID == r.Attempt
	if rec.State == Absent || rec.State == Forgotten || (rec.Expired(now) && !own) {
		return decideAbsent(rec, r, now, own)
	}
	if a := Compare(rec.Digests, r.Digests); a == Differ || (a == NoCommon && !r.AcceptNoCommonScheme) {
		return answered(Answer{Decision: Mismatch})
	}
	switch rec.State {
	case Completed:
		return answered(duplicate(rec, r, own))
	case InDoubt:
		return answered(Answer{Decision: Doubtful})
	case Released:
		if own {
			return answered(Answer{Decision: AttemptEnded})
		}
		return swap(TakeOver, rec, r)
	case InProgress:
		return decideInProgress(rec, r, now, own)
	case Absent, Forgotten:
	}
	return answered(Answer{Decision: Doubtful}) // a state this binary does not know: never a grant
}

func decideAbsent(rec *Record, r *Request, now Time, own bool) Step {
	switch {
	case own: // only FORGOTTEN comes here with its own attempt
		return answered(Answer{Decision: AttemptEnded})
	case now >= r.InsertBefore:
		return answered(Answer{Decision: TooOld})
	case rec.State == Absent:
		return Step{Insert: true}
	}
	return swap(BeginAnew, rec, r)
}

func decideInProgress(rec *Record, r *Request, now Time, own bool) Step {
	switch {
	case rec.Live(now) && own && r.Record != nil:
		return swap(RecordOwn, rec, r)
	case rec.Live(now) && own:
		return answered(grant(rec, now))
	case rec.Live(now):
		return answered(Answer{Decision: HeldByOther, RetryAfter: rec.LeaseUntil.Sub(now), ExpiresAt: rec.ExpiresAt})
	case rec.Policy.Hold:
		return answered(Answer{Decision: Doubtful})
	case own:
		return swap(Renew, rec, r)
	case rec.AtCap():
		return swap(PutInDoubt, rec, r)
	}
	return swap(TakeOver, rec, r)
}

func answered(a Answer) Step { return Step{Answer: a} }

func grant(rec *Record, now Time) Answer {
	return Answer{
		Decision: Granted, Takeover: rec.Takeover, Attempt: rec.Attempt, Fence: rec.Fence,
		Lease: rec.LeaseUntil.Sub(now), ExpiresAt: rec.ExpiresAt,
	}
}

// duplicate answers a claim on a completed record. A one-shot claim that meets
// its own record had its reply lost: it is granted again, as it was. One that
// brings another result than it recorded is told what is stored.
func duplicate(rec *Record, r *Request, own bool) Answer {
	if own && r.Record != nil && r.Record.Same(rec.Completion) {
		return Answer{
			Decision: Granted, Recorded: true, Takeover: rec.Takeover, Attempt: rec.Attempt,
			Fence: rec.Fence, ExpiresAt: rec.ExpiresAt, EndedAt: rec.EndedAt,
		}
	}
	return Answer{
		Decision: Duplicate, OwnAttempt: own, Completion: rec.Completion,
		Attempt: rec.Attempt, ExpiresAt: rec.ExpiresAt, EndedAt: rec.EndedAt,
	}
}
