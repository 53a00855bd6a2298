package claim

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// planted is one rule broken, and the invariant that must be seen to break.
type planted struct {
	bug    string
	policy string // the scenario's name begins so
	breaks string // the finding begins so
	plant  func(*rules)
}

// decides replaces the answer where when holds.
func decides(when func(*Record, *Request, Time) bool, then func(*Record, *Request, Time) Step) func(*rules) {
	return func(r *rules) {
		r.decide = func(rec *Record, req *Request, now Time) Step {
			if when(rec, req, now) {
				return then(rec, req, now)
			}
			return Decide(rec, req, now)
		}
	}
}

// corrupts lets bug see every applied swap and change what is written.
func corrupts(bug func(s *Swap, cur, next *Record, now Time)) func(*rules) {
	return func(r *rules) {
		r.swap = func(s *Swap, cur *Record, now Time, floor Fence) (Record, bool) {
			next, applied := s.Apply(cur, now, floor)
			if applied {
				bug(s, cur, &next, now)
			}
			return next, applied
		}
	}
}

// pretends applies what lie makes of a transition and of the record it meets.
func pretends(lie func(*Transition, *Record, Time)) func(*rules) {
	return func(r *rules) {
		r.transition = func(t *Transition, cur *Record, now Time) (Record, bool, Reply) {
			asked, seen := *t, *cur
			lie(&asked, &seen, now)
			return asked.Apply(&seen, now)
		}
	}
}

// misreads lets decisions and writes see a record through lie, and hides the lie
// from what is stored.
func misreads(lie func(*Record)) func(*rules) {
	return func(r *rules) {
		r.decide = func(rec *Record, req *Request, now Time) Step {
			seen := *rec
			lie(&seen)
			return Decide(&seen, req, now)
		}
		r.swap = func(s *Swap, cur *Record, now Time, floor Fence) (Record, bool) {
			seen := *cur
			lie(&seen)
			next, applied := s.Apply(&seen, now, floor)
			if applied && s.Kind != BeginAnew {
				next.Policy = cur.Policy
			}
			return next, applied
		}
	}
}

// unguarded writes a takeover whatever has become, since it was read, of a
// record that is in this state now.
func unguarded(state State) func(*Swap, *Record, Time, Fence) (Record, bool) {
	return func(s *Swap, cur *Record, now Time, floor Fence) (Record, bool) {
		if s.Kind != TakeOver || cur.State != state {
			return s.Apply(cur, now, floor)
		}
		next := *cur
		next.takeOver(s, now, floor)
		next.Version++
		next.keep(now)
		return next, true
	}
}

func own(rec *Record, req *Request) bool { return rec.State != Absent && rec.AttemptID == req.Attempt }

// anew begins a new life whatever the guards say of it.
func anew(r *rules, on State) {
	decides(func(rec *Record, req *Request, _ Time) bool { return rec.State == on && own(rec, req) },
		func(rec *Record, req *Request, _ Time) Step { return swap(BeginAnew, rec, req) })(r)
	r.swap = func(s *Swap, cur *Record, now Time, floor Fence) (Record, bool) {
		if s.Kind != BeginAnew || cur.Version != s.Version {
			return s.Apply(cur, now, floor)
		}
		next := Fresh(s.Request, now, max(floor, cur.Fence+1))
		next.Version = cur.Version + 1
		return next, true
	}
}

func plantedBugs() []planted {
	return []planted{
		{"takeover without asking whether the lease lapsed", "Regrant", "I2", func(r *rules) {
			decides(func(rec *Record, req *Request, now Time) bool { return rec.Live(now) && !own(rec, req) },
				func(rec *Record, req *Request, _ Time) Step { return swap(TakeOver, rec, req) })(r)
			r.swap = unguarded(InProgress)
		}},
		{"takeover not guarded again at the write", "Regrant", "I2", func(r *rules) { r.swap = unguarded(InProgress) }},
		{"takeover of an event completed meanwhile", "Regrant", "I3", func(r *rules) { r.swap = unguarded(Completed) }},
		{"lease over one microsecond early", "Regrant", "I2", func(r *rules) {
			decides(func(rec *Record, req *Request, now Time) bool { return !own(rec, req) && rec.Lapsed(now+1) },
				func(rec *Record, req *Request, now Time) Step { return Decide(rec, req, now+1) })(r)
			r.swap = func(s *Swap, cur *Record, now Time, floor Fence) (Record, bool) { return s.Apply(cur, now+1, floor) }
		}},
		{"fence left where it was", "Regrant", "I1", corrupts(func(_ *Swap, cur, next *Record, _ Time) { next.Fence = cur.Fence })},
		{"fence is store time alone", "Regrant", "I1", corrupts(func(s *Swap, _, next *Record, now Time) {
			if s.Kind == TakeOver || s.Kind == BeginAnew {
				next.Fence = Fence(now)
			}
		})},
		{"fence moved by the renewal of a grant", "Regrant", "I5", corrupts(func(s *Swap, _, next *Record, _ Time) {
			if s.Kind == Renew {
				next.Fence++
			}
		})},
		{"swept at expiry, before the grace", "Regrant", "I5", func(r *rules) {
			r.sweepable = func(rec *Record, now Time, _ time.Duration) bool { return rec.Sweepable(now, 0) }
		}},
		{"swept while nobody knows", "Hold", "HOLD", func(r *rules) {
			r.sweepable = func(rec *Record, now Time, grace time.Duration) bool { return now >= rec.ExpiresAt.Add(grace) }
		}},
		{"completion by whoever asks", "Regrant", "I4", pretends(func(t *Transition, seen *Record, _ Time) {
			t.Attempt, t.Fence = seen.AttemptID, seen.Fence
		})},
		{"completion by an older grant of the same attempt", "Regrant", "I4", pretends(func(t *Transition, seen *Record, _ Time) {
			if t.Attempt == seen.AttemptID {
				t.Fence = seen.Fence
			}
		})},
		{"completion only while the lease lives", "Regrant", "the owner's completion was refused", pretends(
			func(t *Transition, seen *Record, now Time) {
				if t.Kind == Complete && seen.Lapsed(now) {
					t.Fence = 0
				}
			})},
		{"second completion overwrites the first", "Hold", "I3", pretends(func(_ *Transition, seen *Record, _ Time) {
			if seen.State == Completed {
				seen.State = InProgress
			}
		})},
		{"extension after the lease", "Regrant", "I2", pretends(func(t *Transition, seen *Record, now Time) {
			if t.Kind == Extend && seen.Lapsed(now) {
				seen.LeaseUntil = now + 1
			}
		})},
		{"extension beyond the maximum hold", "Regrant", "a lease was extended", pretends(func(_ *Transition, seen *Record, _ Time) {
			seen.HoldUntil = Never
		})},
		{"completion kept for less than a window", "Regrant", "expiry", func(r *rules) {
			r.transition = func(t *Transition, cur *Record, now Time) (Record, bool, Reply) {
				next, changed, reply := t.Apply(cur, now)
				next.ExpiresAt = cur.ExpiresAt
				return next, changed, reply
			}
		}},
		{"resend resurrects a forgotten record", "Regrant", "I5", func(r *rules) { anew(r, Forgotten) }},
		{"resend resurrects a released attempt", "Regrant", "I5", func(r *rules) { anew(r, Released) }},
		{"attempt ID ignored: a lost reply costs a lease", "Regrant", "I5", decides(
			func(rec *Record, req *Request, now Time) bool { return rec.Live(now) && own(rec, req) },
			func(rec *Record, _ *Request, now Time) Step {
				return answered(Answer{Decision: HeldByOther, RetryAfter: rec.LeaseUntil.Sub(now)})
			})},
		{"HOLD ignored", "Hold", "HOLD", misreads(func(seen *Record) { seen.Policy.Hold = false })},
		{"cap ignored", "CapOfTwo", "cap", misreads(func(seen *Record) { seen.Policy.AttemptsMax = 0 })},
		{"lease monitor does not look again", "Hold", "a grant that is live or over", func(r *rules) {
			r.swap = func(s *Swap, cur *Record, now Time, floor Fence) (Record, bool) {
				if s.Kind != PutInDoubt || cur.State == Absent {
					return s.Apply(cur, now, floor)
				}
				next := *cur
				next.State, next.Version = InDoubt, cur.Version+1
				next.keep(now)
				return next, true
			}
		}},
		{"TOO_OLD not asked of expired records", "EventTime", "I3", func(r *rules) {
			young := func(req *Request) *Request { y := *req; y.InsertBefore = Never; return &y }
			r.decide = func(rec *Record, req *Request, now Time) Step {
				if rec.State == Absent {
					return Decide(rec, req, now)
				}
				return Decide(rec, young(req), now)
			}
			r.swap = func(s *Swap, cur *Record, now Time, floor Fence) (Record, bool) {
				e := *s
				if e.Request != nil {
					e.Request = young(e.Request)
				}
				return e.Apply(cur, now, floor)
			}
		}},
		{"digests not compared", "OtherContent", "MISMATCH", func(r *rules) {
			r.decide = func(rec *Record, req *Request, now Time) Step {
				trusting := *req
				trusting.Digests = rec.Digests
				return Decide(rec, &trusting, now)
			}
		}},
		{"digests compared after the state", "OtherContent", "MISMATCH", decides(
			func(rec *Record, _ *Request, _ Time) bool { return rec.State == InDoubt || rec.State == Completed },
			func(rec *Record, req *Request, now Time) Step {
				trusting := *req
				trusting.Digests = rec.Digests
				return Decide(rec, &trusting, now)
			})},
		{"operator's verb blind to the fence", "Regrant", "an operator changed", func(r *rules) {
			r.rule = func(v *Verb, rec *Record, now Time) (Ruling, Swap) {
				blind := *v
				blind.Fence = rec.Fence
				return blind.Rule(rec, now)
			}
		}},
		{"verb resent after it took effect is refused", "Regrant", "a verb resent", func(r *rules) {
			r.rule = func(v *Verb, rec *Record, now Time) (Ruling, Swap) {
				ruling, s := v.Rule(rec, now)
				if ruling == Done {
					ruling = Refused
				}
				return ruling, s
			}
		}},
		{"completed event answered as an ended attempt", "Regrant", "I3", decides(
			func(rec *Record, req *Request, _ Time) bool { return rec.State == Completed && own(rec, req) },
			func(*Record, *Request, Time) Step { return answered(Answer{Decision: AttemptEnded}) })},
	}
}

// TestExplorerFindsPlantedBugs: a checker that finds nothing proves nothing, so
// each broken rule must lead to the broken invariant. Run with -v to read the
// shortest history of each.
func TestExplorerFindsPlantedBugs(t *testing.T) {
	t.Parallel()
	all := scenarios()
	for _, p := range plantedBugs() {
		t.Run(strings.ReplaceAll(p.bug, " ", "_"), func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(all, func(s scenario) bool { return s.name == p.policy+"/Everything" })
			s := all[i]
			p.plant(&s.rules)
			found := explore(&s)
			t.Logf("%s, after %d states\n%s", found.broken, found.states, found.trace)
			if found.broken == "" || !strings.HasPrefix(found.broken, p.breaks) {
				t.Errorf("want a history that breaks %q, found %q", p.breaks, found.broken)
			}
		})
	}
}
