package pebble

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// hands are a wall clock and a monotonic clock that a test moves apart.
type hands struct {
	wall *storagetest.Clock
	mono time.Duration
}

func newHands() *hands { return &hands{wall: storagetest.NewClock(epoch)} }

func (h *hands) pass(d time.Duration) { h.wall.Advance(d); h.mono += d }

// TestSuspectClock: while the clock is suspect, nothing is granted because of
// an expiry or a lapse, and everything else goes on.
func TestSuspectClock(t *testing.T) {
	t.Parallel()
	h := newHands()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: h.wall.Now, Monotonic: func() time.Duration { return h.mono }})
	ctx := context.Background()
	a, b := claim.AttemptID{1}, claim.AttemptID{2}
	insert := func(r claim.Request) storage.Found {
		found, err := s.InsertOrGet(ctx, []claim.Request{r})
		if err != nil {
			t.Fatal(err)
		}
		return found[0]
	}
	lapsed := insert(testRequest("lapsed", a))
	h.pass(claim.LeaseDefault)
	h.wall.Advance(2 * time.Hour)

	if f := insert(testRequest("fresh", a)); f.Err != nil || f.Record.AttemptID != a {
		t.Errorf("a fresh claim: %+v", f)
	}
	aged := testRequest("aged", a)
	aged.InsertBefore = lapsed.Now
	if f := insert(aged); !errors.Is(f.Err, storage.ErrClockSuspect) {
		t.Errorf("too old by a suspect clock: %+v", f)
	}
	takeover := testRequest("lapsed", b)
	step := claim.Decide(&lapsed.Record, &takeover, lapsed.Now.Add(claim.LeaseDefault))
	replace := func() storage.Found {
		found, err := s.Replace(ctx, []claim.Swap{step.Swap})
		if err != nil {
			t.Fatal(err)
		}
		return found[0]
	}
	if f := replace(); !errors.Is(f.Err, storage.ErrClockSuspect) {
		t.Errorf("takeover by a suspect clock: %+v", f)
	}
	if _, err := s.Sweep(ctx, storage.Sweep{Limit: 10}); !errors.Is(err, storage.ErrClockSuspect) {
		t.Errorf("sweep by a suspect clock: %v", err)
	}
	if st, err := s.Stats(ctx); err != nil || !st.ClockSuspect {
		t.Errorf("stats: %+v, %v", st, err)
	}
	s.ConfirmClock()
	if f := replace(); f.Err != nil || !f.Applied || f.Record.AttemptID != b {
		t.Errorf("takeover after the operator confirmed: %+v", f)
	}
}

// TestClockAcrossRestart: a wall clock that went back while the process was
// down expires and grants nothing early, and fences go on growing.
func TestClockAcrossRestart(t *testing.T) {
	t.Parallel()
	fs, clock := vfs.NewMem(), storagetest.NewClock(epoch)
	open := func() *Store { return mustOpen(t, Config{FS: fs, Clock: clock.Now}) }
	s := open()
	first, err := s.InsertOrGet(context.Background(), []claim.Request{testRequest("a", claim.AttemptID{1})})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clock.Advance(-24 * time.Hour)
	s = open()
	second, err := s.InsertOrGet(context.Background(), []claim.Request{testRequest("b", claim.AttemptID{2})})
	if err != nil {
		t.Fatal(err)
	}
	if second[0].Now < first[0].Now {
		t.Errorf("the store's clock went back from %v to %v", first[0].Now.Std(), second[0].Now.Std())
	}
	if second[0].Record.Fence <= first[0].Record.Fence {
		t.Errorf("fence %d after %d", second[0].Record.Fence, first[0].Record.Fence)
	}
}
