package arbiter

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// lane is a bounded queue of calls of one kind and the senders that empty it
// into store batches. Each kind has its own, so that completions never queue
// behind claims.
type lane[Q, A any] struct {
	action   string // of errors
	itemsMax int
	senders  int // at once, while no full batch is waiting
	timeout  time.Duration
	trace    func(context.Context, string, iter.Seq[context.Context], int) (context.Context, func()) // may be nil
	// unsure is what an error of unknown meaning becomes: ErrUnknown where
	// something may have been written, ErrUnavailable where only read.
	unsure error
	key    func(*Q) *claim.Key
	fail   func(*A, error)
	count  laneCounters
	calls  sync.Pool // of *call[Q, A], owned by no one
	filled sync.Cond // on mu: calls were queued, or the lane is closed

	mu struct {
		sync.Mutex
		state   laneState
		sending int           // senders that have a batch
		items   int           // queued, not yet taken
		queue   []*call[Q, A] // in order of arrival
		again   []*call[Q, A] // taken before, not all answered: these go first
	}
}

type laneState uint8

const (
	laneIdle laneState = iota // Run has not begun
	laneOpen
	laneClosed // what is queued is still answered
)

// call is one caller's items on their way through a lane.
type call[Q, A any] struct {
	ctx  context.Context //nolint:containedctx // only asked whether it ended; store calls are detached
	reqs []Q
	out  []A
	done chan struct{} // one token when all items are answered
	// patience ends when it is worth a channel to hear that ctx ended.
	patience *time.Timer
	sent     bool // guarded by the lane's mu: items were taken by a sender

	// The sender that holds the call owns what follows.
	left int     // items without an answer
	open []int32 // their indices, when the call goes through the lane again
	lost int     // passes in which an item of it lost a race
	lose bool    // this is one

	oneReq [1]Q // room for a call of one item
	oneOut [1]A
}

func newLane[Q, A any](action string, cfg *Config, unsure error, key func(*Q) *claim.Key, fail func(*A, error)) *lane[Q, A] {
	l := &lane[Q, A]{
		action: action, itemsMax: cfg.QueueItemsMax, senders: cfg.Senders, timeout: cfg.StoreTimeout, trace: cfg.Trace,
		unsure: unsure, key: key, fail: fail,
	}
	l.filled.L = &l.mu
	l.calls.New = func() any {
		return &call[Q, A]{done: make(chan struct{}, 1), patience: time.NewTimer(patience)}
	}
	return l
}

// do answers every item; what befalls the whole call is each item's error.
func (l *lane[Q, A]) do(ctx context.Context, reqs []Q) []A {
	out := make([]A, len(reqs))
	if err := l.ask(ctx, reqs, out); err != nil {
		out = make([]A, len(reqs)) // a sender may still be writing to the other
		for i := range out {
			l.fail(&out[i], err)
		}
	}
	return out
}

// one is do for a single item, without allocations.
func (l *lane[Q, A]) one(ctx context.Context, req Q) (out A) {
	c := l.calls.Get().(*call[Q, A])
	c.oneReq[0] = req
	if err := l.wait(ctx, c, c.oneReq[:], c.oneOut[:]); err != nil {
		l.fail(&out, err)
		return out
	}
	out = c.oneOut[0]
	l.recycle(c)
	return out
}

// ask fills out. After an error out belongs to the lane.
func (l *lane[Q, A]) ask(ctx context.Context, reqs []Q, out []A) error {
	if len(reqs) == 0 {
		return nil
	}
	c := l.calls.Get().(*call[Q, A])
	if err := l.wait(ctx, c, reqs, out); err != nil {
		return err
	}
	l.recycle(c)
	return nil
}

// wait queues the call and waits for its answers. After an error the call
// belongs to the lane.
func (l *lane[Q, A]) wait(ctx context.Context, c *call[Q, A], reqs []Q, out []A) error {
	c.ctx, c.reqs, c.out, c.left = ctx, reqs, out, len(reqs)
	if err := l.enqueue(c); err != nil {
		return fmt.Errorf("%s: %w", l.action, err)
	}
	c.patience.Reset(patience)
	select {
	case <-c.done:
		c.patience.Stop()
		return nil
	case <-c.patience.C:
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return l.leave(c)
	}
}

func (l *lane[Q, A]) recycle(c *call[Q, A]) {
	*c = call[Q, A]{done: c.done, patience: c.patience, open: c.open[:0]}
	l.calls.Put(c)
}

func (l *lane[Q, A]) enqueue(c *call[Q, A]) error {
	if len(c.reqs) > claim.BatchItemsMax {
		return storage.ErrBatchTooLarge
	}
	if c.ctx.Err() != nil {
		return notSent(c.ctx)
	}
	l.mu.Lock()
	err := l.admit(c)
	l.mu.Unlock()
	if err == nil {
		l.filled.Signal()
	}
	return err
}

func (l *lane[Q, A]) admit(c *call[Q, A]) error {
	switch {
	case l.mu.state == laneIdle:
		return fmt.Errorf("%w (not started yet)", storage.ErrUnavailable)
	case l.mu.state == laneClosed:
		return storage.ErrClosed
	case l.mu.items+len(c.reqs) > l.itemsMax:
		l.count.overloaded.Add(int64(len(c.reqs)))
		return ErrOverloaded
	}
	l.mu.items += len(c.reqs)
	l.mu.queue = append(l.mu.queue, c)
	return nil
}

// leave ends the wait of a caller whose context ended. A call that was not
// taken stays queued and is dropped when it is: its context has ended.
func (l *lane[Q, A]) leave(c *call[Q, A]) error {
	l.mu.Lock()
	sent := c.sent
	l.mu.Unlock()
	if !sent {
		return fmt.Errorf("%s: %w", l.action, notSent(c.ctx))
	}
	select {
	case <-c.done: // answered in the same moment
		return nil
	default:
		l.count.left.Add(1)
		// The cause is told, not wrapped: an error of the context means that
		// nothing was applied.
		return fmt.Errorf("%s: %w (the caller left: %v)", l.action, l.unsure, context.Cause(c.ctx)) //nolint:errorlint // told, as said above
	}
}

func (l *lane[Q, A]) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.state = laneOpen
}

func (l *lane[Q, A]) close() {
	l.mu.Lock()
	l.mu.state = laneClosed
	l.mu.Unlock()
	l.filled.Broadcast()
}

// send answers what is queued, batch by batch, until the lane is closed and
// empty. work takes each batch through the store once.
func (l *lane[Q, A]) send(work func(context.Context, *batch[Q, A])) {
	b := newBatch(l)
	for l.take(b) {
		ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
		ctx, ended := l.traced(ctx, b)
		work(ctx, b)
		ended()
		cancel()
		b.deliver()
		l.end(b)
	}
}

// traced tells whoever traces of a batch that is about to go to the store.
func (l *lane[Q, A]) traced(ctx context.Context, b *batch[Q, A]) (traced context.Context, ended func()) {
	if l.trace == nil {
		return ctx, func() {}
	}
	calls := func(yield func(context.Context) bool) {
		for _, c := range b.calls {
			if !yield(c.ctx) {
				return
			}
		}
	}
	return l.trace(ctx, l.action, calls, len(b.items))
}

// take moves what is queued into b, at most claim.BatchItemsMax items, waiting
// for the first. False: the lane is closed and empty.
func (l *lane[Q, A]) take(b *batch[Q, A]) bool {
	b.reset()
	for l.begin() {
		// Whoever can run and is about to ask comes first, the callers that
		// this sender has just answered among them: fewer and fuller batches,
		// and no delay when nobody does.
		runtime.Gosched()
		l.mu.Lock()
		l.mu.again = l.takeFrom(b, l.mu.again)
		l.mu.queue = l.takeFrom(b, l.mu.queue)
		if len(b.items) == 0 {
			l.mu.sending--
		}
		l.mu.Unlock()
		if len(b.items) > 0 {
			b.fold()
			return true
		}
	}
	return false
}

// begin waits until this sender has something to take.
func (l *lane[Q, A]) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch queued := len(l.mu.queue)+len(l.mu.again) > 0; {
		case queued && (l.mu.sending < l.senders || l.mu.items >= claim.BatchItemsMax):
			l.mu.sending++
			return true
		case !queued && l.mu.state == laneClosed:
			return false
		}
		l.filled.Wait()
	}
}

// takeFrom moves calls from the front of queue into b, and drops those whose
// callers have gone.
func (l *lane[Q, A]) takeFrom(b *batch[Q, A], queue []*call[Q, A]) []*call[Q, A] {
	n := 0
	for ; n < len(queue); n++ {
		c := queue[n]
		if len(b.items)+c.left > claim.BatchItemsMax {
			break
		}
		gone := c.ctx.Err() != nil
		if !c.sent {
			l.mu.items -= c.left
			if gone {
				l.count.dropped.Add(int64(c.left))
			}
		}
		if !gone {
			c.sent = true
			b.add(c)
		}
	}
	rest := copy(queue, queue[n:])
	clear(queue[rest:])
	return queue[:rest]
}

// end ends the turn of a sender and queues calls again that have items without
// an answer: later ones of a repeated key that need a write of their own, or
// ones that lost a race. The sender takes next: nobody needs to be woken,
// unless the lane is closed and others wait to see it empty.
func (l *lane[Q, A]) end(b *batch[Q, A]) {
	if len(b.calls) > 0 {
		b.reopen()
		l.count.again.Add(int64(len(b.calls)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.sending--
	l.mu.again = append(l.mu.again, b.calls...)
	if l.mu.state == laneClosed {
		l.filled.Broadcast()
	}
}
