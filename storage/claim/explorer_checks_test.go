package claim

import "fmt"

// past is what the checks remember of a history, apart from the store: what was
// granted, what was promised to whom.
type past struct {
	last     owner  // the last grant, kept after its record is swept
	number   uint32 // its attempt number
	until    Time   // the end of its lease
	over     bool   // completed, released, or ruled on by an operator
	doubt    bool   // written in doubt, not resolved
	expires  Time   // the last expiry that was written
	told     *Completion
	toldTill Time // the expiry that came with it
}

// tell notes that somebody was told of a completion.
func (p *past) tell(c *Completion, till Time) {
	switch {
	case c == nil:
	case p.told == nil:
		p.told, p.toldTill = c, till
	default: // a promise is never taken back by a later, shorter one
		p.toldTill = max(p.toldTill, till)
	}
}

func (p *past) live(now Time) bool { return p.last.fence != 0 && !p.over && now < p.until }

// cause is who writes, and as what.
type cause struct {
	by    AttemptID // a claim or an owner call
	kind  SwapKind
	owner TransitionKind
	verb  *Verb
}

func (x *explorer) breaks(format string, args ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf(format, args...)
	}
}

// write stores a record and checks that it may be stored.
func (x *explorer) write(w *world, next Record, by cause) {
	cur, p := w.rec, &w.past
	if next.ExpiresAt < max(w.now, next.LeaseUntil).Add(x.policy.Window) {
		x.breaks("expiry: a record is kept for less than a window")
	}
	if cur.State != Absent && next.Version <= cur.Version {
		x.breaks("a write left the version where it was")
	}
	granted := cur.State == Absent || next.Fence != cur.Fence || next.AttemptID != cur.AttemptID
	if granted {
		x.checkGrant(w, &next)
	} else {
		x.checkChange(w, &next, by)
	}
	w.rec = &next
	p.until, p.expires = next.LeaseUntil, next.ExpiresAt
	if granted {
		p.last, p.number, p.over, p.told = owner{next.AttemptID, next.Fence}, next.Attempt, false, nil
	}
	p.doubt = next.State == InDoubt
	if next.State != InProgress && next.State != InDoubt {
		p.over = true
	}
	if by.verb != nil && by.verb.Kind == Forget {
		p.told = nil // the audited exception
	}
	if by.verb != nil {
		if ruling, _ := x.rules.rule(by.verb, w.rec, w.now); ruling != Done {
			x.breaks("a verb resent after it took effect is not told so")
		}
	}
}

// checkGrant: a new grant is about to be stored.
func (x *explorer) checkGrant(w *world, next *Record) {
	p, cur, now := &w.past, w.rec, w.now
	switch {
	case p.last.fence == 0:
		return
	case next.Fence <= p.last.fence:
		x.breaks("I1: fence %d is granted after %d", next.Fence, p.last.fence)
	case p.live(now):
		x.breaks("I2: a second grant while the lease of the first lives")
	case p.told != nil && (now < p.toldTill || x.aged):
		x.breaks("I3: a completed event is granted again")
	case next.AttemptID == p.last.attempt && (cur.State != Absent || now < p.expires.Add(shortGrace)):
		x.breaks("I5: a resend of the last attempt is a new grant")
	case x.policy.Hold && !p.over:
		x.breaks("HOLD: granted again though nobody knows whether the effect happened")
	case p.doubt:
		x.breaks("IN_DOUBT: granted again though nobody resolved it")
	case x.policy.AttemptsMax > 0 && p.number >= x.policy.AttemptsMax && !p.over && now < p.expires:
		x.breaks("cap: attempt %d granted of at most %d", p.number+1, x.policy.AttemptsMax)
	case next.Attempt == 1 && now >= x.cutoff:
		x.breaks("TOO_OLD: a new life for a key that may have been forgotten")
	case next.Attempt != 1 && x.differs(p.last.attempt, next.AttemptID):
		x.breaks("MISMATCH: the life of a key goes on with other content")
	case next.Attempt != 1 && next.Attempt != cur.Attempt+1:
		x.breaks("attempt %d follows attempt %d", next.Attempt, cur.Attempt)
	}
}

// checkChange: the record of the same grant is about to change.
func (x *explorer) checkChange(w *world, next *Record, by cause) {
	p, cur, now := &w.past, w.rec, w.now
	own := by.by == p.last.attempt
	// Between the ruling and the write only the clock may have moved on: then a
	// lease seen live under HOLD is in doubt by now, but nobody wrote anything.
	seen := by.verb == nil || by.verb.Fence == cur.Fence && (by.verb.State == cur.Effective(now) || by.verb.State == cur.State)
	switch {
	case by.owner != 0: // checkReply has seen to it
	case by.kind == Renew && (!own || p.live(now)), by.kind == RecordOwn && !own, by.kind == NoSwap,
		by.kind == TakeOver, by.kind == BeginAnew:
		x.breaks("I4: a claim that is not the owner's changed the record")
	case by.kind == PutInDoubt && (p.live(now) || p.over):
		x.breaks("a grant that is live or over was put in doubt")
	case by.kind == Forget && p.live(now):
		x.breaks("a live grant was forgotten")
	case by.kind == ResolveComplete && cur.Effective(now) != InDoubt:
		x.breaks("an operator completed what was not in doubt")
	case by.kind == ResolveRetry && cur.State != InProgress && cur.State != InDoubt:
		x.breaks("an operator released what was over")
	case !seen:
		x.breaks("an operator changed what he has not seen")
	}
	switch {
	case cur.State == Completed && by.kind != Forget:
		x.breaks("I3: a completed record was changed")
	case cur.State == Forgotten:
		x.breaks("a tombstone was changed")
	case next.LeaseUntil < cur.LeaseUntil || next.ExpiresAt < cur.ExpiresAt:
		x.breaks("a write shortened what was promised")
	case next.LeaseUntil > max(cur.LeaseUntil, cur.HoldUntil) && by.kind != Renew:
		x.breaks("a lease was extended beyond the maximum hold")
	}
}

// checkReply: an owner call was answered. Owner is who holds the last grant.
func (x *explorer) checkReply(w *world, t *Transition, applied bool, r Reply) {
	p, stored := &w.past, w.rec.State != Absent
	owns := stored && p.last == owner{t.Attempt, t.Fence}
	completed := w.rec.State == Completed
	switch {
	case !owns && (applied || r.Status != Stale):
		x.breaks("I4: %v for somebody who is not the owner", r.Status)
	case applied && t.Kind == Extend && !p.live(w.now):
		x.breaks("I2: a lease was extended after its end")
	case r.Status == OK && t.Kind == Extend && r.Lease <= 0:
		x.breaks("an extension leaves no lease")
	case owns && t.Kind == Complete && r.Status == Stale && w.rec.State != Forgotten:
		x.breaks("the owner's completion was refused")
	case owns && t.Kind == Complete && completed && (r.Status == OK) != t.Completion.Same(w.rec.Completion):
		x.breaks("I3: %v for a completion of a completed record", r.Status)
	case r.Status == OK && r.ExpiresAt < w.now && applied:
		x.breaks("a completion was acknowledged as already expired")
	}
}

// differs: two attempts bring different contents. One that was granted has the
// content of its key's whole life.
func (x *explorer) differs(a, b AttemptID) bool {
	return x.changed && (a == attemptB) != (b == attemptB)
}

// remembers: others still meet what is stored, and it is not a tombstone.
func (w *world) remembers() bool {
	s := w.rec.State
	return s != Absent && s != Forgotten && (w.now < w.past.expires || w.past.doubt)
}

// checkAnswer: a claim was answered at now, from what is stored now.
func (x *explorer) checkAnswer(w *world, r *Request, a Answer) {
	p, now := &w.past, w.now
	own := p.last.attempt == r.Attempt && w.rec.State != Absent
	grantedNow := a.Decision == Granted && !a.Recorded
	replayed := a.Decision == Duplicate && a.Completion.Same(p.told)
	recorded := a.Recorded && own && r.Record.Same(p.told)
	switch {
	case grantedNow && (!own || p.over || now >= p.until):
		x.breaks("I2: GRANTED for somebody who does not hold a live lease")
	case grantedNow && (a.Fence != p.last.fence || a.Attempt != p.number || a.Lease != p.until.Sub(now)):
		x.breaks("I5: GRANTED is not the grant that is stored: %+v", a)
	case a.Recorded && !(own && w.rec.State == Completed && r.Record.Same(w.rec.Completion)):
		x.breaks("recorded, but it is not")
	case p.told != nil && now < p.toldTill && !replayed && !recorded && a.Decision != Mismatch:
		x.breaks("I3: %v for a completed event, or another result", a.Decision)
	case p.live(now) && own && !grantedNow && a.Decision != Mismatch:
		x.breaks("I5: %v for a resend of a live grant", a.Decision)
	case p.live(now) && !own && a.Decision != HeldByOther && a.Decision != Mismatch:
		x.breaks("I2: %v while another attempt's lease lives", a.Decision)
	case a.Decision == HeldByOther && a.RetryAfter != p.until.Sub(now):
		x.breaks("retry after %v, but the lease ends in %v", a.RetryAfter, p.until.Sub(now))
	case a.Decision == Mismatch && !x.differs(p.last.attempt, r.Attempt):
		x.breaks("MISMATCH among equal contents")
	case a.Decision != Mismatch && x.differs(p.last.attempt, r.Attempt) && w.remembers():
		x.breaks("MISMATCH: %v for other content under the same ID", a.Decision)
	case a.Decision == Undecided || a.Decision == Unprotected:
		x.breaks("%v is not a decision of the store", a.Decision)
	}
}
