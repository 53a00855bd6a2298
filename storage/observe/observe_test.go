package observe_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/observe"
	"github.com/warifu/warifu/storage/storagetest"
)

const canary = "CANARY-4711"

// rig is a measured model whose calls a test can fail.
type rig struct {
	*observe.Store
	t        *testing.T
	clock    *storagetest.Clock
	registry *prometheus.Registry
	spans    *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
	fault    storagetest.Fault
}

func setup(t *testing.T, edit ...func(*observe.Config)) *rig {
	t.Helper()
	r := &rig{t: t, clock: storagetest.NewClock(storagetest.Start), registry: prometheus.NewPedanticRegistry(), spans: tracetest.NewInMemoryExporter()}
	r.provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans))
	faulty := storagetest.NewFaulty(storagetest.NewModel(r.clock.Now, claim.SweepGrace), func(context.Context, storagetest.Call) storagetest.Fault {
		return r.fault
	})
	cfg := observe.Config{Store: faulty, Registry: r.registry, Clock: r.clock.Now, Tracer: r.provider}
	for _, e := range edit {
		e(&cfg)
	}
	var err error
	if r.Store, err = observe.New(cfg); err != nil {
		t.Fatal(err)
	}
	return r
}

func request(event string, attempt byte) claim.Request {
	return claim.Request{
		Key: claim.Key{Tenant: 1, Consumer: "orders", EventID: event}, Attempt: claim.AttemptID{attempt}, InsertBefore: claim.Never,
		Lease: time.Minute, Policy: claim.Policy{Window: time.Hour, Retention: time.Hour, HoldMax: time.Hour},
	}
}

// scrape returns the metrics in the format that has exemplars.
func (r *rig) scrape() string {
	req := httptest.NewRequestWithContext(r.t.Context(), http.MethodGet, "/metrics", nil)
	req.Header.Set("Accept", "application/openmetrics-text")
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(w, req)
	return w.Body.String()
}

// value is that of one series.
func (r *rig) value(series string) float64 {
	r.t.Helper()
	for line := range strings.Lines(r.scrape()) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				r.t.Fatal(err)
			}
			return v
		}
	}
	r.t.Fatalf("there is no %s", series)
	return 0
}

// want demands a value of an operation and, where it is not empty, an outcome.
func (r *rig) want(name, labels string, want float64) {
	r.t.Helper()
	operation, outcome, has := strings.Cut(labels, " ")
	series := name + `{operation="` + operation + `"}`
	if has {
		series = name + `{operation="` + operation + `",outcome="` + outcome + `"}`
	}
	if got := r.value(series); got != want {
		r.t.Errorf("%s = %v, want %v", series, got, want)
	}
}

// TestServedAndApplied: what is asked and what is changed are counted apart.
func TestServedAndApplied(t *testing.T) {
	t.Parallel()
	r, ctx := setup(t), t.Context()
	found, err := r.InsertOrGet(ctx, []claim.Request{request("a", 1), request("b", 1), request("c", 1)})
	if err != nil {
		t.Fatal(err)
	}
	r.clock.Advance(time.Second)
	if _, err := r.InsertOrGet(ctx, []claim.Request{request("a", 1), request("b", 2)}); err != nil { // a resend, and another attempt
		t.Fatal(err)
	}
	done := claim.Completion{Outcome: claim.Succeeded}.Summed()
	complete := claim.Transition{Kind: claim.Complete, Key: request("a", 1).Key, Attempt: claim.AttemptID{1}, Fence: found[0].Record.Fence, Completion: &done}
	stale := complete
	stale.Key, stale.Fence = request("b", 1).Key, 1
	for range 2 { // the second is a resend
		if _, err := r.Transition(ctx, []claim.Transition{complete, stale}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Get(ctx, []claim.Key{complete.Key}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Purge(ctx, storage.TenantStep{Tenant: 1, Limit: 100}); err != nil {
		t.Fatal(err)
	}
	r.want("warifu_store_operations_total", "insert_or_get ok", 2)
	r.want("warifu_store_operation_items_total", "insert_or_get", 5)
	r.want("warifu_store_applied_items_total", "insert_or_get", 3)
	r.want("warifu_store_operation_items_total", "transition", 4)
	r.want("warifu_store_applied_items_total", "transition", 1)
	r.want("warifu_store_operation_items_total", "get", 1)
	r.want("warifu_store_applied_items_total", "purge", 3)
	r.want("warifu_store_operation_duration_seconds_count", "transition", 2)
}

// TestOutcomes: every sentinel has its own label, also where others are within.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for label, err := range map[string]error{
		"unavailable": storage.ErrUnavailable, "unknown": fmt.Errorf("%w: %w", storage.ErrUnknown, storage.ErrUnavailable), "full": storage.ErrFull,
		"clock_suspect": storage.ErrClockSuspect, "damaged": storage.ErrDamaged, "closed": storage.ErrClosed, "canceled": context.Canceled,
		"invalid": storage.ErrRepeatedKey, "other": errors.New("something"),
	} {
		r := setup(t)
		r.fault = storagetest.Fault{Before: err}
		if _, got := r.Get(t.Context(), []claim.Key{request("a", 1).Key}); !errors.Is(got, err) {
			t.Errorf("%s: the error became %v", label, got)
		}
		r.want("warifu_store_operations_total", "get "+label, 1)
		r.fault = storagetest.Fault{Lose: map[int]error{1: err}}
		if _, got := r.InsertOrGet(t.Context(), []claim.Request{request("a", 1), request("b", 1)}); got != nil {
			t.Fatal(got)
		}
		r.want("warifu_store_failed_items_total", "insert_or_get "+label, 1)
		r.want("warifu_store_operations_total", "insert_or_get ok", 1)
		r.want("warifu_store_applied_items_total", "insert_or_get", 1)
	}
}

// TestSpans: calls of a sampled trace have a span, others none; no span says
// anything of events, whatever the store does.
func TestSpans(t *testing.T) {
	t.Parallel()
	r := setup(t)
	if _, err := r.InsertOrGet(t.Context(), []claim.Request{request(canary, 1)}); err != nil {
		t.Fatal(err)
	}
	ctx, parent := r.provider.Tracer("test").Start(t.Context(), "test")
	if _, err := r.InsertOrGet(ctx, []claim.Request{request(canary, 1), request("b", 1)}); err != nil {
		t.Fatal(err)
	}
	r.fault = storagetest.Fault{After: fmt.Errorf("%w: row %q", storage.ErrUnknown, canary)}
	if _, err := r.Get(ctx, []claim.Key{request(canary, 1).Key}); err == nil {
		t.Fatal("no error")
	}
	spans := r.spans.GetSpans()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want one of each call within the trace", len(spans))
	}
	for i, name := range []string{"store insert_or_get", "store get"} {
		if s := spans[i]; s.Name != name || s.Parent.SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("span %q under %v", s.Name, s.Parent.SpanID())
		}
	}
	if s := spans[1].Status; s.Code != codes.Error || s.Description != "unknown" {
		t.Errorf("the status of a failed call is %+v", s)
	}
	if text := fmt.Sprintf("%+v", spans); strings.Contains(text, canary) {
		t.Errorf("a span tells the event: %s", text)
	}
	if text := r.scrape(); strings.Contains(text, canary) || !strings.Contains(text, parent.SpanContext().TraceID().String()) {
		t.Errorf("metrics tell the event, or lack the exemplar: %s", text)
	}
}

// TestNothingIsSpentWithoutTracing: the decorator allocates nothing.
func TestNothingIsSpentWithoutTracing(t *testing.T) { //nolint:paralleltest // it counts allocations
	plain := silent{}
	s, err := observe.New(observe.Config{Store: plain, Registry: prometheus.NewRegistry(), Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	reqs := []claim.Request{request("a", 1)}
	if n := testing.AllocsPerRun(100, func() { _, _ = s.InsertOrGet(t.Context(), reqs) }); n != 0 {
		t.Errorf("%v allocations for a call", n)
	}
}

// silent is a store that answers nothing, for free.
type silent struct{ storage.Store }

func (silent) InsertOrGet(context.Context, []claim.Request) ([]storage.Found, error) { return nil, nil }

func BenchmarkInsertOrGet(b *testing.B) {
	for name, tracer := range map[string]bool{"off": false, "on, not sampled": true} {
		b.Run(name, func(b *testing.B) {
			cfg := observe.Config{Store: silent{}, Registry: prometheus.NewRegistry(), Clock: time.Now}
			if tracer {
				cfg.Tracer = sdktrace.NewTracerProvider()
			}
			s, err := observe.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			reqs, ctx := []claim.Request{request("a", 1)}, b.Context()
			b.ReportAllocs()
			for b.Loop() {
				_, _ = s.InsertOrGet(ctx, reqs)
			}
		})
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	r := setup(t)
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v %v", problems, err)
	}
	if _, err := observe.New(observe.Config{}); err == nil || strings.Count(err.Error(), "missing") != 3 {
		t.Errorf("an empty configuration: %v", err)
	}
	if _, err := observe.New(observe.Config{Store: silent{}, Registry: r.registry, Clock: time.Now}); err == nil {
		t.Error("one registry takes two stores")
	}
}

// TestChangesNoAnswer: the suite of all stores passes on a measured one.
func TestChangesNoAnswer(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(_ storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		s, err := observe.New(observe.Config{
			Store: storagetest.NewModel(clock.Now, grace), Registry: prometheus.NewRegistry(), Clock: clock.Now, Tracer: sdktrace.NewTracerProvider(),
		})
		if err != nil {
			panic(err)
		}
		return s
	})
}
