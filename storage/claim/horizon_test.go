package claim

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSkew(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule              string
		window, retention time.Duration
		want              time.Duration
	}{
		{"FiveMinutesAtMost", time.Hour, 2 * time.Hour, 5 * time.Minute},
		{"ExactlyEnoughRoom", time.Hour, time.Hour + 10*time.Minute, 5 * time.Minute},
		{"HalfTheRoom", time.Hour, time.Hour + 8*time.Minute, 4 * time.Minute},
		{"NoRoom", time.Hour, time.Hour, 0},
		{"NeverNegative", time.Hour, time.Minute, 0},
	} {
		if got := Skew(row.window, row.retention); got != row.want {
			t.Errorf("%s: %v, want %v", row.rule, got, row.want)
		}
	}
}

// TestHorizon spells the formula of the contract out, for a retention of two
// hours that was one hour until it was raised at t0.
func TestHorizon(t *testing.T) {
	t.Parallel()
	const hour = Time(time.Hour / time.Microsecond)
	plain := History{Retention: kept}
	raised := History{Retention: kept, Raised: t0, RaisedFrom: time.Hour}
	restored := History{Retention: kept, Restored: t0}
	both := History{Retention: kept, Raised: t0, RaisedFrom: time.Hour, Restored: t0 - hour/2}
	for _, row := range []struct {
		rule    string
		history History
		now     Time
		want    Time
	}{
		{"Plain", plain, t0, t0 - 2*hour},
		{"Raised/AtOnce", raised, t0, t0 - hour},
		{"Raised/OldRetentionPassesOverT", raised, t0 + hour/2, t0 - hour/2},
		{"Raised/ReachesT", raised, t0 + hour, t0},
		{"Raised/StaysAtT", raised, t0 + hour + 1, t0},
		{"Raised/NewRetentionReachesT", raised, t0 + 2*hour, t0},
		{"Raised/NewRetentionPassesT", raised, t0 + 2*hour + 1, t0 + 1},
		{"Restored/AtOnce", restored, t0, t0},
		{"Restored/UntilRetentionPasses", restored, t0 + 2*hour, t0},
		{"Restored/RetentionPassed", restored, t0 + 2*hour + 1, t0 + 1},
		{"RaisedAndRestored/RestoreIsLater", both, t0, t0 - hour/2},
		{"RaisedAndRestored/RaiseIsLater", both, t0 + hour, t0},
	} {
		if got := row.history.Horizon(row.now); got != row.want {
			t.Errorf("%s: t0%+d, want t0%+d", row.rule, got-t0, row.want-t0)
		}
	}
}

// TestInsertBefore: TOO_OLD iff event_time <= horizon + skew, one microsecond
// on either side.
func TestInsertBefore(t *testing.T) {
	t.Parallel()
	const skew = 5 * time.Minute
	made := t0.Add(-skew)
	for _, row := range []struct {
		rule    string
		history History
		et      Time
		want    Time
	}{
		{"NoEventTime", History{Retention: kept, Restored: t0}, 0, Never},
		{"Plain", History{Retention: kept}, t0, made.Add(kept)},
		{"Skew", History{Retention: kept}, t0.Add(skew), t0.Add(kept)},
		{"Raised/MadeExactlyAtT", History{Retention: kept, Raised: made, RaisedFrom: window}, t0, made.Add(window)},
		{"Raised/MadeJustAfterT", History{Retention: kept, Raised: made - 1, RaisedFrom: window}, t0, made.Add(kept)},
		{"Raised/FromMore", History{Retention: window, Raised: made, RaisedFrom: kept}, t0, made.Add(window)},
		{"Restored/MadeExactlyThen", History{Retention: kept, Restored: made}, t0, 0},
		{"Restored/MadeJustAfter", History{Retention: kept, Restored: made - 1}, t0, made.Add(kept)},
		{"Restored/BeatsRaised", History{Retention: kept, Restored: made, Raised: made, RaisedFrom: window}, t0, 0},
		{"BeforeTheEpoch", History{Retention: kept}, -1, 0},
		{"FarFuture", History{Retention: WindowMax}, Never - 1, Never},
	} {
		if got := row.history.InsertBefore(row.et, skew); got != row.want {
			t.Errorf("%s: t0%+d, want t0%+d", row.rule, got-t0, row.want-t0)
		}
	}
}

var anyDuration = rapid.Int64Range(0, int64(WindowMax))

func drawDuration(t *rapid.T, name string) time.Duration {
	return time.Duration(anyDuration.Draw(t, name))
}

// drawInstant prefers the neighbourhood of the instants at which answers turn.
func drawInstant(t *rapid.T, name string, edges ...Time) Time {
	near := rapid.SampledFrom(append(edges, t0)).Draw(t, name+" near")
	off := rapid.OneOf(rapid.Int64Range(-2, 2), rapid.Int64Range(-int64(1e14), int64(1e14))).Draw(t, name+" off")
	return near + Time(off)
}

func drawHistory(t *rapid.T) History {
	h := History{Retention: drawDuration(t, "retention")}
	if rapid.Bool().Draw(t, "was raised") {
		h.Raised, h.RaisedFrom = drawInstant(t, "raised"), drawDuration(t, "raised from")
	}
	if rapid.Bool().Draw(t, "was restored") {
		h.Restored = drawInstant(t, "restored", h.Raised)
	}
	return h
}

// TestInsertBeforeIsTheHorizon: what stores compare is what the contract says,
// to the microsecond, and it never turns back.
func TestInsertBeforeIsTheHorizon(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h, skew := drawHistory(t), min(drawDuration(t, "skew"), SkewMax)
		now := max(1, drawInstant(t, "now", h.Raised, h.Restored, h.Raised.Add(h.RaisedFrom)))
		et := drawInstant(t, "event time", h.Horizon(now).Add(skew), h.Raised.Add(skew), h.Restored.Add(skew))
		if et == 0 {
			et = 1 // 0 is not given
		}
		contract := et <= h.Horizon(now).Add(skew)
		if store := now >= h.InsertBefore(et, skew); store != contract {
			t.Fatalf("%+v, event time %d, skew %v, now %d: store says too old = %v, the contract %v",
				h, et, skew, now, store, contract)
		}
		if later := now.Add(drawDuration(t, "later")); h.Horizon(later) < h.Horizon(now) {
			t.Fatalf("%+v: the horizon goes back from %d to %d", h, now, later)
		}
	})
}

// TestForgottenIsTooOld is what the horizon is for: a key that was claimed under
// the retention then in force, and that may be forgotten by now, is never taken
// for a new one, also when retention was raised in between.
func TestForgottenIsTooOld(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := History{Retention: drawDuration(t, "retention"), Raised: t0}
		h.RaisedFrom = min(h.Retention, drawDuration(t, "raised from"))
		skew := min(drawDuration(t, "skew"), SkewMax)
		claimed := drawInstant(t, "claimed")
		kept := h.Retention
		if claimed <= h.Raised {
			kept = h.RaisedFrom
		}
		et := claimed.Add(skew - drawDuration(t, "delivered late"))
		now := max(h.Raised, claimed.Add(kept).Add(drawDuration(t, "expired since")))
		if et != 0 && now < h.InsertBefore(et, skew) {
			t.Fatalf("%+v: made %d, claimed %d, kept %v, forgotten at %d and yet new", h, et, claimed, kept, now)
		}
	})
}

// TestWindowIsNeverTooOld: with the skew that Skew allows, an event first
// delivered when it was made is never refused inside its window.
func TestWindowIsNeverTooOld(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		window := WindowMin + drawDuration(t, "window")
		retention := window + min(drawDuration(t, "more"), 20*time.Minute)
		h, skew := History{Retention: retention}, Skew(window, retention)
		et := max(1, drawInstant(t, "event time"))
		redelivered := et.Add(window) - 1 - Time(rapid.Int64Range(0, 5).Draw(t, "earlier"))
		if h.InsertBefore(et, skew) <= redelivered {
			t.Fatalf("window %v, retention %v, skew %v: too old after %v", window, retention, skew, redelivered.Sub(et))
		}
	})
}
