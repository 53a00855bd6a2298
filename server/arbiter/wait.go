package arbiter

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// pollMin keeps a lease that ends now, or a clock that lags, from becoming a
// busy loop.
const pollMin = time.Millisecond

// ClaimWait is ClaimOne, but while another attempt holds the key it waits, at
// most wait and at most claim.WaitMax, for the key to end, and asks afresh: a
// grant is always decided by the store at the moment it is made, and only for
// a caller that is still there. Where too many wait already it answers
// IN_PROGRESS at once.
//
// One goroutine per key looks at the store, when the key ends here, when the
// lease does, and at least every Config.Poll. What it finds answers all
// waiters that are not granted the key; of the others one at a time is let
// through.
//
// asking is called by this goroutine each time that it is about to ask the
// store: a grant was decided after its last call.
func (a *Arbiter) ClaimWait(ctx context.Context, req claim.Request, wait time.Duration, asking func()) Answered {
	ask := func() Answered {
		asking()
		return a.claims.one(ctx, req)
	}
	wait = min(wait, claim.WaitMax)
	if wait <= 0 {
		return ask()
	}
	w := a.waits.join(&req)
	if w == nil {
		return ask()
	}
	defer a.waits.leave(w)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		ans := ask()
		if ans.Err != nil || ans.Decision != claim.HeldByOther {
			return ans
		}
		if !a.hold(w, ans.RetryAfter) {
			return ans // going down: the caller asks elsewhere
		}
		select {
		case v := <-w.verdict:
			if v.Decision != claim.Undecided {
				return v
			}
		case <-timer.C:
			return ask()
		case <-ctx.Done():
			return Answered{Err: fmt.Errorf("claim: %w", notSent(ctx))}
		case <-a.waits.closing:
			return ans
		}
	}
}

// waits keeps who waits for which key.
type waits struct {
	perKeyMax, max int
	closing        chan struct{}
	watches        sync.WaitGroup // one for each running watch
	keys           atomic.Int64   // len(mu.byKey), read without the lock
	refused, polls atomic.Int64

	mu struct {
		sync.Mutex
		closed bool
		count  int
		byKey  map[claim.Key]*watch
	}
}

// watch is a key somebody waits for. All but poke is guarded by waits.mu.
type watch struct {
	key     claim.Key
	poke    chan struct{} // one token: look now
	waiters []*waiter     // in order of arrival
	running bool          // its goroutine was started
}

// waiter is one long poll. All but verdict is guarded by waits.mu.
type waiter struct {
	watch *watch
	req   *claim.Request
	// verdict takes one answer; Undecided means that it is the waiter's turn
	// to ask the store.
	verdict chan Answered
	held    bool // waits; else it is asking the store itself
	turn    bool // was let through, and the others stay until it leaves or waits again
	missed  bool // the watch looked while it was asking
}

func newWaits(perKeyMax, most int) *waits {
	ws := &waits{perKeyMax: perKeyMax, max: most, closing: make(chan struct{})}
	ws.mu.byKey = make(map[claim.Key]*watch)
	return ws
}

// join registers a waiter before it asks for the first time, so that no ending
// falls between the answer and the wait. Nil: too many wait.
func (ws *waits) join(req *claim.Request) *waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	k := ws.mu.byKey[req.Key]
	if ws.mu.count >= ws.max || (k != nil && len(k.waiters) >= ws.perKeyMax) {
		ws.refused.Add(1)
		return nil
	}
	if k == nil {
		k = &watch{key: req.Key, poke: make(chan struct{}, 1)}
		ws.mu.byKey[req.Key] = k
		ws.keys.Add(1)
	}
	w := &waiter{watch: k, req: req, verdict: make(chan Answered, 1)}
	k.waiters = append(k.waiters, w)
	ws.mu.count++
	return w
}

// leave takes a waiter away. Its watch hears of it where it would otherwise
// wait for nobody, or for a turn that is over.
func (ws *waits) leave(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	k := w.watch
	if i := slices.Index(k.waiters, w); i >= 0 {
		k.waiters = slices.Delete(k.waiters, i, i+1)
	}
	ws.mu.count--
	switch {
	case len(k.waiters) == 0 && !k.running:
		ws.forget(k)
	case len(k.waiters) == 0 || w.turn:
		k.wake()
	}
}

func (ws *waits) forget(k *watch) {
	delete(ws.mu.byKey, k.key)
	ws.keys.Add(-1)
}

// hold marks a waiter as waiting and starts the watch of its key. False: the
// arbiter is closing.
func (a *Arbiter) hold(w *waiter, leaseLeft time.Duration) bool {
	ws, k := a.waits, w.watch
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.mu.closed {
		return false
	}
	if w.missed {
		k.wake()
	}
	w.held, w.turn, w.missed = true, false, false
	if !k.running {
		k.running = true
		ws.watches.Go(func() { a.watch(k, leaseLeft) })
	}
	return true
}

// wake tells who waits for key that it was written here.
func (ws *waits) wake(key *claim.Key) {
	if ws.keys.Load() == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if k := ws.mu.byKey[*key]; k != nil {
		k.wake()
	}
}

func (k *watch) wake() {
	select {
	case k.poke <- struct{}{}:
	default: // it will look anyhow
	}
}

func (ws *waits) close() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.mu.closed = true
	close(ws.closing)
}

// watch looks at the key until nobody waits for it.
func (a *Arbiter) watch(k *watch, leaseLeft time.Duration) {
	timer := time.NewTimer(a.untilPoll(leaseLeft))
	defer timer.Stop()
	for {
		select {
		case <-k.poke:
		case <-timer.C:
		case <-a.waits.closing:
			return
		}
		if a.waits.retire(k) {
			return
		}
		a.waits.polls.Add(1)
		found := a.lookups.one(context.Background(), k.key)
		timer.Reset(a.untilPoll(a.waits.serve(k, &found)))
	}
}

// untilPoll is how long to wait until the next look: until the lease ends, but
// no longer than the poll with its jitter.
func (a *Arbiter) untilPoll(leaseLeft time.Duration) time.Duration {
	jittered := a.cfg.Poll/2 + time.Duration(a.cfg.Rand()*float64(a.cfg.Poll/2))
	return max(pollMin, min(leaseLeft, jittered))
}

// retire forgets a watch that nobody waits for.
func (ws *waits) retire(k *watch) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(k.waiters) > 0 {
		return false
	}
	ws.forget(k)
	return true
}

// serve answers all waiters that what was found decides, and lets one through
// that needs a write or would be granted what it has, unless another is through
// already: what was read a while ago must not grant anything. It returns what
// is left of the holder's lease; when the store could not be asked, or nobody
// holds it, the next look is a poll.
func (ws *waits) serve(k *watch, found *storage.Found) time.Duration {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	leaseLeft := PollMax
	if found.Err != nil {
		return leaseLeft
	}
	through := slices.ContainsFunc(k.waiters, func(w *waiter) bool { return w.turn })
	for _, w := range k.waiters {
		if !w.held {
			w.missed = true
			continue
		}
		step := claim.Decide(&found.Record, w.req, found.Now)
		ask := step.Insert || step.Swap.Kind != claim.NoSwap || step.Answer.Decision == claim.Granted
		switch {
		case ask && through:
		case ask:
			through, w.turn, w.held = true, true, false
			w.verdict <- Answered{}
		case step.Answer.Decision == claim.HeldByOther:
			leaseLeft = min(leaseLeft, step.Answer.RetryAfter)
		default:
			w.held = false
			w.verdict <- Answered{Answer: step.Answer}
		}
	}
	return leaseLeft
}

func (ws *waits) stats() Stats {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return Stats{
		Waiters: int64(ws.mu.count), WatchedKeys: int64(len(ws.mu.byKey)),
		WaitersRefused: ws.refused.Load(), Polls: ws.polls.Load(),
	}
}
