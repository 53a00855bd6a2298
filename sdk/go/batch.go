package warifu

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// Bounds of the queues in front of the senders.
const (
	// queueMax bounds the calls of a kind that wait for a sender.
	queueMax = 1 << 16
	// batchBytesMax bounds what one request carries: the contract's 1 MiB, less
	// what the estimates may be off.
	batchBytesMax = 1<<20 - 32<<10
	// itemBytes is what a message costs beyond its texts and bodies.
	itemBytes = 128
)

// call is one item on its way: filled by its caller, sent by a sender, and
// woken once, with a reply or an error.
type call[I, R any] struct {
	item  I
	bytes int  // on the wire, estimated from above
	last  bool // there will be no further try

	state atomic.Int32
	done  chan struct{} // one signal for each time the call is queued

	reply  R
	err    *Error
	sentAt time.Time // when the try that was answered was sent
}

// The states of a call, for the race between its sender and a caller that has
// no more time.
const (
	callQueued int32 = iota
	callSent
	callAnswered
	callLeft
)

// batcher lets calls that are made at the same time travel together. Nobody
// waits for company: a free sender takes all that is queued, and while its
// request is under way the next one fills. Senders are few, so that requests
// are full, and live as long as there is something to send.
type batcher[I, R any] struct {
	op       string
	client   *Client
	itemsMax int
	senders  int
	// send makes one RPC; it returns one reply for each call, in order.
	send func(context.Context, []*call[I, R]) ([]R, error)
	// failure is the error of one reply; nil when it has none.
	failure func(R) *Error
	// orphan, if set, gets the calls that were answered after their callers left.
	orphan func(*call[I, R])

	pool sync.Pool

	mu struct {
		sync.Mutex
		queue  []*call[I, R]
		active int // senders at work; at least one while anything waits
	}
}

func newBatcher[I any, R interface{ GetError() *warifuv1.ItemError }](
	c *Client, cfg *config, op string, send func(context.Context, []*call[I, R]) ([]R, error),
) *batcher[I, R] {
	b := &batcher[I, R]{
		op: op, client: c, itemsMax: cfg.batching.ItemsMax, senders: cfg.batching.Senders,
		send: send, failure: failedReply[R](op),
	}
	b.pool.New = func() any { return &call[I, R]{done: make(chan struct{}, 1)} }
	return b
}

// get returns an empty call.
func (b *batcher[I, R]) get() *call[I, R] { return b.pool.Get().(*call[I, R]) }

// put takes a call back that no sender knows any more.
func (b *batcher[I, R]) put(c *call[I, R]) {
	var none R
	c.reply, c.err = none, nil
	b.pool.Put(c)
}

// do sends the call until it is answered or there is no point in going on.
func (b *batcher[I, R]) do(ctx context.Context, c *call[I, R]) *Error {
	if c.bytes > batchBytesMax {
		e := answered(b.op, ErrInvalid)
		e.Message, e.Limit = "request is too large", "1 MiB"
		return e
	}
	return b.client.persist(ctx, func(last bool) *Error {
		c.last = last
		return b.once(ctx, c)
	})
}

// once queues the call and waits for its turn. A caller whose context ends
// leaves at once; its error says whether a sender had the call already.
func (b *batcher[I, R]) once(ctx context.Context, c *call[I, R]) *Error {
	if ctx.Err() != nil {
		return ended(ctx, b.op, false)
	}
	c.state.Store(callQueued)
	if !b.enqueue(c) {
		return &Error{Op: b.op, kind: ErrOverloaded, NotApplied: true, Message: "the client's queue is full"}
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	switch {
	case c.state.CompareAndSwap(callQueued, callLeft):
		return ended(ctx, b.op, false)
	case c.state.CompareAndSwap(callSent, callLeft):
		return ended(ctx, b.op, true)
	}
	<-c.done // the answer was there first
	return c.err
}

func (b *batcher[I, R]) enqueue(c *call[I, R]) bool {
	b.mu.Lock()
	if len(b.mu.queue) >= queueMax {
		b.mu.Unlock()
		return false
	}
	b.mu.queue = append(b.mu.queue, c)
	if b.mu.active < b.senders {
		b.mu.active++
		b.client.senders.Go(b.run)
	}
	b.mu.Unlock()
	return true
}

// run is one sender: it sends what waits, batch by batch, until nothing does.
func (b *batcher[I, R]) run() {
	var batch []*call[I, R]
	for {
		// Who is about to call, those that were just answered among them, comes
		// along: fewer and fuller requests, and no delay when nobody does.
		runtime.Gosched()
		if batch = b.take(batch); len(batch) == 0 {
			return
		}
		b.exchange(batch)
	}
}

// take moves what waits into the next batch; an empty one ends the sender.
func (b *batcher[I, R]) take(last []*call[I, R]) []*call[I, R] {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(last) // it is answered; its callers own it again
	batch := b.fill(last[:0])
	if len(batch) == 0 {
		b.mu.active--
	}
	return batch
}

// fill moves calls from the queue into batch, as far as its bounds allow.
func (b *batcher[I, R]) fill(batch []*call[I, R]) []*call[I, R] {
	taken, bytes := 0, 0
	for _, c := range b.mu.queue {
		if len(batch) == b.itemsMax || (len(batch) > 0 && bytes+c.bytes > batchBytesMax) {
			break
		}
		taken++
		if c.state.CompareAndSwap(callQueued, callSent) {
			batch = append(batch, c)
			bytes += c.bytes
		}
	}
	left := copy(b.mu.queue, b.mu.queue[taken:])
	clear(b.mu.queue[left:])
	b.mu.queue = b.mu.queue[:left]
	return batch
}

// exchange sends one batch and wakes its callers. It does not depend on the
// context of any of them.
func (b *batcher[I, R]) exchange(batch []*call[I, R]) {
	ctx, cancel := context.WithTimeout(context.Background(), b.client.timeout)
	defer cancel()
	sentAt := time.Now()
	replies, err := b.send(ctx, batch)
	if err == nil && len(replies) != len(batch) {
		err = fmt.Errorf("%d answers to %d items", len(replies), len(batch))
	}
	var whole *Error
	if err != nil {
		whole = failedCall(b.op, err)
	}
	var failed []*Error
	for i, c := range batch {
		switch {
		case whole != nil:
			own := *whole
			c.err = &own
		default:
			c.err, c.reply, c.sentAt = b.failure(replies[i]), replies[i], sentAt
		}
		if c.err != nil {
			c.err.again = c.err.again && !c.last
			failed = append(failed, c.err)
		}
	}
	b.client.budget.settle(failed)
	for _, c := range batch {
		b.wake(c)
	}
}

// wake hands a call back to its caller.
func (b *batcher[I, R]) wake(c *call[I, R]) {
	if c.state.CompareAndSwap(callSent, callAnswered) {
		c.done <- struct{}{}
	} else if b.orphan != nil {
		b.orphan(c)
	}
}

// failedReply is the error of one reply of a batch; nil when it has none.
func failedReply[R interface{ GetError() *warifuv1.ItemError }](op string) func(R) *Error {
	return func(r R) *Error {
		if item := r.GetError(); item != nil {
			return failedItem(op, item)
		}
		return nil
	}
}
