package claim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// claimRow is one rule of the contract: who asks what of which record at which
// instant, by which write the answer comes about ("" for none), and the answer.
type claimRow struct {
	rule string
	rec  Record
	req  Request
	now  Time
	via  string
	want Answer
}

func runClaims(t *testing.T, rows []claimRow) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			via, after, got := settle(t, row.rec, &row.req, row.now)
			if via != row.via {
				t.Errorf("written by %q, want %q", via, row.via)
			}
			if d := cmp.Diff(row.want, got); d != "" {
				t.Errorf("answer (-want +got):\n%s", d)
			}
			if d := cmp.Diff(row.rec, after); row.via == "" && d != "" {
				t.Errorf("an answer without a write changed the record:\n%s", d)
			}
		})
	}
}

// first is the grant of a new life at now.
func first(now Time, fence Fence) Answer {
	return Answer{Decision: Granted, Attempt: 1, Fence: fence, Lease: lease, ExpiresAt: now.Add(kept)}
}

// again is the grant that live() stands for, with what is left of its lease.
func again(left time.Duration) Answer {
	return Answer{Decision: Granted, Attempt: 1, Fence: Fence(t0), Lease: left, ExpiresAt: expiry}
}

// next is the grant that follows live() at now.
func next(now Time, attempt uint32, cause Takeover) Answer {
	return Answer{
		Decision: Granted, Takeover: cause, Attempt: attempt, Fence: Fence(now), Lease: lease,
		ExpiresAt: expiry,
	}
}

func replay(own bool) Answer {
	return Answer{
		Decision: Duplicate, OwnAttempt: own, Attempt: 1, Completion: sold, ExpiresAt: expiry, EndedAt: t0 + 1,
	}
}

func heldFor(left time.Duration) Answer {
	return Answer{Decision: HeldByOther, RetryAfter: left, ExpiresAt: expiry}
}

var (
	ended    = Answer{Decision: AttemptEnded}
	doubtful = Answer{Decision: Doubtful}
	mismatch = Answer{Decision: Mismatch}
	tooOld   = Answer{Decision: TooOld}
)

// TestDecide is the two claim columns of the matrix, cell by cell.
func TestDecide(t *testing.T) {
	t.Parallel()
	const lapsed, at = leaseEnd, t0 + 5
	fresh := Fence(lapsed)
	runClaims(t, []claimRow{
		{"Absent/OtherAttempt", Record{}, ask(other), lapsed, "insert", first(lapsed, fresh)},
		{"Absent/Own", Record{}, ask(mine), lapsed, "insert", first(lapsed, fresh)},

		{"Forgotten/OtherAttempt", with(live(), forgotten), ask(other), lapsed, "begin anew", first(lapsed, fresh)},
		{"Forgotten/Own", with(live(), forgotten), ask(mine), lapsed, "", ended},

		{"InProgressLive/OtherAttempt", live(), ask(other), at, "", heldFor(lease - 5*tick)},
		{"InProgressLive/Own", live(), ask(mine), at, "", again(lease - 5*tick)},
		{"InProgressLive/HoldChangesNothing/OtherAttempt", with(live(), hold), ask(other), at, "", heldFor(lease - 5*tick)},
		{"InProgressLive/HoldChangesNothing/Own", with(live(), hold), ask(mine), at, "", again(lease - 5*tick)},
		{"InProgressLive/CapChangesNothing/OtherAttempt", with(live(), atCap), ask(other), at, "", heldFor(lease - 5*tick)},

		{"LapsedRegrant/OtherAttempt", live(), ask(other), lapsed, "take over", next(lapsed, 2, LeaseLapsed)},
		{"LapsedRegrant/OtherAttempt/LastBelowCap", with(live(), belowCap), ask(other), lapsed, "take over", next(lapsed, 3, LeaseLapsed)},
		{"LapsedRegrant/OtherAttempt/AtCap", with(live(), atCap), ask(other), lapsed, "put in doubt", doubtful},
		{"LapsedRegrant/OtherAttempt/BeyondCap", with(live(), atCap, func(r *Record) { r.Attempt = 4 }), ask(other), lapsed, "put in doubt", doubtful},
		{"LapsedRegrant/Own", live(), ask(mine), lapsed, "renew", again(lease)},
		{"LapsedRegrant/Own/AtCap", with(live(), atCap), ask(mine), lapsed, "renew", Answer{
			Decision: Granted, Attempt: 3, Fence: Fence(t0), Lease: lease, ExpiresAt: expiry,
		}},

		{"LapsedHold/OtherAttempt", with(live(), hold), ask(other), lapsed, "", doubtful},
		{"LapsedHold/Own", with(live(), hold), ask(mine), lapsed, "", doubtful},
		{"InDoubt/OtherAttempt", with(live(), inDoubt), ask(other), lapsed, "", doubtful},
		{"InDoubt/Own", with(live(), inDoubt), ask(mine), lapsed, "", doubtful},
		{"InDoubt/BeforeLeaseEnd", with(live(), inDoubt), ask(mine), at, "", doubtful},

		{"Released/OtherAttempt", with(live(), released), ask(other), at, "take over", next(at, 2, AttemptReleased)},
		{"Released/OtherAttempt/AtCap", with(live(), released, atCap), ask(other), at, "take over", next(at, 4, AttemptReleased)},
		{"Released/OtherAttempt/Hold", with(live(), released, hold), ask(other), lapsed, "take over", next(lapsed, 2, AttemptReleased)},
		{"Released/Own", with(live(), released), ask(mine), at, "", ended},

		{"Completed/OtherAttempt", with(live(), completed), ask(other), at, "", replay(false)},
		{"Completed/Own", with(live(), completed), ask(mine), at, "", replay(true)},
		{"Completed/HoldAndLapsed", with(live(), completed, hold), ask(other), lapsed, "", replay(false)},

		{"UnknownState/OtherAttempt", with(live(), func(r *Record) { r.State = 99 }), ask(other), at, "", doubtful},
		{"UnknownState/Own", with(live(), func(r *Record) { r.State = 99 }), ask(mine), at, "", doubtful},
	})
}

// TestDecideBoundaries: half open everywhere. At exactly lease_until the lease
// is over, at exactly expires_at the record is expired, at exactly
// insert_before an absent key is too old.
func TestDecideBoundaries(t *testing.T) {
	t.Parallel()
	done, doneHold := with(live(), completed), with(live(), completed, hold)
	gone, tomb := with(live(), released), with(live(), forgotten)
	runClaims(t, []claimRow{
		{"LeaseUntil/JustBefore/OtherAttempt", live(), ask(other), leaseEnd - 1, "", heldFor(tick)},
		{"LeaseUntil/Exactly/OtherAttempt", live(), ask(other), leaseEnd, "take over", next(leaseEnd, 2, LeaseLapsed)},
		{"LeaseUntil/JustAfter/OtherAttempt", live(), ask(other), leaseEnd + 1, "take over", next(leaseEnd+1, 2, LeaseLapsed)},
		{"LeaseUntil/JustBefore/Own", live(), ask(mine), leaseEnd - 1, "", again(tick)},
		{"LeaseUntil/Exactly/Own", live(), ask(mine), leaseEnd, "renew", again(lease)},
		{"LeaseUntil/JustBefore/Hold", with(live(), hold), ask(other), leaseEnd - 1, "", heldFor(tick)},
		{"LeaseUntil/Exactly/Hold", with(live(), hold), ask(other), leaseEnd, "", doubtful},

		{"ExpiresAt/JustBefore/Completed", done, ask(other), expiry - 1, "", replay(false)},
		{"ExpiresAt/Exactly/Completed", done, ask(other), expiry, "begin anew", first(expiry, Fence(expiry))},
		{"ExpiresAt/JustAfter/Completed", done, ask(other), expiry + 1, "begin anew", first(expiry+1, Fence(expiry+1))},
		{"ExpiresAt/Exactly/CompletedUnderHold", doneHold, ask(other), expiry, "begin anew", first(expiry, Fence(expiry))},
		{"ExpiresAt/JustBefore/Released", gone, ask(other), expiry - 1, "take over", Answer{
			Decision: Granted, Takeover: AttemptReleased, Attempt: 2, Fence: Fence(expiry - 1), Lease: lease,
			ExpiresAt: (expiry - 1).Add(lease + window),
		}},
		{"ExpiresAt/Exactly/Released", gone, ask(other), expiry, "begin anew", first(expiry, Fence(expiry))},
		{"ExpiresAt/Exactly/LapsedRegrant", live(), ask(other), expiry, "begin anew", first(expiry, Fence(expiry))},
		{"ExpiresAt/Exactly/LapsedRegrantAtCap", with(live(), atCap), ask(other), expiry, "begin anew", first(expiry, Fence(expiry))},
		{"ExpiresAt/JustBefore/LapsedRegrantAtCap", with(live(), atCap), ask(other), expiry - 1, "put in doubt", doubtful},
		{"ExpiresAt/LongPast/InDoubtNeverExpires", with(live(), inDoubt), ask(other), 2 * expiry, "", doubtful},
		{"ExpiresAt/LongPast/LapsedHoldNeverExpires", with(live(), hold), ask(other), 2 * expiry, "", doubtful},

		{"Expired/Own/Completed", done, ask(mine), expiry, "", replay(true)},
		{"Expired/Own/Released", gone, ask(mine), expiry, "", ended},
		{"Expired/Own/Forgotten", tomb, ask(mine), expiry, "", ended},
		{"Expired/Own/LapsedRegrant", live(), ask(mine), expiry, "renew", Answer{
			Decision: Granted, Attempt: 1, Fence: Fence(t0), Lease: lease, ExpiresAt: expiry.Add(lease + window),
		}},

		{"InsertBefore/JustBefore", Record{}, ask(other, tooOldFrom(t0)), t0 - 1, "insert", first(t0-1, Fence(t0-1))},
		{"InsertBefore/Exactly", Record{}, ask(other, tooOldFrom(t0)), t0, "", tooOld},
		{"InsertBefore/JustAfter", Record{}, ask(other, tooOldFrom(t0)), t0 + 1, "", tooOld},
		{"InsertBefore/JustBefore/Forgotten", tomb, ask(other, tooOldFrom(leaseEnd)), leaseEnd - 1, "begin anew", first(leaseEnd-1, Fence(leaseEnd-1))},
		{"InsertBefore/Exactly/Forgotten", tomb, ask(other, tooOldFrom(leaseEnd)), leaseEnd, "", tooOld},
		{"InsertBefore/JustBefore/Expired", done, ask(other, tooOldFrom(expiry+9)), expiry + 8, "begin anew", first(expiry+8, Fence(expiry+8))},
		{"InsertBefore/Exactly/Expired", done, ask(other, tooOldFrom(expiry)), expiry, "", tooOld},
	})
}

// TestDecidePrecedence: on anything but absent and FORGOTTEN digests come
// first; there, own attempt, then TOO_OLD, then GRANTED.
func TestDecidePrecedence(t *testing.T) {
	t.Parallel()
	const at = t0 + 5
	old, wrong := tooOldFrom(t0), digests(changed)
	rows := []claimRow{
		{"Absent/TooOldBeforeGranted", Record{}, ask(mine, old), at, "", tooOld},
		{"Forgotten/OwnBeforeTooOld", with(live(), forgotten), ask(mine, old), at, "", ended},
		{"Forgotten/TooOldBeforeGranted", with(live(), forgotten), ask(other, old), at, "", tooOld},
		{"Forgotten/DigestsAreNotAsked", with(live(), forgotten), ask(other, wrong), at, "begin anew", first(at, Fence(at))},
		{"Expired/DigestsAreNotAskedOfOthers", with(live(), completed), ask(other, wrong), expiry, "begin anew", first(expiry, Fence(expiry))},
		{"Expired/MismatchForOwn", with(live(), completed), ask(mine, wrong), expiry, "", mismatch},
		{"Live/NeverTooOld", live(), ask(mine, old), at, "", again(lease - 5*tick)},
		{"LapsedRegrant/NeverTooOld", live(), ask(other, old), leaseEnd, "take over", next(leaseEnd, 2, LeaseLapsed)},
		{"Released/NeverTooOld", with(live(), released), ask(other, old), at, "take over", next(at, 2, AttemptReleased)},
		{"Completed/NeverTooOld", with(live(), completed), ask(other, old), at, "", replay(false)},
	}
	for _, s := range []struct {
		name string
		rec  Record
		now  Time
	}{
		{"Live", live(), at},
		{"LapsedRegrant", live(), leaseEnd},
		{"LapsedRegrantAtCap", with(live(), atCap), leaseEnd},
		{"LapsedHold", with(live(), hold), leaseEnd},
		{"InDoubt", with(live(), inDoubt), leaseEnd},
		{"Released", with(live(), released), at},
		{"Completed", with(live(), completed), at},
	} {
		rows = append(rows,
			claimRow{s.name + "/MismatchForOther", s.rec, ask(other, wrong), s.now, "", mismatch},
			claimRow{s.name + "/MismatchForOwn", s.rec, ask(mine, wrong), s.now, "", mismatch},
			claimRow{s.name + "/MismatchForOneShot", s.rec, ask(mine, wrong, recording(sold)), s.now, "", mismatch})
	}
	runClaims(t, rows)
}

// TestDecideDigests: what the consumer's policy makes of a comparison.
func TestDecideDigests(t *testing.T) {
	t.Parallel()
	const at = t0 + 5
	done := with(live(), completed)
	bare := with(done, func(r *Record) { r.Digests = nil })
	both := append(append([]Digest{}, content...), foreign...)
	halfWrong := append(append([]Digest{}, changed...), foreign...)
	runClaims(t, []claimRow{
		{"CommonSchemeAgrees", done, ask(other, digests(both)), at, "", replay(false)},
		{"AnyCommonSchemeDiffers", with(done, func(r *Record) { r.Digests = both }), ask(other, digests(halfWrong)), at, "", mismatch},
		{"DifferenceBeatsLeniency", done, ask(other, digests(changed), lenient), at, "", mismatch},
		{"NoCommonScheme/Refused", done, ask(other, digests(foreign)), at, "", mismatch},
		{"NoCommonScheme/RefusedForOwn", done, ask(mine, digests(foreign)), at, "", mismatch},
		{"NoCommonScheme/Accepted", done, ask(other, digests(foreign), lenient), at, "", replay(false)},
		{"NoneGiven/Refused", done, ask(other, digests(nil)), at, "", mismatch},
		{"NoneGiven/Accepted", done, ask(other, digests(nil), lenient), at, "", replay(false)},
		{"NoneStored/Refused", bare, ask(other), at, "", mismatch},
		{"NoneStored/Accepted", bare, ask(other, lenient), at, "", replay(false)},
		{"NeitherGivesAny", bare, ask(other, digests(nil)), at, "", replay(false)},
	})
}

// TestDecideRecord is the one-shot form: claim, then complete if granted, in
// one write.
func TestDecideRecord(t *testing.T) {
	t.Parallel()
	const at = t0 + 5
	shot := recording(sold)
	done := with(live(), completed)
	stored := func(a Answer, now Time) Answer {
		a.Recorded, a.Lease, a.EndedAt = true, 0, now
		return a
	}
	runClaims(t, []claimRow{
		{"Absent", Record{}, ask(other, shot), at, "insert", stored(first(at, Fence(at)), at)},
		{"Absent/TooOld", Record{}, ask(other, shot, tooOldFrom(at)), at, "", tooOld},
		{"Forgotten/OtherAttempt", with(live(), forgotten), ask(other, shot), at, "begin anew", stored(first(at, Fence(at)), at)},
		{"Forgotten/Own", with(live(), forgotten), ask(mine, shot), at, "", ended},
		{"Live/OtherAttempt", live(), ask(other, shot), at, "", heldFor(lease - 5*tick)},
		{"Live/Own", live(), ask(mine, shot), at, "record own", stored(again(0), at)},
		{"Live/Own/Hold", with(live(), hold), ask(mine, shot), at, "record own", stored(again(0), at)},
		{"LapsedRegrant/OtherAttempt", live(), ask(other, shot), leaseEnd, "take over", stored(next(leaseEnd, 2, LeaseLapsed), leaseEnd)},
		{"LapsedRegrant/OtherAttempt/AtCap", with(live(), atCap), ask(other, shot), leaseEnd, "put in doubt", doubtful},
		{"LapsedRegrant/Own", live(), ask(mine, shot), leaseEnd, "renew", stored(again(0), leaseEnd)},
		{"LapsedHold/OtherAttempt", with(live(), hold), ask(other, shot), leaseEnd, "", doubtful},
		{"LapsedHold/Own", with(live(), hold), ask(mine, shot), leaseEnd, "", doubtful},
		{"InDoubt/OtherAttempt", with(live(), inDoubt), ask(other, shot), leaseEnd, "", doubtful},
		{"InDoubt/Own", with(live(), inDoubt), ask(mine, shot), leaseEnd, "", doubtful},
		{"Released/OtherAttempt", with(live(), released), ask(other, shot), at, "take over", stored(next(at, 2, AttemptReleased), at)},
		{"Released/Own", with(live(), released), ask(mine, shot), at, "", ended},
		{"Completed/OtherAttempt", done, ask(other, shot), at, "", replay(false)},
		{"Completed/Own/ReplyWasLost", done, ask(mine, shot), at, "", stored(again(0), t0+1)},
		{"Completed/Own/AnotherResult", done, ask(mine, recording(soldOut)), at, "", replay(true)},
		{"Completed/Own/AskedPlainly", done, ask(mine), at, "", replay(true)},
		{"Completed/Own/BodyShredded", with(done, func(r *Record) { r.Completion = sold.Without(Shredded) }),
			ask(mine, shot), at, "", stored(again(0), t0+1)},
		{"Completed/Own/Expired", done, ask(mine, shot), expiry, "", stored(again(0), t0+1)},
		{"Expired/OtherAttempt", done, ask(other, shot), expiry, "begin anew", stored(first(expiry, Fence(expiry)), expiry)},
	})
}

// TestDecideResend (I5): what one claim has just written, the same claim reads
// as the same grant, for as long as the lease lives.
func TestDecideResend(t *testing.T) {
	t.Parallel()
	takeOver := NewSwap(TakeOver, new(live()), new(ask(other)))
	takenOver, _ := takeOver.Apply(new(live()), leaseEnd, 0)
	for _, row := range []struct {
		rule string
		rec  Record
		req  Request
		want Answer
	}{
		{"FirstGrant", live(), ask(mine), again(0)},
		{"Takeover", takenOver, ask(other), next(leaseEnd, 2, LeaseLapsed)},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			for _, left := range []time.Duration{lease, lease / 2, tick} {
				want := row.want
				want.Lease = left
				via, _, got := settle(t, row.rec, &row.req, row.rec.LeaseUntil.Add(-left))
				if d := cmp.Diff(want, got); d != "" || via != "" {
					t.Errorf("%v before the end: written by %q, answer (-want +got):\n%s", left, via, d)
				}
			}
		})
	}
}
