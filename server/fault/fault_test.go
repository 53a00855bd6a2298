package fault

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// promise is what callers are told of a reason. The table below states it a
// second time on purpose: clients of released versions act on it, so a change
// has to be made twice and in sight.
type promise struct {
	code       connect.Code
	mayApply   bool // the caller has to resend with the same attempt ID
	retryAfter time.Duration
}

var promises = map[warifuv1.Reason]promise{
	warifuv1.Reason_REASON_UNSPECIFIED:        {code: connect.CodeUnimplemented},
	warifuv1.Reason_REASON_INVALID_FIELD:      {code: connect.CodeInvalidArgument},
	warifuv1.Reason_REASON_UNAUTHENTICATED:    {code: connect.CodeUnauthenticated},
	warifuv1.Reason_REASON_PERMISSION_DENIED:  {code: connect.CodePermissionDenied},
	warifuv1.Reason_REASON_UNKNOWN_CONSUMER:   {code: connect.CodeNotFound},
	warifuv1.Reason_REASON_ATTEMPT_ENDED:      {code: connect.CodeFailedPrecondition},
	warifuv1.Reason_REASON_STORE_UNAVAILABLE:  {code: connect.CodeUnavailable, retryAfter: 500 * time.Millisecond},
	warifuv1.Reason_REASON_OUTCOME_UNKNOWN:    {code: connect.CodeUnavailable, mayApply: true, retryAfter: 100 * time.Millisecond},
	warifuv1.Reason_REASON_CLOCK_SUSPECT:      {code: connect.CodeUnavailable, retryAfter: 30 * time.Second},
	warifuv1.Reason_REASON_RESTORED:           {code: connect.CodeUnavailable, retryAfter: 30 * time.Second},
	warifuv1.Reason_REASON_STORE_FULL:         {code: connect.CodeResourceExhausted, retryAfter: 30 * time.Second},
	warifuv1.Reason_REASON_OVERLOADED:         {code: connect.CodeResourceExhausted, retryAfter: 200 * time.Millisecond},
	warifuv1.Reason_REASON_SHUTTING_DOWN:      {code: connect.CodeUnavailable, retryAfter: 200 * time.Millisecond},
	warifuv1.Reason_REASON_DEADLINE_EXCEEDED:  {code: connect.CodeDeadlineExceeded},
	warifuv1.Reason_REASON_INVALID_PAGE_TOKEN: {code: connect.CodeInvalidArgument},
	warifuv1.Reason_REASON_INTERNAL:           {code: connect.CodeInternal, mayApply: true},
	warifuv1.Reason_REASON_CANCELED:           {code: connect.CodeCanceled},
	warifuv1.Reason_REASON_TENANT_SUSPENDED:   {code: connect.CodePermissionDenied},
	warifuv1.Reason_REASON_QUOTA_EXCEEDED:     {code: connect.CodeResourceExhausted, retryAfter: time.Second},
	warifuv1.Reason_REASON_NOT_FOUND:          {code: connect.CodeNotFound},
	warifuv1.Reason_REASON_ALREADY_EXISTS:     {code: connect.CodeAlreadyExists},
	warifuv1.Reason_REASON_CONFLICT:           {code: connect.CodeFailedPrecondition},
	warifuv1.Reason_REASON_PRECONDITION:       {code: connect.CodeFailedPrecondition},
}

func TestEveryReasonKeepsItsPromise(t *testing.T) {
	t.Parallel()
	for number, name := range warifuv1.Reason_name {
		reason := warifuv1.Reason(number)
		want, ok := promises[reason]
		if !ok {
			t.Errorf("%s: nobody has said what callers are promised", name)
		}
		f := New(reason, "text")
		if got := (promise{f.Code(), !f.NotApplied(), f.RetryAfter()}); got != want {
			t.Errorf("%s is %+v, want %+v", name, got, want)
		}
		if f.Reason != reason || f.Message != "text" || f.Field != "" || f.Limit != "" || f.Unwrap() != nil {
			t.Errorf("New(%s) = %#v", name, f)
		}
	}
	if len(promises) != len(warifuv1.Reason_name) {
		t.Errorf("%d promises, %d reasons", len(promises), len(warifuv1.Reason_name))
	}
}

// TestReasonsThatAreNotOurs: a number outside the registry promises as little as
// a bug does.
func TestReasonsThatAreNotOurs(t *testing.T) {
	t.Parallel()
	for _, reason := range []warifuv1.Reason{-1, warifuv1.Reason(len(kinds)), 1 << 30, -1 << 31} {
		f := New(reason, "text")
		if got := (promise{f.Code(), !f.NotApplied(), f.RetryAfter()}); got != promises[warifuv1.Reason_REASON_INTERNAL] {
			t.Errorf("reason %d is %+v", reason, got)
		}
	}
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	f := Invalid("event_id", "1-512 bytes")
	if f.Reason != warifuv1.Reason_REASON_INVALID_FIELD || f.Field != "event_id" || f.Limit != "1-512 bytes" ||
		f.Message != "event_id: 1-512 bytes" || f.Unwrap() != nil {
		t.Errorf("Invalid = %#v", f)
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for name, c := range map[string]struct {
		fault                 *Fault
		outer                 []string // innermost first
		field, limit, message string
	}{
		"a field":            {Invalid("scheme", "1-64"), []string{"digests[1]"}, "digests[1].scheme", "1-64", "digests[1].scheme: 1-64"},
		"a field in a field": {Invalid("scheme", "1-64"), []string{"digests[1]", "items[3]"}, "items[3].digests[1].scheme", "1-64", "items[3].digests[1].scheme: 1-64"},
		"no field":           {New(warifuv1.Reason_REASON_ATTEMPT_ENDED, "it has ended"), []string{"items[3]"}, "", "", "it has ended"},
		"with a cause":       {Invalid("lease", "1 s-24 h").WithCause(cause), []string{"items[0]"}, "items[0].lease", "1 s-24 h", "items[0].lease: 1 s-24 h"},
	} {
		before, f := *c.fault, c.fault
		for _, outer := range c.outer {
			f = f.Within(outer)
		}
		if f.Field != c.field || f.Limit != c.limit || f.Message != c.message {
			t.Errorf("%s: %q, %q, %q", name, f.Field, f.Limit, f.Message)
		}
		if f.Reason != before.Reason || !errors.Is(f.Unwrap(), before.Unwrap()) {
			t.Errorf("%s: reason or cause became %v, %v", name, f.Reason, f.Unwrap())
		}
		if *c.fault != before {
			t.Errorf("%s: the fault within changed to %#v", name, c.fault)
		}
	}
}

// TestShared: faults are made once and returned to many callers, each of whom
// may name a field around it or give it a cause.
func TestShared(t *testing.T) {
	t.Parallel()
	shared := Invalid("fence", "above 0")
	before := *shared
	first, second := shared.WithCause(errors.New("first")), shared.WithCause(errors.New("second"))
	if first.Error() != "fence: above 0: first" || second.Error() != "fence: above 0: second" {
		t.Errorf("causes became %q and %q", first, second)
	}
	if *shared != before || shared.Unwrap() != nil || shared.Error() != "fence: above 0" {
		t.Errorf("the shared fault became %#v", shared)
	}
}

var errDisk = errors.New("disk on fire")

func TestWrapping(t *testing.T) {
	t.Parallel()
	f := New(warifuv1.Reason_REASON_STORE_UNAVAILABLE, "ask again").WithCause(fmt.Errorf("replace: %w", errDisk))
	if got := f.Error(); got != "ask again: replace: disk on fire" {
		t.Errorf("the text for logs is %q", got)
	}
	if !errors.Is(f, errDisk) {
		t.Error("the cause is not found")
	}
	wrapped := fmt.Errorf("claim: %w", f)
	var found *Fault
	if !errors.As(wrapped, &found) || found != f {
		t.Errorf("found %v within what wraps it", found)
	}
	if strings.Contains(f.Message, "disk") {
		t.Errorf("the text for callers is %q", f.Message)
	}
}

// TestInternal: a bug says nothing about itself, and does not claim to know what
// it left behind.
func TestInternal(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{errDisk, nil} {
		f := Internal(cause)
		if f.Reason != warifuv1.Reason_REASON_INTERNAL || f.NotApplied() || !errors.Is(f.Unwrap(), cause) {
			t.Errorf("Internal(%v) = %#v", cause, f)
		}
		for _, word := range []string{"same attempt ID", "request ID"} { // what the caller is to do
			if !strings.Contains(f.Message, word) {
				t.Errorf("%q does not speak of the %s", f.Message, word)
			}
		}
		if strings.Contains(f.Message, "disk") {
			t.Errorf("callers are told %q", f.Message)
		}
	}
}
