package arbiter

import (
	"testing"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// TestMatrix takes every row of the contract's state machine through the
// arbiter.
func TestMatrix(t *testing.T) {
	t.Parallel()
	const (
		granted = claim.Granted
		doubt   = claim.Doubtful
		ended   = claim.AttemptEnded
		ok      = claim.OK
		stale   = claim.Stale
	)
	rows := []struct {
		name                       string
		reach                      func(r *rig, own claim.Request) claim.Fence
		policy                     func(*claim.Policy)
		other, own                 claim.Decision
		takeover                   claim.Takeover // of other's grant
		extend, complete, released claim.Status
	}{
		{"absent", absent, nil, granted, granted, claim.NoTakeover, stale, stale, stale},
		{"forgotten", forgotten, nil, granted, ended, claim.NoTakeover, stale, stale, stale},
		{"live", live, nil, claim.HeldByOther, granted, 0, ok, ok, ok},
		{"lapsed", lapsed, nil, granted, granted, claim.LeaseLapsed, stale, ok, ok},
		{"lapsed at the cap", lapsed, capped, doubt, granted, 0, stale, ok, ok},
		{"lapsed under HOLD", lapsed, holding, doubt, doubt, 0, stale, ok, ok},
		{"in doubt", inDoubt, capped, doubt, doubt, 0, stale, ok, ok},
		{"released", released, nil, granted, ended, claim.AttemptReleased, stale, ok, ok},
		{"released at the cap", released, capped, granted, ended, claim.AttemptReleased, stale, ok, ok},
		{"completed", completed, nil, claim.Duplicate, claim.Duplicate, 0, stale, ok, stale},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			own := func(event string) claim.Request {
				req := request(event, 1)
				if row.policy != nil {
					row.policy(&req.Policy)
				}
				return req
			}
			want := func(what string, got, want any) {
				t.Helper()
				if got != want {
					t.Errorf("%s: got %v, want %v", what, got, want)
				}
			}
			row.reach(r, own("other"))
			got := r.claim(request("other", 2))
			want("claim by another", got.Decision, row.other)
			want("takeover", got.Takeover, row.takeover)

			fence := row.reach(r, own("own"))
			got = r.claim(own("own"))
			want("own claim", got.Decision, row.own)
			if row.own == granted && row.name != "absent" {
				want("fence of own claim", got.Fence, fence)
			}
			if row.own == claim.Duplicate {
				want("own attempt", got.OwnAttempt, true)
				want("result", string(got.Completion.Body), "done")
			}
			for kind, status := range map[claim.TransitionKind]claim.Status{
				claim.Extend: row.extend, claim.Complete: row.complete, claim.Release: row.released,
			} {
				event := string(rune('0' + kind))
				reply := r.transition(kind, own(event), row.reach(r, own(event)))
				want("transition "+event, reply.Status, status)
				want("lost", reply.Lost, row.name == "absent" && kind == claim.Complete)
			}
		})
	}
}

func capped(p *claim.Policy)  { p.AttemptsMax = 1 }
func holding(p *claim.Policy) { p.Hold = true }

func absent(*rig, claim.Request) claim.Fence { return 1 }

func live(r *rig, own claim.Request) claim.Fence { return r.granted(own).Fence }

func lapsed(r *rig, own claim.Request) claim.Fence {
	fence := r.granted(own).Fence
	r.clock.Advance(own.Lease) // half open: at exactly its end the lease is over
	return fence
}

func inDoubt(r *rig, own claim.Request) claim.Fence {
	fence := lapsed(r, own)
	r.claim(request(own.Key.EventID, 99)) // meets the cap, and writes so
	if state := r.record(own.Key).State; state != claim.InDoubt {
		r.t.Errorf("in doubt is not written: %v", state)
	}
	return fence
}

func released(r *rig, own claim.Request) claim.Fence {
	fence := live(r, own)
	r.transition(claim.Release, own, fence)
	return fence
}

func completed(r *rig, own claim.Request) claim.Fence {
	fence := live(r, own)
	r.transition(claim.Complete, own, fence)
	return fence
}

func forgotten(r *rig, own claim.Request) claim.Fence {
	fence := completed(r, own)
	rec := r.record(own.Key)
	forget := claim.NewSwap(claim.Forget, &rec, nil)
	if found, err := r.store.Store.Replace(r.t.Context(), []claim.Swap{forget}); err != nil || !found[0].Applied {
		r.t.Fatal(found, err)
	}
	return fence
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := setup(t)
	digests := func(req claim.Request, value string) claim.Request {
		req.Digests = []claim.Digest{{Scheme: "raw-sha256", Value: []byte(value)}}
		return req
	}
	own := digests(request("order", 1), "three")
	completed(r, own)
	if got := r.claim(digests(request("order", 2), "four")); got.Decision != claim.Mismatch || got.Completion != nil {
		t.Errorf("another content: %+v", got)
	}
	if got := r.claim(digests(request("order", 2), "three")); got.Decision != claim.Duplicate {
		t.Errorf("the same content: %v", got.Decision)
	}

	old := request("old", 1)
	old.InsertBefore = claim.FromTime(r.clock.Now())
	if got := r.claim(old); got.Decision != claim.TooOld {
		t.Errorf("at the horizon: %v", got.Decision)
	}
	old.InsertBefore++
	if got := r.claim(old); got.Decision != claim.Granted {
		t.Errorf("after the horizon: %v", got.Decision)
	}

	other := completed(r, request("conflict", 1))
	again := transition(claim.Complete, request("conflict", 1), other)
	again.Completion = result("something else")
	if got := r.Transition(t.Context(), []claim.Transition{again}); got[0].Status != claim.ResultConflict {
		t.Errorf("another result: %+v", got[0])
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	r := setup(t)
	shot := request("shot", 1)
	shot.Record = result("done")
	first := r.granted(shot)
	if again := r.granted(shot); !first.Recorded || !again.Recorded || again.Fence != first.Fence {
		t.Errorf("first %+v, resent %+v", first, again)
	}
	if got := r.claim(request("shot", 2)); got.Decision != claim.Duplicate || string(got.Completion.Body) != "done" {
		t.Errorf("another attempt: %+v", got)
	}
	// On its own live grant: RecordOwn.
	own := request("late shot", 1)
	fence := r.granted(own).Fence
	own.Record = result("done")
	if got := r.granted(own); !got.Recorded || got.Fence != fence {
		t.Errorf("recorded on the own grant: %+v", got)
	}
	// On a takeover, in the same write.
	lapsed(r, request("taken over", 1))
	taken := request("taken over", 2)
	taken.Record = result("done")
	if got := r.granted(taken); !got.Recorded || got.Takeover != claim.LeaseLapsed {
		t.Errorf("recorded with a takeover: %+v", got)
	}
}

// TestTrips counts what each operation asks of the store.
func TestTrips(t *testing.T) {
	t.Parallel()
	claims := func(n int) func(*rig, claim.Request) {
		return func(r *rig, own claim.Request) { r.claim(request(own.Key.EventID, n)) }
	}
	transitions := func(kind claim.TransitionKind) func(*rig, claim.Request) {
		return func(r *rig, own claim.Request) { r.transition(kind, own, r.record(own.Key).Fence) }
	}
	expired := func(r *rig, own claim.Request) claim.Fence {
		fence := completed(r, own)
		r.clock.Advance(own.Policy.Retention + time.Hour)
		return fence
	}
	mismatch := func(r *rig, own claim.Request) {
		own.Digests = []claim.Digest{{Scheme: "raw-sha256", Value: []byte("x")}}
		if got := r.claim(own); got.Decision != claim.Mismatch {
			r.t.Errorf("got %v", got.Decision)
		}
	}
	for _, c := range []struct {
		name  string
		reach func(*rig, claim.Request) claim.Fence
		do    func(*rig, claim.Request)
		trips int64
	}{
		{"new", absent, claims(1), 1},
		{"resent", live, claims(1), 1},
		{"live in progress", live, claims(2), 1},
		{"duplicate", completed, claims(2), 1},
		{"mismatch", completed, mismatch, 1},
		{"complete", live, transitions(claim.Complete), 1},
		{"extend", live, transitions(claim.Extend), 1},
		{"release", live, transitions(claim.Release), 1},
		{"stale", completed, transitions(claim.Release), 1},
		{"takeover", lapsed, claims(2), 2},
		{"released", released, claims(2), 2},
		{"expired, not swept", expired, claims(2), 2},
		{"forgotten", forgotten, claims(2), 2},
		{"renewed", lapsed, claims(1), 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			own := request("order", 1)
			c.reach(r, own)
			before := r.store.trips()
			c.do(r, own)
			if got := r.store.trips() - before; got != c.trips {
				t.Errorf("%d trips, want %d", got, c.trips)
			}
		})
	}
}
