package warifu

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func internal(t *testing.T) error {
	t.Helper()
	return rpcError(t, connect.CodeInternal, &warifuv1.ErrorInfo{Reason: warifuv1.Reason_REASON_INTERNAL})
}

// After the effect only an answer ends the completion: not a bug of the server,
// and not what something between makes up.
func TestCompletionWithoutAnAnswerIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]error{
		"internal":                internal(t),
		"unknown, of a proxy":     connect.NewError(connect.CodeUnknown, "from a proxy"),
		"not found, of a proxy":   connect.NewError(connect.CodeNotFound, "from a proxy"),
		"data loss, of a proxy":   connect.NewError(connect.CodeDataLoss, "from a proxy"),
		"unavailable, of a proxy": connect.NewError(connect.CodeUnavailable, "from a proxy"),
	} {
		for down, want := range map[time.Duration]error{0: nil, fakeLease / 2: nil, 2 * fakeLease: ErrOutcomeUnknown} {
			t.Run(name+" for "+down.String(), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					c, f := setup(t)
					var began time.Time
					first := failing(broken)
					r, err := c.Do(t.Context(), event("e"), func(context.Context, Grant) (Completion, error) {
						began = time.Now()
						f.fail(func(context.Context, string) error {
							if time.Since(began) < down {
								return broken
							}
							return first() // at least once
						})
						return Completion{}, nil
					})
					if !r.Applied || r.Accepted != (want == nil) || !errors.Is(err, want) {
						t.Errorf("%+v, %v", r, err)
					}
					if d := time.Since(began); d > fakeLease {
						t.Errorf("tried for %s, beyond the lease", d)
					}
					// Rounds at least half a pause apart, and what the budget allows.
					if got, most := f.rpcs("BatchComplete"), int(fakeLease/(completePause/2))+budgetTokens+1; got > most {
						t.Errorf("%d sends, want at most %d", got, most)
					}
				})
			})
		}
	}
}

// One send that may have been stored makes the completion unknown, whatever is
// said of those that follow, until one is answered.
func TestOneUnknownRoundMakesTheCompletionUnknown(t *testing.T) {
	t.Parallel()
	refusal := rpcError(t, connect.CodePermissionDenied, &warifuv1.ErrorInfo{Reason: warifuv1.Reason_REASON_PERMISSION_DENIED, NotApplied: true})
	for _, tt := range []struct {
		name    string
		later   error // nil: the event is somebody else's by then
		kind    error
		unknown bool
	}{
		{"then out of reach", unavailable(t, true), ErrUnavailable, true},
		{"then refused", refusal, ErrPermissionDenied, true},
		{"then answered", nil, ErrStale, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t, WithRetry(RetryPolicy{Tries: 1})) // each round is one send
				first := failing(internal(t))
				r, err := c.Do(t.Context(), event("e"), func(context.Context, Grant) (Completion, error) {
					f.mu.Lock()
					f.mu.records["e"].attempt = "somebody else"
					f.mu.Unlock()
					f.fail(func(context.Context, string) error {
						if err := first(); err != nil {
							return err
						}
						return tt.later
					})
					return Completion{}, nil
				})
				if !r.Applied || r.Accepted || !errors.Is(err, tt.kind) || errors.Is(err, ErrOutcomeUnknown) != tt.unknown {
					t.Errorf("%+v, %v", r, err)
				}
			})
		})
	}
}

// A reply that cannot be believed is no answer either.
func TestCompletionWithAStrangeReplyIsSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		strange := failing(errors.New("once"))
		f.edit = func(m proto.Message) {
			if r, ok := m.(*warifuv1.BatchCompleteResponse); ok && strange() != nil {
				r.GetResults()[0].GetComplete().EventId = "another"
			}
		}
		r, err := c.Do(t.Context(), event("e"), returns(Completion{}, nil))
		if err != nil || !r.Accepted || f.rpcs("BatchComplete") != 2 {
			t.Errorf("%+v after %d sends, %v", r, f.rpcs("BatchComplete"), err)
		}
	})
}

// Refusals are answers: they are not sent again.
func TestRefusedCompletionIsSentOnce(t *testing.T) {
	t.Parallel()
	for reason, want := range map[warifuv1.Reason]error{
		warifuv1.Reason_REASON_PERMISSION_DENIED: ErrPermissionDenied,
		warifuv1.Reason_REASON_UNAUTHENTICATED:   ErrUnauthenticated,
		warifuv1.Reason_REASON_INVALID_FIELD:     ErrInvalid,
	} {
		t.Run(reason.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				refusal := rpcError(t, connect.CodeInternal, &warifuv1.ErrorInfo{Reason: reason, NotApplied: true})
				_, err := c.Do(t.Context(), event("e"), func(context.Context, Grant) (Completion, error) {
					f.fail(func(context.Context, string) error { return refusal })
					return Completion{}, nil
				})
				if !errors.Is(err, want) || f.rpcs("BatchComplete") != 1 {
					t.Errorf("%d sends: %v", f.rpcs("BatchComplete"), err)
				}
			})
		})
	}
}

// All other calls take INTERNAL for an answer: nothing is lost when they do.
func TestOtherCallsAreNotSentAgainAfterInternal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		broken := internal(t)
		f.fail(func(context.Context, string) error { return broken })
		for name, err := range map[string]error{
			"BatchClaim": second(c.Claim(t.Context(), event("e"))), "Extend": second(c.Extend(t.Context(), Grant{Consumer: "c", EventID: "e"}, 0)),
			"Release": c.Release(t.Context(), Grant{Consumer: "c", EventID: "e"}),
		} {
			if !errors.Is(err, ErrInternal) || f.rpcs(name) != 1 {
				t.Errorf("%s: %d sends: %v", name, f.rpcs(name), err)
			}
		}
	})
}
