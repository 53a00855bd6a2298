package tenant

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage/registry"
)

// Bounds of a Syncer. With IntervalDefault and Loads that answer within
// LoadTimeout a change is in force at most 4 s after it was made: a Load that
// began just before it may take as long as the one that sees it.
const (
	// IntervalDefault lies between the beginnings of two Loads.
	IntervalDefault = time.Second
	// IntervalMax keeps revocation within 5 s.
	IntervalMax = 2 * time.Second
	// LoadTimeout is how long a Load may take. One that was cut off by it is
	// given twice as long the next time, up to LoadTimeoutMax: the first Load of
	// a large installation, or the one after a restore, returns every row.
	LoadTimeout    = 2 * time.Second
	LoadTimeoutMax = time.Minute
	// jitter is the part of the interval by which Loads of many servers are
	// spread, half of it to each side.
	jitter = 0.2
	// faultLinesMax bounds the log lines about faulty rows of one Load.
	faultLinesMax = 10
)

// Errors of a Syncer.
var (
	// ErrNotLoaded means that no Load has succeeded yet: nobody of the registry
	// is known.
	ErrNotLoaded = errors.New("tenants and keys were not loaded yet")
	// ErrStopped means that Run has ended, and nothing is refreshed any more.
	ErrStopped = errors.New("the directory is no longer kept up to date")
)

// SyncConfig of a Syncer. Registry, Directory and Clock are required.
type SyncConfig struct {
	Registry registry.Registry
	// Directory is what the Syncer keeps up to date. Until the first Load it
	// answers from the table that it was made with.
	Directory *Directory
	// Configured are tenants beside those of the registry, before which they
	// go. nil is none. The Directory usually begins with the same table.
	Configured *Table
	// Interval lies between the beginnings of two Loads, give or take a tenth:
	// IntervalDefault when 0, at most IntervalMax.
	Interval time.Duration
	// Rand returns numbers in [0, 1) to spread Loads by. math/rand when nil.
	Rand func() float64
	// OnChange is told what a Load returned, before requests meet it: only
	// changes, tombstones included, or everything where Full is set. It is
	// called by one goroutine and holds up the change meanwhile. It must not
	// keep Changes for writing.
	OnChange func(*registry.Changes)
	// Logger is told of faulty rows and of Loads that fail. Nothing is logged
	// when nil.
	Logger *slog.Logger
	// Clock tells the time; it has to carry the monotonic clock.
	Clock func() time.Time
}

// Syncer keeps a Directory up to date with the registry and notes there when
// keys were last used. Make it with NewSyncer. It is safe for concurrent use.
//
// A Load that fails leaves the table as it is: keys keep working while the store
// is away, and a key that is revoked meanwhile keeps working with them. Age says
// how far that goes.
type Syncer struct {
	cfg   SyncConfig
	rows  *Rows
	began time.Time // this Syncer
	kick  chan struct{}

	loads, loadFailures, seenFailures atomic.Int64

	mu struct {
		sync.Mutex
		running bool
		stopped bool
		loaded  bool
		asOf    time.Time // when the last Load that succeeded began
		next    *flight   // of those who wait for the next Load; nil: nobody
	}

	// Only Run's loop uses these.
	timeout time.Duration
	failing bool
	known   bool // OnChange was told of a first Load
}

// flight is one Load to come, and those who wait for it.
type flight struct {
	done chan struct{}
	err  error // set before done is closed
}

// NewSyncer checks the configuration and starts nothing.
func NewSyncer(cfg SyncConfig) (*Syncer, error) {
	var faults []error
	refuse := func(broken bool, text string) {
		if broken {
			faults = append(faults, errors.New(text))
		}
	}
	refuse(cfg.Registry == nil, "Registry is missing")
	refuse(cfg.Directory == nil, "Directory is missing")
	refuse(cfg.Clock == nil, "Clock is missing")
	refuse(cfg.Interval < 0 || cfg.Interval > IntervalMax, "Interval is not within 0-"+IntervalMax.String())
	rows, err := NewRows(cfg.Configured)
	if err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("tenant: %w", err)
	}
	if cfg.Interval == 0 {
		cfg.Interval = IntervalDefault
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	if cfg.OnChange == nil {
		cfg.OnChange = func(*registry.Changes) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Syncer{cfg: cfg, rows: rows, began: cfg.Clock(), kick: make(chan struct{}, 1), timeout: LoadTimeout}, nil
}

// Run keeps the directory up to date until ctx ends. It can be called once.
func (s *Syncer) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.mu.running
	s.mu.running = true
	s.mu.Unlock()
	if again {
		return errors.New("tenant: a Syncer runs once")
	}
	var notes sync.WaitGroup
	notes.Go(func() { s.noteUses(ctx) })
	defer notes.Wait()
	defer s.stop()
	for ctx.Err() == nil {
		began := s.cfg.Clock()
		waiting := s.depart()
		err := s.load(ctx, began)
		waiting.land(err)
		interval := time.Duration(float64(s.cfg.Interval) * (1 - jitter/2 + jitter*s.cfg.Rand()))
		s.rest(ctx, interval-s.cfg.Clock().Sub(began))
	}
	return nil
}

// Refresh returns when a Load that began after the call is in force, so that a
// change which the caller has applied is too. However many wait, one Load serves
// them. The error is that Load's, ErrStopped, or the context's; the change is
// then met with a later Load. It waits for Run to be called.
func (s *Syncer) Refresh(ctx context.Context) error {
	s.mu.Lock()
	if s.mu.stopped {
		s.mu.Unlock()
		return fmt.Errorf("refresh tenants: %w", ErrStopped)
	}
	if s.mu.next == nil {
		s.mu.next = &flight{done: make(chan struct{})}
	}
	waiting := s.mu.next
	select {
	case s.kick <- struct{}{}:
	default: // somebody's is still there
	}
	s.mu.Unlock()
	select {
	case <-waiting.done:
	case <-ctx.Done():
		return fmt.Errorf("refresh tenants: %w", context.Cause(ctx))
	}
	if waiting.err != nil {
		return fmt.Errorf("refresh tenants: %w", waiting.err)
	}
	return nil
}

// Ready is nil once a Load has succeeded, and ErrNotLoaded before. What a
// failing registry means afterwards is for whoever watches Age: the table stays
// in force, and the store has a check of its own.
func (s *Syncer) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.loaded {
		return ErrNotLoaded
	}
	return nil
}

// Age is how old the knowledge in force is: the time since the last Load that
// succeeded began, or since NewSyncer where none has.
func (s *Syncer) Age() time.Duration {
	s.mu.Lock()
	asOf := s.mu.asOf
	if !s.mu.loaded {
		asOf = s.began
	}
	s.mu.Unlock()
	return s.cfg.Clock().Sub(asOf)
}

// SyncStats are counts since NewSyncer, and what is known now.
type SyncStats struct {
	Loads, LoadFailures int64 // Loads are all, those that failed included
	SeenFailures        int64 // notes of uses that the registry did not take
	FaultyRows          int   // rows that are left out now
	Revision            registry.Revision
}

// Stats returns the counts.
func (s *Syncer) Stats() SyncStats {
	return SyncStats{
		Loads: s.loads.Load(), LoadFailures: s.loadFailures.Load(), SeenFailures: s.seenFailures.Load(),
		FaultyRows: s.rows.Faulty(), Revision: s.rows.Revision(),
	}
}

// depart takes everybody who waits: the Load that begins now is theirs.
func (s *Syncer) depart() *flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.mu.next
	s.mu.next = nil
	select {
	case <-s.kick: // was for this Load
	default:
	}
	return f
}

func (f *flight) land(err error) {
	if f != nil {
		f.err = err
		close(f.done)
	}
}

func (s *Syncer) stop() {
	s.mu.Lock()
	s.mu.stopped = true
	s.mu.Unlock()
	s.depart().land(ErrStopped)
}

// rest waits until the next Load is due or asked for.
func (s *Syncer) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(max(0, d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.kick:
	}
}

func (s *Syncer) load(ctx context.Context, began time.Time) error {
	s.loads.Add(1)
	since := s.rows.Revision()
	bounded, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	c, err := s.cfg.Registry.Load(bounded, since)
	if err != nil {
		s.failed(ctx, bounded, err)
		return err
	}
	if s.timeout = LoadTimeout; s.failing {
		s.failing = false
		s.cfg.Logger.InfoContext(ctx, "tenants and keys are up to date again")
	}
	if c.Revision < since {
		s.cfg.Logger.WarnContext(ctx, "the registry has gone back; its store was restored",
			slog.Int64("revision", int64(c.Revision)), slog.Int64("before", int64(since)))
	}
	s.logFaults(ctx, s.rows.Merge(&c))
	if c.Revision != since || !s.known {
		s.known = true
		s.cfg.OnChange(&c)
	}
	if t := s.rows.Table(); t != s.cfg.Directory.Table() {
		s.cfg.Directory.Swap(t)
	}
	s.mu.Lock()
	s.mu.loaded, s.mu.asOf = true, began
	s.mu.Unlock()
	return nil
}

func (s *Syncer) failed(ctx, bounded context.Context, err error) {
	if ctx.Err() != nil {
		return // Run ends
	}
	s.loadFailures.Add(1)
	if bounded.Err() != nil {
		s.timeout = min(2*s.timeout, LoadTimeoutMax)
	}
	if !s.failing { // one line for each time that it begins
		s.failing = true
		s.cfg.Logger.WarnContext(ctx, "tenants and keys cannot be brought up to date; those known stay in force",
			slog.String("cause", err.Error()))
	}
}

func (s *Syncer) logFaults(ctx context.Context, faults []error) {
	for i, err := range faults {
		if i == faultLinesMax {
			s.cfg.Logger.ErrorContext(ctx, "and other rows are faulty", slog.Int("rows", len(faults)-i))
			return
		}
		s.cfg.Logger.ErrorContext(ctx, "a stored row is faulty and left out", slog.String("cause", err.Error()))
	}
}
