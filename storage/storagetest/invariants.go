package storagetest

import (
	"bytes"
	"fmt"

	"github.com/warifu/warifu/storage/claim"
)

// Event is one answered operation of a history in which operations follow one
// another, with the record of its key right before and right after. Exactly
// one of Request, Transition and Swap is set.
type Event struct {
	Now           claim.Time
	Before, After claim.Record

	Request *claim.Request
	Answer  claim.Answer

	Transition *claim.Transition
	Reply      claim.Reply

	Swap *claim.Swap // by the lease monitor or an operator; took effect where Before and After differ
}

func (ev *Event) key() claim.Key {
	switch {
	case ev.Request != nil:
		return ev.Request.Key
	case ev.Transition != nil:
		return ev.Transition.Key
	}
	return ev.Swap.Key
}

// CheckInvariants checks I1 to I5 of the contract over a history. It knows only
// what was answered, not how: that is what makes it worth having beside the
// model. Sweeps need no event; they must not be visible.
func CheckInvariants(history []Event) error {
	keys := map[claim.Key]*keyHistory{}
	for i := range history {
		ev := &history[i]
		k := keys[ev.key()]
		if k == nil {
			k = &keyHistory{}
			keys[ev.key()] = k
		}
		if err := k.take(ev); err != nil {
			return fmt.Errorf("event %d of %d, key %+v, at %v: %w\nbefore %s\nafter  %s",
				i, len(history), ev.key(), ev.Now.Std(), err, show(ev.Before), show(ev.After))
		}
	}
	return nil
}

// keyHistory is what the answers so far have promised about one key.
type keyHistory struct {
	fence   claim.Fence     // of the last grant
	attempt claim.AttemptID // of the last grant
	until   claim.Time      // the lease of the last grant; 0 once it ended

	done    *claim.Completion // acknowledged
	expires claim.Time        // until when done is remembered
}

func (k *keyHistory) take(ev *Event) error {
	after := &ev.After
	if !SameRecord(ev.Before, *after) && after.ExpiresAt < max(ev.Now, after.LeaseUntil).Add(after.Policy.Window) {
		return fmt.Errorf("written, but expires within a window, at %v", after.ExpiresAt.Std())
	}
	switch {
	case ev.Request != nil:
		return k.claimed(ev)
	case ev.Transition != nil:
		return k.moved(ev)
	}
	return k.swapped(ev)
}

func (k *keyHistory) claimed(ev *Event) error {
	r, a := ev.Request, &ev.Answer
	if k.done != nil && ev.Now < k.expires {
		if err := k.replayed(r, a); err != nil {
			return err
		}
	}
	changed := !SameRecord(ev.Before, ev.After)
	switch a.Decision {
	case claim.Granted:
		return k.granted(ev, changed)
	case claim.Doubtful: // the attempt cap may have been written
		k.until = 0
	case claim.Duplicate, claim.HeldByOther, claim.Mismatch, claim.TooOld, claim.AttemptEnded:
		if changed {
			return fmt.Errorf("I4: a claim answered %s changed the record", a.Decision)
		}
	case claim.Undecided, claim.Unprotected:
		return fmt.Errorf("answered %s", a.Decision)
	}
	return nil
}

// replayed is I3.
func (k *keyHistory) replayed(r *claim.Request, a *claim.Answer) error {
	switch {
	case a.Decision == claim.Mismatch:
		return nil
	case a.Decision == claim.Granted && a.Recorded && r.Attempt == k.attempt && r.Record.Same(k.done):
		return nil // its own one-shot claim, whose reply was lost
	case a.Decision != claim.Duplicate:
		return fmt.Errorf("I3: completed, but a claim is answered %s", a.Decision)
	case a.Completion == nil || !a.Completion.Same(k.done) || !bytes.Equal(a.Completion.Body, k.done.Body):
		return fmt.Errorf("I3: completed with another result than is replayed")
	}
	return nil
}

func (k *keyHistory) granted(ev *Event, changed bool) error {
	r, a := ev.Request, &ev.Answer
	if a.Fence == k.fence {
		if r.Attempt != k.attempt {
			return fmt.Errorf("I1: fence %d was granted to another attempt before", a.Fence)
		}
		if ev.Now < k.until && r.Record == nil && (changed || ev.Now.Add(a.Lease) != k.until) {
			return fmt.Errorf("I5: a resend changed a live grant")
		}
	} else {
		if a.Fence < k.fence {
			return fmt.Errorf("I1: fence %d follows %d", a.Fence, k.fence)
		}
		if ev.Now < k.until {
			return fmt.Errorf("I2: granted while the lease of fence %d lives until %v", k.fence, k.until.Std())
		}
	}
	if a.Takeover == claim.NoTakeover && a.Attempt != 1 {
		return fmt.Errorf("attempt %d took over nothing", a.Attempt)
	}
	k.fence, k.attempt, k.until, k.done = a.Fence, r.Attempt, ev.Now.Add(a.Lease), nil
	if a.Recorded {
		k.until, k.done, k.expires = 0, r.Record, a.ExpiresAt
	}
	return nil
}

func (k *keyHistory) moved(ev *Event) error {
	t, changed := ev.Transition, !SameRecord(ev.Before, ev.After)
	if !ev.Before.Owner(t.Attempt, t.Fence) && (changed || ev.Reply.Status == claim.OK) {
		return fmt.Errorf("I4: not the owner, but answered %s, changed %t", ev.Reply.Status, changed)
	}
	if ev.Reply.Status != claim.OK {
		if changed {
			return fmt.Errorf("I4: answered %s, but changed the record", ev.Reply.Status)
		}
		return nil
	}
	if t.Fence != k.fence || t.Attempt != k.attempt {
		return fmt.Errorf("I4: fence %d was taken, the last grant has %d", t.Fence, k.fence)
	}
	switch t.Kind {
	case claim.Complete:
		if k.done != nil && !k.done.Same(t.Completion) {
			return fmt.Errorf("I3: a second result was acknowledged")
		}
		if k.done == nil {
			k.done = t.Completion
		}
		k.until, k.expires = 0, ev.Reply.ExpiresAt
	case claim.Extend:
		k.until = ev.Now.Add(ev.Reply.Lease)
	case claim.Release:
		k.until = 0
	}
	return nil
}

func (k *keyHistory) swapped(ev *Event) error {
	if SameRecord(ev.Before, ev.After) {
		return nil
	}
	switch ev.Swap.Kind {
	case claim.PutInDoubt:
		if ev.Now < k.until {
			return fmt.Errorf("I2: a live lease was put in doubt")
		}
	case claim.ResolveComplete:
		k.done, k.expires = ev.Swap.Result, ev.After.ExpiresAt
	case claim.ResolveRetry:
	case claim.Forget:
		k.done = nil
	case claim.NoSwap, claim.BeginAnew, claim.TakeOver, claim.Renew, claim.RecordOwn:
		return fmt.Errorf("kind %d is a claim's, not an operator's", ev.Swap.Kind)
	}
	k.until = 0
	return nil
}
