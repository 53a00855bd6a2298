package tenant

import (
	"context"
	"log/slog"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

const (
	// seenInterval lies between two notes of when keys were used.
	seenInterval = registry.SeenGrain
	seenTimeout  = 5 * time.Second
)

// noteUses tells the registry every minute when keys were used. What it does
// not take is told with the next.
func (s *Syncer) noteUses(ctx context.Context) {
	pending := map[string]claim.Time{} // at most one for each key
	ticks := time.NewTicker(seenInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		for id, at := range s.cfg.Directory.Used() {
			pending[id] = at
		}
		s.tell(ctx, pending)
	}
}

// tell sends pending uses, SeenMax at a time, until one is not taken.
func (s *Syncer) tell(ctx context.Context, pending map[string]claim.Time) {
	for len(pending) > 0 && ctx.Err() == nil {
		part := make(map[string]claim.Time, min(len(pending), registry.SeenMax))
		for id, at := range pending {
			if part[id] = at; len(part) == registry.SeenMax {
				break
			}
		}
		bounded, cancel := context.WithTimeout(ctx, seenTimeout)
		err := s.cfg.Registry.Seen(bounded, part)
		cancel()
		if err != nil {
			s.seenFailures.Add(1)
			s.cfg.Logger.DebugContext(ctx, "when keys were last used is not noted now", slog.String("cause", err.Error()))
			return
		}
		for id := range part {
			delete(pending, id)
		}
	}
}
