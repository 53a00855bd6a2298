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
	raised := History{Retention: kept, Raises: []Raise{{t0, time.Hour}}}
	restored := History{Retention: kept, Restored: t0}
	both := History{Retention: kept, Raises: []Raise{{t0, time.Hour}}, Restored: t0 - hour/2}
	// One hour until t0, then one and a half until an hour later.
	twice := History{Retention: kept, Raises: []Raise{{t0, time.Hour}, {t0 + hour, time.Hour + time.Hour/2}}}
	turned := History{Retention: kept, Raises: []Raise{twice.Raises[1], twice.Raises[0]}}
	never := History{Retention: kept, Raises: []Raise{{0, time.Hour}}}
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
		{"Twice/FirstPassesOverItsT", twice, t0 + hour/2, t0 - hour/2},
		{"Twice/FirstStaysAtItsT", twice, t0 + hour + hour/4, t0},
		{"Twice/SecondPassesOver", twice, t0 + 2*hour, t0 + hour/2},
		{"Twice/SecondStaysAtItsT", twice, t0 + 2*hour + hour*3/4, t0 + hour},
		{"Twice/NewRetentionPasses", twice, t0 + 3*hour + 1, t0 + hour + 1},
		{"Twice/OrderIsOfNoAccount", turned, t0 + hour + hour/4, t0},
		{"NeverRaised", never, t0, t0 - 2*hour},
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
		{"Raised/MadeExactlyAtT", History{Retention: kept, Raises: []Raise{{made, window}}}, t0, made.Add(window)},
		{"Raised/MadeJustAfterT", History{Retention: kept, Raises: []Raise{{made - 1, window}}}, t0, made.Add(kept)},
		{"Raised/FromMore", History{Retention: window, Raises: []Raise{{made, kept}}}, t0, made.Add(window)},
		{"Twice/ShortestOfThoseAfter", History{Retention: kept, Raises: []Raise{{made - 1, 1}, {made, window}, {made + 1, window + 1}}}, t0, made.Add(window)},
		{"NeverRaised", History{Retention: kept, Raises: []Raise{{0, window}}}, -1, 0},
		{"Restored/MadeExactlyThen", History{Retention: kept, Restored: made}, t0, 0},
		{"Restored/MadeJustAfter", History{Retention: kept, Restored: made - 1}, t0, made.Add(kept)},
		{"Restored/BeatsRaised", History{Retention: kept, Restored: made, Raises: []Raise{{made, window}}}, t0, 0},
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
	for range rapid.IntRange(0, 4).Draw(t, "raises") {
		h.Raises = append(h.Raises, Raise{drawInstant(t, "raised", h.raised().At), drawDuration(t, "raised from")})
	}
	if rapid.Bool().Draw(t, "was restored") {
		h.Restored = drawInstant(t, "restored", h.raised().At)
	}
	return h
}

// raised is the last raise, or none.
func (h History) raised() Raise {
	if len(h.Raises) == 0 {
		return Raise{}
	}
	return h.Raises[len(h.Raises)-1]
}

// TestInsertBeforeIsTheHorizon: what stores compare is what the contract says,
// to the microsecond, and it never turns back.
func TestInsertBeforeIsTheHorizon(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h, skew := drawHistory(t), min(drawDuration(t, "skew"), SkewMax)
		last := h.raised()
		now := max(1, drawInstant(t, "now", last.At, h.Restored, last.At.Add(last.From)))
		et := drawInstant(t, "event time", h.Horizon(now).Add(skew), last.At.Add(skew), h.Restored.Add(skew))
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
// for a new one, also when retention was raised and lowered in between, and
// however often.
func TestForgottenIsTooOld(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		claimed := drawInstant(t, "claimed")
		h := History{Retention: drawDuration(t, "retention")}
		kept, changed := h.Retention, t0
		for range rapid.IntRange(0, 5).Draw(t, "changes") {
			changed = max(changed, drawInstant(t, "changed", changed, claimed))
			next := drawDuration(t, "changed to")
			if next > h.Retention { // only raises are remembered
				h.Raises = append(h.Raises, Raise{changed, h.Retention})
			}
			if h.Retention = next; claimed > changed {
				kept = next
			}
		}
		skew := min(drawDuration(t, "skew"), SkewMax)
		et := claimed.Add(skew - drawDuration(t, "delivered late"))
		now := max(changed, claimed.Add(kept).Add(drawDuration(t, "expired since")))
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
