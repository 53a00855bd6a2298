package reliability_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// event is one send as its client saw it, in nanoseconds since the history
// began.
type event struct {
	client    int
	op        op
	reply     reply
	call, end int64
	server    int // the run of the server that it was sent to
}

// never is the end of a call that may take effect at any later time.
const never = math.MaxInt64

func (e event) String() string {
	return fmt.Sprintf("%12d-%-12d client %d server %d: %v -> %+v", e.call, e.end, e.client, e.server, e.op, e.reply)
}

// history collects what all clients saw. It is safe for concurrent use.
type history struct {
	began time.Time
	mu    struct {
		sync.Mutex
		events []event
	}
}

func newHistory() *history { return &history{began: time.Now()} }

func (h *history) now() int64 { return time.Since(h.began).Nanoseconds() }

func (h *history) add(events ...event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.events = append(h.mu.events, events...)
}

// died says that a run of the server is over: what it has not answered until
// now has had its effect or never will.
func (h *history) died(server int) {
	now := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.mu.events {
		if e := &h.mu.events[i]; e.server == server && e.end == never {
			e.end = max(now, e.call+1)
		}
	}
}

// all returns the events by key, each in order of sending.
func (h *history) all() map[string][]event {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := map[string][]event{}
	for _, e := range h.mu.events {
		k := e.op.consumer + "/" + e.op.event
		keys[k] = append(keys[k], e)
	}
	for _, events := range keys {
		slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.call, b.call) })
	}
	return keys
}

// judgeMax bounds the search for an order that explains one key's history. A
// history that is not decided by then fails.
const judgeMax = time.Minute

// judge asks whether one order of the operations of a key explains all answers.
func judge(events []event) porcupine.CheckResult {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(s, o, r any) []any {
			var next []any
			for _, n := range s.(state).step(o.(op), r.(reply)) {
				next = append(next, n)
			}
			return next
		},
	}
	ops := make([]porcupine.Operation, len(events))
	for i, e := range events {
		ops[i] = porcupine.Operation{ClientId: e.client, Input: e.op, Output: e.reply, Call: e.call, Return: e.end}
	}
	return porcupine.CheckOperationsTimeout(model.ToModel(), ops, judgeMax)
}

// mustBeLinear fails the test unless every key's history is explained, and
// holds the promises that need no search.
func (h *history) mustBeLinear(t *testing.T) {
	t.Helper()
	began, count, open := time.Now(), 0, 0
	keys := h.all()
	for key, events := range keys {
		count += len(events)
		for _, e := range events {
			if e.reply.verdict == unknown {
				open++
			}
		}
		if err := keepsPromises(events); err != nil {
			t.Errorf("%s: %v\n%s", key, err, lines(events))
		}
		if result := judge(events); result != porcupine.Ok {
			t.Errorf("%s: the history is %s\n%s", key, result, lines(events))
		}
	}
	t.Logf("%d operations, %d of them unanswered, on %d keys: judged in %v", count, open, len(keys), time.Since(began).Round(time.Millisecond))
}

// reached are the answers that every history of a fleet must have: one that
// misses them shows nothing.
var reached = []string{
	"claim GRANTED", "claim DUPLICATE", "claim IN_PROGRESS", "claim ATTEMPT_ENDED", "claim GRANTED after RELEASED", "claim unknown",
	"record GRANTED", "record DUPLICATE", "complete OK", "complete STALE", "complete RESULT_CONFLICT", "complete unknown",
	"extend OK", "extend STALE", "release OK", "release STALE", "lookup ABSENT", "lookup IN_PROGRESS", "lookup RELEASED", "lookup COMPLETED",
}

// reachedSoon are those that short histories have too.
var reachedSoon = []string{
	"claim GRANTED", "claim DUPLICATE", "claim IN_PROGRESS", "claim GRANTED after RELEASED", "record GRANTED", "record DUPLICATE",
	"complete OK", "complete STALE", "extend STALE", "release OK", "release STALE", "lookup COMPLETED",
}

// mustReach fails the test unless each of the answers of a whole history, and
// those named, was given at least once.
func (h *history) mustReach(t *testing.T, answers ...string) {
	t.Helper()
	h.mustHave(t, slices.Concat(reached, answers))
}

func (h *history) mustHave(t *testing.T, answers []string) {
	t.Helper()
	seen := h.seen()
	for _, a := range answers {
		if seen[a] == 0 {
			t.Errorf("the history never reached %q: %v", a, seen)
		}
	}
}

func lines(events []event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// keepsPromises checks, without the model, what nobody may ever see on one key:
// a fence that goes back or belongs to two attempts, and, once a completion was
// acknowledged, a grant or another result.
func keepsPromises(events []event) error {
	byEnd := slices.Clone(events)
	slices.SortStableFunc(byEnd, func(a, b event) int { return cmp.Compare(a.end, b.end) })
	owners := map[int64]string{}
	seen, fence, ended := 0, int64(0), -1
	for i, e := range events {
		for seen < len(byEnd) && byEnd[seen].end < e.call { // what was answered before e was sent
			fence = max(fence, byEnd[seen].granted())
			if ended < 0 && byEnd[seen].completes() {
				ended = i
			}
			seen++
		}
		f := e.granted()
		switch owner := owners[f]; {
		case f == 0:
		case owner != "" && owner != e.op.attempt:
			return fmt.Errorf("two attempts were given fence %d: %v", f, e)
		case f < fence:
			return fmt.Errorf("fence %d after fence %d: %v", f, fence, e)
		}
		owners[f] = e.op.attempt
		if ended >= 0 && f != 0 && !e.reply.recorded {
			return fmt.Errorf("a grant after a completion: %v", e)
		}
	}
	return oneResult(events)
}

// granted is the fence of an acknowledged grant, or 0.
func (e event) granted() int64 {
	if e.reply.verdict == "GRANTED" {
		return e.reply.fence
	}
	return 0
}

// completes reports whether the event is done once e is answered.
func (e event) completes() bool {
	return e.reply.recorded || e.reply.verdict == "DUPLICATE" || (e.op.kind == completeCall && e.reply.verdict == "OK")
}

// oneResult: all who were told that the event is done were told the same.
func oneResult(events []event) error {
	var told []string
	for _, e := range events {
		switch {
		case e.reply.verdict == "DUPLICATE", e.op.kind == lookupCall && e.reply.verdict == "COMPLETED":
			told = append(told, e.reply.body)
		case e.completes():
			told = append(told, short(e.op.body))
		}
	}
	slices.Sort(told)
	if told = slices.Compact(told); len(told) > 1 {
		return fmt.Errorf("results differ: %q", told)
	}
	return nil
}

// mustHaveOne fails the test unless one of the answers was given.
func (h *history) mustHaveOne(t *testing.T, answers ...string) {
	t.Helper()
	seen := h.seen()
	if !slices.ContainsFunc(answers, func(a string) bool { return seen[a] > 0 }) {
		t.Errorf("the history reached none of %q: %v", answers, seen)
	}
}

// seen counts the answers.
func (h *history) seen() map[string]int {
	seen := map[string]int{}
	for _, events := range h.all() {
		for _, e := range events {
			seen[fmt.Sprint(e.op.kind, " ", e.reply.verdict)]++
			if e.op.kind == claimCall && e.granted() != 0 {
				seen["claim GRANTED after "+e.reply.takeover]++
			}
		}
	}
	return seen
}
