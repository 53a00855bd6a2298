package observe

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/warifu/warifu/storage"
)

// operation is a method that is measured. Stats, Ready and Close are not.
type operation int

const (
	insertOrGet operation = iota
	get
	transition
	replace
	sweep
	list
	scan
	tally
	purge
	operations
)

var operationLabels = [operations]string{"insert_or_get", "get", "transition", "replace", "sweep", "list", "scan", "tally", "purge"}

// outcome is how an operation, or an item of one, ended.
type outcome int

const (
	fine outcome = iota
	unavailable
	unknown
	full
	clockSuspect
	damaged
	closed
	ended // the caller's context
	bug   // a call that no store takes
	other
	outcomes
)

var outcomeLabels = [outcomes]string{"ok", "unavailable", "unknown", "full", "clock_suspect", "damaged", "closed", "canceled", "invalid", "other"}

// sentinels are looked through in order: ErrUnknown may wrap the others, and then
// none of their promises holds.
var sentinels = []struct {
	err error
	outcome
}{
	{storage.ErrUnknown, unknown}, {storage.ErrUnavailable, unavailable}, {storage.ErrFull, full}, {storage.ErrClockSuspect, clockSuspect},
	{storage.ErrDamaged, damaged}, {storage.ErrClosed, closed}, {storage.ErrRepeatedKey, bug}, {storage.ErrBatchTooLarge, bug},
	{storage.ErrCursor, bug}, {context.Canceled, ended}, {context.DeadlineExceeded, ended},
}

func outcomeOf(err error) outcome {
	if err == nil {
		return fine
	}
	for i := range sentinels {
		if errors.Is(err, sentinels[i].err) {
			return sentinels[i].outcome
		}
	}
	return other
}

// opMetrics are those of one operation, resolved beforehand.
type opMetrics struct {
	label    string
	calls    [outcomes]prometheus.Counter
	failed   [outcomes]prometheus.Counter // items
	items    prometheus.Counter
	applied  prometheus.Counter // nil: it writes nothing
	duration prometheus.Observer
	exemplar prometheus.ExemplarObserver // the same
}

// durationBuckets reach from memory to the longest that a batch may take, in
// seconds.
var durationBuckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

func (s *Store) register(registry prometheus.Registerer) error {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	calls := counter("warifu_store_operations_total", "Calls of the store that ended, by operation and how.", "operation", "outcome")
	failed := counter("warifu_store_failed_items_total", "Items of batches that failed alone, by operation and how; calls that failed as a whole are not in it.", "operation", "outcome")
	items := counter("warifu_store_operation_items_total", "Items that the store was asked about, or looked at: what was served.", "operation")
	applied := counter("warifu_store_applied_items_total", "Items that were written or deleted: what was changed.", "operation")
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "warifu_store_operation_duration_seconds", Help: "How long calls of the store took, failed ones included.", Buckets: durationBuckets,
	}, []string{"operation"})
	for op := range operations {
		label := operationLabels[op]
		m := &s.ops[op]
		*m = opMetrics{label: label, items: items.WithLabelValues(label), duration: duration.WithLabelValues(label)}
		m.exemplar, _ = m.duration.(prometheus.ExemplarObserver) // every histogram is one
		for how := range outcomes {
			m.calls[how] = calls.WithLabelValues(label, outcomeLabels[how])
			if op <= replace && how != fine {
				m.failed[how] = failed.WithLabelValues(label, outcomeLabels[how])
			}
		}
		switch op { //nolint:exhaustive // the others read
		case insertOrGet, transition, replace, sweep, purge:
			m.applied = applied.WithLabelValues(label)
		}
	}
	return errors.Join(registry.Register(calls), registry.Register(failed), registry.Register(items),
		registry.Register(applied), registry.Register(duration))
}

// running is one operation under way.
type running struct {
	ctx     context.Context //nolint:containedctx // what the store is called with
	store   *Store
	metrics *opMetrics
	began   time.Time
	span    trace.Span // nil: the operation is not traced
}

func (s *Store) begin(ctx context.Context, op operation) running {
	o := running{ctx: ctx, store: s, metrics: &s.ops[op]}
	if s.tracer != nil && trace.SpanContextFromContext(ctx).IsSampled() {
		o.ctx, o.span = s.tracer.Start(ctx, "store "+o.metrics.label, trace.WithSpanKind(trace.SpanKindInternal))
	}
	o.began = s.clock()
	return o
}

// items counts items that failed alone, and returns how many were applied.
func (o *running) items(found []storage.Found) (applied int) {
	for i := range found {
		if found[i].Err != nil {
			o.metrics.failed[outcomeOf(found[i].Err)].Inc()
		} else if found[i].Applied {
			applied++
		}
	}
	return applied
}

func (o *running) end(items, applied int, err error) {
	m, took, how := o.metrics, o.store.clock().Sub(o.began).Seconds(), outcomeOf(err)
	m.calls[how].Inc()
	m.items.Add(float64(items))
	if applied > 0 && m.applied != nil {
		m.applied.Add(float64(applied))
	}
	if o.span == nil {
		m.duration.Observe(took)
		return
	}
	m.exemplar.ObserveWithExemplar(took, prometheus.Labels{"trace_id": o.span.SpanContext().TraceID().String()})
	o.span.SetAttributes(attribute.Int("warifu.items", items), attribute.Int("warifu.applied", applied))
	if err != nil {
		o.span.SetStatus(codes.Error, outcomeLabels[how])
	}
	o.span.End()
}
