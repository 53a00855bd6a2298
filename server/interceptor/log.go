package interceptor

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"go.opentelemetry.io/otel/trace"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
)

// refusalLinesMax bounds the lines per second about calls that failed through
// no fault of ours, so that a storm of refusals cannot fill a disk. Those left
// out are counted in the next line.
const refusalLinesMax = 50

// EventHashKeyBytesMin bounds the key of EventHash: with one that can be guessed,
// whoever reads a log could try event IDs.
const EventHashKeyBytesMin = 16

// eventHashBytes is how much of the hash logs show: enough to tell the events of
// a log apart.
const eventHashBytes = 8

// Log writes one line per failed call, and one per successful call at debug
// level. Lines hold the method, code, reason, duration, tenant, key ID, request
// ID, and the trace's where it is sampled. Event IDs appear only as
// EventHash with hashKey, which is random when empty: then hashes are the same
// within one process and lead nowhere. Results, digests and credentials never do.
func Log(logger *slog.Logger, clock func() time.Time, hashKey []byte) connect.ServerInterceptor {
	l := &callLog{logger: logger, clock: clock, hashKey: bytes.Clone(hashKey)}
	if len(l.hashKey) == 0 {
		l.hashKey = make([]byte, sha256.Size)
		_, _ = rand.Read(l.hashKey) // never fails: it ends the process instead
	}
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			err := next(ctx, spec, stream)
			if err != nil {
				l.failed(ctx, fault.Of(err))
			} else if logger.Enabled(ctx, slog.LevelDebug) {
				logger.LogAttrs(ctx, slog.LevelDebug, "call served", l.attrs(ctx, "ok")...)
			}
			return err
		}
	}
}

type callLog struct {
	logger  *slog.Logger
	clock   func() time.Time
	hashKey []byte
	mu      struct {
		sync.Mutex
		second  int64
		lines   int
		skipped int
	}
}

func (l *callLog) failed(ctx context.Context, f *fault.Fault) {
	level := levelOf(f.Reason)
	if !l.logger.Enabled(ctx, level) {
		return
	}
	skipped := 0
	if level < slog.LevelError {
		var admitted bool
		if skipped, admitted = l.admit(); !admitted {
			return
		}
	}
	attrs := append(l.attrs(ctx, f.Code().String()), slog.String("reason", f.Reason.String()))
	if f.Field != "" {
		attrs = append(attrs, slog.String("field", f.Field), slog.String("limit", f.Limit))
	}
	if cause := f.Unwrap(); cause != nil && level >= slog.LevelWarn {
		// Causes of refusals quote the request; ours quote the store.
		attrs = append(attrs, slog.String("cause", unquoted(cause.Error())))
	}
	if skipped > 0 {
		attrs = append(attrs, slog.Int("lines_left_out", skipped))
	}
	l.logger.LogAttrs(ctx, level, "call failed", attrs...)
}

// levelOf: what callers do wrong is information, what the store cannot do is a
// warning, a bug is an error.
func levelOf(r warifuv1.Reason) slog.Level {
	switch r {
	case warifuv1.Reason_REASON_INTERNAL:
		return slog.LevelError
	case warifuv1.Reason_REASON_STORE_UNAVAILABLE, warifuv1.Reason_REASON_OUTCOME_UNKNOWN,
		warifuv1.Reason_REASON_CLOCK_SUSPECT, warifuv1.Reason_REASON_RESTORED, warifuv1.Reason_REASON_STORE_FULL,
		warifuv1.Reason_REASON_OVERLOADED:
		return slog.LevelWarn
	case warifuv1.Reason_REASON_CANCELED, warifuv1.Reason_REASON_DEADLINE_EXCEEDED, warifuv1.Reason_REASON_SHUTTING_DOWN:
		return slog.LevelDebug
	case warifuv1.Reason_REASON_UNSPECIFIED, warifuv1.Reason_REASON_INVALID_FIELD,
		warifuv1.Reason_REASON_UNAUTHENTICATED, warifuv1.Reason_REASON_PERMISSION_DENIED,
		warifuv1.Reason_REASON_UNKNOWN_CONSUMER, warifuv1.Reason_REASON_ATTEMPT_ENDED,
		warifuv1.Reason_REASON_INVALID_PAGE_TOKEN, warifuv1.Reason_REASON_TENANT_SUSPENDED,
		warifuv1.Reason_REASON_QUOTA_EXCEEDED, warifuv1.Reason_REASON_NOT_FOUND, warifuv1.Reason_REASON_ALREADY_EXISTS,
		warifuv1.Reason_REASON_CONFLICT, warifuv1.Reason_REASON_PRECONDITION:
	}
	return slog.LevelInfo
}

// admit lets refusalLinesMax lines through per second of the clock, and says
// how many were left out before this one.
func (l *callLog) admit() (skipped int, ok bool) {
	second := l.clock().Unix()
	l.mu.Lock()
	defer l.mu.Unlock()
	if second != l.mu.second {
		l.mu.second, l.mu.lines = second, 0
	}
	if l.mu.lines >= refusalLinesMax {
		l.mu.skipped++
		return 0, false
	}
	l.mu.lines++
	skipped, l.mu.skipped = l.mu.skipped, 0
	return skipped, true
}

func (l *callLog) attrs(ctx context.Context, code string) []slog.Attr {
	call := CallFrom(ctx)
	attrs := make([]slog.Attr, 0, 13)
	attrs = append(attrs,
		slog.String("method", call.Method.Name), slog.String("code", code),
		slog.Duration("duration", l.clock().Sub(call.Began)), slog.String("request_id", call.RequestID))
	if p := call.Principal; p != nil {
		attrs = append(attrs, slog.String("tenant", p.TenantName()), slog.String("key", p.KeyID))
	}
	if span := trace.SpanContextFromContext(ctx); span.IsSampled() {
		attrs = append(attrs, slog.String("trace_id", span.TraceID().String()))
	}
	if call.consumer != "" {
		attrs = append(attrs, slog.String("consumer", call.consumer), slog.String("event", EventHash(l.hashKey, call.eventID)))
	}
	if call.items > 0 {
		attrs = append(attrs, slog.Int("items", call.items))
	}
	return attrs
}

// EventHash is what logs show in place of an event ID, so that lines about the
// same event are found together without saying which event it is: the first 8
// bytes of its HMAC-SHA256, in hexadecimal digits. Whoever has the key finds the
// lines about an event that they know.
func EventHash(key []byte, eventID string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(eventID))
	return hex.EncodeToString(mac.Sum(nil)[:eventHashBytes])
}
