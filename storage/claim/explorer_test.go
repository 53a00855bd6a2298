package claim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// The explorer tries everything that can happen to one key, breadth first, and
// checks the invariants of the contract after every step (explorer_checks_test.go).
// What can happen is in explorer_world_test.go. Two worlds that differ only by
// a shift in time are the same world, so that the search ends by itself where
// the world is small enough, and is cut at a depth where it is not.

// rules are the functions under exploration. Planted bugs replace one of them.
type rules struct {
	decide     func(*Record, *Request, Time) Step
	fresh      func(*Request, Time, Fence) Record
	swap       func(*Swap, *Record, Time, Fence) (Record, bool)
	transition func(*Transition, *Record, Time) (Record, bool, Reply)
	rule       func(*Verb, *Record, Time) (Ruling, Swap)
	sweepable  func(*Record, Time, time.Duration) bool
}

func contract() rules {
	return rules{
		decide: Decide, fresh: Fresh, swap: (*Swap).Apply, transition: (*Transition).Apply,
		rule: (*Verb).Rule, sweepable: (*Record).Sweepable,
	}
}

// scenario is one consumer's policy and what happens to its clients.
type scenario struct {
	name    string
	policy  Policy
	aged    bool  // claims carry an event time: forgotten keys are too old
	changed bool  // B's event has other content under the same ID
	without []act // what does not happen here
	depth   int   // the longest history tried
	closed  bool  // depth is beyond the last new world: every history is tried, however long
	rules   rules
}

// Short spans make every boundary near. No real clock hands out more fences than
// microseconds for long; fencesAhead keeps the explorer's from doing so, or a
// key swept and claimed again could meet a fence from its future.
const (
	shortLease  = 10 * tick
	shortWindow = 20 * tick
	shortKept   = 25 * tick
	shortHold   = 15 * tick
	shortGrace  = 10 * tick
	fencesAhead = 2
	start       = Time(1000)
)

// everything is tried in full for histories of eight steps; without operators,
// for ten; and the heart of it (claims, lost replies, owner calls, lapses,
// takeovers, the lease monitor, sweeps) for all histories, however long.
func scenarios() (all []scenario) {
	regrant := Policy{Window: shortWindow, Retention: shortKept, HoldMax: shortHold}
	held, capped := regrant, regrant
	held.Hold, capped.AttemptsMax = true, 2
	operators := []act{adminResolvesComplete, adminResolvesRetry, adminForgets, adminSends, adminLands}
	strays := []act{crashes, claimsWithOutcome, completesLate, extendsLate, releasesLate}
	for _, s := range []scenario{
		{name: "Regrant", policy: regrant},
		{name: "Hold", policy: held},
		{name: "CapOfTwo", policy: capped},
		{name: "EventTime", policy: regrant, aged: true},
		{name: "OtherContent", policy: regrant, changed: true},
	} {
		s.rules = contract()
		whole, alone, heart := s, s, s
		whole.name, whole.depth = s.name+"/Everything", 8
		alone.name, alone.depth, alone.without = s.name+"/WithoutOperators", 10, operators
		heart.name, heart.depth, heart.closed = s.name+"/AllHistories", 60, true
		heart.without = slices.Concat(operators, strays)
		all = append(all, whole, alone, heart)
	}
	return all
}

// TestExplore: no history breaks an invariant.
func TestExplore(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			found := explore(&s)
			t.Log(found)
			if found.broken != "" {
				t.Errorf("invariant broken: %s\n%s", found.broken, found.trace)
			}
			if found.closed != s.closed || found.states < 1000 {
				t.Errorf("the search did not go as far as it should: %s", found)
			}
		})
	}
}

// findings is what a search found out.
type findings struct {
	states, steps, depth int
	closed               bool // nothing was left to try
	broken               string
	trace                string // the shortest history that breaks it
}

func (f findings) String() string {
	end := "cut there"
	if f.closed {
		end = "nothing left to try"
	}
	return fmt.Sprintf("%d states, %d steps, depth %d, %s", f.states, f.steps, f.depth, end)
}

// visit is how a state was first reached.
type visit struct {
	from int32
	by   event
}

// explore searches breadth first: the first broken invariant has the shortest
// history.
func explore(s *scenario) findings {
	x := &explorer{scenario: s}
	w, events := x.begin(), s.events()
	known := map[string]struct{}{x.fingerprint(&w): {}}
	visits := []visit{{from: -1}}
	frontier, ids := []world{w}, []int32{0}
	f := findings{}
	for ; len(frontier) > 0 && f.depth < s.depth; f.depth++ {
		var nextFrontier []world
		var nextIDs []int32
		for i := range frontier {
			for _, e := range events {
				reached, possible := x.step(frontier[i], e)
				if !possible {
					continue
				}
				f.steps++
				if x.broken != "" {
					f.states, f.broken, f.trace = len(known), x.broken, trace(visits, ids[i], e)
					return f
				}
				mark := x.fingerprint(&reached)
				if _, seen := known[mark]; seen {
					continue
				}
				known[mark] = struct{}{}
				visits = append(visits, visit{ids[i], e})
				nextFrontier, nextIDs = append(nextFrontier, reached), append(nextIDs, int32(len(visits)-1))
			}
		}
		frontier, ids = nextFrontier, nextIDs
	}
	f.states, f.closed = len(known), len(frontier) == 0
	return f
}

func trace(visits []visit, at int32, last event) string {
	steps := []string{last.String()}
	for ; visits[at].from >= 0; at = visits[at].from {
		steps = append([]string{visits[at].by.String()}, steps...)
	}
	for i := range steps {
		steps[i] = fmt.Sprintf("%3d. %s", i+1, steps[i])
	}
	return strings.Join(steps, "\n")
}
