package interceptor

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/warifu/warifu/server/fault"
)

// codesMax is one more than the largest Connect code.
const codesMax = int(connect.CodeUnauthenticated) + 1

// durationBuckets reach from a memory read to the longest wait, in seconds.
var durationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 45}

// Metrics counts calls by method and code and measures how long they take:
// warifu_rpc_requests_total{method,code}, warifu_rpc_duration_seconds{method}.
// Labels are bounded by the method table; children are resolved beforehand.
func Metrics(registry prometheus.Registerer, methods Methods, clock func() time.Time) (connect.ServerInterceptor, error) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "warifu_rpc_requests_total", Help: "Calls that ended, by method and code.",
	}, []string{"method", "code"})
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "warifu_rpc_duration_seconds", Help: "How long calls took, waiting for other attempts included.",
		Buckets: durationBuckets,
	}, []string{"method"})
	if err := errors.Join(registry.Register(requests), registry.Register(durations)); err != nil {
		return nil, err
	}
	children := make(map[*Method]*methodMetrics, len(methods))
	for _, m := range methods {
		children[m] = newMethodMetrics(m, requests, durations)
	}
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			err := next(ctx, spec, stream)
			call := CallFrom(ctx)
			m := children[call.Method]
			m.duration.Observe(clock().Sub(call.Began).Seconds())
			m.codes[codeOf(err)].Inc()
			return err
		}
	}, nil
}

type methodMetrics struct {
	duration prometheus.Observer
	codes    [codesMax]prometheus.Counter // 0: ok
}

func newMethodMetrics(m *Method, requests *prometheus.CounterVec, durations *prometheus.HistogramVec) *methodMetrics {
	out := &methodMetrics{duration: durations.WithLabelValues(m.Name)}
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
