package storagetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/warifu/warifu/storage/claim"
)

// TestCheckInvariants: a history that breaks one invariant is refused for it,
// and the same history unbroken is not.
func TestCheckInvariants(t *testing.T) {
	t.Parallel()
	now := claim.FromTime(Start)
	one, two, own := request("a", 1), request("a", 2), request("a", 1)
	first := claim.Fresh(&one, now, 0)
	finishing := complete(first, result("one"))
	done, _, reply := finishing.Apply(&first, now)
	grant := func(r *claim.Request, at claim.Time, fence claim.Fence, before, after claim.Record) Event {
		return Event{Now: at, Before: before, After: after, Request: r, Answer: claim.Answer{
			Decision: claim.Granted, Attempt: 1, Fence: fence, Lease: testLease, ExpiresAt: after.ExpiresAt,
		}}
	}
	asked := func(at claim.Time, d claim.Decision, c *claim.Completion) Event {
		return Event{Now: at, Before: done, After: done, Request: &two, Answer: claim.Answer{Decision: d, Completion: c}}
	}
	granted := grant(&one, now, first.Fence, claim.Record{}, first)
	completed := Event{Now: now, Before: first, After: done, Transition: &finishing, Reply: reply}
	stranger := finishing
	stranger.Attempt = two.Attempt
	changedStale := first
	changedStale.Version++
	soon := first
	soon.ExpiresAt = now.Add(time.Second)
	otherBytes := *result("one")
	otherBytes.Body = []byte("other bytes, same sum")

	for _, c := range []struct {
		name, want string
		history    []Event
	}{
		{"a life", "", []Event{granted, completed, asked(now, claim.Duplicate, result("one")), asked(now, claim.Mismatch, nil)}},
		{"forgotten at its expiry", "", []Event{granted, completed, grant(&two, done.ExpiresAt, first.Fence+1, done, claim.Fresh(&two, done.ExpiresAt, 0))}},
		{"a lapsed lease", "", []Event{granted, grant(&two, first.LeaseUntil, first.Fence+1, first, first)}},
		{"a smaller fence", "I1", []Event{granted, grant(&two, first.LeaseUntil, first.Fence-1, first, first)}},
		{"a fence of another", "I1", []Event{granted, grant(&two, first.LeaseUntil, first.Fence, first, first)}},
		{"two live grants", "I2", []Event{granted, grant(&two, first.LeaseUntil-1, first.Fence+1, first, first)}},
		{"granted after completion", "I3", []Event{granted, completed, grant(&two, done.ExpiresAt-1, first.Fence+1, done, claim.Fresh(&two, done.ExpiresAt-1, 0))}},
		{"in progress after completion", "I3", []Event{granted, completed, asked(now, claim.HeldByOther, nil)}},
		{"another result", "I3", []Event{granted, completed, asked(now, claim.Duplicate, result("two"))}},
		{"other bytes", "I3", []Event{granted, completed, asked(now, claim.Duplicate, &otherBytes)}},
		{"stranger acknowledged", "I4", []Event{granted, {Now: now, Before: first, After: first, Transition: &stranger, Reply: reply}}},
		{"stale, but changed", "I4", []Event{granted, {
			Now: now, Before: first, After: changedStale, Transition: &finishing, Reply: claim.Reply{Status: claim.Stale},
		}}},
		{"mismatch, but changed", "I4", []Event{granted, {
			Now: now, Before: first, After: changedStale, Request: &two, Answer: claim.Answer{Decision: claim.Mismatch},
		}}},
		{"a resend that changes its grant", "I5", []Event{granted, grant(&own, now, first.Fence, first, changedStale)}},
		{"expires within a window", "window", []Event{grant(&one, now, first.Fence, claim.Record{}, soon)}},
	} {
		err := CheckInvariants(c.history)
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestHistoriesMeetEverything: the scripts are worth something only if they
// reach what can happen.
func TestHistoriesMeetEverything(t *testing.T) {
	t.Parallel()
	met := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		h := &script{T: rt, clock: NewClock(Start)}
		h.chorus = newChorus(rapidT{T: rt, outer: t}, nil, h.clock, historyGrace)
		for range historyChapters {
			rt.Repeat(h.actions())
		}
		for i := range h.history {
			switch ev := &h.history[i]; {
			case ev.Request != nil:
				met[ev.Answer.Decision.String()]++
				met[fmt.Sprintf("takeover %d", ev.Answer.Takeover)]++
			case ev.Transition != nil:
				met[fmt.Sprintf("kind %d %s", ev.Transition.Kind, ev.Reply.Status)]++
			case ev.Before.Version != ev.After.Version:
				met[fmt.Sprintf("swap %d", ev.Swap.Kind)]++
			}
		}
	})
	t.Logf("met %v", met)
	for _, want := range []string{
		"GRANTED", "DUPLICATE", "IN_PROGRESS", "MISMATCH", "IN_DOUBT", "TOO_OLD", "ATTEMPT_ENDED", "takeover 1", "takeover 2",
		"kind 1 OK", "kind 1 STALE", "kind 1 RESULT_CONFLICT", "kind 2 OK", "kind 2 STALE", "kind 3 OK", "kind 3 STALE",
		"swap 5", "swap 6", "swap 7", "swap 8",
	} {
		if met[want] == 0 {
			t.Errorf("no history met %s", want)
		}
	}
}

func TestFloatingFences(t *testing.T) {
	t.Parallel()
	c := &chorus{t: t}
	v := &voice{name: "float", Backend: Backend{FencesFloat: true}, fences: map[claim.Key]map[claim.Fence]claim.Fence{}}
	record := func(fence claim.Fence) claim.Record {
		req := request("a", 1)
		rec := claim.Fresh(&req, 1, 0)
		rec.Fence = fence
		return rec
	}
	for _, pair := range [][2]claim.Fence{{100, 10}, {100, 10}, {101, 11}} {
		if got := c.normal(v, record(pair[0]), record(pair[1])); got.Fence != pair[1] {
			t.Errorf("fence %d became %d, want %d", pair[0], got.Fence, pair[1])
		}
	}
	if got := c.normal(v, record(105), record(11)); got.Fence == 11 {
		t.Error("a grant changed its fence unnoticed")
	}
	if v.fence(key("a"), 11) != 101 || v.fence(key("a"), 12) != noFence || v.fence(key("b"), 11) != noFence {
		t.Error("fences are translated wrongly")
	}
}
