// Package sqlstore keeps claims in CockroachDB, or in PostgreSQL 15 or newer,
// with the same SQL: many replicas of the server share one database.
//
// Each call is one implicit transaction, sent as one pipeline: the database
// decides, by its primary key and by the guards in the statements, which say in
// SQL what storage/claim says in Go. Time is the database's. Nothing is
// believed before the transaction has committed, and no error is taken for
// "not committed": the attempt ID in the record is the proof, so what failed is
// run again, and what cannot be found out is storage.ErrUnknown.
//
// Statements are in queries/, one in each file, and migrations/ holds the
// schema.
package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storetime"
)

// Defaults of Config.
const (
	ConnsDefault           = 16
	SweepConnsDefault      = 2
	AcquireTimeoutDefault  = 250 * time.Millisecond
	ConnectTimeoutDefault  = 5 * time.Second
	CallTimeoutDefault     = 5 * time.Second
	SweepTimeoutDefault    = 30 * time.Second
	RetriesDefault         = 12
	ConnLifetimeDefault    = 5 * time.Minute
	pingTimeout            = 2 * time.Second
	healthCheckPeriod      = 30 * time.Second
	lifetimeJitter         = 0.2
	idleInTransactionLimit = "60s"
)

// Config of a Store. Zero values are the documented defaults.
type Config struct {
	// URL names the database: cockroach://… or postgres://…. Required. What
	// stands behind the question mark goes to the driver and the server.
	URL string
	// Isolation of every transaction: ReadCommitted or Serializable. Every
	// statement is right under both. By default ReadCommitted on PostgreSQL,
	// where Serializable costs retries and protects nothing more, and
	// Serializable on CockroachDB.
	Isolation Isolation
	// SweepGrace is how long expired records are kept; claim.SweepGrace.
	SweepGrace time.Duration
	// Conns and SweepConns bound the connections for traffic and for sweeps.
	// All services together should have no more than four active ones for each
	// vCPU of the database.
	Conns, SweepConns int32
	// AcquireTimeout is how long a call waits for a connection when all are in
	// use, before it fails with storage.ErrUnavailable.
	AcquireTimeout time.Duration
	// ConnectTimeout bounds the making of a connection.
	ConnectTimeout time.Duration
	// CallTimeout bounds a call with all its retries, beside the deadline of
	// its context. Calls do not end when their context is cancelled: what was
	// sent may be written, and cancelling costs the connection.
	CallTimeout time.Duration
	// SweepTimeout is the same for sweeps, lists and scans.
	SweepTimeout time.Duration
	// Retries bounds how often a call is sent again, beside its timeout.
	Retries int
	// ConnLifetime is when a connection is replaced, so that traffic finds the
	// nodes that were added behind a load balancer.
	ConnLifetime time.Duration

	// Monotonic is elapsed time from anywhere; with it a database clock that
	// jumps ahead is noticed. Nil turns that off.
	Monotonic func() time.Duration
	// Clock replaces the database's time by another: for tests of stores only.
	Clock func() time.Time
	// Rand draws from [0, 1) for the jitter of retries; rand.Float64.
	Rand   func() float64
	Logger *slog.Logger // nil: no log
}

func (c Config) withDefaults() (Config, error) {
	c.SweepGrace = or(c.SweepGrace, claim.SweepGrace)
	c.Conns, c.SweepConns = or(c.Conns, ConnsDefault), or(c.SweepConns, SweepConnsDefault)
	c.AcquireTimeout = or(c.AcquireTimeout, AcquireTimeoutDefault)
	c.ConnectTimeout = or(c.ConnectTimeout, ConnectTimeoutDefault)
	c.CallTimeout = or(c.CallTimeout, CallTimeoutDefault)
	c.SweepTimeout = or(c.SweepTimeout, SweepTimeoutDefault)
	c.Retries = or(c.Retries, RetriesDefault)
	c.ConnLifetime = or(c.ConnLifetime, ConnLifetimeDefault)
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(c.URL != "", "the URL is missing")
	check(c.Isolation == "" || c.Isolation == ReadCommitted || c.Isolation == Serializable,
		"isolation %q; it is %q or %q", c.Isolation, ReadCommitted, Serializable)
	check(c.SweepGrace > 0, "SweepGrace %v is not positive", c.SweepGrace)
	check(c.Clock != nil || c.SweepGrace > c.CallTimeout+c.SweepTimeout,
		"SweepGrace %v; it must be longer than CallTimeout and SweepTimeout together, %v: a late statement must find the record that it is late for",
		c.SweepGrace, c.CallTimeout+c.SweepTimeout)
	check(c.Retries > 0, "Retries %d is not positive", c.Retries)
	check(c.Conns > 0 && c.SweepConns > 0, "Conns %d and SweepConns %d; both must be positive", c.Conns, c.SweepConns)
	for name, d := range map[string]time.Duration{
		"AcquireTimeout": c.AcquireTimeout, "ConnectTimeout": c.ConnectTimeout, "CallTimeout": c.CallTimeout,
		"SweepTimeout": c.SweepTimeout, "ConnLifetime": c.ConnLifetime,
	} {
		check(d > 0, "%s %v is not positive", name, d)
	}
	return c, errors.Join(faults...)
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Store is a storage.Store in a database. It is safe for concurrent use, and so
// are any number of them on one database.
type Store struct {
	cfg     Config
	dialect Dialect
	traffic *pool
	sweeps  *pool
	time    *storetime.Clock

	// life is held for reading by every call, and for writing by Close.
	life    sync.RWMutex
	closing atomic.Bool
}

var _ storage.Store = (*Store)(nil)

// Open connects to the database, checks that it is what the URL says, that its
// version and settings are supported and that its schema is not too old, and
// reads its clock. It changes nothing: see package migrate for the schema.
func Open(ctx context.Context, c Config) (*Store, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	dialect, _, err := parseURL(c.URL)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: c, dialect: dialect, time: storetime.New(c.Monotonic)}
	if s.traffic, err = newPool(ctx, c, poolTraffic); err != nil {
		return nil, err
	}
	if s.sweeps, err = newPool(ctx, c, poolSweeps); err != nil {
		s.traffic.Close()
		return nil, err
	}
	if err := s.check(ctx); err != nil {
		s.traffic.Close()
		s.sweeps.Close()
		return nil, err
	}
	return s, nil
}

// ConfirmClock makes a suspect clock trusted: an operator says it is right.
func (s *Store) ConfirmClock() { s.time.Confirm() }

// Close implements storage.Store. It waits for calls under way, which are
// bounded by their timeouts.
func (s *Store) Close() error {
	s.closing.Store(true)
	s.life.Lock()
	defer s.life.Unlock()
	s.traffic.Close()
	s.sweeps.Close()
	return nil
}

// enter begins a call that lasts until the function it returns is called.
func (s *Store) enter(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// Only Close holds or wants the lock: whoever does not get it at once is
	// late, and must not wait until the others have finished.
	if s.closing.Load() || !s.life.TryRLock() {
		return nil, storage.ErrClosed
	}
	return s.life.RUnlock, nil
}

// bounds are what a statement holds the database's time to. A clock that stepped
// back is followed, not held at the high-water mark of this process: others that
// were started after the step have none, and whoever is ahead of them would take
// over their leases. Leases last longer by the step, and expire nothing early.
func (s *Store) bounds() storetime.Bounds {
	if s.cfg.Clock == nil {
		return storetime.Bounds{Expected: s.time.Bounds().Expected}
	}
	now, _ := s.time.Read(claim.FromTime(s.cfg.Clock()))
	return storetime.Bounds{Low: now, Expected: 1} // any reading has jumped, and is held to Low
}

// saw takes a reading of the database's clock.
func (s *Store) saw(reading claim.Time) {
	if s.cfg.Clock == nil {
		s.time.Read(reading)
	}
}
