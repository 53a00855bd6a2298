package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/storage/observe"
)

// telemetry is what this process tells about itself: metrics always, traces
// where OTEL_* variables ask for them.
type telemetry struct {
	registry *prometheus.Registry
	tracer   trace.TracerProvider // nil: nothing is traced
	flush    func(context.Context) error
	log      *slog.Logger
	tls      atomic.Pointer[tlsReloader] // nil: there is no TLS, or not yet
}

// flushTimeout bounds how long an ending process waits for its last spans to be
// taken.
const flushTimeout = 5 * time.Second

// openTelemetry prepares metrics and traces, and has the store measured.
func (d *daemon) openTelemetry(ctx context.Context, store *opened) (*telemetry, error) {
	t := &telemetry{registry: prometheus.NewRegistry(), log: d.log, flush: func(context.Context) error { return nil }}
	on, err := tracing(d.sys)
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	cfg := observe.Config{Store: store.Store, Registry: t.registry, Clock: d.sys.now}
	if on {
		provider, err := newTracer(ctx, readVersion().Version)
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		otel.SetErrorHandler(&exportFaults{log: d.log, now: d.sys.now})
		t.tracer, t.flush, cfg.Tracer = provider, provider.Shutdown, provider
		d.log.Info("tracing is on")
	}
	measured, err := observe.New(cfg)
	if err != nil {
		return nil, errors.Join(err, t.flush(ctx))
	}
	store.Store = measured
	return t, nil
}

// close sends the last spans. That they are not taken is no fault of the server.
func (t *telemetry) close() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := t.flush(ctx); err != nil {
		t.log.Warn("the last spans were not taken", "error", err)
	}
}

// tracing reports whether the variables of OpenTelemetry ask for traces. What
// they say of endpoint, headers, sampling and service name, its library reads by
// itself.
func tracing(sys *system) (bool, error) {
	exporter := sys.env("OTEL_TRACES_EXPORTER")
	endpoint := sys.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") + sys.env("OTEL_EXPORTER_OTLP_ENDPOINT")
	switch {
	case strings.EqualFold(sys.env("OTEL_SDK_DISABLED"), "true"), exporter == "none", exporter == "" && endpoint == "":
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER: %q is not otlp or none", exporter)
	}
	protocol := sys.env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
	if protocol == "" {
		protocol = sys.env("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	if protocol != "" && protocol != "http/protobuf" {
		return false, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q is not http/protobuf, the only one there is here", protocol)
	}
	return true, nil
}

// newTracer exports by OTLP over HTTP, in the background and in batches; what
// cannot be sent is dropped.
func newTracer(ctx context.Context, version string) (*sdktrace.TracerProvider, error) {
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("make the exporter: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "warifu"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv()) // the environment goes before ours
	if err != nil {
		return nil, errors.Join(fmt.Errorf("describe the service: %w", err), exporter.Shutdown(ctx))
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil
}

// exportFaults logs that spans are not taken, once a minute at most.
type exportFaults struct {
	log  *slog.Logger
	now  func() time.Time
	last atomic.Int64 // the minute of the last line
}

// Handle implements otel.ErrorHandler.
func (e *exportFaults) Handle(err error) {
	minute := e.now().Unix() / int64(time.Minute/time.Second)
	if e.last.Swap(minute) != minute {
		e.log.Warn("spans are lost", "error", err)
	}
}

// redacted is a logger whose lines show no event IDs that a database quotes.
func redacted(l *slog.Logger) *slog.Logger { return slog.New(interceptor.Redacted(l.Handler())) }

// eventHashKey is what logs hash event IDs with; nil: a random one.
func (c *config) eventHashKey() ([]byte, error) {
	if c.LogHashKey == "" {
		return nil, nil
	}
	key, err := readSecretFile(c.LogHashKey)
	if err != nil {
		return nil, fmt.Errorf("log_hash_key_file: %w", err)
	}
	if len(key) < interceptor.EventHashKeyBytesMin {
		return nil, fmt.Errorf("log_hash_key_file: %s has %d bytes; a key has %d or more", c.LogHashKey, len(key), interceptor.EventHashKeyBytesMin)
	}
	return []byte(key), nil
}
