package claim

import (
	"testing"
	"time"
)

// TestSwapFence: every grant's fence is max(previous + 1, store time, floor);
// nothing else moves it.
func TestSwapFence(t *testing.T) {
	t.Parallel()
	const at, far = leaseEnd, Fence(leaseEnd) + 1000
	for _, row := range []struct {
		rule     string
		previous Fence
		floor    Fence
		want     Fence
	}{
		{"StoreTimeIsLargest", Fence(t0), 0, Fence(at)},
		{"PreviousJustBelowStoreTime", Fence(at) - 1, 0, Fence(at)},
		{"PreviousIsStoreTime", Fence(at), 0, Fence(at) + 1},
		{"PreviousIsAhead", far, 0, far + 1},
		{"FloorIsLargest", Fence(at), far, far},
		{"FloorIsPrevious", far, far, far + 1},
	} {
		for kind, rec := range map[SwapKind]Record{TakeOver: live(), BeginAnew: with(live(), forgotten)} {
			t.Run(row.rule+"/"+swapNames[kind], func(t *testing.T) {
				t.Parallel()
				s := swapOf(kind)
				s.Fence, rec.Fence = row.previous, row.previous
				if got, applied := s.Apply(&rec, at, row.floor); got.Fence != row.want || !applied {
					t.Errorf("fence = %d (applied %v), want %d", got.Fence, applied, row.want)
				}
			})
		}
	}
	for kind, rec := range map[SwapKind]Record{Renew: live(), RecordOwn: live(), Forget: live(), ResolveRetry: live()} {
		s := swapOf(kind, recording(sold))
		if got, applied := s.Apply(&rec, at, far); got.Fence != Fence(t0) || !applied {
			t.Errorf("%s: fence = %d (applied %v), want it unmoved", swapNames[kind], got.Fence, applied)
		}
	}
}

// TestOneExpiryRule: every write keeps expires_at at least one window after now
// and after the end of the lease, and never brings it forward.
func TestOneExpiryRule(t *testing.T) {
	t.Parallel()
	const edge = expiry - Time(window/time.Microsecond) // now + window is expires_at
	gone, doubt := with(live(), released), with(live(), inDoubt)
	swapped := func(s Swap) func(*Record, Time) (Record, bool) {
		return func(r *Record, now Time) (Record, bool) { return s.Apply(r, now, 0) }
	}
	owner := func(tr Transition) func(*Record, Time) (Record, bool) {
		return func(r *Record, now Time) (Record, bool) {
			rec, changed, _ := tr.Apply(r, now)
			return rec, changed
		}
	}
	for _, row := range []struct {
		write string
		rec   Record
		do    func(*Record, Time) (Record, bool)
		lease time.Duration // of the grant that is there afterwards, from now
	}{
		{"Complete", live(), owner(complete(sold)), 0},
		{"CompleteInDoubt", doubt, owner(complete(sold)), 0},
		{"CompleteReleased", gone, owner(complete(sold)), 0},
		{"Release", live(), owner(release()), 0},
		{"TakeOver", live(), swapped(swapOf(TakeOver)), lease},
		{"TakeOverReleased", gone, swapped(swapOf(TakeOver)), lease},
		{"TakeOverOneShot", live(), swapped(swapOf(TakeOver, recording(sold))), lease},
		{"Renew", live(), swapped(swapOf(Renew)), lease},
		{"PutInDoubt", with(live(), hold), swapped(swapOf(PutInDoubt)), 0},
		{"ResolveComplete", doubt, swapped(swapOf(ResolveComplete)), 0},
		{"ResolveRetry", doubt, swapped(swapOf(ResolveRetry)), 0},
		{"Forget", with(live(), completed), swapped(swapOf(Forget)), 0},
	} {
		edge := edge.Add(-row.lease)
		for when, at := range map[string]struct{ now, want Time }{
			"CommonCase":     {leaseEnd + 1, expiry},
			"JustBeforeEdge": {edge - 1, expiry},
			"ExactlyAtEdge":  {edge, expiry},
			"JustAfterEdge":  {edge + 1, expiry + 1},
			"AfterExpiry":    {expiry + 1, (expiry + 1).Add(row.lease + window)},
		} {
			t.Run(row.write+"/"+when, func(t *testing.T) {
				t.Parallel()
				if got, applied := row.do(&row.rec, at.now); got.ExpiresAt != at.want || !applied {
					t.Errorf("expires at %+d from the old expiry (applied %v), want %+d", got.ExpiresAt-expiry, applied, at.want-expiry)
				}
			})
		}
	}
	for _, d := range []time.Duration{-tick, 0, tick} { // Extend moves with the end of the lease
		rec := with(live(), func(r *Record) { r.HoldUntil = Never })
		got, changed, reply := new(extend(window+d)).Apply(&rec, t0)
		if want := expiry.Add(max(0, d)); got.ExpiresAt != want || reply.ExpiresAt != want || !changed {
			t.Errorf("Extend %v: expires at %d, reply says %d, want %d", window+d, got.ExpiresAt, reply.ExpiresAt, want)
		}
	}
}
