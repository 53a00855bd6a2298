package warifu

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// failing returns errors by turns, then nil for ever.
func failing(errs ...error) func() error {
	return func() error {
		if len(errs) == 0 {
			return nil
		}
		err := errs[0]
		errs = errs[1:]
		return err
	}
}

func TestLostReplyIsSentAgainWithTheSameAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		lose := failing(connect.NewError(connect.CodeUnavailable, "reset by peer"))
		f.after = func(string) error { return lose() }
		began := time.Now()
		got, err := c.Claim(t.Context(), event("e"))
		if err != nil || got.Decision != Granted || got.Grant.Fence != 1 || got.Grant.Attempt != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
		ids := f.attempts("e")
		if len(ids) != 2 || ids[0] != ids[1] || ids[0] != got.Grant.AttemptID {
			t.Errorf("attempt IDs sent: %v", ids)
		}
		if d := time.Since(began); d >= delayMinDefault {
			t.Errorf("the second try came after %s, want less than %s", d, delayMinDefault)
		}
		// The lease is counted from the send that was answered, so it never ends
		// later here than at the server.
		if until := f.record("e").until; got.Grant.LeaseUntil.After(until) {
			t.Errorf("lease until %s here and %s at the server", got.Grant.LeaseUntil, until)
		}
	})
}

func TestOneTryThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t, WithTimeout(time.Second))
		hang := failing(errors.New("hang"))
		f.before = func(ctx context.Context, _ string) error {
			if hang() != nil {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		if _, err := c.Claim(t.Context(), event("e")); err != nil {
			t.Error(err)
		}
		if got := f.rpcs("BatchClaim"); got != 2 {
			t.Errorf("%d tries", got)
		}
	})
}

func TestTriesAreBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		err     error
		timeout time.Duration // of the caller
		tries   int
	}{
		{"by their number", unavailable(t, true), time.Hour, 3},
		{"by the caller's deadline", unavailable(t, true), time.Nanosecond, 1},
		{"by the server's patience", rpcError(t, connect.CodeUnavailable, &warifuv1.ErrorInfo{
			Reason: warifuv1.Reason_REASON_SHUTTING_DOWN, RetryAfter: durationpb.New(time.Minute), NotApplied: true,
		}), time.Hour, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				f.before = func(context.Context, string) error { return tt.err }
				ctx, cancel := context.WithTimeout(t.Context(), tt.timeout)
				defer cancel()
				_, err := c.Claim(ctx, event("e"))
				if !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("error: %v", err)
				}
				if got := f.rpcs("BatchClaim"); got != tt.tries {
					t.Errorf("%d tries, want %d", got, tt.tries)
				}
			})
		})
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		fail := failing(rpcError(t, connect.CodeResourceExhausted, &warifuv1.ErrorInfo{
			Reason: warifuv1.Reason_REASON_OVERLOADED, RetryAfter: durationpb.New(time.Second), NotApplied: true,
		}))
		f.before = func(context.Context, string) error { return fail() }
		began := time.Now()
		if _, err := c.Claim(t.Context(), event("e")); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d < time.Second || d > time.Second+delayMinDefault {
			t.Errorf("sent again after %s", d)
		}
	})
}

// I6: one unknown send makes the call unknown, whatever is said of later ones.
func TestOneUnknownSendMakesTheCallUnknown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		errs    []error
		unknown bool
		kind    error
	}{
		{"all not applied", []error{unavailable(t, true), unavailable(t, true), unavailable(t, true)}, false, ErrUnavailable},
		{"first unknown", []error{unavailable(t, false), unavailable(t, true), unavailable(t, true)}, true, ErrUnavailable},
		{"unknown, then refused", []error{unavailable(t, false), rpcError(t, connect.CodeUnauthenticated, &warifuv1.ErrorInfo{
			Reason: warifuv1.Reason_REASON_UNAUTHENTICATED, NotApplied: true,
		})}, true, ErrUnauthenticated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				fail := failing(tt.errs...)
				f.before = func(context.Context, string) error { return fail() }
				_, err := c.Claim(t.Context(), event("e"))
				if !errors.Is(err, tt.kind) || errors.Is(err, ErrOutcomeUnknown) != tt.unknown {
					t.Errorf("error: %v", err)
				}
			})
		})
	}
}

func TestCancelledWhileBackingOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t, WithRetry(RetryPolicy{DelayMin: time.Hour, DelayMax: time.Hour}))
		f.before = func(context.Context, string) error { return unavailable(t, true) }
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			cancel()
		}()
		_, err := c.Claim(ctx, event("e"))
		if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("error: %v", err)
		}
	})
}

func TestRetriesHaveABudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const calls = 100
		c, f := setup(t)
		down := true
		f.before = func(context.Context, string) error {
			if down {
				return unavailable(t, true)
			}
			return nil
		}
		for i := range calls {
			if _, err := c.Claim(t.Context(), event(strconv.Itoa(i))); !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
		}
		if got := f.rpcs("BatchClaim"); got != calls+budgetTokens {
			t.Errorf("%d calls to a dead server made %d requests, want %d", calls, got, calls+budgetTokens)
		}
		// Ten successes earn one retry.
		down = false
		for i := range 11 {
			if _, err := c.Claim(t.Context(), event("up"+strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
		down = true
		before := f.rpcs("BatchClaim")
		if _, err := c.Claim(t.Context(), event("again")); err == nil {
			t.Fatal("no error")
		}
		if got := f.rpcs("BatchClaim") - before; got != 2 {
			t.Errorf("%d tries after the budget recovered, want 2", got)
		}
	})
}

// One failed request of many items costs one token, and its items meet again.
func TestAFailedBatchIsSentAgainTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const callers = 300
		c, f := setup(t)
		// One failure for each sender: no item can meet as many as it has tries.
		fail := failing(unavailable(t, false), unavailable(t, false))
		gate := make(chan struct{})
		f.before = func(context.Context, string) error {
			<-gate
			f.mu.Lock()
			defer f.mu.Unlock()
			return fail()
		}
		errs := make(chan error, callers)
		for i := range callers {
			go func() {
				_, err := c.Claim(t.Context(), event(strconv.Itoa(i)))
				errs <- err
			}()
		}
		synctest.Wait()
		close(gate)
		for range callers {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		// Items that came back each at a time of its own would take hundreds.
		if got, most := f.rpcs("BatchClaim"), callers/5; got > most {
			t.Errorf("%d requests, want at most %d", got, most)
		}
	})
}

// Every reason of the registry has a meaning, and refusals are sent once.
func TestEveryReasonHasASentinel(t *testing.T) {
	t.Parallel()
	type want struct {
		kind  error
		again bool
	}
	wants := map[warifuv1.Reason]want{
		warifuv1.Reason_REASON_UNSPECIFIED:        {ErrReply, false},
		warifuv1.Reason_REASON_INVALID_FIELD:      {ErrInvalid, false},
		warifuv1.Reason_REASON_UNAUTHENTICATED:    {ErrUnauthenticated, false},
		warifuv1.Reason_REASON_PERMISSION_DENIED:  {ErrPermissionDenied, false},
		warifuv1.Reason_REASON_UNKNOWN_CONSUMER:   {ErrUnknownConsumer, false},
		warifuv1.Reason_REASON_ATTEMPT_ENDED:      {ErrAttemptEnded, false},
		warifuv1.Reason_REASON_STORE_UNAVAILABLE:  {ErrUnavailable, true},
		warifuv1.Reason_REASON_OUTCOME_UNKNOWN:    {ErrUnavailable, true},
		warifuv1.Reason_REASON_CLOCK_SUSPECT:      {ErrUnavailable, false},
		warifuv1.Reason_REASON_RESTORED:           {ErrUnavailable, false},
		warifuv1.Reason_REASON_STORE_FULL:         {ErrUnavailable, false},
		warifuv1.Reason_REASON_OVERLOADED:         {ErrOverloaded, true},
		warifuv1.Reason_REASON_SHUTTING_DOWN:      {ErrUnavailable, true},
		warifuv1.Reason_REASON_DEADLINE_EXCEEDED:  {ErrUnavailable, true},
		warifuv1.Reason_REASON_INVALID_PAGE_TOKEN: {ErrInvalid, false},
		warifuv1.Reason_REASON_INTERNAL:           {ErrInternal, false},
		warifuv1.Reason_REASON_CANCELED:           {ErrUnavailable, true},
		warifuv1.Reason_REASON_TENANT_SUSPENDED:   {ErrPermissionDenied, false},
		warifuv1.Reason_REASON_QUOTA_EXCEEDED:     {ErrQuotaExceeded, false},
		warifuv1.Reason_REASON_NOT_FOUND:          {ErrInvalid, false},
		warifuv1.Reason_REASON_ALREADY_EXISTS:     {ErrInvalid, false},
		warifuv1.Reason_REASON_CONFLICT:           {ErrInvalid, false},
		warifuv1.Reason_REASON_PRECONDITION:       {ErrPermissionDenied, false},
	}
	for n, name := range warifuv1.Reason_name {
		reason := warifuv1.Reason(n)
		w, ok := wants[reason]
		if !ok {
			t.Errorf("%s: no row", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				// As the error of a whole request, and of one item.
				info := &warifuv1.ErrorInfo{Reason: reason, NotApplied: true}
				c, f := setup(t, WithRetry(RetryPolicy{Tries: 2}))
				f.before = func(context.Context, string) error { return rpcError(t, connect.CodeUnknown, info) }
				_, whole := c.Claim(t.Context(), event("whole"))
				f.before = nil
				f.item = func(string) *warifuv1.ItemError { return &warifuv1.ItemError{Code: "unknown", Info: info} }
				sent := f.rpcs("BatchClaim")
				_, item := c.Claim(t.Context(), event("item"))
				if !errors.Is(whole, w.kind) || !errors.Is(item, w.kind) {
					t.Errorf("whole: %v; item: %v; want %v", whole, item, w.kind)
				}
				tries := 1
				if w.again {
					tries = 2
				}
				if got := f.rpcs("BatchClaim") - sent; sent != tries || got != tries {
					t.Errorf("%d and %d tries, want %d", sent, got, tries)
				}
			})
		})
	}
}

func TestErrorsWithoutAReasonMeanTheirCode(t *testing.T) {
	t.Parallel()
	for code, want := range map[connect.Code]error{
		connect.CodeUnavailable: ErrUnavailable, connect.CodeDeadlineExceeded: ErrUnavailable, connect.CodeCanceled: ErrUnavailable,
		connect.CodeAborted: ErrUnavailable, connect.CodeResourceExhausted: ErrOverloaded,
		connect.CodeUnauthenticated: ErrUnauthenticated, connect.CodePermissionDenied: ErrPermissionDenied,
		connect.CodeInvalidArgument: ErrInvalid, connect.CodeFailedPrecondition: ErrInvalid, connect.CodeOutOfRange: ErrInvalid,
		connect.CodeInternal: ErrInternal, connect.CodeDataLoss: ErrInternal,
		connect.CodeUnknown: ErrReply, connect.CodeUnimplemented: ErrReply, connect.CodeNotFound: ErrReply, connect.CodeAlreadyExists: ErrReply,
	} {
		e := failedCall("claim", connect.NewError(code, "from a proxy"))
		if !errors.Is(e, want) || !errors.Is(e, ErrOutcomeUnknown) {
			t.Errorf("%s: %v, want %v and unknown", code, e, want)
		}
	}
}
