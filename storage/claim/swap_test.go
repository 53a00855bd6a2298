package claim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func swapOf(kind SwapKind, changes ...func(*Request)) Swap {
	s := Swap{Kind: kind, Key: key, Fence: Fence(t0), Version: 7, Request: new(ask(other, changes...)), Result: sold}
	if kind == Renew || kind == RecordOwn {
		s.Request.Attempt = mine
	}
	return s
}

func TestFresh(t *testing.T) {
	t.Parallel()
	base := live()
	base.Version = 1
	at := t0.Add
	for _, row := range []struct {
		rule    string
		req     Request
		floor   Fence
		becomes func(*Record)
	}{
		{"FirstGrant", ask(mine), 0, func(*Record) {}},
		{"FenceIsStoreTime/FloorJustBelow", ask(mine), Fence(t0) - 1, func(*Record) {}},
		{"FenceIsAtLeastFloor", ask(mine), Fence(t0) + 1, func(r *Record) { r.Fence++ }},
		{"EventTimeIsKept", ask(mine, func(r *Request) { r.EventTime = t0 - 9 }), 0, func(r *Record) { r.EventTime = t0 - 9 }},
		{"PolicyIsSnapshotted", ask(mine, func(r *Request) { r.Policy.Hold, r.Policy.AttemptsMax = true, 3 }), 0,
			func(r *Record) { r.Policy.Hold, r.Policy.AttemptsMax = true, 3 }},
		{"LeaseAboveMaximumHold", ask(mine, func(r *Request) { r.Lease = holdMax + tick }), 0, func(r *Record) {
			r.LeaseUntil, r.HoldUntil = at(holdMax+tick), at(holdMax+tick)
		}},
		{"ExpiryCoversLeaseAndWindow/JustNot", ask(mine, func(r *Request) { r.Lease = time.Hour }), 0, func(r *Record) {
			r.LeaseUntil, r.HoldUntil = at(time.Hour), at(time.Hour)
		}},
		{"ExpiryCoversLeaseAndWindow/Just", ask(mine, func(r *Request) { r.Lease = time.Hour + tick }), 0, func(r *Record) {
			r.LeaseUntil, r.HoldUntil, r.ExpiresAt = at(time.Hour+tick), at(time.Hour+tick), expiry+1
		}},
		{"OneShot", ask(mine, recording(sold)), 0, done(t0)},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if d := cmp.Diff(with(base, row.becomes), Fresh(&row.req, t0, row.floor)); d != "" {
				t.Errorf("record (-want +got):\n%s", d)
			}
		})
	}
}

// TestSwapGuard: where each kind may be applied, boundaries included. A guard
// holds at the store's time of the write, not of the read before it.
func TestSwapGuard(t *testing.T) {
	t.Parallel()
	const at = t0 + 5
	tomb, gone, over, doubt := with(live(), forgotten), with(live(), released), with(live(), completed), with(live(), inDoubt)
	for _, row := range []struct {
		rule  string
		swap  Swap
		rec   Record
		now   Time
		holds bool
	}{
		{"BeginAnew/Forgotten", swapOf(BeginAnew), tomb, at, true},
		{"BeginAnew/Forgotten/JustBeforeTooOld", swapOf(BeginAnew, tooOldFrom(at+1)), tomb, at, true},
		{"BeginAnew/Forgotten/ExactlyTooOld", swapOf(BeginAnew, tooOldFrom(at)), tomb, at, false},
		{"BeginAnew/Completed/JustBeforeExpiry", swapOf(BeginAnew), over, expiry - 1, false},
		{"BeginAnew/Completed/ExactlyAtExpiry", swapOf(BeginAnew), over, expiry, true},
		{"BeginAnew/Completed/ExpiredAndTooOld", swapOf(BeginAnew, tooOldFrom(expiry)), over, expiry, false},
		{"BeginAnew/Released/ExactlyAtExpiry", swapOf(BeginAnew), gone, expiry, true},
		{"BeginAnew/LapsedRegrant/ExactlyAtExpiry", swapOf(BeginAnew), live(), expiry, true},
		{"BeginAnew/LapsedHold/NeverExpires", swapOf(BeginAnew), with(live(), hold), expiry, false},
		{"BeginAnew/InDoubt/NeverExpires", swapOf(BeginAnew), doubt, expiry, false},

		{"TakeOver/JustBeforeLapse", swapOf(TakeOver), live(), leaseEnd - 1, false},
		{"TakeOver/ExactlyAtLapse", swapOf(TakeOver), live(), leaseEnd, true},
		{"TakeOver/Lapsed/BelowCap", swapOf(TakeOver), with(live(), belowCap), leaseEnd, true},
		{"TakeOver/Lapsed/AtCap", swapOf(TakeOver), with(live(), atCap), leaseEnd, false},
		{"TakeOver/LapsedHold", swapOf(TakeOver), with(live(), hold), leaseEnd, false},
		{"TakeOver/Released", swapOf(TakeOver), gone, at, true},
		{"TakeOver/Released/AtCap", swapOf(TakeOver), with(gone, atCap), at, true},
		{"TakeOver/Released/Hold", swapOf(TakeOver), with(gone, hold), at, true},
		{"TakeOver/InDoubt", swapOf(TakeOver), doubt, leaseEnd, false},
		{"TakeOver/Completed", swapOf(TakeOver), over, leaseEnd, false},
		{"TakeOver/Forgotten", swapOf(TakeOver), tomb, leaseEnd, false},

		{"Renew/JustBeforeLapse", swapOf(Renew), live(), leaseEnd - 1, false},
		{"Renew/ExactlyAtLapse", swapOf(Renew), live(), leaseEnd, true},
		{"Renew/AtCap", swapOf(Renew), with(live(), atCap), leaseEnd, true},
		{"Renew/LapsedHold", swapOf(Renew), with(live(), hold), leaseEnd, false},
		{"Renew/NotOwn", swapOf(Renew, func(r *Request) { r.Attempt = other }), with(live(), func(r *Record) { r.AttemptID = other }), leaseEnd, false},
		{"Renew/Released", swapOf(Renew), gone, leaseEnd, false},
		{"Renew/InDoubt", swapOf(Renew), doubt, leaseEnd, false},

		{"RecordOwn/Live", swapOf(RecordOwn), live(), at, true},
		{"RecordOwn/LapsedMeanwhile/OwnerKnowsBest", swapOf(RecordOwn), live(), leaseEnd, true},
		{"RecordOwn/NotOwn", swapOf(RecordOwn), with(live(), func(r *Record) { r.AttemptID = other }), at, false},
		{"RecordOwn/Released", swapOf(RecordOwn), gone, at, false},
		{"RecordOwn/Completed", swapOf(RecordOwn), over, at, false},
		{"RecordOwn/Forgotten", swapOf(RecordOwn), tomb, at, false},

		{"PutInDoubt/Hold/JustBeforeLapse", swapOf(PutInDoubt), with(live(), hold), leaseEnd - 1, false},
		{"PutInDoubt/Hold/ExactlyAtLapse", swapOf(PutInDoubt), with(live(), hold), leaseEnd, true},
		{"PutInDoubt/AtCap/JustBeforeLapse", swapOf(PutInDoubt), with(live(), atCap), leaseEnd - 1, false},
		{"PutInDoubt/AtCap/ExactlyAtLapse", swapOf(PutInDoubt), with(live(), atCap), leaseEnd, true},
		{"PutInDoubt/LapsedRegrant", swapOf(PutInDoubt), live(), leaseEnd, false},
		{"PutInDoubt/LapsedRegrant/BelowCap", swapOf(PutInDoubt), with(live(), belowCap), leaseEnd, false},
		{"PutInDoubt/Completed", swapOf(PutInDoubt), with(over, hold), leaseEnd, false},
		{"PutInDoubt/Released", swapOf(PutInDoubt), with(gone, hold), leaseEnd, false},

		{"ResolveComplete/LapsedHold/JustBeforeLapse", swapOf(ResolveComplete), with(live(), hold), leaseEnd - 1, false},
		{"ResolveComplete/LapsedHold/ExactlyAtLapse", swapOf(ResolveComplete), with(live(), hold), leaseEnd, true},
		{"ResolveComplete/LapsedRegrant", swapOf(ResolveComplete), live(), leaseEnd, false},
		{"ResolveComplete/Released", swapOf(ResolveComplete), gone, at, false},
		{"ResolveRetry/Live", swapOf(ResolveRetry), live(), at, true},
		{"ResolveRetry/Completed", swapOf(ResolveRetry), over, at, false},
		{"ResolveRetry/Forgotten", swapOf(ResolveRetry), tomb, at, false},
		{"Forget/JustBeforeLapse", swapOf(Forget), live(), leaseEnd - 1, false},
		{"Forget/ExactlyAtLapse", swapOf(Forget), live(), leaseEnd, true},
		{"Forget/Forgotten", swapOf(Forget), tomb, at, false},

		{"NoSwap", swapOf(NoSwap), live(), at, false},
		{"UnknownKind", swapOf(99), tomb, expiry, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			before := row.rec
			next, holds := row.swap.Apply(&row.rec, row.now, 0)
			if holds != row.holds {
				t.Errorf("applied = %v, want %v", holds, row.holds)
			}
			if d := cmp.Diff(before, row.rec); d != "" {
				t.Errorf("Apply changed the record it was given:\n%s", d)
			}
			if d := cmp.Diff(Record{}, next); !holds && d != "" {
				t.Errorf("a refused swap returned a record:\n%s", d)
			}
		})
	}
}

// TestSwapComparesFenceAndVersion: whatever its guard says, a swap applies only
// to what was read.
func TestSwapComparesFenceAndVersion(t *testing.T) {
	t.Parallel()
	applicable := map[SwapKind]Record{
		BeginAnew: with(live(), forgotten), TakeOver: with(live(), released), Renew: live(), RecordOwn: live(),
		PutInDoubt: with(live(), hold), ResolveComplete: with(live(), inDoubt), ResolveRetry: live(),
		Forget: with(live(), completed),
	}
	for kind, rec := range applicable {
		t.Run(swapNames[kind], func(t *testing.T) {
			t.Parallel()
			for change, edit := range map[string]func(*Record){
				"FenceMovedOn":   func(r *Record) { r.Fence++ },
				"FenceIsOlder":   func(r *Record) { r.Fence-- },
				"VersionMovedOn": func(r *Record) { r.Version++ },
				"VersionIsOlder": func(r *Record) { r.Version-- },
				"RecordIsGone":   func(r *Record) { r.State = Absent },
			} {
				s := swapOf(kind)
				if _, applied := s.Apply(new(with(rec, edit)), leaseEnd, 0); applied {
					t.Errorf("%s: applied", change)
				}
			}
			s := swapOf(kind)
			if next, applied := s.Apply(&rec, leaseEnd, 0); !applied || next.Version != 8 {
				t.Errorf("unchanged record: applied %v, version %d, want true, 8", applied, next.Version)
			}
		})
	}
}

// TestSwapEffect: what each kind makes of a record.
func TestSwapEffect(t *testing.T) {
	t.Parallel()
	const at = leaseEnd
	both := append(append([]Digest{}, content...), foreign...)
	granted := func(attempt uint32, cause Takeover) func(*Record) {
		return func(r *Record) {
			r.State, r.Takeover, r.Attempt, r.AttemptID, r.EndedAt = InProgress, cause, attempt, other, 0
			r.Fence, r.GrantedAt, r.LeaseUntil, r.HoldUntil = Fence(at), at, at.Add(lease), at.Add(holdMax)
		}
	}
	anew := func(r *Record) {
		*r = Record{
			Key: key, Version: 7, State: InProgress, Attempt: 1, AttemptID: other, Fence: Fence(at), Digests: changed,
			EventTime: 9, ClaimedAt: at, GrantedAt: at, LeaseUntil: at.Add(lease), HoldUntil: at.Add(holdMax),
			ExpiresAt: at.Add(kept), Policy: with(live(), hold).Policy,
		}
	}
	stricter := func(r *Request) {
		r.Policy = Policy{Hold: true, AttemptsMax: 1, Window: 1, Retention: 2, HoldMax: 3}
	}
	newTerms := func(r *Request) { r.EventTime, r.Digests, r.Policy = 9, changed, with(live(), hold).Policy }
	long := func(r *Request) { r.Lease = holdMax + tick }
	for _, row := range []struct {
		rule    string
		swap    Swap
		rec     Record
		becomes []func(*Record)
	}{
		{"BeginAnew/NothingOfTheOldLifeStays", swapOf(BeginAnew, newTerms), with(live(), forgotten, belowCap), []func(*Record){anew}},
		{"BeginAnew/OneShot", swapOf(BeginAnew, newTerms, recording(sold)), with(live(), forgotten), []func(*Record){anew, done(at)}},
		{"TakeOver/Lapsed", swapOf(TakeOver), live(), []func(*Record){granted(2, LeaseLapsed)}},
		{"TakeOver/Released", swapOf(TakeOver), with(live(), released), []func(*Record){granted(2, AttemptReleased)}},
		{"TakeOver/OneShot", swapOf(TakeOver, recording(sold)), live(), []func(*Record){granted(2, LeaseLapsed), done(at)}},
		{"TakeOver/FirstPolicyAndEventTimeStay", swapOf(TakeOver, stricter, func(r *Request) { r.EventTime = 9 }), live(),
			[]func(*Record){granted(2, LeaseLapsed)}},
		{"TakeOver/LeaseAboveMaximumHold", swapOf(TakeOver, long), live(), []func(*Record){granted(2, LeaseLapsed), func(r *Record) {
			r.LeaseUntil, r.HoldUntil = at.Add(holdMax+tick), at.Add(holdMax+tick)
		}}},
		{"TakeOver/SchemesAreJoined", swapOf(TakeOver, digests(both)), live(), []func(*Record){granted(2, LeaseLapsed), func(r *Record) {
			r.Digests = both
		}}},
		{"TakeOver/NoCommonSchemeIsNotJoined", swapOf(TakeOver, digests(foreign)), live(), []func(*Record){granted(2, LeaseLapsed)}},
		{"Renew/SameGrantNewLease", swapOf(Renew), live(), []func(*Record){func(r *Record) {
			r.LeaseUntil, r.HoldUntil = at.Add(lease), at.Add(holdMax)
		}}},
		{"Renew/LeaseAboveMaximumHold", swapOf(Renew, long), live(), []func(*Record){func(r *Record) {
			r.LeaseUntil, r.HoldUntil = at.Add(holdMax+tick), at.Add(holdMax+tick)
		}}},
		{"RecordOwn", swapOf(RecordOwn, recording(sold)), live(), []func(*Record){done(at)}},
		{"PutInDoubt", swapOf(PutInDoubt), with(live(), hold), []func(*Record){inDoubt}},
		{"ResolveComplete", swapOf(ResolveComplete), with(live(), inDoubt), []func(*Record){done(at)}},
		{"ResolveRetry", swapOf(ResolveRetry), with(live(), inDoubt), []func(*Record){letGo(at)}},
		{"Forget/ContentAndResultGoFenceAndAttemptStay", swapOf(Forget),
			with(live(), completed, func(r *Record) { r.EventTime = 9 }),
			[]func(*Record){forgotten, func(r *Record) { r.EndedAt, r.Completion, r.EventTime = at, nil, 0 }}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			s := NewSwap(row.swap.Kind, &row.rec, row.swap.Request)
			s.Result = row.swap.Result
			got, applied := s.Apply(&row.rec, at, 0)
			want := with(with(row.rec, row.becomes...), func(r *Record) { r.Version = 8 })
			if d := cmp.Diff(want, got); d != "" || !applied {
				t.Errorf("applied = %v, record (-want +got):\n%s", applied, d)
			}
		})
	}
}
