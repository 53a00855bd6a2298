package quota

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// JobKind is the kind of the registry rows that hold reports. There is one for
// each tenant; it is JobRunning as long as the tenant is counted.
const JobKind = "usage"

// Bounds of a report.
const (
	// ConsumersMax is how many consumers, those with the most bytes, a report
	// names.
	ConsumersMax = 50
	// consumersCounted is how many consumers are counted apart while a tenant
	// is counted. Names are the tenant's to make, memory is not.
	consumersCounted = 2000
)

// Counts are numbers of records: storage.Counts with names.
type Counts struct {
	Keys      int64 `json:"keys"`
	Live      int64 `json:"live"`
	Lapsed    int64 `json:"lapsed"`
	InDoubt   int64 `json:"in_doubt"`
	Completed int64 `json:"completed"`
	Bytes     int64 `json:"bytes"`
}

// Consumer is one consumer's line of a report.
type Consumer struct {
	Name string `json:"name"`
	Counts
}

// Report is what a census found of one tenant: the params of its Job.
type Report struct {
	Began claim.Time `json:"began_us"`
	Ended claim.Time `json:"ended_us"`
	Total Counts     `json:"total"`
	// Consumers are the largest, by bytes; Rest is what all others have.
	Consumers []Consumer `json:"consumers,omitempty"`
	Rest      Counts     `json:"rest"`
}

// Usage is what is known of a tenant now.
type Usage struct {
	// Counts are the last census and what this process saw since; Lapsed and
	// Completed are of the census alone.
	Counts
	// Report is the last census, nil where there was none. It is shared.
	Report *Report
	// Age is how long ago the census began; 0 where there was none.
	Age time.Duration
	// RequestsPerSecond and ItemsPerSecond were admitted or charged by this
	// process, over the last RateWindow.
	RequestsPerSecond, ItemsPerSecond float64
	// Limits are the quotas in force, as they were given.
	Limits Limits
}

// Usage returns what is known of a tenant whose quotas in force are l.
func (q *Quotas) Usage(tenant claim.TenantID, l *Limits) Usage {
	e, now := q.entry(tenant), q.monotonic()
	e.mu.Lock()
	defer e.mu.Unlock()
	u := Usage{Counts: e.mu.levels.used(now), Report: e.mu.report, Limits: *l}
	if u.Report != nil {
		u.Age = now - e.mu.levels.began
	}
	u.RequestsPerSecond, u.ItemsPerSecond = e.mu.rates.perSecond(now)
	return u
}

// adopt makes a report the one that quotas are held to; began is its beginning
// on this process's clock.
func (q *Quotas) adopt(tenant claim.TenantID, r *Report, began time.Duration) {
	e, now := q.entry(tenant), q.monotonic()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.levels.adopt(now, began, r.Total) {
		e.mu.report = r
	}
}

// tally is a report that is being made.
type tally struct {
	report    Report
	consumers map[string]storage.Counts
	rest      storage.Counts
	sum       storage.Counts
}

func (t *tally) add(step *storage.Tallied) {
	if t.consumers == nil {
		t.consumers = map[string]storage.Counts{}
		t.report.Began = step.Now
	}
	t.report.Ended = step.Now
	for name, n := range step.Counts {
		t.sum = t.sum.Plus(n)
		c, known := t.consumers[name]
		if !known && len(t.consumers) >= consumersCounted {
			t.rest = t.rest.Plus(n)
			continue
		}
		t.consumers[name] = c.Plus(n)
	}
}

// done names the largest consumers and sums up the others.
func (t *tally) done() *Report {
	r := &t.report
	for name, n := range t.consumers {
		r.Consumers = append(r.Consumers, Consumer{Name: name, Counts: Counts(n)})
	}
	slices.SortFunc(r.Consumers, func(a, b Consumer) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	for _, c := range r.Consumers[min(len(r.Consumers), ConsumersMax):] {
		t.rest = t.rest.Plus(storage.Counts(c.Counts))
	}
	r.Consumers = slices.Clip(r.Consumers[:min(len(r.Consumers), ConsumersMax)])
	r.Rest, r.Total = Counts(t.rest), Counts(t.sum)
	return r
}

// JobID is the ID of the row that holds a tenant's report.
func JobID(tenant claim.TenantID) registry.ID { return derive("usage", tenant) }

// FindingID is the ID of the finding that a tenant is near a quota. It is the
// same for a whole month: who resolves it has peace until the next.
func FindingID(tenant claim.TenantID, what What, at claim.Time) registry.ID {
	return derive("finding/"+what.String()+"/"+at.Std().Format("2006-01"), tenant)
}

func derive(cause string, tenant claim.TenantID) registry.ID {
	sum := sha256.Sum256(fmt.Appendf(nil, "warifu/quota/%s/%d", cause, tenant))
	return registry.ID(sum[:16])
}

// reportOf reads a report out of a Job; false where it holds none.
func reportOf(j *registry.Job) (*Report, bool) {
	if j.Kind != JobKind || j.Tenant <= 0 || j.ID != JobID(j.Tenant) {
		return nil, false
	}
	r := &Report{}
	if json.Unmarshal(j.Params, r) != nil {
		return nil, false
	}
	return r, true
}
