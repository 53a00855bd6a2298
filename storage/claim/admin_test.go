package claim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRule: what operators may do where. Every verb names the fence and the
// state that its operator has seen.
func TestRule(t *testing.T) {
	t.Parallel()
	const at, lapsed = t0 + 5, leaseEnd
	verb := func(kind SwapKind, seen State) Verb {
		return Verb{Kind: kind, Key: key, Fence: Fence(t0), State: seen, Result: sold}
	}
	movedOn := func(r *Record) { r.Fence++ }
	doubt, gone, over, tomb := with(live(), inDoubt), with(live(), released), with(live(), completed), with(live(), forgotten)
	for _, row := range []struct {
		rule string
		verb Verb
		rec  Record
		now  Time
		want Ruling
	}{
		{"Complete/Absent", verb(ResolveComplete, Absent), Record{}, at, Refused},
		{"Complete/Live", verb(ResolveComplete, InProgress), live(), at, Refused},
		{"Complete/Live/EvenUnderHold", verb(ResolveComplete, InProgress), with(live(), hold), lapsed - 1, Refused},
		{"Complete/LapsedRegrant", verb(ResolveComplete, InProgress), live(), lapsed, Refused},
		{"Complete/LapsedHold/BeforeTheMonitorWrote", verb(ResolveComplete, InDoubt), with(live(), hold), lapsed, SwapAllowed},
		{"Complete/InDoubt", verb(ResolveComplete, InDoubt), doubt, lapsed, SwapAllowed},
		{"Complete/Released", verb(ResolveComplete, Released), gone, at, Refused},
		{"Complete/Forgotten", verb(ResolveComplete, Forgotten), tomb, at, Refused},
		{"Complete/Completed/AnotherResult", verb(ResolveComplete, Completed), with(over, func(r *Record) { r.Completion = soldOut }), at, Refused},

		{"Retry/Absent", verb(ResolveRetry, Absent), Record{}, at, Refused},
		{"Retry/Live", verb(ResolveRetry, InProgress), live(), at, SwapAllowed},
		{"Retry/LapsedRegrant", verb(ResolveRetry, InProgress), live(), lapsed, SwapAllowed},
		{"Retry/LapsedHold", verb(ResolveRetry, InDoubt), with(live(), hold), lapsed, SwapAllowed},
		{"Retry/InDoubt", verb(ResolveRetry, InDoubt), doubt, lapsed, SwapAllowed},
		{"Retry/Completed", verb(ResolveRetry, Completed), over, at, Refused},
		{"Retry/Forgotten", verb(ResolveRetry, Forgotten), tomb, at, Refused},

		{"Forget/Absent", verb(Forget, Absent), Record{}, at, Refused},
		{"Forget/Live", verb(Forget, InProgress), live(), lapsed - 1, Refused},
		{"Forget/LapsedRegrant", verb(Forget, InProgress), live(), lapsed, SwapAllowed},
		{"Forget/LapsedHold", verb(Forget, InDoubt), with(live(), hold), lapsed, SwapAllowed},
		{"Forget/InDoubt", verb(Forget, InDoubt), doubt, lapsed, SwapAllowed},
		{"Forget/Released", verb(Forget, Released), gone, at, SwapAllowed},
		{"Forget/Completed", verb(Forget, Completed), over, at, SwapAllowed},
		{"Forget/Completed/Expired", verb(Forget, Completed), over, expiry, SwapAllowed},

		{"FenceMovedOn/Complete", verb(ResolveComplete, InDoubt), with(doubt, movedOn), lapsed, Refused},
		{"FenceMovedOn/Retry", verb(ResolveRetry, InProgress), with(live(), movedOn), at, Refused},
		{"FenceMovedOn/Forget", verb(Forget, Completed), with(over, movedOn), at, Refused},
		{"FenceMovedOn/EvenIfDone", verb(Forget, Completed), with(tomb, movedOn), at, Refused},
		{"StateMovedOn/Complete", verb(ResolveComplete, InProgress), doubt, lapsed, Refused},
		{"StateMovedOn/Retry/LapsedMeanwhileUnderHold", verb(ResolveRetry, InProgress), with(live(), hold), lapsed, Refused},
		{"StateMovedOn/Retry/CompletedMeanwhile", verb(ResolveRetry, InDoubt), over, at, Refused},
		{"StateMovedOn/Forget/CompletedMeanwhile", verb(Forget, InDoubt), over, at, Refused},

		{"ResentAfterItTookEffect/Complete", verb(ResolveComplete, InDoubt), over, at, Done},
		{"ResentAfterItTookEffect/Retry", verb(ResolveRetry, InDoubt), gone, at, Done},
		{"ResentAfterItTookEffect/Retry/WasLive", verb(ResolveRetry, InProgress), gone, at, Done},
		{"ResentAfterItTookEffect/Forget", verb(Forget, Completed), tomb, at, Done},
		{"ResentAfterItTookEffect/Forget/Expired", verb(Forget, Completed), tomb, expiry, Done},

		{"NotAVerb/PutInDoubt", verb(PutInDoubt, InProgress), live(), at, Refused},
		{"NotAVerb/NoSwap", verb(NoSwap, InProgress), live(), at, Refused},
		{"NotAVerb/TakeOver", verb(TakeOver, InProgress), live(), lapsed, Refused},
		{"NotAVerb/BeginAnew", verb(BeginAnew, Forgotten), tomb, lapsed, Refused},
		{"NotAVerb/Renew", verb(Renew, InProgress), live(), lapsed, Refused},
		{"NotAVerb/RecordOwn", verb(RecordOwn, InProgress), live(), at, Refused},
		{"NotAVerb/PutInDoubt/LapsedHold", verb(PutInDoubt, InDoubt), with(live(), hold), lapsed, Refused},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			got, s := row.verb.Rule(&row.rec, row.now)
			if got != row.want {
				t.Fatalf("ruling = %d, want %d", got, row.want)
			}
			if got != SwapAllowed {
				if s.Kind != NoSwap {
					t.Errorf("ruling %d comes with a swap: %+v", got, s)
				}
				return
			}
			want := Swap{
				Kind: row.verb.Kind, Key: key, Fence: row.rec.Fence, Version: row.rec.Version, Result: sold,
				From: row.rec.State, Digests: row.rec.Digests,
			}
			if row.verb.Kind == Forget {
				want.Digests = nil
			}
			if d := cmp.Diff(want, s); d != "" {
				t.Errorf("swap (-want +got):\n%s", d)
			}
			after, applied := s.Apply(&row.rec, row.now, 0)
			if !applied {
				t.Fatal("the guard refuses what the rule has just allowed")
			}
			if again, _ := row.verb.Rule(&after, row.now); again != Done {
				t.Errorf("the same verb resent: ruling %d, want Done", again)
			}
		})
	}
}

// TestAfterVerbs: what the attempt and others meet once an operator has ruled.
func TestAfterVerbs(t *testing.T) {
	t.Parallel()
	after := func(kind SwapKind, rec Record) Record {
		s := swapOf(kind)
		out, applied := s.Apply(&rec, leaseEnd, 0)
		if !applied {
			t.Fatalf("%s was refused", swapNames[kind])
		}
		return out
	}
	doubt, over := with(live(), inDoubt), with(live(), completed)
	resolved := replay(true)
	resolved.EndedAt = leaseEnd
	taken := next(leaseEnd, 2, AttemptReleased)
	runClaims(t, []claimRow{
		{"Complete/Own", after(ResolveComplete, doubt), ask(mine), leaseEnd, "", resolved},
		{"Retry/Own", after(ResolveRetry, doubt), ask(mine), leaseEnd, "", ended},
		{"Retry/Other", after(ResolveRetry, doubt), ask(other), leaseEnd, "take over", taken},
		{"Forget/Own", after(Forget, over), ask(mine), leaseEnd, "", ended},
		{"Forget/Own/OneShotResend", after(Forget, over), ask(mine, recording(sold)), leaseEnd, "", ended},
		{"Forget/Other", after(Forget, over), ask(other, digests(changed)), leaseEnd, "begin anew", first(leaseEnd, Fence(leaseEnd))},
	})
	retried, tomb := after(ResolveRetry, doubt), after(Forget, over)
	takeOver := NewSwap(TakeOver, &retried, new(ask(other)))
	nextGrant, _ := takeOver.Apply(&retried, leaseEnd, 0)
	runOwner(t, []ownerRow{
		{"Retry/LateCompletionWins", retried, complete(sold), leaseEnd, done(leaseEnd), ok(Completed)},
		{"Retry/UntilTheNextGrant", nextGrant, complete(sold), leaseEnd, nil, stale(InProgress)},
		{"Forget/LateCompletionResurrectsNothing", tomb, complete(sold), leaseEnd, nil, stale(Forgotten)},
	})
}
