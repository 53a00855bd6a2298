package server

import (
	"context"
	"strconv"
	"sync"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"

	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/storage/claim"
)

// batch is the work on one call with many items M: each is checked and becomes
// a question Q, the valid ones are asked together, and every item gets its own
// answer A or its own fault.
type batch[M, Q any, A interface{ Failed() bool }] struct {
	rooms *sync.Pool // of *room[Q]
	check func(m M, q *Q) *fault.Fault
	ask   func(qs []Q) []A // not called for none
	// settle writes the answer to item i, or returns what is wrong with it.
	settle func(i int, q *Q, a *A) *fault.Fault
	fail   func(i int, f *fault.Fault)
}

// room is what the valid items of a batch need until they are answered. It is
// used again, since it is a third of what a claim would allocate here.
type room[Q any] struct {
	asked []Q
	index []int // where they stand among all items
}

// run answers the items. Those that are not valid fail, and the others are
// served.
func (b *batch[M, Q, A]) run(items []M) {
	r, _ := b.rooms.Get().(*room[Q])
	if r == nil {
		r = &room[Q]{}
	}
	b.decode(items, r)
	reusable := true
	if len(r.asked) > 0 {
		answers := b.ask(r.asked)
		for v, i := range r.index {
			// Whoever did not answer may still be reading what was asked.
			reusable = reusable && !answers[v].Failed()
			if f := b.settle(i, &r.asked[v], &answers[v]); f != nil {
				b.fail(i, f)
			}
		}
	}
	if reusable {
		clear(r.asked) // keep nothing of the messages alive
		r.asked, r.index = r.asked[:0], r.index[:0]
		b.rooms.Put(r)
	}
}

// decode checks the items and keeps the valid ones, in order.
func (b *batch[M, Q, A]) decode(items []M, r *room[Q]) {
	if cap(r.asked) < len(items) {
		r.asked, r.index = make([]Q, 0, len(items)), make([]int, 0, len(items))
	}
	for i, m := range items {
		next := len(r.asked)
		r.asked = r.asked[:next+1]
		if f := b.check(m, &r.asked[next]); f != nil {
			clear(r.asked[next:])
			r.asked = r.asked[:next]
			b.fail(i, f.Within(itemPath(i)))
			continue
		}
		r.index = append(r.index, i)
	}
}

func itemPath(i int) string { return "items[" + strconv.Itoa(i) + "]" }

// checkBatch holds the bounds of a batch: items, and bytes as they were sent.
func checkBatch(ctx context.Context, m proto.Message, items int) *fault.Fault {
	if items == 0 || items > claim.BatchItemsMax {
		return fault.Invalid("items", limitItems)
	}
	size := 0
	if info, ok := connect.CallInfoForServerContext(ctx); ok {
		size = info.ReceiveStats.Size
	}
	if size == 0 { // in process: nothing was sent
		size = proto.Size(m)
	}
	if size > claim.BatchBytesMax {
		return fault.Invalid("items", limitBatchBytes)
	}
	return nil
}
