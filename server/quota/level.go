package quota

import (
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
)

// How long what was seen here is kept apart by time. A census that began in
// between replaces what is older than its beginning; what is in the slot of its
// beginning may be counted twice until the next one.
const (
	levelSlot  = 30 * time.Second
	levelSlots = 32
	older      = levelSlots // the place of what is older than all slots
)

// levels are what a tenant has, as far as this process knows: the last census
// and what was noted since.
type levels struct {
	known Counts
	began time.Duration // of known, on this process's clock
	ever  bool          // there was a census

	slot  int64 // the one that fills
	since [levelSlots + 1]Delta
	sum   Delta // of since
	// Leases that were granted here are forgotten when they must have ended:
	// the completion may go to another replica, or never come. granted are
	// those that have not been met by an end, and ends is when the last of a
	// slot lapses.
	granted [levelSlots + 1]int64
	ends    [levelSlots + 1]time.Duration
}

// Delta is a change of levels. Live below zero are leases that ended.
type Delta struct{ Live, Keys, Bytes, InDoubt int64 }

func (d *Delta) add(o Delta) {
	d.Live += o.Live
	d.Keys += o.Keys
	d.Bytes += o.Bytes
	d.InDoubt += o.InDoubt
}

func (d *Delta) sub(o Delta) {
	d.add(Delta{Live: -o.Live, Keys: -o.Keys, Bytes: -o.Bytes, InDoubt: -o.InDoubt})
}

// turn makes room for now: what falls out of the slots is put together.
func (l *levels) turn(now time.Duration) {
	slot := int64(now / levelSlot)
	if slot <= l.slot {
		return
	}
	for i := l.slot + 1; i <= min(slot, l.slot+levelSlots); i++ {
		n := i % levelSlots
		l.since[older].add(l.since[n])
		if l.ends[n] > now {
			l.begin(older, now, l.ends[n], l.granted[n])
		}
		l.since[n], l.granted[n], l.ends[n] = Delta{}, 0, 0
	}
	l.slot = slot
}

// note counts a change at now. Leases begin with grant.
func (l *levels) note(now time.Duration, d Delta) {
	l.turn(now)
	for ; d.Live < 0 && l.endOne(now); d.Live++ {
	}
	l.since[l.slot%levelSlots].add(d)
	l.sum.add(d)
}

// grant counts n leases that end at until unless they are ended before.
func (l *levels) grant(now, until time.Duration, n int64) {
	l.turn(now)
	l.begin(int(l.slot%levelSlots), now, until, n)
}

// begin adds leases to a place. Those that have lapsed there do not live again
// with the new ones.
func (l *levels) begin(place int, now, until time.Duration, n int64) {
	if l.ends[place] <= now {
		l.granted[place] = 0
	}
	l.granted[place] += n
	l.ends[place] = max(l.ends[place], until)
}

// endOne takes the end of a lease as that of the oldest one granted here.
func (l *levels) endOne(now time.Duration) bool {
	for i := int64(-1); i < levelSlots; i++ {
		n := int64(older)
		if i >= 0 {
			n = (l.slot + 1 + i) % levelSlots
		}
		if l.granted[n] > 0 && l.ends[n] > now {
			l.granted[n]--
			return true
		}
	}
	return false
}

// used is what the tenant has at now.
func (l *levels) used(now time.Duration) Counts {
	l.turn(now)
	c := l.known
	c.Live += l.sum.Live
	for i := range l.granted {
		if l.ends[i] > now {
			c.Live += l.granted[i]
		}
	}
	c.Live, c.Keys = max(c.Live, 0), max(c.Keys+l.sum.Keys, 0)
	c.Bytes, c.InDoubt = max(c.Bytes+l.sum.Bytes, 0), max(c.InDoubt+l.sum.InDoubt, 0)
	return c
}

// adopt puts a census in place of what was noted before it began. It reports
// false, and does nothing, where a later one is known.
func (l *levels) adopt(now, began time.Duration, known Counts) bool {
	if l.ever && began <= l.began {
		return false
	}
	l.turn(now)
	l.known, l.began, l.ever = known, began, true
	forget := func(n int64, end time.Duration) {
		if end > began {
			return
		}
		l.sum.sub(l.since[n])
		l.since[n], l.granted[n], l.ends[n] = Delta{}, 0, 0
	}
	first := l.slot - levelSlots + 1
	forget(older, time.Duration(first)*levelSlot)
	for i := max(first, 0); i <= l.slot; i++ {
		forget(i%levelSlots, time.Duration(i+1)*levelSlot)
	}
	return true
}

// Note counts a change that neither NoteClaim nor NoteTransition see: what the
// lease monitor and the admin verbs do.
func (q *Quotas) Note(tenant claim.TenantID, d Delta) {
	e, now := q.entry(tenant), q.monotonic()
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.Live > 0 { // of leases whose end nobody said
		e.mu.levels.grant(now, now+claim.LeaseDefault, d.Live)
		d.Live = 0
	}
	e.mu.levels.note(now, d)
}

// NoteClaim counts what an answered claim has added. Answers that say
// nothing new are told from new grants by what is left of the lease; those of
// one-shot claims cannot be, and a resend of one counts twice until the next
// census. It does not allocate.
func (q *Quotas) NoteClaim(tenant claim.TenantID, r *claim.Request, a *claim.Answer) {
	if a.Decision != claim.Granted || !a.Recorded && a.Lease < r.Lease {
		return
	}
	var d Delta
	if a.Takeover == claim.NoTakeover {
		d.Keys = 1
		d.Bytes = codec.RecordBytes(&claim.Record{Key: r.Key, Digests: r.Digests}, 0)
	}
	if a.Recorded {
		d.Bytes += completionBytes(r.Record)
	}
	e, now := q.entry(tenant), q.monotonic()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.levels.note(now, d)
	if !a.Recorded {
		e.mu.levels.grant(now, now+a.Lease, 1)
	}
}

// NoteTransition counts what an answered completion or release has changed. A
// resend counts again, until the next census. It does not allocate.
func (q *Quotas) NoteTransition(tenant claim.TenantID, t *claim.Transition, r *claim.Reply) {
	if r.Status != claim.OK || t.Kind == claim.Extend {
		return
	}
	d := Delta{Live: -1}
	if t.Kind == claim.Complete {
		d.Bytes = completionBytes(t.Completion)
	}
	e, now := q.entry(tenant), q.monotonic()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.levels.note(now, d)
}

// completionBytes is what a completion adds to a record.
func completionBytes(c *claim.Completion) int64 {
	if c == nil {
		return 0
	}
	return codec.RecordBytes(&claim.Record{Completion: c}, int64(len(c.Body))) - codec.RecordBytes(&claim.Record{}, 0)
}
