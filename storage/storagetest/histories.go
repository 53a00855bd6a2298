package storagetest

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// historyGrace is short beside the leases and retentions of histories, so that
// sweeps happen among everything else.
const historyGrace = 20 * time.Second

// historyChapters makes a history as many times as long as -rapid.steps says:
// a life needs more steps than rapid's default to become interesting.
const historyChapters = 4

// Histories runs random scripts of claims, transitions, admin verbs, bare
// swaps, clock moves to exact boundaries, sweeps, reads and restarts on the
// model and on every backend. All answers must be equal, and the invariants
// must hold. A failure prints the shortest script that rapid could find and
// the seed; -rapid.checks and -rapid.steps make runs longer.
func Histories(t *testing.T, backends map[string]Backend) {
	t.Helper()
	forwardOnly := false
	for _, b := range backends {
		forwardOnly = forwardOnly || b.ForwardOnly
	}
	rapid.Check(t, func(rt *rapid.T) {
		clock := NewClock(Start)
		h := &script{T: rt, clock: clock}
		h.chorus = newChorus(rapidT{T: rt, outer: t}, backends, clock, historyGrace)
		actions := h.actions()
		if forwardOnly {
			delete(actions, "clock goes back")
		}
		for range historyChapters {
			rt.Repeat(actions)
		}
		h.readAll()
		if err := CheckInvariants(h.history); err != nil {
			rt.Fatalf("%v", err)
		}
		h.purge(rt)
		for _, v := range h.chorus.voices {
			if err := v.store.Close(); err != nil {
				rt.Fatalf("Close of %s: %v", v.name, err)
			}
		}
	})
}

func (h *script) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"claim": h.claim, "claim again": h.claim, "transition": h.transition, "transition again": h.transition,
		"verb": h.verb, "monitor": h.monitor, "swap": h.swap,
		"advance": h.advance, "to a boundary": h.boundary, "to another boundary": h.boundary, "clock goes back": h.back,
		"sweep": h.sweep, "read": h.read, "tally": h.tally, "reopen": h.reopen,
	}
}

// rapidT is rapid's T with the temporary folders of the test around it.
type rapidT struct {
	*rapid.T
	outer T
}

// TempDir implements T.
func (t rapidT) TempDir() string { return t.outer.TempDir() }

// script is one history while it is made.
type script struct {
	*rapid.T
	clock   *Clock
	chorus  *chorus
	history []Event
}

func (h *script) now() claim.Time {
	h.chorus.mu.Lock()
	defer h.chorus.mu.Unlock()
	return max(h.chorus.mu.high, claim.FromTime(h.clock.Now()))
}

// claim asks for one to four keys at once, through the decide loop.
func (h *script) claim(t *rapid.T) {
	var reqs []claim.Request
	for _, k := range drawKeys(t) {
		reqs = append(reqs, h.drawRequest(t, k))
	}
	before := h.chorus.peek(keysOf(reqs)...)
	answers, err := Claim(t.Context(), h.chorus, reqs)
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	after := h.chorus.peek(keysOf(reqs)...)
	for i := range reqs {
		h.history = append(h.history, Event{
			Now: h.now(), Before: before[i], After: after[i], Request: &reqs[i], Answer: answers[i],
		})
		t.Logf("claim %q by %d: %s, fence %d", reqs[i].Key.EventID, reqs[i].Attempt[15], answers[i].Decision, answers[i].Fence)
	}
}

func keysOf(reqs []claim.Request) []claim.Key {
	keys := make([]claim.Key, len(reqs))
	for i := range reqs {
		keys[i] = reqs[i].Key
	}
	return keys
}

// transition comes from the owner, or from one whose attempt or fence is
// another's.
func (h *script) transition(t *rapid.T) {
	var ts []claim.Transition
	keys := []claim.Key{h.pick(t, func(rec *claim.Record) bool { return rec.State == claim.InProgress })}
	if rapid.IntRange(0, 3).Draw(t, "several") == 3 {
		keys = drawKeys(t)
	}
	before := h.chorus.peek(keys...)
	for i, k := range keys {
		who := before[i]
		who.Key = k
		if who.State == claim.Absent || rapid.IntRange(0, 9).Draw(t, "stranger") == 0 {
			who.AttemptID = drawAttempt(t)
		}
		if rapid.IntRange(0, 9).Draw(t, "other fence") == 0 {
			who.Fence += rapid.SampledFrom([]claim.Fence{-1, 1}).Draw(t, "fence")
		}
		ts = append(ts, drawTransition(t, who))
	}
	replies, err := Move(t.Context(), h.chorus, ts)
	if err != nil {
		t.Fatalf("transition: %v", err)
	}
	after := h.chorus.peek(keys...)
	for i := range ts {
		h.history = append(h.history, Event{
			Now: h.now(), Before: before[i], After: after[i], Transition: &ts[i], Reply: replies[i],
		})
		t.Logf("transition %d of %q by %d: %s in %s", ts[i].Kind, ts[i].Key.EventID, ts[i].Attempt[15], replies[i].Status, replies[i].State)
	}
}

// verb is an operator's, who may have seen an older state.
func (h *script) verb(t *rapid.T) {
	k := h.pick(t, func(rec *claim.Record) bool { return rec.Effective(h.now()) == claim.InDoubt })
	rec := h.chorus.peek(k)[0]
	v := claim.Verb{
		Kind: rapid.SampledFrom([]claim.SwapKind{claim.ResolveComplete, claim.ResolveRetry, claim.Forget}).Draw(t, "kind"),
		Key:  k, Fence: rec.Fence, State: rec.Effective(h.now()), Result: drawResult(t),
	}
	if rapid.IntRange(0, 9).Draw(t, "saw another fence") == 0 {
		v.Fence--
	}
	if rapid.IntRange(0, 9).Draw(t, "saw another state") == 0 {
		v.State = claim.State(rapid.IntRange(0, 5).Draw(t, "state"))
	}
	ruling, s := v.Rule(&rec, h.now())
	t.Logf("verb %d on %q: ruling %d", v.Kind, k.EventID, ruling)
	if ruling == claim.SwapAllowed {
		h.replace(t, &s, true)
	}
}

// monitor puts in doubt what it takes for lapsed.
func (h *script) monitor(t *rapid.T) {
	k := h.pick(t, func(rec *claim.Record) bool { return rec.Lapsed(h.now()) && (rec.Policy.Hold || rec.AtCap()) })
	s := swapOf(claim.PutInDoubt, h.chorus.peek(k)[0], nil)
	s.Key = k
	h.replace(t, &s, true)
}

// swap sends a swap that no rule has asked for: its guard alone decides. What
// claims do this way is not a history of answers, so a grant made here is
// looked up by its attempt right away.
func (h *script) swap(t *rapid.T) {
	k := h.pick(t, func(rec *claim.Record) bool {
		return rec.State == claim.Released || rec.Lapsed(h.now()) || rec.Expired(h.now())
	})
	rec := h.chorus.peek(k)[0]
	req := h.drawRequest(t, k)
	s := swapOf(rapid.SampledFrom([]claim.SwapKind{claim.BeginAnew, claim.TakeOver, claim.Renew}).Draw(t, "kind"), rec, &req)
	s.Key = k
	if rapid.IntRange(0, 3).Draw(t, "stale") == 0 {
		s.Version -= rapid.Int64Range(0, 1).Draw(t, "version behind")
		s.Fence -= claim.Fence(rapid.Int64Range(0, 1).Draw(t, "fence behind"))
	}
	req.Record = nil
	after := h.replace(t, &s, false)
	if after.Version == rec.Version {
		return
	}
	h.history = append(h.history, Event{
		Now: h.now(), Before: rec, After: after, Request: &req, Answer: claim.Answer{
			Decision: claim.Granted, Fence: after.Fence, Lease: after.LeaseUntil.Sub(h.now()),
			Takeover: after.Takeover, Attempt: after.Attempt, ExpiresAt: after.ExpiresAt,
		},
	})
}

func (h *script) replace(t *rapid.T, s *claim.Swap, record bool) claim.Record {
	before := h.chorus.peek(s.Key)[0]
	found, err := h.chorus.Replace(t.Context(), []claim.Swap{*s})
	if err != nil {
		t.Fatalf("replace: %v", err)
	}
	t.Logf("swap %d on %q: applied %t", s.Kind, s.Key.EventID, found[0].Applied)
	if record {
		h.history = append(h.history, Event{Now: h.now(), Before: before, After: found[0].Record, Swap: s})
	}
	return found[0].Record
}

func (h *script) advance(t *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{
		0, time.Microsecond, time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second, 30 * time.Minute,
	}).Draw(t, "by")
	h.clock.Advance(d)
	t.Logf("advance by %v", d)
}

// boundary goes to where a guard changes its mind, or one microsecond beside.
func (h *script) boundary(t *rapid.T) {
	rec := h.chorus.peek(h.pick(t, func(rec *claim.Record) bool { return rec.State == claim.InProgress }))[0]
	if rec.State == claim.Absent {
		return
	}
	at := rapid.SampledFrom([]claim.Time{
		rec.LeaseUntil, rec.HoldUntil, rec.ExpiresAt, rec.ExpiresAt.Add(historyGrace),
	}).Draw(t, "at")
	at += claim.Time(rapid.Int64Range(-1, 1).Draw(t, "beside"))
	if at < h.now() {
		return
	}
	h.clock.Set(at.Std())
	t.Logf("clock to %v", at.Std())
}

// back is seen by stores that have all seen where the clock stood.
func (h *script) back(t *rapid.T) {
	if _, err := h.chorus.Get(t.Context(), historyKeys()[:1]); err != nil {
		t.Fatalf("get: %v", err)
	}
	d := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, time.Minute}).Draw(t, "by")
	h.clock.Advance(-d)
	t.Logf("clock back by %v", d)
}

func (h *script) sweep(t *rapid.T) { t.Logf("swept %d", h.chorus.sweepAll()) }

func (h *script) read(t *rapid.T) {
	l := storage.List{
		Tenant:   rapid.SampledFrom(historyTenants).Draw(t, "tenant"),
		Consumer: rapid.SampledFrom(append([]string{""}, historyConsumers...)).Draw(t, "consumer"),
		Limit:    rapid.IntRange(1, 4).Draw(t, "limit"),
	}
	if l.Consumer != "" {
		l.Prefix = rapid.SampledFrom([]string{"", "e", "é"}).Draw(t, "prefix")
	}
	if rapid.Bool().Draw(t, "by state") {
		l.States = []claim.State{claim.State(rapid.IntRange(1, 5).Draw(t, "state"))}
	}
	t.Logf("list %+v", l)
	h.chorus.listAll(l)
}

func (h *script) tally(t *rapid.T) {
	step := drawTenantStep(t)
	t.Logf("tally %+v", step)
	h.chorus.tallyAll(step)
}

// purge ends a history: the ID of a tenant that was purged is never used again.
func (h *script) purge(t *rapid.T) {
	step := drawTenantStep(t)
	t.Logf("purge %+v: %d records", step, h.chorus.purgeAll(step))
	h.readAll()
	h.reopen(t)
}

// reopen restarts the stores on a clock that is not behind what they have seen:
// what only a read has seen need not be remembered.
func (h *script) reopen(t *rapid.T) {
	h.clock.Set(h.now().Std())
	t.Logf("close and open again at %v", h.clock.Now())
	h.chorus.reopen()
	h.readAll()
}

// readAll compares everything that can be read.
func (h *script) readAll() {
	if _, err := h.chorus.Get(h.Context(), historyKeys()); err != nil {
		h.Fatalf("get: %v", err)
	}
	h.chorus.scanAll()
	for _, tenant := range historyTenants {
		h.chorus.listAll(storage.List{Tenant: tenant, Limit: 3})
		h.chorus.tallyAll(storage.TenantStep{Tenant: tenant, Limit: storage.TenantStepMax})
	}
}
