package reliability_test

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
)

const (
	linearRounds = 10  // each with a kill -9 and keys of its own
	linearSends  = 600 // of each
	lossShare    = 0.04
)

// TestLinearizable records what clients see that share keys, over a network
// that loses replies, from a server that is killed and started again, and asks
// whether one order of the calls explains all of it.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	f, h := newFleet(t), newHost(t)
	seat := f.seats[0]
	network := &randomLoss{}
	network.mu.rng = fork(f.rng)
	wrap := func(next http.RoundTripper) http.RoundTripper { return &lossy{next: next, choose: network.choose} }
	p := h.start()
	client, hangUp := p.dial(wrap)
	seat.client = client
	for range times(linearRounds) {
		f.play(linearSends, func() {
			seat.Lock()
			defer seat.Unlock()
			p.kill()
			f.history.died(seat.server)
			p.mustBeKilled()
			hangUp()
			p = h.start()
			seat.client, hangUp = p.dial(wrap)
			seat.server++
		})
	}
	p.kill()
	f.history.died(seat.server)
	f.history.mustBeLinear(t)
	f.history.mustReach(t)
	f.history.mustNoticeSecondGrants(t)
}

// mustNoticeSecondGrants turns a refusal in each recorded history into a second
// first grant. A checker that lets one of them pass is no checker.
func (h *history) mustNoticeSecondGrants(t *testing.T) {
	t.Helper()
	planted := 0
	for key, events := range h.all() {
		if !plantSecondGrant(events) {
			continue
		}
		planted++
		if result := judge(events); result != porcupine.Illegal {
			t.Errorf("%s: a planted second grant is %s\n%s", key, result, lines(events))
		}
	}
	if planted == 0 {
		t.Error("no history has a refusal to plant a second grant in")
	}
	t.Logf("%d planted second grants were found", planted)
}

// plantSecondGrant falsifies the first IN_PROGRESS of a history that has an
// acknowledged first grant; false when there is none.
func plantSecondGrant(events []event) bool {
	first := slices.IndexFunc(events, func(e event) bool { return e.granted() != 0 && e.reply.number == 1 })
	refused := slices.IndexFunc(events, func(e event) bool { return e.reply.verdict == "IN_PROGRESS" && e.op.kind == claimCall })
	if first < 0 || refused < 0 {
		return false
	}
	e := &events[refused]
	e.reply = reply{
		verdict: "GRANTED", attempt: e.op.attempt, takeover: "UNSPECIFIED", number: 1, fence: events[first].reply.fence + 1,
	}
	return true
}

// randomLoss loses some replies.
type randomLoss struct {
	mu struct {
		sync.Mutex
		rng *rand.Rand
	}
}

func (l *randomLoss) choose(*http.Request) loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.rng.Float64() >= lossShare {
		return keep
	}
	return []loss{dropped, cutShort, badGate}[l.mu.rng.IntN(3)]
}

// TestCheckerFindsFaults falsifies a history in one place, in ways that a
// broken server would, and demands that each is found.
func TestCheckerFindsFaults(t *testing.T) {
	t.Parallel()
	for name, falsify := range map[string]func([]event){
		"second grant while the lease lives": func(h []event) {
			h[1].reply = reply{verdict: "GRANTED", attempt: h[1].op.attempt, takeover: "LEASE_LAPSED", number: 2, fence: 900}
		},
		"second grant beside an unanswered one": func(h []event) {
			h[0].reply, h[0].end = reply{verdict: unknown}, never
			h[1].reply = reply{verdict: "GRANTED", attempt: h[1].op.attempt, takeover: "LEASE_LAPSED", number: 2, fence: 900}
		},
		"grant after the completion": func(h []event) {
			h[5].reply = reply{verdict: "GRANTED", attempt: h[5].op.attempt, takeover: "UNSPECIFIED", number: 1, fence: 900}
		},
		"fence that does not rise": func(h []event) {
			h[3].reply.fence = h[0].reply.fence
			h[4].op.fence = h[0].reply.fence
		},
		"completion that is lost":        func(h []event) { h[6].reply = reply{verdict: "ABSENT"} },
		"other bytes than were stored":   func(h []event) { h[5].reply.body = "results" },
		"stale completion that is taken": func(h []event) { h[4].op.fence = h[0].reply.fence },
		"attempts that are miscounted":   func(h []event) { h[3].reply.number = 1 },
		"release that is forgotten":      func(h []event) { h[3].reply = reply{verdict: "IN_PROGRESS"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good := shortLife()
			if result := judge(good); result != porcupine.Ok || keepsPromises(good) != nil {
				t.Fatalf("the true history is %s, %v", result, keepsPromises(good))
			}
			bad := shortLife()
			falsify(bad)
			if result := judge(bad); result != porcupine.Illegal {
				t.Fatalf("the false history is %s\n%s", result, lines(bad))
			}
		})
	}
}

// shortLife is a true history: granted, refused to another, released, taken
// over, completed, and known to be.
func shortLife() []event {
	a, b := uuid.NewString(), uuid.NewString()
	key := func(k kind, attempt string, fence int64, body string) op {
		return op{kind: k, consumer: regrant, event: "e", attempt: attempt, fence: fence, body: body}
	}
	first := reply{verdict: "GRANTED", attempt: a, takeover: "UNSPECIFIED", number: 1, fence: 100}
	second := reply{verdict: "GRANTED", attempt: b, takeover: "RELEASED", number: 2, fence: 200}
	sends := []event{
		{op: key(claimCall, a, 0, ""), reply: first},
		{op: key(claimCall, b, 0, ""), reply: reply{verdict: "IN_PROGRESS"}},
		{op: key(releaseCall, a, 100, ""), reply: reply{verdict: "OK", state: "RELEASED"}},
		{op: key(claimCall, b, 0, ""), reply: second},
		{op: key(completeCall, b, 200, "result"), reply: reply{verdict: "OK", state: "COMPLETED"}},
		{op: key(claimCall, a, 0, ""), reply: reply{verdict: "DUPLICATE", body: "result"}},
		{op: key(lookupCall, "", 0, ""), reply: reply{
			verdict: "COMPLETED", attempt: b, takeover: "RELEASED", number: 2, fence: 200, body: "result",
		}},
	}
	for i := range sends {
		sends[i].call, sends[i].end = int64(10*i), int64(10*i+5)
	}
	return sends
}
