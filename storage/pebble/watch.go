package pebble

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage"
)

// beatEvery is how often the disk is asked to show that it still answers, and
// how often free space is looked at.
const beatEvery = 500 * time.Millisecond

// gate is what the watch knows of the disk.
type gate struct {
	stalled atomic.Bool
	free    atomic.Uint64 // bytes; math.MaxUint64 where it is not known
	claims  uint64        // under it, no new claims
	bodies  uint64        // under it, no result bodies
}

func (g *gate) refusesClaims() bool { return g.free.Load() < g.claims }
func (g *gate) dropsBodies() bool   { return g.free.Load() < g.bodies }

// runWatch commits a beat now and then. One that takes longer than StallMax
// means that the disk is stalled: the store then answers ErrUnavailable at the
// door, before anything enters the queue, until the beat comes through.
func (s *Store) runWatch(ctx context.Context) error {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.closing:
			return nil
		case <-tick.C:
		}
		s.measureSpace()
		if err := s.watchBeat(ctx); err != nil && !errors.Is(err, storage.ErrClosed) && ctx.Err() == nil {
			s.cfg.Logger.Warn("the disk did not take a beat", "cause", err)
		}
		if err := s.damage.Load(); err != nil {
			return *err
		}
	}
}

func (s *Store) watchBeat(ctx context.Context) error {
	came := make(chan error, 1)
	go func() { came <- s.beat(ctx) }()
	stall := time.NewTimer(s.cfg.StallMax)
	defer stall.Stop()
	select {
	case err := <-came:
		return err
	case <-stall.C:
	}
	s.gate.stalled.Store(true)
	s.cfg.Logger.Error("the disk is stalled; claims are refused until it answers", "after", s.cfg.StallMax)
	err := <-came
	s.gate.stalled.Store(false)
	s.cfg.Logger.Warn("the disk answers again")
	return err
}

// measureSpace notes how much the disk has left.
func (s *Store) measureSpace() {
	before := s.gate.refusesClaims()
	s.gate.free.Store(s.freeBytes())
	if after := s.gate.refusesClaims(); after != before {
		s.cfg.Logger.Warn("free disk space crossed the limit for new claims",
			"claims_refused", after, "free_bytes", s.gate.free.Load(), "limit_bytes", s.gate.claims)
	}
}

func (s *Store) freeBytes() uint64 {
	usage, err := s.cfg.FS.GetDiskUsage(s.cfg.Dir)
	if err != nil { // a file system that cannot say has no gate
		return math.MaxUint64
	}
	return usage.AvailBytes
}
