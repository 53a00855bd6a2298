package claim

import "time"

// TransitionKind names what an owner does with its grant.
type TransitionKind uint8

// The transitions of an owner.
const (
	Complete TransitionKind = iota + 1
	Extend
	Release
)

// Transition is guarded by the owner: attempt and fence must be the record's.
type Transition struct {
	Kind       TransitionKind
	Key        Key
	Attempt    AttemptID
	Fence      Fence
	Lease      time.Duration // Extend: from the store's now
	Completion *Completion   // Complete
}

// Status is the answer to a transition.
type Status uint8

// The statuses of a transition. Stale and ResultConflict change nothing.
const (
	NoStatus Status = iota
	OK
	Stale
	ResultConflict
)

var statusNames = [...]string{"NONE", "OK", "STALE", "RESULT_CONFLICT"}

// String returns the status's name in the contract.
func (s Status) String() string { return name(statusNames[:], uint8(s)) }

// Reply is a transition's answer.
type Reply struct {
	Status    Status
	State     State         // as decisions see it after the call
	Lease     time.Duration // Extend, OK: what is left
	ExpiresAt Time
	Lost      bool // a completion met nothing: worth a finding
}

// Apply returns what the record becomes, whether it changes at all, and the
// answer. It is the meaning of Transition in every store; where it does not
// change the record, it explains why.
func (t *Transition) Apply(cur *Record, now Time) (next Record, changed bool, reply Reply) {
	if !cur.Owner(t.Attempt, t.Fence) {
		return Record{}, false, t.stale(cur, now)
	}
	switch t.Kind {
	case Complete:
		return t.complete(cur, now)
	case Extend:
		return t.extend(cur, now)
	case Release:
		return t.release(cur, now)
	}
	return Record{}, false, t.stale(cur, now)
}

// Explain answers a transition that this call did not apply, from what is
// stored. again means that it would apply now: the store was read between two
// changes, and the caller tries once more.
func (t *Transition) Explain(cur *Record, now Time) (reply Reply, again bool) {
	_, changed, reply := t.Apply(cur, now)
	return reply, changed
}

// Applied is the answer to a transition whose write is what is stored now.
func (t *Transition) Applied(rec *Record, now Time) Reply {
	r := Reply{Status: OK, State: rec.Effective(now), ExpiresAt: rec.ExpiresAt}
	if t.Kind == Extend {
		r.Lease = rec.LeaseUntil.Sub(now)
	}
	return r
}

func (t *Transition) stale(cur *Record, now Time) Reply {
	return Reply{
		Status: Stale, State: cur.Effective(now), ExpiresAt: cur.ExpiresAt,
		Lost: t.Kind == Complete && cur.State == Absent,
	}
}

// complete: the owner knows best. A late completion whose fence is still
// current beats a rerun, also when the record is in doubt or released.
func (t *Transition) complete(cur *Record, now Time) (Record, bool, Reply) {
	switch cur.State {
	case InProgress, InDoubt, Released:
		next := *cur
		next.complete(t.Completion, now)
		return t.changed(next, now)
	case Completed:
		if cur.Completion.Same(t.Completion) {
			return Record{}, false, t.Applied(cur, now)
		}
		return Record{}, false, Reply{Status: ResultConflict, State: Completed, ExpiresAt: cur.ExpiresAt}
	case Absent, Forgotten:
	}
	return Record{}, false, t.stale(cur, now)
}

func (t *Transition) extend(cur *Record, now Time) (Record, bool, Reply) {
	if !cur.Live(now) {
		return Record{}, false, t.stale(cur, now)
	}
	next := *cur
	next.LeaseUntil = max(cur.LeaseUntil, min(now.Add(t.Lease), cur.HoldUntil))
	return t.changed(next, now)
}

func (t *Transition) release(cur *Record, now Time) (Record, bool, Reply) {
	switch cur.State {
	case InProgress, InDoubt:
		next := *cur
		next.State, next.EndedAt = Released, now
		return t.changed(next, now)
	case Released:
		return Record{}, false, t.Applied(cur, now)
	case Absent, Completed, Forgotten:
	}
	return Record{}, false, t.stale(cur, now)
}

func (t *Transition) changed(next Record, now Time) (Record, bool, Reply) {
	next.Version++
	next.keep(now)
	return next, true, t.Applied(&next, now)
}
