package warifutest_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	warifu "github.com/warifu/warifu/sdk/go"
	"github.com/warifu/warifu/sdk/go/warifutest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func order(id string) warifu.Event { return warifu.Event{Consumer: "inventory", ID: id} }

func done(body string) warifu.Handler {
	return func(context.Context, warifu.Grant) (warifu.Completion, error) {
		return warifu.Completion{Body: []byte(body)}, nil
	}
}

func TestDoAgainstTheRealServer(t *testing.T) {
	t.Parallel()
	srv := warifutest.NewServer(t)
	c := srv.Client()
	e := order("o-1")
	e.Digests = []warifu.Digest{{Scheme: "sha256/order.v1", Value: []byte("three")}}
	e.Time = srv.Clock.Now()
	r, err := c.Do(t.Context(), e, done("shipped"))
	if err != nil || !r.Applied || !r.Accepted {
		t.Fatalf("first: %+v, %v", r, err)
	}
	srv.Clock.Advance(24 * time.Hour)
	r, err = srv.Client().Do(t.Context(), e, done("again"))
	if err != nil || !r.Replayed || string(r.Body) != "shipped" || !r.CompletedAt.Equal(srv.Clock.Now().Add(-24*time.Hour)) {
		t.Errorf("second: %+v, %v", r, err)
	}
	e.Digests[0].Value = []byte("four")
	if _, err = c.Do(t.Context(), e, done("no")); !errors.Is(err, warifu.ErrMismatch) {
		t.Errorf("other content: %v", err)
	}
	srv.Clock.Advance(30 * 24 * time.Hour)
	if _, err = c.Do(t.Context(), e, done("no")); !errors.Is(err, warifu.ErrTooOld) {
		t.Errorf("a month later: %v", err)
	}
}

func TestLeasesFollowTheServersClock(t *testing.T) {
	t.Parallel()
	srv := warifutest.NewServer(t)
	srv.Consumer("payments", warifutest.Policy{Hold: true})
	c := srv.Client()
	for _, tt := range []struct {
		consumer string
		want     warifu.Decision
	}{{"inventory", warifu.Granted}, {"payments", warifu.InDoubt}} {
		e := warifu.Event{Consumer: tt.consumer, ID: "e"}
		first, err := c.Claim(t.Context(), e)
		if err != nil || first.Decision != warifu.Granted {
			t.Fatalf("%s: %+v, %v", tt.consumer, first, err)
		}
		if left := time.Until(first.Grant.LeaseUntil); left <= 29*time.Second || left > 30*time.Second {
			t.Errorf("%s: lease ends in %s here", tt.consumer, left)
		}
		busy, err := c.Claim(t.Context(), e)
		if err != nil || busy.Decision != warifu.InProgress || busy.RetryAfter <= 0 {
			t.Errorf("%s: %+v, %v", tt.consumer, busy, err)
		}
		srv.Clock.Advance(30 * time.Second) // half open: the lease is over
		next, err := c.Claim(t.Context(), e)
		if err != nil || next.Decision != tt.want {
			t.Errorf("%s: %+v, %v, want %s", tt.consumer, next, err, tt.want)
		}
		_, err = c.Extend(t.Context(), first.Grant, 0)
		if !errors.Is(err, warifu.ErrStale) {
			t.Errorf("%s: extend: %v", tt.consumer, err)
		}
		err = c.Complete(t.Context(), first.Grant, warifu.Completion{})
		if late := tt.want == warifu.InDoubt; late != (err == nil) || !late && !errors.Is(err, warifu.ErrStale) {
			t.Errorf("%s: late completion: %v", tt.consumer, err)
		}
	}
}

func TestALostLeaseEndsTheHandlersContext(t *testing.T) {
	t.Parallel()
	srv := warifutest.NewServer(t)
	c := srv.Client()
	_, err := c.Do(t.Context(), order("e"), func(ctx context.Context, g warifu.Grant) (warifu.Completion, error) {
		srv.Clock.Advance(time.Minute)
		taken, err := c.Claim(ctx, order("e"))
		if err != nil || taken.Decision != warifu.Granted || taken.Grant.Takeover != warifu.LeaseLapsed || taken.Grant.Fence <= g.Fence {
			t.Errorf("takeover: %+v, %v", taken, err)
		}
		<-ctx.Done() // at the next heartbeat
		return warifu.Completion{}, context.Cause(ctx)
	}, warifu.WithLease(time.Second))
	if !errors.Is(err, warifu.ErrLeaseLost) {
		t.Errorf("error: %v", err)
	}
}

func TestRealServersRefusals(t *testing.T) {
	t.Parallel()
	srv := warifutest.NewServer(t)
	srv.Consumer("small", warifutest.Policy{ResultBytesMax: 10})
	c := srv.Client()
	_, err := c.Claim(t.Context(), order(""))
	e, ok := errors.AsType[*warifu.Error](err)
	if !ok || !errors.Is(err, warifu.ErrInvalid) || !e.NotApplied || e.Field == "" || e.Limit == "" || e.RequestID == "" {
		t.Errorf("empty event ID: %#v", e)
	}
	_, err = srv.Client(warifu.WithAPIKey("wf_test_no_no_00000000")).Claim(t.Context(), order("e"))
	if !errors.Is(err, warifu.ErrUnauthenticated) || errors.Is(err, warifu.ErrOutcomeUnknown) {
		t.Errorf("wrong key: %v", err)
	}
	got, err := c.Claim(t.Context(), order("ended"), warifu.WithAttemptID("0e1a5b52-7c26-4b6e-9d5c-4a6f3a0f2a01"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Release(t.Context(), got.Grant); err != nil {
		t.Error(err)
	}
	_, err = c.Claim(t.Context(), order("ended"), warifu.WithAttemptID(got.Grant.AttemptID))
	if !errors.Is(err, warifu.ErrAttemptEnded) {
		t.Errorf("ended attempt: %v", err)
	}
	small := warifu.Event{Consumer: "small", ID: "e"}
	r, err := c.Do(t.Context(), small, done("more than ten bytes"))
	if err != nil || r.Omitted != warifu.TooLarge {
		t.Errorf("large result: %+v, %v", r, err)
	}
	again, err := c.Record(t.Context(), warifu.Event{Consumer: "small", ID: "f"}, warifu.Completion{Body: make([]byte, 11)})
	if err != nil || !again.Grant.Recorded {
		t.Errorf("large record: %+v, %v", again, err)
	}
	rec, err := c.Lookup(t.Context(), "small", "e")
	if err != nil || rec.State != warifu.StateCompleted || rec.Stored.Omitted != warifu.TooLarge {
		t.Errorf("lookup: %+v, %v", rec, err)
	}
}

// A waiting claim learns of the completion and gets its result.
func TestWaitForTheResult(t *testing.T) {
	t.Parallel()
	srv := warifutest.NewServer(t)
	c := srv.Client()
	got, err := c.Claim(t.Context(), order("e"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		waited, err := c.Claim(t.Context(), order("e"), warifu.WithWait(20*time.Second))
		if err != nil || waited.Decision != warifu.Duplicate || string(waited.Stored.Body) != "x" {
			t.Errorf("waited: %+v, %v", waited, err)
		}
	})
	if err := c.Complete(t.Context(), got.Grant, warifu.Completion{Body: []byte("x")}); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// A wait that is longer than the lease leaves the lease whole.
func TestWaitLongerThanTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := warifutest.NewServer(t)
		c := srv.Client()
		holder, err := c.Claim(t.Context(), order("e"))
		if err != nil {
			t.Fatal(err)
		}
		const wait, lease = 1500 * time.Millisecond, time.Second
		var wg sync.WaitGroup
		wg.Go(func() {
			r, err := c.Do(t.Context(), order("e"), func(_ context.Context, g warifu.Grant) (warifu.Completion, error) {
				if left := time.Until(g.LeaseUntil); left <= lease-lease/10 || left > lease {
					t.Errorf("%s left of a lease of %s", left, lease)
				}
				return warifu.Completion{}, nil
			}, warifu.WithLease(lease), warifu.WithWait(20*time.Second))
			if err != nil || !r.Applied {
				t.Errorf("%+v, %v", r, err)
			}
		})
		synctest.Wait()
		time.Sleep(wait) // of the client's clock, and
		srv.Clock.Advance(wait)
		if err := c.Release(t.Context(), holder.Grant); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

func TestManyEventsAndDuplicatesAtOnce(t *testing.T) {
	t.Parallel()
	const events, copies = 200, 8
	srv := warifutest.NewServer(t)
	c := srv.Client()
	var (
		wg   sync.WaitGroup
		runs [events]atomic.Int32
	)
	for i := range events * copies {
		wg.Go(func() {
			n := i % events
			for {
				_, err := c.Do(t.Context(), order(strconv.Itoa(n)), func(context.Context, warifu.Grant) (warifu.Completion, error) {
					runs[n].Add(1)
					return warifu.Completion{}, nil
				}, warifu.WithWait(10*time.Second))
				if err == nil {
					return
				}
				if !errors.Is(err, warifu.ErrInProgress) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for n := range runs {
		if got := runs[n].Load(); got != 1 {
			t.Errorf("event %d ran %d times", n, got)
		}
	}
}
