package warifu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

var errHandler = errors.New("handler failed")

func returns(c Completion, err error) Handler {
	return func(context.Context, Grant) (Completion, error) { return c, err }
}

func mustNotRun(t *testing.T) Handler {
	t.Helper()
	return func(context.Context, Grant) (Completion, error) {
		t.Error("the handler ran")
		return Completion{}, nil
	}
}

func TestDoRunsOnceAndReplays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := setup(t)
		done := Completion{Body: []byte("42"), ContentType: "text/plain", Metadata: map[string]string{"k": "v"}}
		var got Grant
		r, err := c.Do(t.Context(), digested("e", "three"), func(_ context.Context, g Grant) (Completion, error) {
			got = g
			return done, nil
		})
		if err != nil || !r.Applied || r.Replayed || !r.Accepted || string(r.Body) != "42" || r.Outcome != Succeeded {
			t.Errorf("first: %+v, %v", r, err)
		}
		if got.Fence != 1 || got.Attempt != 1 || got.Consumer != "billing" || got.EventID != "e" || got.AttemptID == "" {
			t.Errorf("grant: %+v", got)
		}
		r, err = c.Do(t.Context(), digested("e", "three"), mustNotRun(t))
		if err != nil || r.Applied || !r.Replayed || !r.Accepted || string(r.Body) != "42" ||
			r.ContentType != "text/plain" || r.Metadata["k"] != "v" || r.CompletedAt.IsZero() {
			t.Errorf("second: %+v, %v", r, err)
		}
		r, err = c.Do(t.Context(), digested("e", "four"), mustNotRun(t))
		if !errors.Is(err, ErrMismatch) || r.Accepted || r.Body != nil {
			t.Errorf("other content: %+v, %v", r, err)
		}
	})
}

func TestDoAnswersWithoutRunning(t *testing.T) {
	t.Parallel()
	for decision, want := range map[warifuv1.Decision]error{
		warifuv1.Decision_DECISION_IN_PROGRESS: ErrInProgress,
		warifuv1.Decision_DECISION_MISMATCH:    ErrMismatch,
		warifuv1.Decision_DECISION_IN_DOUBT:    ErrInDoubt,
		warifuv1.Decision_DECISION_TOO_OLD:     ErrTooOld,
		warifuv1.Decision_DECISION_UNPROTECTED: ErrUnprotected,
	} {
		t.Run(decision.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				f.edit = func(m proto.Message) {
					r := m.(*warifuv1.BatchClaimResponse).GetResults()[0].GetClaim()
					r.Decision, r.Grant = decision, nil
				}
				r, err := c.Do(t.Context(), event("e"), mustNotRun(t))
				if !errors.Is(err, want) || errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrUnavailable) || r.Applied || r.Accepted {
					t.Errorf("%+v, %v, want %v", r, err, want)
				}
			})
		})
	}
}

func TestDoDoesNotRunWhenTheServerCannotBeAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		f.fail(func(context.Context, string) error { return unavailable(t, true) })
		_, err := c.Do(t.Context(), event("e"), mustNotRun(t))
		if !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
	})
}

func TestInProgressTellsWhenToComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := setup(t)
		if _, err := c.Claim(t.Context(), event("e"), WithLease(7*time.Second)); err != nil {
			t.Fatal(err)
		}
		_, err := c.Do(t.Context(), event("e"), mustNotRun(t))
		e, ok := errors.AsType[*Error](err)
		if !ok || !errors.Is(e, ErrInProgress) || e.RetryAfter != 7*time.Second {
			t.Errorf("error: %v", err)
		}
	})
}

func TestHandlersErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		err      error
		state    warifuv1.State
		accepted bool
	}{
		{"plain: the lease is left", errHandler, warifuv1.State_STATE_IN_PROGRESS, false},
		{"retryable: given back", Retryable(errHandler), warifuv1.State_STATE_RELEASED, false},
		{"rejected: stored", Reject(Completion{Body: []byte("no")}), warifuv1.State_STATE_COMPLETED, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				r, err := c.Do(t.Context(), event("e"), returns(Completion{Body: []byte("ignored")}, tt.err))
				if got := f.record("e").stateOf(); got != tt.state {
					t.Errorf("the event is %s, want %s", got, tt.state)
				}
				if r.Accepted != tt.accepted || r.Applied != tt.accepted {
					t.Errorf("%+v", r)
				}
				if tt.accepted {
					checkRejected(t, r, err, false)
					r, err = c.Do(t.Context(), event("e"), mustNotRun(t))
					checkRejected(t, r, err, true)
				} else if !errors.Is(err, errHandler) {
					t.Errorf("error: %v", err)
				}
				synctest.Wait()
				if f.rpcs("Extend") != 0 {
					t.Error("a lease was extended that nobody needs")
				}
			})
		})
	}
}

func checkRejected(t *testing.T, r Result, err error, replayed bool) {
	t.Helper()
	rejected, ok := errors.AsType[*RejectedError](err)
	if !ok || !errors.Is(err, ErrRejected) || string(rejected.Stored.Body) != "no" || rejected.Stored.Outcome != Rejected {
		t.Errorf("error: %v", err)
	}
	if r.Replayed != replayed || !r.Accepted || r.Outcome != Rejected {
		t.Errorf("%+v, want replayed %v", r, replayed)
	}
}

func TestRetryableOfNothingIsNothing(t *testing.T) {
	t.Parallel()
	if err := Retryable(nil); err != nil {
		t.Error(err)
	}
	if IsRetryable(errHandler) || !IsRetryable(errors.Join(Retryable(errHandler))) {
		t.Error("the mark is not found")
	}
}

func TestPanicLeavesTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		func() {
			defer func() {
				if r := recover(); r != "boom" {
					t.Errorf("recovered %v", r)
				}
			}()
			_, _ = c.Do(t.Context(), event("e"), func(context.Context, Grant) (Completion, error) { panic("boom") })
		}()
		if got := f.record("e").stateOf(); got != warifuv1.State_STATE_IN_PROGRESS {
			t.Errorf("the event is %s", got)
		}
		time.Sleep(2 * fakeLease) // of the fake clock: nobody extends any more
		synctest.Wait()
		if f.rpcs("Extend") != 0 {
			t.Error("the lease of a dead handler was extended")
		}
	})
}

func TestHeartbeatsKeepTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		const work = 10 * fakeLease
		r, err := c.Do(t.Context(), event("e"), func(ctx context.Context, _ Grant) (Completion, error) {
			if !sleep(ctx, work) {
				t.Errorf("the context ended: %v", context.Cause(ctx))
			}
			if other, err := c.Claim(ctx, event("e")); err != nil || other.Decision != InProgress {
				t.Errorf("another attempt: %+v, %v", other, err)
			}
			return Completion{}, nil
		}, WithLease(fakeLease))
		if err != nil || !r.Applied {
			t.Errorf("%+v, %v", r, err)
		}
		// One beat in a third of the lease, give or take a fifth.
		if got, low, high := f.mu.extends, 25, 38; got < low || got > high {
			t.Errorf("%d extensions in %s of a lease of %s, want %d-%d", got, work, fakeLease, low, high)
		}
		sent := f.rpcs("Extend")
		time.Sleep(10 * fakeLease)
		if f.rpcs("Extend") != sent {
			t.Error("the lease was extended after the completion")
		}
	})
}

func TestHandlersContextEndsWithTheLease(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		breaks func(*testing.T, *fake)
		after  time.Duration // the context must end no later
		stale  bool          // somebody else has it
	}{
		{"somebody took it", func(_ *testing.T, f *fake) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.mu.records["e"].fence, f.mu.records["e"].attempt = 99, "somebody else"
		}, fakeLease / 2, true},
		{"the server cannot be reached", func(t *testing.T, f *fake) {
			t.Helper()
			f.fail(func(context.Context, string) error { return unavailable(t, true) })
		}, fakeLease, false},
		{"heartbeats are never answered", func(_ *testing.T, f *fake) {
			f.fail(func(ctx context.Context, rpc string) error {
				if rpc == "Extend" {
					<-ctx.Done()
				}
				return ctx.Err()
			})
		}, fakeLease, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				r, err := c.Do(t.Context(), event("e"), func(ctx context.Context, _ Grant) (Completion, error) {
					began := time.Now()
					tt.breaks(t, f)
					<-ctx.Done()
					if cause := context.Cause(ctx); !errors.Is(cause, ErrLeaseLost) || errors.Is(cause, ErrStale) != tt.stale {
						t.Errorf("cause: %v", cause)
					}
					if d := time.Since(began); d >= tt.after {
						t.Errorf("the context ended after %s, want less than %s", d, tt.after)
					}
					f.fail(nil)
					return Completion{}, ctx.Err()
				})
				if !errors.Is(err, ErrLeaseLost) || !errors.Is(err, context.Canceled) || r.Applied || r.Accepted {
					t.Errorf("%+v, %v", r, err)
				}
			})
		})
	}
}

// The end of the lease is noticed without the heartbeat goroutine.
func TestLeaseEndIsNoticedWithoutHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := setup(t)
		began := time.Now()
		k := c.keep(t.Context(), Grant{Consumer: "billing", EventID: "none", LeaseUntil: began.Add(fakeLease)}, 0)
		k.endBeat() // starved for good
		<-k.ctx.Done()
		if d := time.Since(began); d != fakeLease-k.margin || k.margin != time.Second {
			t.Errorf("noticed after %s, margin %s", d, k.margin)
		}
		if !errors.Is(k.lost(), ErrLeaseLost) {
			t.Errorf("lost: %v", k.lost())
		}
		k.stop()
	})
}

// A handler that overlooks the loss still completes: while nobody else was
// granted, the owner knows best; otherwise it is told.
func TestLateCompletion(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, f := setup(t)
			r, err := c.Do(t.Context(), event("e"), func(ctx context.Context, _ Grant) (Completion, error) {
				f.fail(func(context.Context, string) error { return unavailable(t, true) })
				<-ctx.Done()
				time.Sleep(fakeLease)
				f.fail(nil)
				if taken {
					if other, err := c.Claim(t.Context(), event("e")); err != nil || other.Decision != Granted || other.Grant.Takeover != LeaseLapsed {
						t.Errorf("takeover: %+v, %v", other, err)
					}
				}
				return Completion{}, nil
			})
			if !r.Applied || r.Accepted == taken || errors.Is(err, ErrStale) != taken {
				t.Errorf("taken %v: %+v, %v", taken, r, err)
			}
			if e, ok := errors.AsType[*Error](err); taken && (!ok || e.State != StateInProgress || !e.NotApplied) {
				t.Errorf("error: %#v", e)
			}
		})
	}
}

func TestCallersDisconnectCannotLoseACompletion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		r, err := c.Do(ctx, event("e"), func(hctx context.Context, _ Grant) (Completion, error) {
			cancel()
			<-hctx.Done()
			if cause := context.Cause(hctx); errors.Is(cause, ErrLeaseLost) {
				t.Errorf("cause: %v", cause)
			}
			time.Sleep(2 * fakeLease) // the work goes on, and so do heartbeats
			if other, err := c.Claim(t.Context(), event("e")); err != nil || other.Decision != InProgress {
				t.Errorf("another attempt meanwhile: %+v, %v", other, err)
			}
			return Completion{Body: []byte("done")}, nil
		})
		if err != nil || !r.Accepted || f.record("e").stateOf() != warifuv1.State_STATE_COMPLETED {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestDisconnectBeforeTheHandlerGivesTheGrantBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		answer, err := c.Claim(ctx, event("e"))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := c.run(ctx, answer.Grant, 0, mustNotRun(t)); !errors.Is(err, context.Canceled) {
			t.Errorf("error: %v", err)
		}
		if got := f.record("e").stateOf(); got != warifuv1.State_STATE_RELEASED {
			t.Errorf("the event is %s", got)
		}
	})
}

func TestGrantThatComesTooLateIsNotUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		f.after = func(rpc string) error {
			if rpc == "BatchClaim" {
				time.Sleep(2 * time.Second)
			}
			return nil
		}
		_, err := c.Do(t.Context(), event("e"), mustNotRun(t), WithLease(time.Second))
		if !errors.Is(err, ErrLeaseLost) {
			t.Errorf("error: %v", err)
		}
		if got := f.record("e").stateOf(); got != warifuv1.State_STATE_RELEASED {
			t.Errorf("the event is %s", got)
		}
	})
}

func TestCompletionIsTriedUntilTheLeaseIsOver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		down time.Duration
		want error
	}{{fakeLease / 2, nil}, {2 * fakeLease, ErrOutcomeUnknown}} {
		synctest.Test(t, func(t *testing.T) {
			c, f := setup(t)
			r, err := c.Do(t.Context(), event("e"), func(context.Context, Grant) (Completion, error) {
				back := time.Now().Add(tt.down)
				f.fail(func(context.Context, string) error {
					if time.Now().Before(back) {
						return connect.NewError(connect.CodeUnavailable, "restarting")
					}
					return nil
				})
				return Completion{}, nil
			})
			if !r.Applied || r.Accepted != (tt.want == nil) || !errors.Is(err, tt.want) {
				t.Errorf("down for %s: %+v, %v", tt.down, r, err)
			}
			if got := f.rpcs("Extend"); got != 0 {
				t.Errorf("down for %s: %d extensions beside the completion", tt.down, got)
			}
		})
	}
}

func TestLostReplyOfACompletion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		lose := failing(errors.New("lost"))
		f.after = func(rpc string) error {
			if rpc == "BatchComplete" && lose() != nil {
				return connect.NewError(connect.CodeUnavailable, "reset by peer")
			}
			return nil
		}
		r, err := c.Do(t.Context(), event("e"), returns(Completion{Body: []byte("x")}, nil))
		if err != nil || !r.Accepted || f.rpcs("BatchComplete") != 2 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestResultsOverTheLimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		bytes   int
		omitted Omission
		sends   int
	}{
		{"at the consumer's limit", fakeResultMax, NotOmitted, 1},
		{"over the consumer's limit", fakeResultMax + 1, TooLarge, 2},
		{"over every limit", resultBytesMax + 1, TooLarge, 1},
		{"over what fits into a request", 3 << 20, TooLarge, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				body := bytes.Repeat([]byte("x"), tt.bytes)
				r, err := c.Do(t.Context(), event("e"), returns(Completion{Body: body, ContentType: "text/plain"}, nil))
				if err != nil || r.Omitted != tt.omitted || len(r.Body) != tt.bytes || !r.Accepted {
					t.Errorf("%s of %d bytes, %v", r.Omitted, len(r.Body), err)
				}
				if got := f.rpcs("BatchComplete"); got != tt.sends {
					t.Errorf("sent %d times, want %d", got, tt.sends)
				}
				kept := f.record("e").done
				if sum := sha256.Sum256(body); tt.omitted == TooLarge && (!bytes.Equal(kept.GetResultSha256(), sum[:]) || kept.GetContentType() != "text/plain") {
					t.Errorf("kept: %v", kept)
				}
				r, err = c.Do(t.Context(), event("e"), mustNotRun(t))
				if err != nil || r.Omitted != tt.omitted || !r.Replayed || (len(r.Body) > 0) != (tt.omitted == NotOmitted) {
					t.Errorf("replay: %s of %d bytes, %v", r.Omitted, len(r.Body), err)
				}
			})
		})
	}
}

func TestBodiesLeftOutOfABatchAreFetched(t *testing.T) {
	t.Parallel()
	for _, reachable := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c, f := setup(t)
			if _, err := c.Record(t.Context(), event("e"), Completion{Body: []byte("large")}); err != nil {
				t.Fatal(err)
			}
			f.edit = func(m proto.Message) {
				if r, ok := m.(*warifuv1.BatchClaimResponse); ok {
					res := r.GetResults()[0].GetClaim().GetResult()
					res.Result, res.ResultOmitted = nil, warifuv1.ResultOmitted_RESULT_OMITTED_BATCH_BUDGET
				}
			}
			f.fail(func(_ context.Context, rpc string) error {
				if rpc == "Claim" && !reachable {
					return unavailable(t, true)
				}
				return nil
			})
			r, err := c.Do(t.Context(), event("e"), mustNotRun(t))
			want, body := NotOmitted, "large"
			if !reachable {
				want, body = BatchBudget, ""
			}
			if err != nil || !r.Replayed || r.Omitted != want || string(r.Body) != body {
				t.Errorf("reachable %v: %+v, %v", reachable, r, err)
			}
		})
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := setup(t)
		got, err := c.Record(t.Context(), event("e"), Completion{Body: []byte("x")})
		if err != nil || got.Decision != Granted || !got.Grant.Recorded || !got.Accepted || !got.Grant.LeaseUntil.IsZero() {
			t.Errorf("%+v, %v", got, err)
		}
		got, err = c.Record(t.Context(), event("e"), Completion{Body: []byte("y")})
		if err != nil || got.Decision != Duplicate || string(got.Stored.Body) != "x" || got.Err() != nil {
			t.Errorf("%+v, %v", got, err)
		}
		got, err = c.Record(t.Context(), event("no"), Completion{Outcome: Rejected})
		if err != nil || !got.Grant.Recorded {
			t.Errorf("%+v, %v", got, err)
		}
		got, err = c.Claim(t.Context(), event("no"))
		if err != nil || got.Decision != Duplicate || !errors.Is(got.Err(), ErrRejected) {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := setup(t)
		ctx := t.Context()
		got, err := c.Claim(ctx, event("e"), WithLease(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		g := got.Grant
		longer, err := c.Extend(ctx, g, time.Hour)
		if d := time.Until(longer.LeaseUntil); err != nil || d != time.Hour || longer.Fence != g.Fence {
			t.Errorf("extend: %+v, %v", longer, err)
		}
		if shorter, err := c.Extend(ctx, longer, time.Second); err != nil || shorter.LeaseUntil.Before(longer.LeaseUntil) {
			t.Errorf("a lease became shorter: %+v, %v", shorter, err)
		}
		if err := c.Release(ctx, g); err != nil {
			t.Error(err)
		}
		if rec, err := c.Lookup(ctx, "billing", "e"); err != nil || rec.State != StateReleased {
			t.Errorf("lookup: %+v, %v", rec, err)
		}
		if got, err = c.Claim(ctx, event("e")); err != nil || got.Grant.Takeover != AttemptReleased || got.Grant.Attempt != 2 {
			t.Fatalf("second: %+v, %v", got, err)
		}
		for name, err := range map[string]error{
			"complete": c.Complete(ctx, g, Completion{}), "release": c.Release(ctx, g), "extend": second(c.Extend(ctx, g, 0)),
		} {
			e, ok := errors.AsType[*Error](err)
			if !ok || !errors.Is(err, ErrStale) || e.State != StateInProgress || e.Op != name || !e.NotApplied {
				t.Errorf("%s of an old grant: %v", name, err)
			}
		}
		if err := c.Complete(ctx, got.Grant, Completion{Body: []byte("a")}); err != nil {
			t.Error(err)
		}
		if err := c.Complete(ctx, got.Grant, Completion{Body: []byte("a")}); err != nil {
			t.Errorf("the same again: %v", err)
		}
		if err := c.Complete(ctx, got.Grant, Completion{Body: []byte("b")}); !errors.Is(err, ErrResultConflict) {
			t.Errorf("another result: %v", err)
		}
		if rec, err := c.Lookup(ctx, "billing", "e"); err != nil || rec.State != StateCompleted || string(rec.Stored.Body) != "a" {
			t.Errorf("lookup: %+v, %v", rec, err)
		}
		if rec, err := c.Lookup(ctx, "billing", "never"); err != nil || rec.State != StateAbsent {
			t.Errorf("lookup: %+v, %v", rec, err)
		}
	})
}

func TestErrorTextSaysWhatHappened(t *testing.T) {
	t.Parallel()
	e := &Error{
		Op: "claim", kind: ErrInvalid, Reason: "INVALID_FIELD", Field: "event_id", Limit: "1-512 bytes", RequestID: "r1",
		RetryAfter: time.Second, cause: errHandler,
	}
	for _, part := range []string{"claim", "INVALID_FIELD", "event_id", "1-512 bytes", "r1", "1s", "handler failed", "outcome unknown"} {
		if !strings.Contains(e.Error(), part) {
			t.Errorf("%q does not say %q", e, part)
		}
	}
	e.NotApplied = true
	if strings.Contains(e.Error(), "unknown") {
		t.Errorf("%q", e)
	}
}
