package claim

// Verb is what an operator does with a record: audited, with a reason, and
// only on the fence and state that the operator has seen.
type Verb struct {
	Kind   SwapKind // ResolveComplete, ResolveRetry or Forget
	Key    Key
	Fence  Fence       // expected
	State  State       // expected, as decisions see it
	Result *Completion // ResolveComplete
}

// Ruling is the answer to a verb.
type Ruling uint8

// The rulings on a verb.
const (
	Refused     Ruling = iota // fence or state moved on, or the verb is not allowed there
	Done                      // the verb took effect before: nothing is left to do
	SwapAllowed               // Replace with the swap
)

// Rule says whether verb v may act on the record. A verb resent after it took
// effect is Done.
func (v *Verb) Rule(rec *Record, now Time) (Ruling, Swap) {
	if !v.known() || rec.State == Absent || rec.Fence != v.Fence {
		return Refused, Swap{}
	}
	if v.done(rec) {
		return Done, Swap{}
	}
	s := NewSwap(v.Kind, rec, nil)
	s.Result = v.Result
	if rec.Effective(now) != v.State || !s.guard(rec, now) {
		return Refused, Swap{}
	}
	return SwapAllowed, s
}

// known keeps swaps that no operator may ask for out of the rule.
func (v *Verb) known() bool {
	return v.Kind == ResolveComplete || v.Kind == ResolveRetry || v.Kind == Forget
}

func (v *Verb) done(rec *Record) bool {
	switch v.Kind {
	case ResolveComplete:
		return rec.State == Completed && rec.Completion.Same(v.Result)
	case ResolveRetry:
		return rec.State == Released
	case Forget:
		return rec.State == Forgotten
	case NoSwap, BeginAnew, TakeOver, Renew, RecordOwn, PutInDoubt:
	}
	return false
}
