package bloom

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// headroom is how many keys a rebuilt generation is sized for, for each key
// that is stored, and refresh the share of its capacity that must have been
// added to it before a saturated one is rebuilt: where memory does not allow
// for more, rebuilding at once would not help.
const (
	headroom = 2
	refresh  = 0.25
)

// rebuilt is the filter built in. One generation answers. While the next is
// built from a scan, writes enter both, so that nothing falls between them.
type rebuilt struct {
	cfg       Config
	saturated chan struct{}
	rebuilds  atomic.Int64

	mu struct {
		sync.RWMutex
		current *generation // nil: nothing is known yet, every key may be stored
		next    *generation // nil: no rebuild is under way
		scanned int64       // keys of current when it began to answer
	}
}

func newRebuilt(c Config) *rebuilt {
	return &rebuilt{cfg: c, saturated: make(chan struct{}, 1)}
}

// MaybeHas implements Filter.
func (r *rebuilt) MaybeHas(k claim.Key) bool {
	r.mu.RLock()
	current := r.mu.current
	r.mu.RUnlock()
	return current == nil || current.maybeHas(k)
}

// Add implements Filter. The lock is held throughout, so that no generation
// begins to answer between the two additions.
func (r *rebuilt) Add(k claim.Key) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.mu.next != nil {
		r.mu.next.add(k)
	}
	if r.mu.current != nil && r.mu.current.add(k) && r.isSaturated() {
		select {
		case r.saturated <- struct{}{}:
		default: // asked for already
		}
	}
}

// isSaturated holds mu for reading.
func (r *rebuilt) isSaturated() bool {
	keys, capacity := r.mu.current.keys.Load(), r.mu.current.capacity
	return r.mu.next == nil && keys > capacity && keys-r.mu.scanned >= int64(refresh*float64(capacity))
}

func (r *rebuilt) run(ctx context.Context) error {
	for {
		if err := r.rebuild(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.cfg.Logger.WarnContext(ctx, "filter not rebuilt; trying again", slog.Any("error", err))
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(r.cfg.RetryAfter):
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.saturated:
		}
	}
}

// rebuild builds a generation from a full scan and lets it answer. What
// answered before does so until then.
func (r *rebuilt) rebuild(ctx context.Context) error {
	stats, err := r.cfg.Store.Stats(ctx)
	if err != nil {
		return fmt.Errorf("rebuild filter: %w", err)
	}
	capacity := max(int64(r.cfg.Capacity), headroom*stats.RecordsEstimate)
	next := newGeneration(capacity, r.cfg.FalsePositives, r.cfg.TenantShareMax, r.cfg.MemoryMaxBytes/2)
	r.mu.Lock()
	r.mu.next = next // before the scan begins
	r.mu.Unlock()
	err = r.cfg.Store.Scan(ctx, func(k claim.Key) error {
		next.add(k)
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.next = nil
	if err != nil {
		return fmt.Errorf("rebuild filter: %w", err)
	}
	r.mu.current, r.mu.scanned = next, next.keys.Load()
	r.rebuilds.Add(1)
	select {
	case <-r.saturated: // that was the generation before
	default:
	}
	return nil
}

func (r *rebuilt) stats() storage.FilterStats {
	r.mu.RLock()
	current, next := r.mu.current, r.mu.next
	r.mu.RUnlock()
	stats := storage.FilterStats{Ready: current != nil, Rebuilds: r.rebuilds.Load()}
	if current != nil {
		stats.Keys, stats.Bytes, stats.Fill = current.keys.Load(), current.bytes, current.fill()
	}
	if next != nil {
		stats.Bytes += next.bytes
	}
	return stats
}
