package server

import (
	"errors"
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/storage/claim"
)

// decisionLabels and the others are the bounded label values of metrics.
var (
	decisionLabels = [...]string{
		claim.Undecided: "failed", claim.Granted: "granted", claim.Duplicate: "duplicate",
		claim.HeldByOther: "in_progress", claim.Mismatch: "mismatch", claim.Doubtful: "in_doubt",
		claim.TooOld: "too_old", claim.Unprotected: "unprotected", claim.AttemptEnded: "attempt_ended",
	}
	kindLabels   = [...]string{claim.Complete: "complete", claim.Extend: "extend", claim.Release: "release"}
	statusLabels = [...]string{claim.NoStatus: "failed", claim.OK: "ok", claim.Stale: "stale", claim.ResultConflict: "result_conflict"}
)

// consumerClass says of which kind the consumer of a claim is. Consumers
// themselves are no labels: callers may make as many as they like.
type consumerClass uint8

const (
	classUnknown consumerClass = iota // the claim was refused before its consumer was known
	undeclaredRegrant
	undeclaredHold
	declaredRegrant
	declaredHold
	classes
)

var classLabels = [classes]struct{ consumer, onLeaseLoss string }{
	classUnknown:      {"unknown", "unknown"},
	undeclaredRegrant: {"undeclared", "regrant"}, undeclaredHold: {"undeclared", "hold"},
	declaredRegrant: {"declared", "regrant"}, declaredHold: {"declared", "hold"},
}

// classOf is the class of the consumer that a valid claim names.
func classOf(e *edge, r *claim.Request) consumerClass {
	class := undeclaredRegrant
	if e.policy(r.Key.Consumer) != e.tenant.Fallback() {
		class = declaredRegrant
	}
	if r.Policy.Hold {
		class++
	}
	return class
}

// metrics count answers. Requests served and effects applied are different
// numbers: warifu_rpc_requests_total counts the one, completions with status
// "ok" the other; what of them was written and not sent again the store counts,
// in warifu_store_applied_items_total.
type metrics struct {
	meter       *interceptor.Meter
	claims      [classes][len(decisionLabels)]prometheus.Counter
	transitions [len(kindLabels)][len(statusLabels)]prometheus.Counter
	lost        prometheus.Counter
}

func newMetrics(registry prometheus.Registerer, s *Server, version string) (*metrics, error) {
	claims := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "warifu_claims_total",
		Help: "Claims answered, by decision (\"failed\" had none) and by whether their consumer is declared and what it does when a lease is lost.",
	}, []string{"decision", "consumer", "on_lease_loss"})
	transitions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "warifu_transitions_total", Help: "Completions, extensions and releases, by status.",
	}, []string{"kind", "status"})
	m := &metrics{lost: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "warifu_lost_completions_total",
		Help: "Completions that met no record: the effect happened and nothing remembers it.",
	})}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "warifu_build_info", Help: "1, with the version of the program.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	})
	build.Set(1)
	for class, labels := range classLabels {
		for d, label := range decisionLabels {
			m.claims[class][d] = claims.WithLabelValues(label, labels.consumer, labels.onLeaseLoss)
		}
	}
	for kind, kindLabel := range kindLabels[1:] {
		for status, label := range statusLabels {
			m.transitions[kind+1][status] = transitions.WithLabelValues(kindLabel, label)
		}
	}
	return m, errors.Join(registry.Register(claims), registry.Register(transitions), registry.Register(m.lost),
		registry.Register(build), registry.Register(newStatsCollector(s)))
}

// claimFailed counts a claim that was answered with f.
func (m *metrics) claimFailed(class consumerClass, f *fault.Fault) {
	d := claim.Undecided
	if f.Reason == warifuv1.Reason_REASON_ATTEMPT_ENDED {
		d = claim.AttemptEnded
	}
	m.claims[class][d].Inc()
}

// itemFailed is claimFailed for an item of a batch, whose refusal for a quota no
// interceptor sees.
func (m *metrics) itemFailed(class consumerClass, f *fault.Fault) {
	m.claimFailed(class, f)
	m.meter.Refused(f)
}

func (m *metrics) transition(kind claim.TransitionKind, r *arbiter.Replied) {
	m.transitions[kind][r.Status].Inc()
	if r.Lost {
		m.lost.Inc()
	}
}

// newMetricsHandler serves the metrics, with exemplars for who asks in
// OpenMetrics, which is the format that has them.
func newMetricsHandler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry, EnableOpenMetrics: true})
}
