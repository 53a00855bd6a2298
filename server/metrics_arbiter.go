package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/warifu/warifu/server/arbiter"
)

func arbiterGauges() []gauge {
	out := []gauge{
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
