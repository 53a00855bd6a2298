package warifu

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// waited makes the fake wait before it decides on a lone claim, and say so.
func waited(f *fake, wait time.Duration, told *durationpb.Duration) {
	f.before = func(_ context.Context, rpc string) error {
		if rpc == "Claim" {
			time.Sleep(wait)
		}
		return nil
	}
	f.edit = func(m proto.Message) {
		if r, ok := m.(*warifuv1.ClaimResponse); ok {
			r.Grant.Waited = told
		}
	}
}

// A lease begins when it is granted, however long the server waited before.
func TestWaitUsesNoLeaseUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		const wait, lease = 1500 * time.Millisecond, time.Second
		waited(f, wait, durationpb.New(wait))
		r, err := c.Do(t.Context(), event("e"), func(_ context.Context, g Grant) (Completion, error) {
			if left := time.Until(g.LeaseUntil); left != lease {
				t.Errorf("%s left of a lease of %s", left, lease)
			}
			return Completion{}, nil
		}, WithLease(lease), WithWait(20*time.Second))
		if err != nil || !r.Applied {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// Whatever a server says of its wait, a lease is not counted from before the
// send or from after the answer.
func TestWaitIsBelievedWithinReason(t *testing.T) {
	t.Parallel()
	const wait, lease = 2 * time.Second, time.Minute
	for name, tt := range map[string]struct {
		told *durationpb.Duration
		want time.Duration // after the send
	}{
		"untold":   {nil, 0},
		"all":      {durationpb.New(wait), wait},
		"less":     {durationpb.New(time.Second), time.Second},
		"more":     {durationpb.New(wait + 1), wait},
		"absurd":   {&durationpb.Duration{Seconds: 1 << 60}, wait},
		"negative": {durationpb.New(-time.Hour), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				waited(f, wait, tt.told)
				sent := time.Now()
				got, err := c.Claim(t.Context(), event("e"), WithLease(lease), WithWait(20*time.Second))
				if began := got.Grant.LeaseUntil.Add(-lease).Sub(sent); err != nil || began != tt.want {
					t.Errorf("the lease began %s after the send, want %s: %v", began, tt.want, err)
				}
			})
		})
	}
}

// A grant to a claim that was made alone is given back when nobody learns of it.
func TestLoneGrantsWithoutACallerAreGivenBack(t *testing.T) {
	t.Parallel()
	own := WithAttemptID("7d444840-9dc0-4bdf-8b72-1f0a3b6f1d11")
	for _, tt := range []struct {
		name   string
		lost   error // what comes in place of the answer; nil: the caller leaves
		opts   []ClaimOption
		record bool
		state  warifuv1.State
		again  int // requests to find out
	}{
		{name: "the caller left", state: warifuv1.State_STATE_RELEASED, again: 1},
		{name: "the answer was lost", lost: connect.NewError(connect.CodeUnavailable, "reset by peer"), state: warifuv1.State_STATE_RELEASED, again: 1},
		{name: "refused", lost: unavailable(t, true), state: warifuv1.State_STATE_IN_PROGRESS},
		{name: "the caller's attempt ID", opts: []ClaimOption{own}, state: warifuv1.State_STATE_IN_PROGRESS},
		{name: "recorded", record: true, state: warifuv1.State_STATE_COMPLETED},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				f.after = func(rpc string) error {
					switch {
					case rpc != "Claim":
						return nil
					case tt.lost == nil:
						cancel()
						return ctx.Err()
					}
					return tt.lost
				}
				opts := append([]ClaimOption{WithWait(time.Second)}, tt.opts...)
				var err error
				if tt.record {
					_, err = c.Record(ctx, event("e"), Completion{}, opts...)
				} else {
					_, err = c.Claim(ctx, event("e"), opts...)
				}
				if tt.lost == nil != errors.Is(err, context.Canceled) || tt.lost != nil != errors.Is(err, ErrUnavailable) {
					t.Errorf("error: %v", err)
				}
				if err := c.Close(); err != nil { // waits for it
					t.Error(err)
				}
				if got := f.record("e").stateOf(); got != tt.state || f.rpcs("BatchClaim") != tt.again {
					t.Errorf("the event is %s after %d requests, want %s after %d", got, f.rpcs("BatchClaim"), tt.state, tt.again)
				}
			})
		})
	}
}

// A caller that leaves while somebody else is at work disturbs nobody.
func TestLeavingAWaitChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		holder, err := c.Claim(t.Context(), event("e"))
		if err != nil {
			t.Fatal(err)
		}
		f.fail(func(ctx context.Context, rpc string) error {
			if rpc == "Claim" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Do(ctx, event("e"), mustNotRun(t), WithWait(20*time.Second)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error: %v", err)
		}
		synctest.Wait()
		if err := c.Complete(t.Context(), holder.Grant, Completion{}); err != nil {
			t.Error(err)
		}
		if f.rpcs("Release") != 0 || f.record("e").count != 1 {
			t.Errorf("%d releases, %d attempts", f.rpcs("Release"), f.record("e").count)
		}
	})
}

// Where the record is gone when its body is asked for, the answer is a grant,
// and it must not be dropped.
func TestGrantInPlaceOfABodyIsUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		if _, err := c.Record(t.Context(), event("e"), Completion{Body: []byte("large")}); err != nil {
			t.Fatal(err)
		}
		f.edit = func(m proto.Message) {
			if r, ok := m.(*warifuv1.BatchClaimResponse); ok {
				res := r.GetResults()[0].GetClaim().GetResult()
				res.Result, res.ResultOmitted = nil, warifuv1.ResultOmitted_RESULT_OMITTED_BATCH_BUDGET
				f.mu.Lock()
				defer f.mu.Unlock()
				delete(f.mu.records, "e")
			}
		}
		r, err := c.Do(t.Context(), event("e"), returns(Completion{Body: []byte("anew")}, nil))
		if err != nil || !r.Applied || !r.Accepted || string(f.record("e").done.GetResult()) != "anew" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
