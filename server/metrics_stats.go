package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/journal"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
)

// statsTimeout bounds what a scrape may ask of the store.
const statsTimeout = 2 * time.Second

// gauge is one number read at every scrape.
type gauge struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*snapshot) float64 // below 0: there is none now
}

// snapshot is what one scrape reads, once.
type snapshot struct {
	server  *Server
	arbiter arbiter.Stats
	journal journal.Stats
	synced  tenant.SyncStats
	tenants tenantCounts
	store   storage.Stats
}

func (s *Server) snapshot() *snapshot {
	snap := &snapshot{server: s, arbiter: s.arbiter.Stats(), journal: s.journal.Stats(), tenants: countTenants(s.directory.Table())}
	if s.synced != nil {
		snap.synced = s.synced.Stats()
	}
	return snap
}

// statsCollector shows the counters of what the server is made of.
type statsCollector struct {
	server *Server
	always []gauge // need no store
	stored []gauge // left out when the store cannot say
	up     *prometheus.Desc
}

func newStatsCollector(s *Server) *statsCollector {
	always := append(arbiterGauges(), overloadGauges()...)
	always = append(always, platformGauges()...)
	if s.synced != nil {
		always = append(always, directoryGauges()...)
	}
	return &statsCollector{
		server: s, always: always, stored: storeGauges(),
		up: prometheus.NewDesc("warifu_store_up", "Whether the store answered this scrape.", nil, nil),
	}
}

func counter(name, help string, read func(*snapshot) float64) gauge {
	return labelled(name, help, nil, prometheus.CounterValue, read)
}

func level(name, help string, read func(*snapshot) float64) gauge {
	return labelled(name, help, nil, prometheus.GaugeValue, read)
}

func labelled(name, help string, labels prometheus.Labels, kind prometheus.ValueType, read func(*snapshot) float64) gauge {
	return gauge{prometheus.NewDesc(name, help, nil, labels), kind, read}
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
	snap := c.server.snapshot()
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
