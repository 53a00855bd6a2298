package sqlstore

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
	"github.com/warifu/warifu/storage/storetime"
)

// alike reports whether requests differ in nothing but their events, attempts
// and times, as those of one consumer do, and none records an outcome at once.
func alike(reqs []claim.Request) bool {
	first := &reqs[0]
	for i := range reqs {
		r := &reqs[i]
		if r.Record != nil || r.Lease != first.Lease || r.Policy != first.Policy ||
			r.Key.Tenant != first.Key.Tenant || r.Key.Consumer != first.Key.Consumer {
			return false
		}
	}
	return true
}

// insertAlike is insert for requests that are alike, as one statement. What it
// has inserted is not read back: it is what the rules make of the request at the
// time that the statement returns.
//
// The statement sees what was committed before it began. A key that was taken
// since is told as one of which nothing is stored, like one that has vanished.
func (s *Store) insertAlike(ctx context.Context, k *keys, f *found, reqs []claim.Request) error {
	args := alikeArgs(k, reqs)
	return s.trip(ctx, s.traffic, writes, func(b storetime.Bounds) []query {
		clear(f.items) // what a try has read before: a key without a row is to have vanished
		clear(f.aside)
		g := &grants{reading: s.reading(k, b, f), reqs: reqs}
		return []query{{sql: sqlInsertAlike, args: append(held(b), args...), row: g.row}}
	})
}

// grants reads the rows of insertAlike.
type grants struct {
	*reading
	reqs []claim.Request
	next int // the place at which the next inserted key is looked for first
}

func (g *grants) row(r row) error {
	event, fence := r.value(), r.int8()
	if event == nil {
		return g.reading.row(r)
	}
	i, ok := g.inserted(event)
	if _, now := r.value(), r.time(); ok && !r.bad {
		g.f.set(i, granted(&g.reqs[i], claim.Time(fence), g.asOf(now)))
		return nil
	}
	return errRow
}

// inserted returns the item of an event. They come in the order in which they
// were sent, as far as we know; nothing promises that.
func (g *grants) inserted(event []byte) (item int, ok bool) {
	for range g.k.event {
		p := g.next
		g.next = (p + 1) % len(g.k.event)
		if g.k.event[p] == string(event) {
			return g.k.order[p], true
		}
	}
	return 0, false
}

// granted is what is found of a request that was inserted at a time: what would be
// read back.
func granted(r *claim.Request, at, now claim.Time) storage.Found {
	rec := claim.Fresh(r, at, 0)
	if len(rec.Digests) == 0 {
		rec.Digests = nil
	}
	if rec.EventTime == claim.Never {
		rec.EventTime = 0
	}
	p := &rec.Policy
	for _, d := range []*time.Duration{&p.Window, &p.Retention, &p.HoldMax} {
		*d = d.Truncate(time.Microsecond)
	}
	return storage.Found{Record: rec, Now: max(now, rec.GrantedAt)}
}

// alikeArgs are the parameters of requests that are alike.
func alikeArgs(k *keys, reqs []claim.Request) []any {
	first := &reqs[0]
	attempts := make(uuids, len(reqs))
	events, before := instants{}, instants{} // without elements for the usual batch, where no event has any
	for p, i := range k.order {
		r := &reqs[i]
		attempts[p] = r.Attempt
		if given(r.EventTime) != claim.Never || r.InsertBefore != claim.Never {
			if len(events) == 0 {
				events, before = never(len(reqs)), never(len(reqs))
			}
			events[p], before[p] = given(r.EventTime), r.InsertBefore
		}
	}
	hold := int16(0)
	if first.Policy.Hold {
		hold = 1
	}
	return []any{
		int64(first.Key.Tenant), first.Key.Consumer, interval(first.Lease),
		interval(first.Policy.Window), interval(first.Policy.Retention), interval(first.Policy.HoldMax),
		hold, int64(first.Policy.AttemptsMax), int64(first.Policy.ResultBytesMax),
		k.n, k.shard, k.event, attempts, digestsOf(k, reqs), events, before,
	}
}

// digestsOf are the digests of each request, as digestBytes, in one piece of
// memory.
func digestsOf(k *keys, reqs []claim.Request) byteas {
	const lengths = 3 * binary.MaxVarintLen16 // of a set, a scheme and a value
	room := 0
	for i := range reqs {
		for _, d := range reqs[i].Digests {
			room += lengths + len(d.Scheme) + len(d.Value)
		}
	}
	out, buf := make(byteas, len(reqs)), make([]byte, 0, room)
	for p, i := range k.order {
		begin := len(buf)
		if ds := reqs[i].Digests; len(ds) > 0 {
			buf = codec.AppendDigests(buf, ds)
		}
		out[p] = buf[begin:len(buf):len(buf)]
	}
	return out
}

func never(n int) instants {
	out := make(instants, n)
	for i := range out {
		out[i] = claim.Never
	}
	return out
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}
