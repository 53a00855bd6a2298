package claim

import (
	"fmt"
	"slices"
)

// world is everything that matters about one key at one moment. It is copied
// at every step; what it points to is never changed.
type world struct {
	now     Time
	rec     *Record // State Absent: nothing is stored
	clients [2]client
	admin   operator
	monitor *Swap // read and decided, not yet written
	past    past
}

// client sends claims, and owner calls with every fence it has been given.
type client struct {
	attempt AttemptID
	fence   Fence // of its last grant that it heard of
	late    owner // an older grant whose packets are still on their way
	trip    *trip // a claim between its two trips
}

type owner struct {
	attempt AttemptID
	fence   Fence
}

// trip is a claim that has read and decided, and has yet to write.
type trip struct {
	swap Swap // Kind NoSwap: an insert
	req  *Request
}

// operator has looked at the record once, chosen a verb, and may send it any
// number of times.
type operator struct {
	verb *Verb
	swap *Swap // allowed, not yet written
}

type act uint8

const (
	claims act = iota
	claimsWithOutcome
	lands
	completes
	completesLate
	extends
	extendsLate
	releases
	releasesLate
	crashes
	timePasses
	timeAlmostPasses
	sweeps
	monitorLooks
	monitorLands
	adminResolvesComplete
	adminResolvesRetry
	adminForgets
	adminSends
	adminLands
)

var actNames = [...]string{
	"claims", "claims with its outcome (one-shot)", "writes (second trip)", "completes", "completes with an older grant",
	"extends", "extends with an older grant", "releases", "releases with an older grant",
	"crashes and comes back with a new attempt", "time passes to the next boundary", "time passes to 1 µs before the next boundary",
	"the sweeper sweeps", "the lease monitor looks", "the lease monitor's write lands",
	"the operator looks and means to complete", "the operator looks and means to retry", "the operator looks and means to forget",
	"the operator sends", "the operator's write lands",
}

// event is one thing that may happen next.
type event struct {
	act  act
	who  uint8
	lost bool // the reply does not arrive
}

func (e event) String() string {
	s := actNames[e.act]
	if e.act < timePasses {
		s = fmt.Sprintf("%c %s", 'A'+e.who, s)
	}
	if e.lost {
		s += ", and the reply is lost"
	}
	return s
}

// events lists what may happen in a scenario, with and without its reply.
func (s *scenario) events() (all []event) {
	for a := claims; a <= adminLands; a++ {
		if slices.Contains(s.without, a) {
			continue
		}
		all = append(all, event{act: a})
		if a < timePasses {
			all = append(all, event{act: a, who: 1})
		}
		if a <= completesLate {
			all = append(all, event{a, 0, true}, event{a, 1, true})
		}
	}
	return all
}

type explorer struct {
	*scenario
	requests map[AttemptID]*Request
	oneShots map[AttemptID]*Request
	cutoff   Time   // the instant from which an absent key is too old
	broken   string // the first invariant that the last step broke
}

var (
	attemptA  = AttemptID{15: 1}
	attemptB  = AttemptID{15: 2}
	attemptA2 = AttemptID{15: 3} // A after its crash
	outcomes  = map[AttemptID]*Completion{
		attemptA: result("done by A"), attemptB: result("done by B"), attemptA2: result("done by A, restarted"),
	}
	ruled = result("ruled done by the operator")
)

func (x *explorer) begin() world {
	x.requests, x.oneShots = map[AttemptID]*Request{}, map[AttemptID]*Request{}
	x.cutoff = Never
	if x.aged { // made now, so too old one retention from now
		x.cutoff = History{Retention: x.policy.Retention}.InsertBefore(start, 0)
	}
	for attempt, outcome := range outcomes {
		r := Request{Key: key, Attempt: attempt, Digests: content, InsertBefore: x.cutoff, Lease: shortLease, Policy: x.policy}
		if x.changed && attempt == attemptB {
			r.Digests = changed
		}
		x.requests[attempt] = &r
		x.oneShots[attempt] = new(r)
		x.oneShots[attempt].Record = outcome
	}
	w := world{now: start, rec: &Record{}}
	w.clients[0].attempt, w.clients[1].attempt = attemptA, attemptB
	return w
}

// step returns the world after e, or false where e cannot happen or would
// change nothing that another event does not.
func (x *explorer) step(w world, e event) (world, bool) {
	x.broken = ""
	c := &w.clients[e.who]
	possible := true
	switch e.act {
	case claims:
		possible = c.trip == nil && x.firstTrip(&w, c, x.requests[c.attempt], e.lost)
	case claimsWithOutcome:
		possible = c.trip == nil && e.who == 0 && x.firstTrip(&w, c, x.oneShots[c.attempt], e.lost)
	case lands:
		possible = c.trip != nil && x.secondTrip(&w, c, e.lost)
	case completes, extends, releases:
		possible = c.fence != 0 && x.owner(&w, e, owner{c.attempt, c.fence})
	case completesLate, extendsLate, releasesLate:
		possible = c.late.fence != 0 && x.owner(&w, e, c.late)
	case crashes:
		possible = c.attempt == attemptA
		c.late, c.fence, c.attempt = owner{c.attempt, c.fence}, 0, attemptA2
	case timePasses, timeAlmostPasses:
		possible = x.pass(&w, e.act == timeAlmostPasses)
	case sweeps:
		possible = x.sweep(&w)
	case monitorLooks, monitorLands:
		possible = x.watch(&w, e.act == monitorLands)
	case adminResolvesComplete, adminResolvesRetry, adminForgets, adminSends, adminLands:
		possible = x.administer(&w, e.act)
	}
	return w, possible
}

// firstTrip is InsertOrGet and the decision on what it returns.
func (x *explorer) firstTrip(w *world, c *client, r *Request, lost bool) bool {
	if w.rec.State == Absent && w.now < r.InsertBefore {
		x.write(w, x.rules.fresh(r, w.now, 0), cause{by: r.Attempt})
	}
	return x.answer(w, c, r, lost)
}

// secondTrip is Replace, and the decision on what it returns.
func (x *explorer) secondTrip(w *world, c *client, lost bool) bool {
	todo := c.trip
	c.trip = nil
	if todo.swap.Kind == NoSwap {
		return x.firstTrip(w, c, todo.req, lost)
	}
	if after, applied := x.rules.swap(&todo.swap, w.rec, w.now, 0); applied {
		if after.Fence > Fence(w.now)+fencesAhead {
			return false
		}
		x.write(w, after, cause{by: todo.req.Attempt, kind: todo.swap.Kind})
	}
	return x.answer(w, c, todo.req, lost)
}

// answer decides, and either starts the next trip or tells the client. A reply
// is only worth losing where it says something.
func (x *explorer) answer(w *world, c *client, r *Request, lost bool) bool {
	step := x.rules.decide(w.rec, r, w.now)
	if step.Insert || step.Swap.Kind != NoSwap {
		c.trip = &trip{step.Swap, r}
		return !lost
	}
	a := step.Answer
	x.checkAnswer(w, r, a)
	tells := a.Decision == Duplicate || a.Decision == Granted
	if tells && !lost && r.Attempt == c.attempt { // a crashed client hears nothing
		w.past.tell(a.Completion, a.ExpiresAt)
		if a.Recorded {
			w.past.tell(r.Record, a.ExpiresAt)
		} else if a.Decision == Granted && a.Fence != c.fence {
			c.late, c.fence = owner{c.attempt, c.fence}, a.Fence
		}
	}
	return tells || !lost
}

// owner is Transition, as one trip.
func (x *explorer) owner(w *world, e event, o owner) bool {
	t := Transition{Key: key, Attempt: o.attempt, Fence: o.fence}
	switch e.act {
	case completes, completesLate:
		t.Kind, t.Completion = Complete, outcomes[o.attempt]
	case extends, extendsLate:
		t.Kind, t.Lease = Extend, shortLease
	default:
		t.Kind = Release
	}
	after, applied, reply := x.rules.transition(&t, w.rec, w.now)
	x.checkReply(w, &t, applied, reply)
	if applied {
		x.write(w, after, cause{by: o.attempt, owner: t.Kind})
	}
	if t.Kind == Complete && reply.Status == OK && !e.lost {
		w.past.tell(t.Completion, reply.ExpiresAt)
	}
	return !e.lost || reply.Status == OK
}
