package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// TestOfFault: a fault is found wherever it is, and comes back as it was.
func TestOfFault(t *testing.T) {
	t.Parallel()
	f := Invalid("lease", "1 s-24 h").WithCause(errDisk)
	for name, err := range map[string]error{
		"itself":                    f,
		"wrapped":                   fmt.Errorf("claim: %w", f),
		"joined":                    errors.Join(io.EOF, f),
		"made a wire error already": f.Wire("r-1"),
		"the cause of a wire error": connect.NewError(connect.CodeInvalidArgument, "text").WithCause(f),
		"in a peer's error":         connect.NewError(connect.CodeInternal, "text").WithCause(f).WithRemote(),
	} {
		if got := Of(err); got != f {
			t.Errorf("%s: %#v", name, got)
		}
	}
	outer := New(warifuv1.Reason_REASON_OUTCOME_UNKNOWN, "unknown").WithCause(f)
	if got := Of(outer); got != outer {
		t.Errorf("a fault with a fault as its cause became %v", got.Reason)
	}
}

// TestOfTransport: the errors that the transport makes while it reads a request
// are its callers' own, and keep their text. All others are bugs.
func TestOfTransport(t *testing.T) {
	t.Parallel()
	for code, want := range map[connect.Code]struct {
		reason  warifuv1.Reason
		message string
	}{
		connect.CodeInvalidArgument:   {warifuv1.Reason_REASON_INVALID_FIELD, "unmarshal: text"},
		connect.CodeUnimplemented:     {warifuv1.Reason_REASON_UNSPECIFIED, "unmarshal: text"},
		connect.CodeResourceExhausted: {warifuv1.Reason_REASON_INVALID_FIELD, "request: at most 1 MiB"},
		connect.CodeCanceled:          {warifuv1.Reason_REASON_CANCELED, "the caller went away"},
		connect.CodeDeadlineExceeded:  {warifuv1.Reason_REASON_DEADLINE_EXCEEDED, "the deadline ended before the request was read"},
	} {
		err := fmt.Errorf("receive: %w", connect.NewError(code, "unmarshal: text").WithCause(errDisk))
		f := Of(err)
		if f.Reason != want.reason || f.Message != want.message {
			t.Errorf("%s became %v %q", code, f.Reason, f.Message)
		}
		if !f.NotApplied() || f.RetryAfter() != 0 {
			t.Errorf("%s: not applied = %v, retry after %v; the request never came in", code, f.NotApplied(), f.RetryAfter())
		}
		if !errors.Is(f, errDisk) || strings.Contains(f.Message, "disk") {
			t.Errorf("%s: the cause is not kept for the log alone: %q", code, f)
		}
	}
	if f := Of(connect.NewError(connect.CodeResourceExhausted, "too large")); f.Field != "request" || f.Limit != "at most 1 MiB" {
		t.Errorf("a request above the limit names %q and %q", f.Field, f.Limit)
	}
}

// TestOfBug: what nobody turned into a fault says nothing of itself, and leaves
// open whether anything was applied.
func TestOfBug(t *testing.T) {
	t.Parallel()
	errs := map[string]error{
		"nothing":           nil,
		"a plain error":     errors.New("secret 4711"),
		"an ended context":  fmt.Errorf("secret 4711: %w", context.Canceled),
		"an ended deadline": context.DeadlineExceeded,
	}
	for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
		err := connect.NewError(code, "secret 4711")
		errs["a peer's "+code.String()] = err.WithRemote()
		switch code {
		case connect.CodeInvalidArgument, connect.CodeUnimplemented, connect.CodeResourceExhausted,
			connect.CodeCanceled, connect.CodeDeadlineExceeded: // TestOfTransport
		default:
			errs["our own "+code.String()] = err
		}
	}
	for name, err := range errs {
		f := Of(err)
		if f.Reason != warifuv1.Reason_REASON_INTERNAL || f.NotApplied() || f.Message != Internal(nil).Message {
			t.Errorf("%s became %v: %q", name, f.Reason, f.Message)
		}
		if !errors.Is(f.Unwrap(), err) {
			t.Errorf("%s is not there for the log: %v", name, f.Unwrap())
		}
	}
}

// TestForeignText: text that came with a request can neither forge a line of a
// log nor fill it.
func TestForeignText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", messageBytesMax)
	for name, c := range map[string]struct{ text, want string }{
		"plain":                   {"unknown field \"lea\"", "unknown field \"lea\""},
		"empty":                   {"", ""},
		"lines":                   {"a\r\nb\tc\x00d\x1b[31m", "a  b c d [31m"},
		"delete":                  {"a\x7fb", "a b"},
		"other alphabets":         {"événement 注文", "événement 注文"},
		"not UTF-8":               {"a\xff\xfeb", "a?b"},
		"at the limit":            {long, long},
		"above it":                {long + "y", long + "..."},
		"a rune across the limit": {long[1:] + "注文", long[1:] + "..."},
		"a rune up to the limit":  {long[3:] + "注文", long[3:] + "注..."},
	} {
		for _, code := range []connect.Code{connect.CodeInvalidArgument, connect.CodeUnimplemented} {
			got := Of(connect.NewError(code, c.text)).Message
			if got != c.want || !utf8.ValidString(got) {
				t.Errorf("%s, %s: %q, want %q", name, code, got, c.want)
			}
		}
	}
}
