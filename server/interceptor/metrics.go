package interceptor

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/quota"
)

// codesMax is one more than the largest Connect code.
const codesMax = int(connect.CodeUnauthenticated) + 1

// durationBuckets reach from a memory read to the longest wait, in seconds.
var durationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 45}

// Meter counts calls by method and code and measures how long they take:
// warifu_rpc_requests_total{method,code}, warifu_rpc_duration_seconds{method},
// and what quotas refused, warifu_quota_refused_total{quota}. Labels are bounded
// by the method table and the quotas there are; children are resolved
// beforehand. It is safe for concurrent use.
type Meter struct {
	clock   func() time.Time
	traced  bool
	methods map[*Method]*methodMetrics
	refused map[string]prometheus.Counter // by quota
}

// NewMeter registers the metrics. traced says that there are spans: durations of
// sampled calls then carry the ID of their trace as an exemplar.
func NewMeter(registry prometheus.Registerer, methods Methods, clock func() time.Time, traced bool) (*Meter, error) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "warifu_rpc_requests_total", Help: "Calls that ended, by method and code: how much was served, whatever it changed.",
	}, []string{"method", "code"})
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "warifu_rpc_duration_seconds", Help: "How long calls took, waiting for other attempts included.",
		Buckets: durationBuckets,
	}, []string{"method"})
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "warifu_quota_refused_total", Help: "Calls, and items of batches, that were refused for a quota of their tenant.",
	}, []string{"quota"})
	if err := errors.Join(registry.Register(requests), registry.Register(durations), registry.Register(refused)); err != nil {
		return nil, err
	}
	m := &Meter{clock: clock, traced: traced, methods: make(map[*Method]*methodMetrics, len(methods)), refused: map[string]prometheus.Counter{}}
	for _, method := range methods {
		m.methods[method] = newMethodMetrics(method, requests, durations)
	}
	for what := quota.Requests; what <= quota.Share; what++ {
		m.refused[what.String()] = refused.WithLabelValues(what.String())
	}
	return m, nil
}

// Intercept counts and measures the calls that pass it.
func (m *Meter) Intercept(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		err := next(ctx, spec, stream)
		call := CallFrom(ctx)
		of, took := m.methods[call.Method], m.clock().Sub(call.Began).Seconds()
		if id := m.sampled(ctx); id != "" {
			of.exemplar.ObserveWithExemplar(took, prometheus.Labels{"trace_id": id})
		} else {
			of.duration.Observe(took)
		}
		of.codes[codeOf(err)].Inc()
		if err != nil {
			m.Refused(fault.Of(err))
		}
		return err
	}
}

// Refused counts a fault if it is a quota's; that of a whole call is counted
// when the call ends.
func (m *Meter) Refused(f *fault.Fault) {
	if f.Reason != warifuv1.Reason_REASON_QUOTA_EXCEEDED {
		return
	}
	if c := m.refused[f.Field]; c != nil {
		c.Inc()
	}
}

// sampled is the ID of the call's trace, if the trace is kept.
func (m *Meter) sampled(ctx context.Context) string {
	if !m.traced {
		return ""
	}
	span := trace.SpanContextFromContext(ctx)
	if !span.IsSampled() {
		return ""
	}
	return span.TraceID().String()
}

type methodMetrics struct {
	duration prometheus.Observer
	exemplar prometheus.ExemplarObserver  // the same
	codes    [codesMax]prometheus.Counter // 0: ok
}

func newMethodMetrics(m *Method, requests *prometheus.CounterVec, durations *prometheus.HistogramVec) *methodMetrics {
	out := &methodMetrics{duration: durations.WithLabelValues(m.Name)}
	out.exemplar, _ = out.duration.(prometheus.ExemplarObserver) // every histogram is one
	out.codes[0] = requests.WithLabelValues(m.Name, "ok")
	for code := 1; code < codesMax; code++ {
		out.codes[code] = requests.WithLabelValues(m.Name, connect.Code(code).String())
	}
	return out
}

func codeOf(err error) int {
	if err == nil {
		return 0
	}
	return int(fault.Of(err).Code())
}
