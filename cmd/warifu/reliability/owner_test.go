package reliability_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
)

const (
	// auditSample is how many old keys a client looks at after each restart.
	auditSample = 8
	// bodyMax is the longest result: they are stored in the row or beside it, by
	// size.
	bodyMax  = 6000
	batchMax = 12
)

// owner is a client that nobody else shares keys with.
type owner struct {
	*killing
	rng    *rand.Rand
	number int
	keys   []*ownedKey
	dirty  []*ownedKey // sent about since the last audit
}

// ownedKey is a key and all that may be true of it.
type ownedKey struct {
	consumer, event string
	truths          truths
	last            *op // not answered yet
	touched         bool
}

// truth is what is true of a key that has no unanswered send.
func (key *ownedKey) truth() state { return key.truths[0] }

func (o *owner) newKey() *ownedKey {
	key := &ownedKey{consumer: regrant, event: fmt.Sprintf("%d-%d", o.number, len(o.keys)), truths: truths{{}}}
	if o.rng.IntN(2) == 0 {
		key.consumer = hold
	}
	o.keys = append(o.keys, key)
	return key
}

// turn sends once, alone or as a batch; false when it was not answered.
func (o *owner) turn(ctx context.Context, c api, server int) bool {
	var kinds []kind
	switch o.rng.IntN(10) {
	case 0, 1, 2:
		kinds = []kind{claimCall, claimCall, recordCall}
	case 3, 4, 5, 6:
		kinds = []kind{completeCall}
	case 7:
		kinds = []kind{extendCall}
	case 8:
		kinds = []kind{releaseCall}
	case 9:
		kinds = []kind{lookupCall}
	}
	n := 1
	if kinds[0] != releaseCall && kinds[0] != lookupCall && o.rng.IntN(2) == 0 {
		n = 1 + o.rng.IntN(batchMax)
	}
	var keys []*ownedKey
	var ops []op
	for range n {
		key := o.pick(kinds[0])
		if key.last != nil || slices.Contains(keys, key) {
			continue
		}
		keys, ops = append(keys, key), append(ops, o.next(key, kinds[o.rng.IntN(len(kinds))]))
	}
	return len(keys) == 0 || o.exchange(ctx, c, server, keys, ops)
}

// pick chooses a key: mostly new ones to claim, mostly young ones otherwise.
func (o *owner) pick(k kind) *ownedKey {
	if len(o.keys) == 0 || (k == claimCall && o.rng.IntN(4) > 0) {
		return o.newKey()
	}
	young := min(len(o.keys), 40)
	return o.keys[len(o.keys)-1-o.rng.IntN(young)]
}

// next is what a well-meaning, a confused or a rival worker might send.
func (o *owner) next(key *ownedKey, k kind) op {
	s := key.truth()
	next := op{kind: k, consumer: key.consumer, event: key.event, attempt: s.attempt, fence: s.fence}
	switch k {
	case claimCall, recordCall:
		next.fence = 0
		if s.attempt == "" || o.rng.IntN(3) > 0 {
			next.attempt = uuid.NewString()
		}
	case completeCall, extendCall, releaseCall:
		if s.attempt == "" {
			next.attempt = uuid.NewString()
		}
		if next.fence == 0 || o.rng.IntN(12) == 0 {
			next.fence++
		}
	case lookupCall:
		next.attempt, next.fence = "", 0
	case lapse:
	}
	if k == completeCall || k == recordCall {
		next.body = fmt.Sprintf("%s-%0*d", next.attempt[:8], o.rng.IntN(bodyMax), o.rng.IntN(100))
		if o.rng.IntN(3) == 0 {
			next.body = "the same for everybody"
		}
	}
	return next
}

// exchange sends the operations, which are about different keys, and settles
// what is known then; false when there was no answer, or a wrong one.
func (o *owner) exchange(ctx context.Context, c api, server int, keys []*ownedKey, ops []op) bool {
	call := o.history.now()
	replies := make([]reply, 1)
	var err error
	if len(ops) == 1 {
		replies[0], err = send(ctx, c, ops[0])
	} else {
		replies, err = sendBatch(ctx, c, ops)
	}
	end := o.history.now()
	if err != nil {
		o.t.Error(err)
		return false
	}
	answered := true
	for i, key := range keys {
		answered = o.settle(key, event{o.number, ops[i], replies[i], call, end, server}) && answered
	}
	return answered
}

func (o *owner) settle(key *ownedKey, e event) (answered bool) {
	answered = e.reply.verdict != unknown && e.reply.verdict != notApplied
	if e.reply.verdict == unknown {
		e.end = never
	}
	o.history.add(e)
	next := key.truths.after(e.op, e.reply)
	if len(next) == 0 {
		o.t.Errorf("the contract is broken on %s/%s: sent %v, answered %+v; true before: %+v", key.consumer, key.event, e.op, e.reply, key.truths)
		return false
	}
	key.truths, key.last = next, nil
	if !answered {
		key.last = &e.op
	}
	if !key.touched {
		key.touched = true
		o.dirty = append(o.dirty, key)
	}
	return answered
}

// insist sends until there is an answer: the server is up, and may only be slow.
func (o *owner) insist(c api, server int, key *ownedKey, send op) bool {
	for began := time.Now(); time.Since(began) < patience && !o.t.Failed(); {
		if o.exchange(o.t.Context(), c, server, []*ownedKey{key}, []op{send}) {
			return true
		}
	}
	o.t.Errorf("no right answer from a server that is up: %v", send)
	return false
}

// recover resends what was not answered, with the same attempt ID, and looks at
// everything that was touched since the last time, and at some of the rest.
func (o *owner) recover(c api, server int) {
	for _, key := range o.dirty {
		if key.last != nil && !o.insist(c, server, key, *key.last) {
			return
		}
	}
	look := slices.Clone(o.dirty)
	for range auditSample {
		if len(o.keys) > 0 {
			look = append(look, o.keys[o.rng.IntN(len(o.keys))])
		}
	}
	o.audit(c, server, look)
}

// audit looks each key up, which must leave one truth, and has a rival claim
// it, which must be refused unless the key was released.
func (o *owner) audit(c api, server int, keys []*ownedKey) {
	for _, key := range keys {
		if !o.insist(c, server, key, o.next(key, lookupCall)) {
			return
		}
		if len(key.truths) != 1 {
			o.t.Errorf("%s/%s: still undecided after a lookup: %+v", key.consumer, key.event, key.truths)
			return
		}
		if p := key.truth().phase; p == absent || p == released {
			continue
		}
		rival := o.next(key, claimCall)
		rival.attempt = uuid.NewString()
		if !o.insist(c, server, key, rival) {
			return
		}
	}
	for _, key := range o.dirty {
		key.touched = false
	}
	o.dirty = o.dirty[:0]
}
