package interceptor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
)

func tracer(opts ...sdktrace.TracerProviderOption) (*sdktrace.TracerProvider, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()
	return sdktrace.NewTracerProvider(append(opts, sdktrace.WithSyncer(spans))...), spans
}

// TestTrace: a call's span is under the caller's, and says what the call was
// about but not which event; unlisted procedures have none.
func TestTrace(t *testing.T) {
	t.Parallel()
	provider, spans := tracer()
	methods := table(Method{Name: "Call"})
	outer, about, err := Trace(methods, provider)
	if err != nil {
		t.Fatal(err)
	}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var within trace.SpanContext
	s := connect.NewServer(outer, RequestID(methods, time.Now), about)
	s.Register(connect.Method{Spec: connect.Spec{Procedure: procedure}, Handler: func(ctx context.Context, _ connect.Spec, _ connect.ServerStream) error {
		call := CallFrom(ctx)
		call.About("orders", "CANARY-event")
		call.Items(3)
		within = trace.SpanContextFromContext(call)
		return fault.New(warifuv1.Reason_REASON_STORE_UNAVAILABLE, "away").WithCause(fmt.Errorf("CANARY"))
	}})
	s.SetUnknownHandler(func(context.Context, connect.Spec, connect.ServerStream) error { return nil })
	info := &connect.CallInfo{}
	info.RequestHeader().Set("traceparent", parent)
	info.RequestHeader().Set("X-Request-Id", "r-1")
	if err := s.Call(t.Context(), procedure, info, nil); err == nil {
		t.Fatal("no error")
	}
	_ = s.Call(t.Context(), "/CANARY/Unknown", &connect.CallInfo{}, nil) // is not served, which is not the point
	got := spans.GetSpans()
	if len(got) != 1 || got[0].SpanContext.TraceID().String() != parent[3:35] || got[0].Parent.SpanID().String() != parent[36:52] || within.SpanID() != got[0].SpanContext.SpanID() {
		t.Fatalf("spans %+v", got)
	}
	for _, want := range []attribute.KeyValue{
		attribute.String("warifu.request_id", "r-1"), attribute.String("warifu.consumer", "orders"),
		attribute.Int("warifu.items", 3), attribute.String("warifu.reason", "REASON_STORE_UNAVAILABLE"),
	} {
		if !slices.Contains(got[0].Attributes, want) {
			t.Errorf("the span lacks %v: %v", want, got[0].Attributes)
		}
	}
	if text := fmt.Sprintf("%+v", got); strings.Contains(text, "CANARY") {
		t.Errorf("the span tells the event: %s", text)
	}
}

// TestBatchTrace: a batch belongs to the first sampled call and is linked to the
// others; where none is sampled there is none.
func TestBatchTrace(t *testing.T) {
	t.Parallel()
	provider, spans := tracer()
	begin := BatchTrace(provider)
	ctx, end := begin(t.Context(), "claim", slices.Values([]context.Context{t.Context()}), 1)
	end()
	if ctx != t.Context() || len(spans.GetSpans()) != 0 {
		t.Errorf("calls that nobody traces have spans: %v", spans.GetSpans())
	}
	calls := []context.Context{t.Context()}
	var of []trace.SpanContext
	for range batchLinksMax + 5 {
		ctx, span := provider.Tracer("t").Start(t.Context(), "call")
		calls, of = append(calls, ctx), append(of, span.SpanContext())
	}
	ctx, end = begin(t.Context(), "claim", slices.Values(calls), 7)
	end()
	got := spans.GetSpans()[0]
	if got.Name != "arbiter claim" || got.Parent.SpanID() != of[0].SpanID() || len(got.Links) != batchLinksMax || got.Links[0].SpanContext.SpanID() != of[1].SpanID() {
		t.Errorf("batch %q under %v with %d links", got.Name, got.Parent.SpanID(), len(got.Links))
	}
	if trace.SpanContextFromContext(ctx).SpanID() != got.SpanContext.SpanID() {
		t.Error("the store's context is not within the batch")
	}
}

// TestExemplars: durations of sampled calls lead to their trace, those of others
// to none.
func TestExemplars(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sampler sdktrace.Sampler
		want    bool
	}{"sampled": {sdktrace.AlwaysSample(), true}, "not sampled": {sdktrace.NeverSample(), false}} {
		provider, _ := tracer(sdktrace.WithSampler(c.sampler))
		registry, methods := prometheus.NewPedanticRegistry(), table(Method{Name: "Call"})
		meter, err := NewMeter(registry, methods, time.Now, true)
		if err != nil {
			t.Fatal(err)
		}
		outer, about, err := Trace(methods, provider)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := call(t.Context(), ok, outer, RequestID(methods, time.Now), about, meter.Intercept); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(fmt.Sprint(families), "trace_id"); got != c.want {
			t.Errorf("%s: an exemplar is there: %v", name, got)
		}
	}
}

// TestMeterWithoutTraces: measuring a call without tracing allocates nothing.
func TestMeterWithoutTraces(t *testing.T) { //nolint:paralleltest // it counts allocations
	methods := table(Method{Name: "Call"})
	meter, err := NewMeter(prometheus.NewRegistry(), methods, time.Now, false)
	if err != nil {
		t.Fatal(err)
	}
	measured := meter.Intercept(ok)
	ctx := &Call{Context: t.Context(), Began: time.Now(), Method: methods[procedure]}
	if n := testing.AllocsPerRun(100, func() { _ = measured(ctx, connect.Spec{}, nil) }); n != 0 {
		t.Errorf("%v allocations for a call", n)
	}
}
