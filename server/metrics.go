package server

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/storage"
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

// metrics count answers. Requests served and effects applied are different
// numbers: warifu_rpc_requests_total counts the one, completions with status
// "ok" the other.
type metrics struct {
	claims      [len(decisionLabels)]prometheus.Counter
	transitions [len(kindLabels)][len(statusLabels)]prometheus.Counter
	lost        prometheus.Counter
}

func newMetrics(registry prometheus.Registerer, s *Server, version string) (*metrics, error) {
	claims := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "warifu_claims_total", Help: "Claims answered, by decision; \"failed\" had none.",
	}, []string{"decision"})
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
	for d, label := range decisionLabels {
		m.claims[d] = claims.WithLabelValues(label)
	}
	for kind, kindLabel := range kindLabels[1:] {
		for status, label := range statusLabels {
			m.transitions[kind+1][status] = transitions.WithLabelValues(kindLabel, label)
		}
	}
	return m, errors.Join(registry.Register(claims), registry.Register(transitions), registry.Register(m.lost),
		registry.Register(build), registry.Register(newStatsCollector(s)))
}

// claimFailed counts n claims that were answered with f.
func (m *metrics) claimFailed(f *fault.Fault, n int) {
	d := claim.Undecided
	if f.Reason == warifuv1.Reason_REASON_ATTEMPT_ENDED {
		d = claim.AttemptEnded
	}
	m.claims[d].Add(float64(n))
}

func (m *metrics) transition(kind claim.TransitionKind, r *arbiter.Replied) {
	m.transitions[kind][r.Status].Inc()
	if r.Lost {
		m.lost.Inc()
	}
}

func newMetricsHandler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry})
}

// statsTimeout bounds what a scrape may ask of the store.
const statsTimeout = 2 * time.Second

// gauge is one number read at every scrape.
type gauge struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*snapshot) float64
}

// snapshot is what one scrape reads, once.
type snapshot struct {
	server  *Server
	arbiter arbiter.Stats
	store   storage.Stats
}

// statsCollector shows the counters of arbiter, store and filter.
type statsCollector struct {
	server *Server
	always []gauge // need no store
	stored []gauge // left out when the store cannot say
	up     *prometheus.Desc
}

func newStatsCollector(s *Server) *statsCollector {
	return &statsCollector{
		server: s, always: arbiterGauges(), stored: storeGauges(),
		up: prometheus.NewDesc("warifu_store_up", "Whether the store answered this scrape.", nil, nil),
	}
}

func counter(name, help string, read func(*snapshot) float64) gauge {
	return gauge{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, read}
}

func level(name, help string, read func(*snapshot) float64) gauge {
	return gauge{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, read}
}

// lane shows one lane of the arbiter under a constant label.
func lane(name string, read func(*arbiter.Stats) *arbiter.LaneStats) []gauge {
	labels := prometheus.Labels{"lane": name}
	one := func(metric, help string, kind prometheus.ValueType, of func(*arbiter.LaneStats) int64) gauge {
		return gauge{prometheus.NewDesc("warifu_arbiter_"+metric, help, nil, labels), kind,
			func(s *snapshot) float64 { return float64(of(read(&s.arbiter))) }}
	}
	return []gauge{
		one("batches_total", "Batches taken.", prometheus.CounterValue, func(l *arbiter.LaneStats) int64 { return l.Batches }),
		one("items_total", "Items in batches.", prometheus.CounterValue, func(l *arbiter.LaneStats) int64 { return l.Items }),
		one("folded_items_total", "Items answered behind another of the same key.", prometheus.CounterValue, func(l *arbiter.LaneStats) int64 { return l.Folded }),
		one("store_trips_total", "Store calls.", prometheus.CounterValue, func(l *arbiter.LaneStats) int64 { return l.Trips }),
		one("overloaded_items_total", "Items refused by a full queue.", prometheus.CounterValue, func(l *arbiter.LaneStats) int64 { return l.Overloaded }),
		one("dropped_items_total", "Items whose caller left before they were sent.", prometheus.CounterValue, func(l *arbiter.LaneStats) int64 { return l.Dropped }),
		one("queued_items", "Items that wait for a sender.", prometheus.GaugeValue, func(l *arbiter.LaneStats) int64 { return l.Queued }),
	}
}

func arbiterGauges() []gauge {
	out := []gauge{
		level("warifu_rpc_in_flight", "Calls that hold a slot.", func(s *snapshot) float64 { return float64(s.server.limiter.InFlight()) }),
		counter("warifu_rpc_shed_total", "Calls refused because too many were in flight.", func(s *snapshot) float64 { return float64(s.server.limiter.Shed()) }),
		level("warifu_ready", "Whether this server would take claims, draining considered.", func(s *snapshot) float64 { return flag(s.server.running() && !s.server.draining.Load()) }),
		level("warifu_waiters", "Claims that wait for another attempt to end.", func(s *snapshot) float64 { return float64(s.arbiter.Waiters) }),
		level("warifu_watched_keys", "Keys that claims wait for.", func(s *snapshot) float64 { return float64(s.arbiter.WatchedKeys) }),
		counter("warifu_waiters_refused_total", "Claims answered without waiting: too many wait.", func(s *snapshot) float64 { return float64(s.arbiter.WaitersRefused) }),
		counter("warifu_polls_total", "Looks at watched keys.", func(s *snapshot) float64 { return float64(s.arbiter.Polls) }),
	}
	out = append(out, lane("claim", func(s *arbiter.Stats) *arbiter.LaneStats { return &s.Claims })...)
	out = append(out, lane("transition", func(s *arbiter.Stats) *arbiter.LaneStats { return &s.Transitions })...)
	return append(out, lane("lookup", func(s *arbiter.Stats) *arbiter.LaneStats { return &s.Lookups })...)
}

func storeGauges() []gauge {
	return []gauge{
		level("warifu_store_records", "Estimated number of records; absent where the engine cannot say.", func(s *snapshot) float64 { return float64(s.store.RecordsEstimate) }),
		level("warifu_store_disk_bytes", "Estimated bytes on disk; absent where the engine cannot say.", func(s *snapshot) float64 { return float64(s.store.DiskBytes) }),
		level("warifu_store_clock_suspect", "Whether the store's clock jumped and is not confirmed.", func(s *snapshot) float64 { return flag(s.store.ClockSuspect) }),
		level("warifu_filter_ready", "Whether the filter lets fresh keys skip the read.", func(s *snapshot) float64 { return flag(s.store.Filter.Ready) }),
		level("warifu_filter_keys", "Keys in the filter.", func(s *snapshot) float64 { return float64(s.store.Filter.Keys) }),
		level("warifu_filter_bytes", "Memory of the filter.", func(s *snapshot) float64 { return float64(s.store.Filter.Bytes) }),
		level("warifu_filter_fill_ratio", "Share of the filter's bits that are set.", func(s *snapshot) float64 { return s.store.Filter.Fill }),
		counter("warifu_filter_skipped_reads_total", "Reads that the filter made unnecessary.", func(s *snapshot) float64 { return float64(s.store.Filter.Skipped) }),
		counter("warifu_filter_passed_reads_total", "Reads that were made because the filter said maybe.", func(s *snapshot) float64 { return float64(s.store.Filter.Passed) }),
		counter("warifu_filter_false_positives_total", "Reads that found nothing after a maybe.", func(s *snapshot) float64 { return float64(s.store.Filter.FalsePositives) }),
		counter("warifu_filter_audited_total", "Negatives that were read all the same.", func(s *snapshot) float64 { return float64(s.store.Filter.Audited) }),
		counter("warifu_filter_audit_hits_total", "Negatives that were wrong: corruption.", func(s *snapshot) float64 { return float64(s.store.Filter.AuditHits) }),
		counter("warifu_filter_rebuilds_total", "Rebuilds of the filter.", func(s *snapshot) float64 { return float64(s.store.Filter.Rebuilds) }),
	}
}

// Describe implements prometheus.Collector.
func (c *statsCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.up
	for i := range c.always {
		out <- c.always[i].desc
	}
	for i := range c.stored {
		out <- c.stored[i].desc
	}
}

// Collect implements prometheus.Collector.
func (c *statsCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	snap := &snapshot{server: c.server, arbiter: c.server.arbiter.Stats()}
	var err error
	snap.store, err = c.server.store.Stats(ctx)
	out <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, flag(err == nil))
	emit(out, c.always, snap)
	if err == nil {
		emit(out, c.stored, snap)
	}
}

func emit(out chan<- prometheus.Metric, gauges []gauge, snap *snapshot) {
	for i := range gauges {
		if v := gauges[i].read(snap); v >= 0 { // -1: the engine cannot say
			out <- prometheus.MustNewConstMetric(gauges[i].desc, gauges[i].kind, v)
		}
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
