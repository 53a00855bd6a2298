package main

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warifu/warifu/storage/sealed"
	"github.com/warifu/warifu/storage/sqlstore"
)

// watch registers the metrics of what only this program knows: pools of
// connections, the census, sealed results, and the certificate. The server has
// those of everything else.
func (t *telemetry) watch(store *opened, p *platform) error {
	faults := []error{t.watchCensus(p), t.registry.Register(certificate{t}), t.registry.Register(&pools{stats: store.pools})}
	if s, ok := p.store.(*sealed.Store); ok {
		faults = append(faults, t.watchSealed(s))
	}
	return errors.Join(faults...)
}

func (t *telemetry) counter(name, help string, read func() int64) error {
	return t.registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(read()) }))
}

func (t *telemetry) watchCensus(p *platform) error {
	c := p.census
	return errors.Join(
		t.counter("warifu_census_rounds_total", "Rounds in which this process counted what all tenants have.", func() int64 { return c.Stats().Rounds }),
		t.counter("warifu_census_tenants_total", "Tenants that were counted, in all rounds.", func() int64 { return c.Stats().Tenants }),
		t.counter("warifu_census_steps_total", "Calls of the store that counted.", func() int64 { return c.Stats().Steps }),
		t.counter("warifu_census_findings_total", "Findings that a tenant is near a quota.", func() int64 { return c.Stats().Findings }),
		t.counter("warifu_census_failures_total", "Looks, tenants and publications that failed.", func() int64 { return c.Stats().Failures }),
	)
}

func (t *telemetry) watchSealed(s *sealed.Store) error {
	return errors.Join(
		t.counter("warifu_sealed_results_total", "Results that were sealed on their way into the store.", func() int64 { return s.SealStats().Sealed }),
		t.counter("warifu_sealed_opened_total", "Sealed results that were opened.", func() int64 { return s.SealStats().Opened }),
		t.counter("warifu_sealed_plain_bytes_total", "Size of results before they were sealed.", func() int64 { return s.SealStats().PlainBytes }),
		t.counter("warifu_sealed_stored_bytes_total", "Size of the same results as they are stored.", func() int64 { return s.SealStats().StoredBytes }),
		t.counter("warifu_sealed_shredded_total", "Results that were answered without their bytes, because their key was destroyed.", func() int64 { return s.SealStats().Shredded }),
		t.counter("warifu_sealed_unavailable_total", "Results that were not opened because a key could not be had.", func() int64 { return s.SealStats().Unavailable }),
		t.counter("warifu_sealed_unkept_total", "Completions that were stored without their result because no key could be had.", func() int64 { return s.SealStats().Unkept }),
		t.counter("warifu_sealed_damaged_total", "Results that do not open although the key is there.", func() int64 { return s.SealStats().Damaged }),
	)
}

// certificate shows when the certificate in force ends, once there is one.
type certificate struct{ t *telemetry }

var certificateDesc = prometheus.NewDesc("warifu_tls_certificate_expiry_timestamp_seconds", "When the TLS certificate in force ends; absent without TLS.", nil, nil)

// Describe implements prometheus.Collector.
func (certificate) Describe(out chan<- *prometheus.Desc) { out <- certificateDesc }

// Collect implements prometheus.Collector.
func (c certificate) Collect(out chan<- prometheus.Metric) {
	if r := c.t.tls.Load(); r != nil {
		out <- prometheus.MustNewConstMetric(certificateDesc, prometheus.GaugeValue, float64(r.expires().Unix()))
	}
}

// pools shows the connections of a SQL store; nothing of another one.
type pools struct {
	stats func() []sqlstore.PoolStats // nil: there are none
}

func poolDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc("warifu_sql_pool_"+name, help, append([]string{"pool"}, more...), nil)
}

var (
	poolConns    = poolDesc("connections", "Connections to the database, by what they do.", "state")
	poolMax      = poolDesc("limit_connections", "Connections that there may be.")
	poolAcquired = poolDesc("acquired_total", "Calls that got a connection.")
	poolWaited   = poolDesc("waited_total", "Calls that found no idle connection.")
	poolLeft     = poolDesc("left_total", "Calls that gave up waiting for a connection.")
	poolWait     = poolDesc("wait_seconds_total", "How long calls have waited for connections, all together.")
	poolMade     = poolDesc("connections_made_total", "Connections that were made.")
)

// Describe implements prometheus.Collector.
func (*pools) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{poolConns, poolMax, poolAcquired, poolWaited, poolLeft, poolWait, poolMade} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (p *pools) Collect(out chan<- prometheus.Metric) {
	if p.stats == nil {
		return
	}
	for _, s := range p.stats() {
		gauge := func(d *prometheus.Desc, v int, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{s.Name}, labels...)...)
		}
		counter := func(d *prometheus.Desc, v float64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, s.Name)
		}
		gauge(poolConns, s.Idle, "idle")
		gauge(poolConns, s.Used, "used")
		gauge(poolConns, s.Making, "making")
		gauge(poolMax, s.Max)
		counter(poolAcquired, float64(s.Acquired))
		counter(poolWaited, float64(s.Waited))
		counter(poolLeft, float64(s.Left))
		counter(poolWait, s.Wait.Seconds())
		counter(poolMade, float64(s.Made))
	}
}
