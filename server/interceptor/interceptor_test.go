package interceptor

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const procedure = "/test.v1.Test/Call"

// call runs one RPC through a chain, as a transport does.
func call(ctx context.Context, handler connect.ServerFunc, chain ...connect.ServerInterceptor) (*connect.CallInfo, error) {
	s := connect.NewServer(chain...)
	s.Register(connect.Method{Spec: connect.Spec{Procedure: procedure}, Handler: handler})
	info := &connect.CallInfo{}
	return info, s.Call(ctx, procedure, info, nil)
}

func table(m Method) Methods { return Methods{procedure: &m} }

func ok(context.Context, connect.Spec, connect.ServerStream) error { return nil }

// reason is what a caller would be told.
func reason(err error) warifuv1.Reason {
	if err == nil {
		return -1
	}
	return fault.Of(err).Reason
}

func TestRecover(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for _, value := range []any{"boom 4711", errors.New("boom 4711"), &bytes.Buffer{}} {
		log.Reset()
		info, err := call(t.Context(), func(context.Context, connect.Spec, connect.ServerStream) error { panic(value) },
			RequestID(table(Method{Name: "Call"}), time.Now), Log(logger, time.Now, nil), Recover(logger))
		if connect.CodeOf(err) != connect.CodeInternal || strings.Contains(err.Error(), "4711") || fault.Of(err).NotApplied() {
			t.Errorf("a panic became %v", err)
		}
		id := info.ResponseHeader().Get(RequestIDHeader)
		if id == "" || !strings.Contains(log.String(), id) || !strings.Contains(log.String(), "interceptor_test.go") {
			t.Errorf("the log lacks request ID or stack: %s", log.String())
		}
	}
	_, err := call(t.Context(), func(context.Context, connect.Spec, connect.ServerStream) error {
		var none []string
		return errors.New(strings.Join(none[:len(none)+1], ""))
	}, RequestID(table(Method{}), time.Now), Recover(logger))
	if reason(err) != warifuv1.Reason_REASON_INTERNAL {
		t.Errorf("a runtime error became %v", err)
	}
}

func TestUnlistedProcedureIsClosed(t *testing.T) {
	t.Parallel()
	served := false
	_, err := call(t.Context(), func(context.Context, connect.Spec, connect.ServerStream) error {
		served = true
		return nil
	}, RequestID(Methods{"/test.v1.Test/Other": {}}, time.Now))
	if served || connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("an unlisted procedure: served %v, %v", served, err)
	}
}

func TestRequestIDsAreUnique(t *testing.T) {
	t.Parallel()
	s, seen := newIDs(), map[string]bool{}
	for range 1000 {
		id := s.next()
		if seen[id] || len(id) != 21 || !validRequestID(id) {
			t.Fatalf("request ID %q", id)
		}
		seen[id] = true
	}
	if a, b := newIDs().next(), newIDs().next(); a == b {
		t.Errorf("two processes make the same ID %s", a)
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	served := false
	see := func(ctx context.Context, _ connect.Spec, _ connect.ServerStream) error {
		served = true
		if _, has := ctx.Deadline(); !has {
			t.Error("a call without an end")
		}
		return nil
	}
	chain := []connect.ServerInterceptor{RequestID(table(Method{}), time.Now), Deadline(time.Minute)}
	if _, err := call(t.Context(), see, chain...); err != nil || !served {
		t.Errorf("served %v, %v", served, err)
	}
	served = false
	past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if _, err := call(past, see, chain...); served || reason(err) != warifuv1.Reason_REASON_DEADLINE_EXCEEDED {
		t.Errorf("a past deadline: served %v, %v", served, err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := call(gone, see, chain...); served || reason(err) != warifuv1.Reason_REASON_CANCELED {
		t.Errorf("a caller who left: served %v, %v", served, err)
	}
	near, cancelNear := context.WithTimeout(t.Context(), time.Hour)
	defer cancelNear()
	_, err := call(near, func(ctx context.Context, _ connect.Spec, _ connect.ServerStream) error {
		if end, _ := ctx.Deadline(); time.Until(end) > time.Minute {
			t.Errorf("the server's maximum does not hold: %v", time.Until(end))
		}
		return nil
	}, chain...)
	if err != nil {
		t.Error(err)
	}
}

func TestLogLevels(t *testing.T) {
	t.Parallel()
	for number, name := range warifuv1.Reason_name {
		level := levelOf(warifuv1.Reason(number))
		if (level == slog.LevelError) != (name == "REASON_INTERNAL") {
			t.Errorf("%s is logged at %v", name, level)
		}
	}
}

// TestCheap holds what the interceptors may allocate on a call that succeeds:
// they are on the path of every one.
func TestCheap(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := table(Method{Name: "Call", Scope: tenant.ScopeClaim})
	measured, err := NewMeter(registry, m, time.Now, false)
	if err != nil {
		t.Fatal(err)
	}
	text, key := tenant.NewKey("test")
	keys, err := tenant.NewTable([]tenant.Config{{ID: 1, Name: "shop", Keys: []tenant.Key{key}}})
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	s := connect.NewServer(RequestID(m, time.Now), Log(logger, time.Now, nil), measured.Intercept, Recover(logger),
		Authenticate(tenant.NewDirectory(keys)), Limit(limiterOf(t, 10)), Deadline(time.Minute))
	bare := connect.NewServer()
	for _, server := range []*connect.Server{s, bare} {
		server.Register(connect.Method{Spec: connect.Spec{Procedure: procedure}, Handler: ok})
	}
	ctx := t.Context()
	measure := func(server *connect.Server) float64 {
		return testing.AllocsPerRun(100, func() {
			info := &connect.CallInfo{}
			info.RequestHeader().Set("Authorization", "Bearer "+text)
			if err := server.Call(ctx, procedure, info, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
	// Call, request ID, its header map, entry and slice, and a deadline with its timer.
	if added := measure(s) - measure(bare); added > 10 {
		t.Errorf("the interceptors allocate %v times per call, want at most 10", added)
	} else {
		t.Logf("the interceptors allocate %v times per call", added)
	}
}

func BenchmarkInterceptors(b *testing.B) {
	m := table(Method{Name: "Call", Scope: tenant.ScopeClaim})
	measured, err := NewMeter(prometheus.NewRegistry(), m, time.Now, false)
	if err != nil {
		b.Fatal(err)
	}
	text, key := tenant.NewKey("test")
	keys, err := tenant.NewTable([]tenant.Config{{ID: 1, Name: "shop", Keys: []tenant.Key{key}}})
	if err != nil {
		b.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	s := connect.NewServer(RequestID(m, time.Now), Log(logger, time.Now, nil), measured.Intercept, Recover(logger),
		Authenticate(tenant.NewDirectory(keys)), Limit(limiterOf(b, 1000)), Deadline(time.Minute))
	s.Register(connect.Method{Spec: connect.Spec{Procedure: procedure}, Handler: ok})
	b.ReportAllocs()
	for b.Loop() {
		info := &connect.CallInfo{}
		info.RequestHeader().Set("Authorization", "Bearer "+text)
		if err := s.Call(b.Context(), procedure, info, nil); err != nil {
			b.Fatal(err)
		}
	}
}
