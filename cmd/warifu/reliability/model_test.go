package reliability_test

import "slices"

// This is the contract's table once more, written from the document: what one
// key is, and what every call makes of it and answers. Leases end only by the
// lapse operation, and nothing expires.

type phase uint8

const (
	absent phase = iota
	held
	lapsed // held, with its lease over
	released
	completed
)

// state is one possible truth about a key.
type state struct {
	phase    phase
	attempt  string // the last one
	takeover string
	number   uint32
	fence    int64 // of the last grant; 0: granted, but nobody was told the fence
	floor    int64 // no later grant's fence is at or below it
	body     string
}

// name is the state in the contract's words.
func (s state) name(consumer string) string {
	switch s.phase {
	case held:
		return "IN_PROGRESS"
	case lapsed:
		if consumer == hold {
			return "IN_DOUBT"
		}
		return "IN_PROGRESS"
	case released:
		return "RELEASED"
	case completed:
		return "COMPLETED"
	case absent:
	}
	return "ABSENT"
}

// truths are all states that a key may be in.
type truths []state

// after is what may be true once o was sent and r was, or was not, answered.
// None: the answer breaks the contract.
func (ts truths) after(o op, r reply) truths {
	var next truths
	for _, s := range ts {
		for _, n := range s.step(o, r) {
			if !slices.Contains(next, n) {
				next = append(next, n)
			}
		}
	}
	return next
}

// effect is one thing that an operation may do.
type effect struct {
	next state
	says reply
}

func (s state) step(o op, r reply) []state {
	if r.verdict == notApplied {
		return []state{s}
	}
	var next []state
	for _, e := range s.effects(o, r.fence) {
		if r.verdict == unknown || e.says == r {
			next = append(next, e.next)
		}
	}
	if r.verdict == unknown {
		next = append(next, s) // it never arrived
	}
	return next
}

// effects of o; told is the fence that its answer names, if any.
func (s state) effects(o op, told int64) []effect {
	switch o.kind {
	case claimCall, recordCall:
		return s.claim(o, told)
	case completeCall, extendCall, releaseCall:
		return s.transition(o)
	case lookupCall:
		return s.lookup(o, told)
	case lapse:
		if s.phase == held {
			s.phase = lapsed
		}
		return []effect{{next: s}}
	}
	return nil
}

func (s state) claim(o op, told int64) []effect {
	own := s.phase != absent && s.attempt == o.attempt
	switch {
	case s.phase == completed && own && o.kind == recordCall && s.body == short(o.body):
		return s.grant(o, told)
	case s.phase == completed:
		return []effect{{s, reply{verdict: "DUPLICATE", own: own, body: s.body}}}
	case s.phase == released && own:
		return []effect{{s, reply{verdict: "ATTEMPT_ENDED"}}}
	case s.phase == held && !own:
		return []effect{{s, reply{verdict: "IN_PROGRESS"}}}
	case s.phase == lapsed && o.consumer == hold:
		return []effect{{s, reply{verdict: "IN_DOUBT"}}}
	case own: // live, or to be renewed
		s.phase = held
		return s.grant(o, told)
	}
	cause := map[phase]string{absent: "UNSPECIFIED", lapsed: "LEASE_LAPSED", released: "RELEASED"}[s.phase]
	next := state{phase: held, attempt: o.attempt, takeover: cause, number: s.number + 1, floor: s.floor}
	return next.grant(o, told)
}

// grant answers with the grant that s is.
func (s state) grant(o op, told int64) []effect {
	if told != 0 {
		var ok bool
		if s, ok = s.withFence(told); !ok {
			return nil
		}
	}
	if o.kind == recordCall {
		s.phase, s.body = completed, short(o.body)
	}
	return []effect{{s, reply{
		verdict: "GRANTED", attempt: s.attempt, takeover: s.takeover, number: s.number, fence: s.fence, recorded: o.kind == recordCall,
	}}}
}

// withFence is s once its fence is known to be f; false when it cannot be.
func (s state) withFence(f int64) (state, bool) {
	if s.fence != 0 {
		return s, s.fence == f
	}
	if f <= s.floor {
		return s, false
	}
	s.fence, s.floor = f, f
	return s, true
}

// transition takes the sender for the owner, for a stranger, or, where the
// fence was never told, for either.
func (s state) transition(o op) []effect {
	var all []effect
	if s.phase != absent && s.attempt == o.attempt {
		if mine, ok := s.withFence(o.fence); ok {
			all = append(all, mine.byOwner(o))
		}
	}
	if len(all) == 0 || s.fence == 0 {
		all = append(all, s.answer(o, "STALE"))
	}
	return all
}

func (s state) answer(o op, verdict string) effect {
	return effect{s, reply{verdict: verdict, state: s.name(o.consumer)}}
}

func (s state) byOwner(o op) effect {
	switch {
	case o.kind == completeCall && s.phase == completed && s.body != short(o.body):
		return s.answer(o, "RESULT_CONFLICT")
	case o.kind == completeCall:
		s.phase, s.body = completed, short(o.body)
	case o.kind == extendCall && s.phase != held, o.kind == releaseCall && s.phase == completed:
		return s.answer(o, "STALE")
	case o.kind == releaseCall:
		s.phase = released
	}
	return s.answer(o, "OK")
}

func (s state) lookup(o op, told int64) []effect {
	if s.phase != absent && told != 0 {
		var ok bool
		if s, ok = s.withFence(told); !ok {
			return nil
		}
	}
	return []effect{{s, reply{
		verdict: s.name(o.consumer), attempt: s.attempt, takeover: s.takeover, number: s.number, fence: s.fence, body: s.body,
	}}}
}
