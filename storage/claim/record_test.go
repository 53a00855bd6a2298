package claim

import (
	"math"
	"testing"
	"time"
)

// TestEffective: a lease lapsed under HOLD is in doubt at once; nothing else is
// seen as another state than it is stored in.
func TestEffective(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		rec  Record
		now  Time
		want State
	}{
		{"Absent", Record{}, t0, Absent},
		{"Live/Hold", with(live(), hold), leaseEnd - 1, InProgress},
		{"Lapsed/Hold", with(live(), hold), leaseEnd, InDoubt},
		{"Lapsed/Regrant", live(), leaseEnd, InProgress},
		{"Lapsed/RegrantAtCap", with(live(), atCap), leaseEnd, InProgress},
		{"Released/Hold", with(live(), released, hold), leaseEnd, Released},
		{"Completed/Hold", with(live(), completed, hold), leaseEnd, Completed},
		{"Forgotten/Hold", with(live(), forgotten, hold), leaseEnd, Forgotten},
		{"InDoubt", with(live(), inDoubt), t0, InDoubt},
	} {
		if got := row.rec.Effective(row.now); got != row.want {
			t.Errorf("%s: %v, want %v", row.rule, got, row.want)
		}
	}
}

// TestSweepable: nothing goes before expires_at + grace; what is live or in
// doubt never goes.
func TestSweepable(t *testing.T) {
	t.Parallel()
	const grace = time.Minute
	at := expiry.Add(grace)
	brief := func(r *Record) { r.LeaseUntil = at + 5 } // a lease that outlives its record: cannot be, must not matter
	for _, row := range []struct {
		rule    string
		rec     Record
		now     Time
		expired bool
		gone    bool
	}{
		{"Completed/JustBeforeExpiry", with(live(), completed), expiry - 1, false, false},
		{"Completed/ExactlyExpiry", with(live(), completed), expiry, true, false},
		{"Completed/JustBeforeGraceEnds", with(live(), completed), at - 1, true, false},
		{"Completed/ExactlyGraceEnds", with(live(), completed), at, true, true},
		{"Completed/JustAfterGrace", with(live(), completed), at + 1, true, true},
		{"Completed/Hold", with(live(), completed, hold), at, true, true},
		{"Released/JustBeforeGraceEnds", with(live(), released), at - 1, true, false},
		{"Released/ExactlyGraceEnds", with(live(), released), at, true, true},
		{"Forgotten/JustBeforeGraceEnds", with(live(), forgotten), at - 1, true, false},
		{"Forgotten/ExactlyGraceEnds", with(live(), forgotten), at, true, true},
		{"LapsedRegrant/JustBeforeGraceEnds", live(), at - 1, true, false},
		{"LapsedRegrant/ExactlyGraceEnds", live(), at, true, true},
		{"LapsedHold/Never", with(live(), hold), Never, false, false},
		{"InDoubt/Never", with(live(), inDoubt), Never, false, false},
		{"Live/Never", with(live(), brief), at + 4, false, false},
		{"Absent/Never", Record{}, Never, false, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := row.rec.Expired(row.now); got != row.expired {
				t.Errorf("Expired = %v, want %v", got, row.expired)
			}
			if got := row.rec.Sweepable(row.now, grace); got != row.gone {
				t.Errorf("Sweepable = %v, want %v", got, row.gone)
			}
		})
	}
}

func TestAtCap(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		attempt, capped uint32
		want            bool
	}{{1, 0, false}, {math.MaxUint32, 0, false}, {1, 1, true}, {1, 2, false}, {2, 2, true}, {3, 2, true}} {
		r := Record{Attempt: row.attempt, Policy: Policy{AttemptsMax: row.capped}}
		if got := r.AtCap(); got != row.want {
			t.Errorf("attempt %d of at most %d: AtCap = %v, want %v", row.attempt, row.capped, got, row.want)
		}
	}
}

// TestSame: the same result is outcome, content type, metadata and digest of
// the plain bytes; whether the body is still there does not matter.
func TestSame(t *testing.T) {
	t.Parallel()
	but := func(change func(*Completion)) *Completion {
		c := *result("sold")
		change(&c)
		return &c
	}
	for _, row := range []struct {
		rule string
		a, b *Completion
		want bool
	}{
		{"EqualCopies", sold, result("sold"), true},
		{"AnotherBody", sold, soldOut, false},
		{"AnotherOutcome", sold, but(func(c *Completion) { c.Outcome = Rejected }), false},
		{"AnotherContentType", sold, but(func(c *Completion) { c.ContentType = "text/html" }), false},
		{"AnotherMetadataValue", sold, but(func(c *Completion) { c.Metadata = []Pair{{"order", "2"}} }), false},
		{"AnotherMetadataName", sold, but(func(c *Completion) { c.Metadata = []Pair{{"ordre", "1"}} }), false},
		{"LessMetadata", sold, but(func(c *Completion) { c.Metadata = nil }), false},
		{"MoreMetadata", sold, but(func(c *Completion) { c.Metadata = append(c.Metadata, Pair{"x", ""}) }), false},
		{"BodyShredded", sold, sold.Without(Shredded), true},
		{"BothOmittedForOtherReasons", sold.Without(TooLarge), sold.Without(StoreFull), true},
		{"BodyUnreadable", sold, sold.Without(Unreadable), true},
		{"UnreadableWithoutItsSum", sold, unsummed(sold.Without(Unreadable)), false},
		{"OmittedOfAnotherBody", sold, soldOut.Without(Shredded), false},
		{"NoneAndOne", nil, sold, false},
		{"NoneAndNone", nil, nil, true},
	} {
		if got, back := row.a.Same(row.b), row.b.Same(row.a); got != row.want || back != row.want {
			t.Errorf("%s: Same = %v and %v, want %v", row.rule, got, back, row.want)
		}
	}
}

func unsummed(c *Completion) *Completion {
	c.Sum = [32]byte{}
	return c
}

// TestOmissions: stores keep the numbers, so none ever gets another meaning.
func TestOmissions(t *testing.T) {
	t.Parallel()
	for want, got := range []Omission{NotOmitted, TooLarge, Shredded, BatchBudget, StoreFull, Unreadable} {
		if int(got) != want {
			t.Errorf("omission %d has become %d", want, got)
		}
	}
}

// TestWithout: a completion is shared, so leaving its body out makes a copy.
func TestWithout(t *testing.T) {
	t.Parallel()
	c := result("sold")
	o := c.Without(TooLarge)
	if o.Body != nil || o.Omitted != TooLarge || o.Sum != c.Sum {
		t.Errorf("Without = %+v", o)
	}
	if string(c.Body) != "sold" || c.Omitted != NotOmitted {
		t.Errorf("Without changed the original: %+v", c)
	}
}

// TestTime: microseconds, truncated, and no sum wraps around.
func TestTime(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	for _, row := range []struct {
		rule      string
		got, want Time
	}{
		{"Add", t0.Add(time.Second), t0 + 1_000_000},
		{"Add/Negative", t0.Add(-time.Second), t0 - 1_000_000},
		{"Add/BelowPrecision", t0.Add(999 * time.Nanosecond), t0},
		{"Add/BelowPrecision/Negative", t0.Add(-999 * time.Nanosecond), t0},
		{"Add/JustReachesNever", (Never - 1).Add(tick), Never},
		{"Add/HeldAtNever", (Never - 1).Add(2 * tick), Never},
		{"Add/NeverStaysNever", Never.Add(year), Never},
		{"Add/LargestDuration", Never.Add(math.MaxInt64), Never},
		{"FromTime", FromTime(time.Unix(1, 2_999)), 1_000_002},
		{"FromTime/BeforeEpoch", FromTime(time.Unix(-1, 999_999_999)), -1},
		{"FromTime/Std", FromTime(t0.Std()), t0},
	} {
		if row.got != row.want {
			t.Errorf("%s: %d, want %d", row.rule, row.got, row.want)
		}
	}
	if got := leaseEnd.Sub(t0); got != lease {
		t.Errorf("Sub = %v, want %v", got, lease)
	}
	if at := t0.Std(); at.Location() != time.UTC || at.UnixMicro() != int64(t0) {
		t.Errorf("Std = %v", at)
	}
}

// TestNames: what the contract calls them, and no panic on what it does not.
func TestNames(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		Absent.String(): "ABSENT", InProgress.String(): "IN_PROGRESS", Released.String(): "RELEASED",
		InDoubt.String(): "IN_DOUBT", Completed.String(): "COMPLETED", Forgotten.String(): "FORGOTTEN",
		State(99).String(): "UNKNOWN", Granted.String(): "GRANTED", Duplicate.String(): "DUPLICATE",
		HeldByOther.String(): "IN_PROGRESS", Mismatch.String(): "MISMATCH", Doubtful.String(): "IN_DOUBT",
		TooOld.String(): "TOO_OLD", Unprotected.String(): "UNPROTECTED", AttemptEnded.String(): "ATTEMPT_ENDED",
		OK.String(): "OK", Stale.String(): "STALE", ResultConflict.String(): "RESULT_CONFLICT",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if !(AttemptID{}).IsZero() || mine.IsZero() {
		t.Error("only the nil UUID is no attempt")
	}
}
