package arbiter

import (
	"context"
	"fmt"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

func requestKey(r *claim.Request) *claim.Key       { return &r.Key }
func transitionKey(t *claim.Transition) *claim.Key { return &t.Key }
func lookupKey(k *claim.Key) *claim.Key            { return k }

func failAnswered(a *Answered, err error)   { *a = Answered{Err: err} }
func failReplied(r *Replied, err error)     { *r = Replied{Err: err} }
func failFound(f *storage.Found, err error) { *f = storage.Found{Err: err} }

type (
	claimBatch      = batch[claim.Request, Answered]
	transitionBatch = batch[claim.Transition, Replied]
	lookupBatch     = batch[claim.Key, storage.Found]
)

// claimWork takes batches of claims through the store; one per sender.
type claimWork struct {
	a     *Arbiter
	swaps []claim.Swap
	open  []int32 // the item of each swap
}

// do asks for all keys of the batch in one call, and makes the writes that the
// decisions need in a second one. Items that need yet another write are left
// without an answer: they go through the lane again.
//
// An item that is still open has applied nothing so far, whatever calls it
// took part in: a write of its own would have been its answer. So every error
// is true of the item as the store said it.
func (w *claimWork) do(ctx context.Context, b *claimBatch) {
	reqs := b.asked()
	found, err := w.a.cfg.Store.InsertOrGet(ctx, reqs)
	if err = b.lane.checked("insert or get", len(reqs), len(found), err); err != nil {
		b.failChains(b.heads, err)
		return
	}
	w.swaps, w.open = w.swaps[:0], w.open[:0]
	for n, head := range b.heads {
		i, step := decide(b, head, &found[n])
		if i != none && step.Swap.Kind != claim.NoSwap {
			w.swaps, w.open = append(w.swaps, step.Swap), append(w.open, i)
		} else if i == head { // absent again: it was deleted in between
			b.lost(i)
		}
	}
	if len(w.swaps) > 0 {
		b.deliver()
		w.replace(ctx, b)
	}
}

func (w *claimWork) replace(ctx context.Context, b *claimBatch) {
	found, err := w.a.cfg.Store.Replace(ctx, w.swaps)
	if err = b.lane.checked("replace", len(w.swaps), len(found), err); err != nil {
		b.failChains(w.open, err)
		w.swaps = nil // the store may still be reading them
		return
	}
	for n, first := range w.open {
		if found[n].Applied {
			w.a.waits.wake(&b.req(first).Key)
		}
		if i, _ := decide(b, first, &found[n]); i == first {
			b.lost(i)
		}
	}
	clear(w.swaps)
}

// decide answers the chain from item i on by what is stored of its key, up to
// the first item that needs a write, which it returns with its step.
func decide(b *claimBatch, i int32, found *storage.Found) (int32, claim.Step) {
	if found.Err != nil {
		b.failChain(i, fmt.Errorf("claim: %w", b.lane.known(found.Err)))
		return none, claim.Step{}
	}
	for ; i != none; i = b.items[i].next {
		step := claim.Decide(&found.Record, b.req(i), found.Now)
		if step.Insert || step.Swap.Kind != claim.NoSwap {
			return i, step
		}
		b.answer(i).Answer = step.Answer
	}
	return none, claim.Step{}
}

// transitionBatch takes a batch of transitions through the store once.
func (a *Arbiter) transitionBatch(ctx context.Context, b *transitionBatch) {
	ts := b.asked()
	found, err := a.cfg.Store.Transition(ctx, ts)
	if err = b.lane.checked("transition", len(ts), len(found), err); err != nil {
		b.failChains(b.heads, err)
		return
	}
	for n, head := range b.heads {
		f := &found[n]
		if f.Err != nil {
			b.failChain(head, fmt.Errorf("transition: %w", b.lane.known(f.Err)))
			continue
		}
		next := head
		if t := b.req(head); f.Applied {
			b.answer(head).Reply = t.Applied(&f.Record, f.Now)
			if next = b.items[head].next; t.Kind != claim.Extend {
				a.waits.wake(&t.Key)
			}
		}
		if explain(b, next, f) == head {
			b.lost(head)
		}
	}
}

// explain answers the chain from item i on by what is stored of its key, up to
// the first item that would change it, which it returns.
func explain(b *transitionBatch, i int32, f *storage.Found) int32 {
	for ; i != none; i = b.items[i].next {
		reply, again := b.req(i).Explain(&f.Record, f.Now)
		if again {
			return i
		}
		b.answer(i).Reply = reply
	}
	return none
}

// lookupBatch reads a batch of keys.
func (a *Arbiter) lookupBatch(ctx context.Context, b *lookupBatch) {
	keys := b.asked()
	found, err := a.cfg.Store.Get(ctx, keys)
	if err = b.lane.checked("get", len(keys), len(found), err); err != nil {
		b.failChains(b.heads, err)
		return
	}
	for n, head := range b.heads {
		if err := found[n].Err; err != nil {
			b.failChain(head, fmt.Errorf("lookup: %w", b.lane.known(err)))
			continue
		}
		for i := head; i != none; i = b.items[i].next {
			*b.answer(i) = found[n]
		}
	}
}
