package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// LeaseName is the registry lease under which one replica counts for all.
const LeaseName = "census"

// Bounds of a census and their defaults.
const (
	// IntervalDefault is from the beginning of a round to that of the next. A
	// round that takes longer is followed by the next at once.
	IntervalDefault = 5 * time.Minute
	// LookDefault is how often a replica looks for what was published, and
	// whether a round is due. A fifth of it is jitter.
	LookDefault = 30 * time.Second
	// PauseDefault is the shortest rest between two steps.
	PauseDefault = 10 * time.Millisecond
	// restShare is how many times as long as a step took is rested after it, so
	// that counting never takes more than a quarter of one connection.
	restShare = 3
	restMax   = 10 * time.Second

	leaseTTL       = 2 * time.Minute
	callTimeout    = 15 * time.Second // of one call to the store or the registry
	failuresMax    = 3                // in a row, of tenants, before a round is left
	applyTries     = 3
	publishRowsMax = 50 // of a report each: ChangeBytesMax holds 50 of the largest
	publishAgeMax  = 10 * time.Second
	jobPagesMax    = 1000 // of registry.PageMax rows
)

// Tenant is one whose records are counted.
type Tenant struct {
	ID     claim.TenantID
	Limits Limits // in force, for findings
}

// Tallier counts; every storage.Store does.
type Tallier interface {
	Tally(ctx context.Context, step storage.TenantStep) (storage.Tallied, error)
}

// Registry is what a census needs of registry.Registry.
type Registry interface {
	Apply(ctx context.Context, c registry.Change) (registry.Applied, error)
	Jobs(ctx context.Context, q registry.JobQuery) (registry.JobPage, error)
	Lease(ctx context.Context, name, owner string, ttl time.Duration) (l registry.Lease, held bool, err error)
	SaveCursor(ctx context.Context, name string, fence claim.Fence, cursor []byte) (saved bool, err error)
	Unlease(ctx context.Context, name string, fence claim.Fence) error
	Leases(ctx context.Context) (registry.Leases, error)
}

// CensusConfig configures a Census. Quotas, Registry, Store, Tenants and Owner
// are required; other zero values are the documented defaults.
type CensusConfig struct {
	Quotas   *Quotas
	Registry Registry
	Store    Tallier
	// Tenants returns all tenants that have records: those that are not being
	// deleted, suspended ones included. Quotas forget all others.
	Tenants func() []Tenant
	// Owner names this process for the lease, and no other one.
	Owner    string
	Interval time.Duration // IntervalDefault
	Look     time.Duration // LookDefault; not more than Interval
	Pause    time.Duration // PauseDefault
	Logger   *slog.Logger  // nothing is logged when nil
	// Rand draws from [0, 1). Default rand.Float64.
	Rand func() float64
}

// Census counts what every tenant has, on one replica at a time, and tells all
// of them. What is counted goes to the registry as one Job for each tenant;
// findings are raised at FindingPercent of a quota.
type Census struct {
	cfg   CensusConfig
	stats struct{ rounds, tenants, steps, failures, findings atomic.Int64 }
	once  sync.Once

	// What follows belongs to Run.
	seen   string // the cursor up to which reports were read
	heads  map[claim.TenantID]registry.Head
	raised map[registry.ID]bool
	month  string // of raised
}

// CensusStats are counters for metrics; all but Failures are of rounds that
// this process made.
type CensusStats struct {
	Rounds, Tenants, Steps, Findings int64
	Failures                         int64 // looks, tenants and publications that failed
}

// NewCensus checks the configuration and starts nothing.
func NewCensus(cfg CensusConfig) (*Census, error) {
	var faults []error
	refuse := func(broken bool, text string) {
		if broken {
			faults = append(faults, errors.New(text))
		}
	}
	refuse(cfg.Quotas == nil, "Quotas are missing")
	refuse(cfg.Registry == nil, "Registry is missing")
	refuse(cfg.Store == nil, "Store is missing")
	refuse(cfg.Tenants == nil, "Tenants is missing")
	refuse(cfg.Interval < 0 || cfg.Look < 0 || cfg.Pause < 0, "a time is negative")
	if err := registry.CheckLease(LeaseName, cfg.Owner, leaseTTL); err != nil {
		faults = append(faults, fmt.Errorf("the Owner: %w", err))
	}
	if cfg.Interval == 0 {
		cfg.Interval = IntervalDefault
	}
	if cfg.Look == 0 {
		cfg.Look = min(LookDefault, cfg.Interval)
	}
	refuse(cfg.Look > cfg.Interval, "Look is longer than Interval")
	if cfg.Pause == 0 {
		cfg.Pause = PauseDefault
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("census: %w", err)
	}
	return &Census{cfg: cfg, heads: map[claim.TenantID]registry.Head{}, raised: map[registry.ID]bool{}}, nil
}

// Stats returns the counters.
func (c *Census) Stats() CensusStats {
	return CensusStats{
		Rounds: c.stats.rounds.Load(), Tenants: c.stats.tenants.Load(), Steps: c.stats.steps.Load(),
		Findings: c.stats.findings.Load(), Failures: c.stats.failures.Load(),
	}
}

// Run looks and counts until ctx ends. It can be called once. Failures are
// logged and counted; none ends it.
func (c *Census) Run(ctx context.Context) error {
	first := false
	c.once.Do(func() { first = true })
	if !first {
		return errors.New("census: Run was called before")
	}
	for ctx.Err() == nil {
		if err := c.look(ctx); err != nil && ctx.Err() == nil {
			c.stats.failures.Add(1)
			c.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "census", slog.Any("error", err))
		}
		_ = c.rest(ctx, c.cfg.Look-time.Duration(c.cfg.Rand()*float64(c.cfg.Look)/5)) // the loop sees the end
	}
	return nil
}

// rest waits; the error is that ctx has ended.
func (c *Census) rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// progress is the lease's cursor: how far the round is.
type progress struct {
	Began claim.Time     `json:"began_us"`
	After claim.TenantID `json:"after"` // tenants up to it are published
	Done  bool           `json:"done,omitempty"`
}

// look reads what others have published since the last look, and makes a round
// if one is due and nobody else is at it.
func (c *Census) look(ctx context.Context) error {
	lease, err := c.lease(ctx)
	if err != nil {
		return err
	}
	if err := c.catchUp(ctx, lease.clock, string(lease.Cursor)); err != nil {
		return err
	}
	c.cfg.Quotas.Keep(c.cfg.Tenants())
	var p progress
	if len(lease.Cursor) > 0 && json.Unmarshal(lease.Cursor, &p) != nil {
		p = progress{} // of another version: begin anew
	}
	othersTurn := lease.Owner != "" && lease.Owner != c.cfg.Owner && lease.now < lease.Until
	if othersTurn || p.Done && lease.now < p.Began.Add(c.cfg.Interval) {
		return nil
	}
	return c.take(ctx)
}

// clock is one moment on two clocks: the store's, and this process's, which may
// be a little earlier.
type clock struct {
	now claim.Time
	at  time.Duration
}

// began returns when, on this process's clock, t was on the store's.
func (k clock) began(t claim.Time) time.Duration { return k.at - max(k.now.Sub(t), 0) }

type leased struct {
	registry.Lease
	clock
}

// lease returns the census's lease, whoever has it.
func (c *Census) lease(ctx context.Context) (leased, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	at := c.cfg.Quotas.monotonic()
	all, err := c.cfg.Registry.Leases(ctx)
	if err != nil {
		return leased{}, fmt.Errorf("read leases: %w", err)
	}
	l := leased{clock: clock{now: all.Now, at: at}}
	if i := slices.IndexFunc(all.Leases, func(l registry.Lease) bool { return l.Name == LeaseName }); i >= 0 {
		l.Lease = all.Leases[i]
	}
	return l, nil
}

// catchUp reads the reports if the cursor says that there are new ones.
func (c *Census) catchUp(ctx context.Context, k clock, cursor string) error {
	if cursor == c.seen {
		return nil
	}
	if err := c.read(ctx, k, registry.JobRunning); err != nil {
		return err
	}
	c.seen = cursor
	return nil
}

// read takes all reports whose rows are in these states.
func (c *Census) read(ctx context.Context, k clock, states ...registry.JobState) error {
	heads := map[claim.TenantID]registry.Head{}
	query := registry.JobQuery{Scope: registry.Platform(), States: states, Limit: registry.PageMax}
	for range jobPagesMax {
		page, err := c.page(ctx, query)
		if err != nil {
			return err
		}
		for i := range page.Jobs {
			j := &page.Jobs[i]
			if j.Kind != JobKind || j.ID != JobID(j.Tenant) {
				continue
			}
			heads[j.Tenant] = j.Head
			if r, ok := reportOf(j); ok && j.State == registry.JobRunning {
				c.cfg.Quotas.adopt(j.Tenant, r, k.began(r.Began))
			}
		}
		if query.Cursor = page.Cursor; query.Cursor == nil {
			c.heads = heads
			return nil
		}
	}
	return fmt.Errorf("read reports: there are more than %d pages of jobs", jobPagesMax)
}

func (c *Census) page(ctx context.Context, q registry.JobQuery) (registry.JobPage, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	page, err := c.cfg.Registry.Jobs(ctx, q)
	if err != nil {
		return page, fmt.Errorf("read reports: %w", err)
	}
	return page, nil
}
