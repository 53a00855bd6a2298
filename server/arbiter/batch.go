package arbiter

import (
	"fmt"
	"hash/maphash"
	"math/bits"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// none ends a chain of items with one key.
const none int32 = -1

// item is one request in a batch.
type item[Q, A any] struct {
	call *call[Q, A]
	at   int32 // index in the call
	next int32 // next item with the same key, or none
	last int32 // of a head: the last item of its chain
	done bool  // answered
}

// batch is what one sender takes through the store together. It is reused and
// belongs to its sender.
type batch[Q, A any] struct {
	lane  *lane[Q, A]
	calls []*call[Q, A] // not all of whose items are answered
	items []item[Q, A]
	heads []int32 // the first item of each key; these go to the store
	reqs  []Q     // of heads, as sent

	seed   maphash.Seed
	hashes []uint64
	slots  []int32 // open addressing: item index + 1 by hash; 0 is free
}

func newBatch[Q, A any](l *lane[Q, A]) *batch[Q, A] {
	return &batch[Q, A]{lane: l, seed: maphash.MakeSeed()}
}

func (b *batch[Q, A]) reset() {
	clear(b.calls) // keep nothing of answered calls alive while idle
	clear(b.items)
	clear(b.reqs)
	b.calls, b.items, b.heads, b.reqs = b.calls[:0], b.items[:0], b.heads[:0], b.reqs[:0]
}

// add takes the items of c that have no answer yet.
func (b *batch[Q, A]) add(c *call[Q, A]) {
	b.calls = append(b.calls, c)
	if len(c.open) > 0 {
		for _, at := range c.open {
			b.items = append(b.items, item[Q, A]{call: c, at: at, next: none})
		}
		c.open = c.open[:0]
		return
	}
	for at := range c.reqs {
		b.items = append(b.items, item[Q, A]{call: c, at: int32(at), next: none})
	}
}

func (b *batch[Q, A]) req(i int32) *Q { return &b.items[i].call.reqs[b.items[i].at] }

// fold finds the first item of each key and chains the others to it in order.
func (b *batch[Q, A]) fold() {
	n := len(b.items)
	b.lane.count.batches.Add(1)
	b.lane.count.items.Add(int64(n))
	if n == 1 {
		b.heads = append(b.heads, 0)
		return
	}
	b.makeRoom(n)
	mask := uint64(len(b.slots) - 1)
	for i := range int32(n) {
		h := b.hash(b.lane.key(b.req(i)))
		b.hashes[i] = h
		slot := h & mask
		for b.slots[slot] != 0 && !b.same(b.slots[slot]-1, i) {
			slot = (slot + 1) & mask
		}
		if b.slots[slot] == 0 {
			b.slots[slot] = i + 1
			b.items[i].last = i
			b.heads = append(b.heads, i)
			continue
		}
		head := &b.items[b.slots[slot]-1]
		b.items[head.last].next, head.last = i, i
	}
	b.lane.count.folded.Add(int64(n - len(b.heads)))
}

// makeRoom clears a table of at least twice n slots, a power of two.
func (b *batch[Q, A]) makeRoom(n int) {
	size := 1 << bits.Len(uint(2*n-1))
	if cap(b.slots) < size {
		b.slots = make([]int32, size)
		b.hashes = make([]uint64, size)
	}
	b.slots = b.slots[:size]
	b.hashes = b.hashes[:size]
	clear(b.slots)
}

func (b *batch[Q, A]) same(i, j int32) bool {
	return b.hashes[i] == b.hashes[j] && *b.lane.key(b.req(i)) == *b.lane.key(b.req(j))
}

// hash is keyed per sender, so that no one can craft event IDs that collide.
func (b *batch[Q, A]) hash(k *claim.Key) uint64 {
	h := maphash.String(b.seed, k.EventID)
	h ^= bits.RotateLeft64(maphash.String(b.seed, k.Consumer), 17)
	return h + uint64(k.Tenant)*0x9e3779b97f4a7c15
}

// asked returns the requests of all heads: the caller's own slice when it is
// just that, and copies else.
func (b *batch[Q, A]) asked() []Q {
	if c := b.calls[0]; len(b.calls) == 1 && len(b.heads) == len(c.reqs) {
		return c.reqs
	}
	for _, i := range b.heads {
		b.reqs = append(b.reqs, *b.req(i))
	}
	return b.reqs
}

// answer returns where to write the answer of item i.
func (b *batch[Q, A]) answer(i int32) *A {
	it := &b.items[i]
	it.done = true
	it.call.left--
	return &it.call.out[it.at]
}

// failChain answers item i and all behind it with err.
func (b *batch[Q, A]) failChain(i int32, err error) {
	for ; i != none; i = b.items[i].next {
		b.lane.fail(b.answer(i), err)
	}
}

// failChains is failChain for each of is, after a store call that failed as a
// whole. The store may still be reading what it was sent, so that is not used
// again.
func (b *batch[Q, A]) failChains(is []int32, err error) {
	for _, i := range is {
		b.failChain(i, err)
	}
	b.reqs = nil
}

// deliver wakes the callers all of whose items are answered. Their calls are
// theirs again and must not be touched any more.
func (b *batch[Q, A]) deliver() {
	kept := b.calls[:0]
	for _, c := range b.calls {
		if c.left > 0 {
			kept = append(kept, c)
			continue
		}
		c.done <- struct{}{}
	}
	clear(b.calls[len(kept):])
	b.calls = kept
}

// lost leaves item i, which lost a race, without an answer: it is asked again.
// Once its call has lost too many, the item fails, and those chained behind it
// go on without it.
func (b *batch[Q, A]) lost(i int32) {
	c := b.items[i].call
	if c.lose = true; c.lost < lostRacesMax {
		return
	}
	b.lane.fail(b.answer(i), fmt.Errorf("%s: %w (others kept writing the key)", b.lane.action, storage.ErrUnavailable))
}

// reopen notes in each call which of its items have no answer yet.
func (b *batch[Q, A]) reopen() {
	for i := range b.items {
		if it := &b.items[i]; !it.done {
			it.call.open = append(it.call.open, it.at)
		}
	}
	for _, c := range b.calls {
		if c.lose {
			c.lose, c.lost = false, c.lost+1
		}
	}
}
