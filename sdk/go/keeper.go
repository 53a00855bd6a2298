package warifu

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// How a lease is kept.
const (
	// beatShare: the next extension is sent when a third of what is left has
	// passed, give or take beatJitter of it.
	beatShare  = 3
	beatJitter = 0.2
	// beatMin keeps heartbeats apart when a lease cannot be lengthened further.
	beatMin = 100 * time.Millisecond
	// marginShare and marginMax: a handler's context ends a tenth of its lease,
	// at most a second, before the lease does.
	marginShare = 10
	marginMax   = time.Second
)

// keeper keeps the lease of one grant while its handler runs, and ends the
// handler's context when the lease is lost. Heartbeats follow one another, none
// before the one ahead is answered. The end of the lease is watched by a timer
// of its own, so that it is noticed also when heartbeats are starved.
type keeper struct {
	client *Client
	grant  Grant // LeaseUntil is guarded by mu
	lease  time.Duration
	margin time.Duration

	ctx     context.Context //nolint:containedctx // the handler's, made here and ended by lose
	lose    context.CancelCauseFunc
	endBeat context.CancelFunc
	beating sync.WaitGroup

	mu struct {
		sync.Mutex
		until   time.Time
		timer   *time.Timer
		stopped bool
		lost    error
	}
}

func (c *Client) keep(ctx context.Context, g Grant, lease time.Duration) *keeper {
	k := &keeper{client: c, grant: g, lease: lease}
	k.ctx, k.lose = context.WithCancelCause(ctx)
	// A handler may finish its work after its caller went away: the lease is
	// kept until the handler has returned.
	beat, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k.endBeat = cancel
	left := time.Until(g.LeaseUntil)
	k.margin = min(left/marginShare, marginMax)
	k.mu.until = g.LeaseUntil
	k.mu.Lock()
	k.mu.timer = time.AfterFunc(left-k.margin, k.watch)
	k.mu.Unlock()
	if left <= 0 {
		k.loseLease(errLocalEnd)
	}
	k.beating.Go(func() { k.beat(beat) })
	return k
}

// stop ends the heartbeats, waits for the last one, and returns the end of the
// lease as it is known. Afterwards the handler's context is over.
func (k *keeper) stop() time.Time {
	k.mu.Lock()
	k.mu.stopped = true
	k.mu.timer.Stop()
	until := k.mu.until
	k.mu.Unlock()
	k.endBeat()
	k.beating.Wait()
	k.lose(context.Canceled)
	return until
}

// lost returns why the lease was lost, or nil.
func (k *keeper) lost() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.lost
}

var errLocalEnd = errors.New("its time ran out before it was extended")

func (k *keeper) loseLease(why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.stopped || k.mu.lost != nil {
		return
	}
	k.mu.lost = fmt.Errorf("warifu: %w: %w", ErrLeaseLost, why)
	k.lose(k.mu.lost)
	k.endBeat()
	k.client.log.WarnContext(k.ctx, "warifu: a lease is lost", "consumer", k.grant.Consumer, "fence", k.grant.Fence, "error", why)
}

// watch runs when the lease may be over; extensions made meanwhile put it off.
func (k *keeper) watch() {
	k.mu.Lock()
	left := time.Until(k.mu.until) - k.margin
	if left > 0 && !k.mu.stopped {
		k.mu.timer.Reset(left)
	}
	k.mu.Unlock()
	if left <= 0 {
		k.loseLease(errLocalEnd)
	}
}

// beat extends the lease again and again. What fails is tried again in a third
// of what is left, except that a lease the server calls stale is lost.
func (k *keeper) beat(ctx context.Context) {
	g := k.grant
	for sleep(ctx, nextBeat(time.Until(g.LeaseUntil))) {
		err := k.client.extend(ctx, &g, k.lease)
		switch {
		case err == nil:
			k.mu.Lock()
			k.mu.until = g.LeaseUntil
			k.mu.Unlock()
		case ctx.Err() != nil:
			return
		case errors.Is(err.kind, ErrStale):
			k.loseLease(err)
			return
		default:
			k.client.log.WarnContext(ctx, "warifu: a lease was not extended", "consumer", g.Consumer, "fence", g.Fence, "error", err)
		}
	}
}

func nextBeat(left time.Duration) time.Duration {
	share := float64(left) / beatShare
	return max(beatMin, time.Duration(share*(1+beatJitter*(2*rand.Float64()-1))))
}
