package measure

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestLoop: what ends within the window counts, and nothing else.
func TestLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		plan := Plan{Callers: 4, Warm: 95 * time.Millisecond, Window: time.Second}
		s, err := Loop(t.Context(), plan, func(context.Context, int) (int, error) {
			time.Sleep(10 * time.Millisecond) // the bubble's time: what an operation takes
			return 3, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := int64(4 * 100 * 3); s.Ops != want {
			t.Errorf("ops = %d, want %d", s.Ops, want)
		}
		if s.Seconds != 1 || s.Rate() != 1200 {
			t.Errorf("%v s, %v/s; want 1 s, 1200/s", s.Seconds, s.Rate())
		}
		if s.P50 != 10_000 || s.P99 != 10_000 {
			t.Errorf("p50 %v, p99 %v; want 10000 µs", s.P50, s.P99)
		}
	})
}

func TestLoopFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	plan := Plan{Callers: 8, Window: time.Hour}
	_, err := Loop(t.Context(), plan, func(ctx context.Context, caller int) (int, error) {
		if caller == 5 {
			return 0, broken
		}
		<-ctx.Done() // the others are let go
		return 0, ctx.Err()
	})
	if !errors.Is(err, broken) {
		t.Errorf("error = %v, want the operation's", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Loop(ctx, plan, func(context.Context, int) (int, error) { return 1, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want that of the context", err)
	}
	for _, plan := range []Plan{{Callers: 1, ServerPID: 1 << 30}, {Callers: 1, DatabasePID: 1 << 30}} {
		if _, err := Loop(t.Context(), plan, func(context.Context, int) (int, error) { return 1, nil }); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error = %v: the CPU time of no process was read", err)
		}
	}
}
