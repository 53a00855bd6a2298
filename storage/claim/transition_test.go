package claim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func complete(c *Completion) Transition {
	return Transition{Kind: Complete, Key: key, Attempt: mine, Fence: Fence(t0), Completion: c}
}

func extend(d time.Duration) Transition {
	return Transition{Kind: Extend, Key: key, Attempt: mine, Fence: Fence(t0), Lease: d}
}

func release() Transition {
	return Transition{Kind: Release, Key: key, Attempt: mine, Fence: Fence(t0)}
}

// ownerRow is one rule about what an owner does. becomes is what changes in
// the record besides its version; nil means that nothing may change.
type ownerRow struct {
	rule    string
	rec     Record
	do      Transition
	now     Time
	becomes func(*Record)
	want    Reply
}

func runOwner(t *testing.T, rows []ownerRow) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			before := row.rec
			next, changed, reply := row.do.Apply(&row.rec, row.now)
			if d := cmp.Diff(row.want, reply); d != "" {
				t.Errorf("reply (-want +got):\n%s", d)
			}
			if d := cmp.Diff(before, row.rec); d != "" {
				t.Errorf("Apply changed the record it was given:\n%s", d)
			}
			want := Record{}
			if row.becomes != nil {
				want = with(before, row.becomes, func(r *Record) { r.Version++ })
			}
			if d := cmp.Diff(want, next); d != "" || changed != (row.becomes != nil) {
				t.Errorf("changed = %v, record (-want +got):\n%s", changed, d)
			}
			explained, again := row.do.Explain(&row.rec, row.now)
			if explained != reply || again != changed {
				t.Errorf("Explain = %+v, %v; Apply = %+v, %v", explained, again, reply, changed)
			}
		})
	}
}

func ok(s State) Reply    { return Reply{Status: OK, State: s, ExpiresAt: expiry} }
func stale(s State) Reply { return Reply{Status: Stale, State: s, ExpiresAt: expiry} }

func okExtend(left time.Duration) Reply {
	return Reply{Status: OK, State: InProgress, Lease: left, ExpiresAt: expiry}
}

func done(at Time) func(*Record) {
	return func(r *Record) { r.State, r.Completion, r.EndedAt = Completed, sold, at }
}

func letGo(at Time) func(*Record) {
	return func(r *Record) { r.State, r.EndedAt = Released, at }
}

func leaseUntil(at Time) func(*Record) {
	return func(r *Record) { r.LeaseUntil = at }
}

// TestTransition is the three owner columns of the matrix, cell by cell.
func TestTransition(t *testing.T) {
	t.Parallel()
	const at, lapsed = t0 + 5, leaseEnd
	lost := Reply{Status: Stale, State: Absent, Lost: true}
	runOwner(t, []ownerRow{
		{"Absent/Extend", Record{}, extend(lease), at, nil, Reply{Status: Stale}},
		{"Absent/Complete/WithFinding", Record{}, complete(sold), at, nil, lost},
		{"Absent/Release", Record{}, release(), at, nil, Reply{Status: Stale}},

		{"Forgotten/Extend", with(live(), forgotten), extend(lease), at, nil, stale(Forgotten)},
		{"Forgotten/Complete/WithoutFinding", with(live(), forgotten), complete(sold), at, nil, stale(Forgotten)},
		{"Forgotten/Release", with(live(), forgotten), release(), at, nil, stale(Forgotten)},

		{"InProgressLive/Extend", live(), extend(lease), at, leaseUntil(at.Add(lease)), okExtend(lease)},
		{"InProgressLive/Complete", live(), complete(sold), at, done(at), ok(Completed)},
		{"InProgressLive/Release", live(), release(), at, letGo(at), ok(Released)},

		{"LapsedRegrant/Extend", live(), extend(lease), lapsed, nil, stale(InProgress)},
		{"LapsedRegrant/Complete/OwnerKnowsBest", live(), complete(sold), lapsed, done(lapsed), ok(Completed)},
		{"LapsedRegrant/Release", live(), release(), lapsed, letGo(lapsed), ok(Released)},
		{"LapsedRegrantAtCap/Extend", with(live(), atCap), extend(lease), lapsed, nil, stale(InProgress)},
		{"LapsedRegrantAtCap/Complete", with(live(), atCap), complete(sold), lapsed, done(lapsed), ok(Completed)},
		{"LapsedRegrantAtCap/Release", with(live(), atCap), release(), lapsed, letGo(lapsed), ok(Released)},

		{"LapsedHold/Extend", with(live(), hold), extend(lease), lapsed, nil, stale(InDoubt)},
		{"LapsedHold/Complete/OwnerKnowsBest", with(live(), hold), complete(sold), lapsed, done(lapsed), ok(Completed)},
		{"LapsedHold/Release", with(live(), hold), release(), lapsed, letGo(lapsed), ok(Released)},
		{"InDoubt/Extend", with(live(), inDoubt), extend(lease), lapsed, nil, stale(InDoubt)},
		{"InDoubt/Complete/OwnerKnowsBest", with(live(), inDoubt), complete(sold), lapsed, done(lapsed), ok(Completed)},
		{"InDoubt/Release", with(live(), inDoubt), release(), lapsed, letGo(lapsed), ok(Released)},

		{"Released/Extend", with(live(), released), extend(lease), at, nil, stale(Released)},
		{"Released/Complete/OwnerKnowsBest", with(live(), released), complete(sold), at, done(at), ok(Completed)},
		{"Released/Release/Again", with(live(), released), release(), at, nil, ok(Released)},

		{"Completed/Extend", with(live(), completed), extend(lease), at, nil, stale(Completed)},
		{"Completed/Complete/SameResult", with(live(), completed), complete(result("sold")), at, nil, ok(Completed)},
		{"Completed/Complete/AnotherResult", with(live(), completed), complete(soldOut), at, nil, Reply{
			Status: ResultConflict, State: Completed, ExpiresAt: expiry,
		}},
		{"Completed/Release", with(live(), completed), release(), at, nil, stale(Completed)},

		{"UnknownKind", live(), Transition{Key: key, Attempt: mine, Fence: Fence(t0)}, at, nil, stale(InProgress)},
	})
}

// TestTransitionBoundaries: leases are half open, extensions end at the maximum
// hold and never shorten a lease.
func TestTransitionBoundaries(t *testing.T) {
	t.Parallel()
	nearHold := with(live(), leaseUntil(holdEnd-2))
	runOwner(t, []ownerRow{
		{"Extend/JustBeforeLeaseEnd", live(), extend(lease), leaseEnd - 1, leaseUntil((leaseEnd - 1).Add(lease)), okExtend(lease)},
		{"Extend/ExactlyAtLeaseEnd", live(), extend(lease), leaseEnd, nil, stale(InProgress)},
		{"Extend/JustAfterLeaseEnd", live(), extend(lease), leaseEnd + 1, nil, stale(InProgress)},
		{"Extend/NeverShortens", live(), extend(time.Second), t0 + 5, leaseUntil(leaseEnd), okExtend(lease - 5*tick)},
		{"Extend/JustBelowMaximumHold", live(), extend(holdMax - tick), t0, leaseUntil(holdEnd - 1), okExtend(holdMax - tick)},
		{"Extend/ExactlyMaximumHold", live(), extend(holdMax), t0, leaseUntil(holdEnd), okExtend(holdMax)},
		{"Extend/BeyondMaximumHold", live(), extend(holdMax + tick), t0, leaseUntil(holdEnd), okExtend(holdMax)},
		{"Extend/MaximumHoldReached", with(live(), leaseUntil(holdEnd)), extend(lease), holdEnd - 1, leaseUntil(holdEnd), okExtend(tick)},
		{"Extend/LastStepToMaximumHold", nearHold, extend(lease), holdEnd - 3, leaseUntil(holdEnd), okExtend(3 * tick)},

		{"Complete/AfterExpiry", live(), complete(sold), expiry, func(r *Record) {
			done(expiry)(r)
			r.ExpiresAt = expiry.Add(window)
		}, Reply{Status: OK, State: Completed, ExpiresAt: expiry.Add(window)}},
		{"Complete/ReleasedAndExpired", with(live(), released), complete(sold), expiry + 1, func(r *Record) {
			done(expiry + 1)(r)
			r.ExpiresAt = (expiry + 1).Add(window)
		}, Reply{Status: OK, State: Completed, ExpiresAt: (expiry + 1).Add(window)}},
		{"Complete/CompletedAndExpired/SameResult", with(live(), completed), complete(sold), expiry, nil, ok(Completed)},
	})
}

// TestTransitionNotTheOwner (I4): another attempt, or another fence of the same
// attempt, is told STALE with the state, and changes nothing anywhere.
func TestTransitionNotTheOwner(t *testing.T) {
	t.Parallel()
	records := map[string]Record{
		"Absent": {}, "Forgotten": with(live(), forgotten), "Live": live(), "LapsedHold": with(live(), hold),
		"InDoubt": with(live(), inDoubt), "Released": with(live(), released), "Completed": with(live(), completed),
	}
	strangers := map[string]func(*Transition){
		"OtherAttempt":     func(tr *Transition) { tr.Attempt = other },
		"OlderFence":       func(tr *Transition) { tr.Fence-- },
		"NewerFence":       func(tr *Transition) { tr.Fence++ },
		"NoFence":          func(tr *Transition) { tr.Fence = 0 },
		"NoAttempt":        func(tr *Transition) { tr.Attempt = AttemptID{} },
		"NeitherIsTheirs":  func(tr *Transition) { tr.Attempt, tr.Fence = other, tr.Fence+1 },
		"ZeroForBothTakes": func(tr *Transition) { tr.Attempt, tr.Fence = AttemptID{}, 0 },
	}
	var rows []ownerRow
	for state, rec := range records {
		for who, change := range strangers {
			for _, do := range []Transition{complete(sold), extend(lease), release()} {
				change(&do)
				want := Reply{Status: Stale, State: rec.Effective(leaseEnd), ExpiresAt: rec.ExpiresAt}
				want.Lost = do.Kind == Complete && rec.State == Absent
				name := state + "/" + who + "/" + [...]string{"", "Complete", "Extend", "Release"}[do.Kind]
				rows = append(rows, ownerRow{name, rec, do, leaseEnd, nil, want})
			}
		}
	}
	runOwner(t, rows)
}

// TestTransitionApplied: a driver that has written answers as Apply would.
func TestTransitionApplied(t *testing.T) {
	t.Parallel()
	for _, do := range []Transition{complete(sold), extend(lease), release()} {
		after, changed, want := do.Apply(new(live()), t0+5)
		if got := do.Applied(&after, t0+5); got != want || !changed {
			t.Errorf("kind %d: Applied = %+v, Apply = %+v (changed %v)", do.Kind, got, want, changed)
		}
	}
}
