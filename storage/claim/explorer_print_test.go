package claim

import "slices"

// printer writes the fingerprint of a world: the same for worlds that behave
// alike. Instants count from now, and those that are past count no further than
// a rule can tell; fences that the clock has passed count by rank.
type printer struct {
	now    Time
	fences []Fence // older than now, ascending, none twice
	out    []byte
}

const graceTime = Time(shortGrace / tick)

func (x *explorer) fingerprint(w *world) string {
	f := printer{now: w.now, fences: make([]Fence, 0, 16), out: make([]byte, 0, 96)}
	f.rank(w)
	f.record(w.rec)
	f.past(&w.past)
	f.add(f.since(x.cutoff, 0))
	for i := range w.clients {
		c := &w.clients[i]
		f.add(c.attempt[15], f.fence(c.fence), c.late.attempt[15], f.fence(c.late.fence))
		if c.trip != nil {
			f.add('t', c.trip.req.Attempt[15], flag(c.trip.req.Record != nil))
			f.swap(&c.trip.swap, w.rec)
		}
		f.add('|')
	}
	if v := w.admin.verb; v != nil {
		f.add(byte(v.Kind), byte(v.State), f.fence(v.Fence))
		f.swap(w.admin.swap, w.rec)
	}
	f.add('|')
	f.swap(w.monitor, w.rec)
	return string(f.out)
}

func (f *printer) add(b ...byte) { f.out = append(f.out, b...) }

func (f *printer) record(r *Record) {
	f.add(byte(r.State), byte(r.Takeover), count(r.Attempt), r.AttemptID[15], f.fence(r.Fence), body(r.Completion))
	if len(r.Digests) > 0 {
		f.add(r.Digests[0].Value[0])
	}
	until := r.HoldUntil
	if r.State != InProgress {
		until = 0 // nothing asks for it any more
	}
	f.add('|', f.since(r.LeaseUntil, 0), f.since(until, 0), f.since(r.ExpiresAt, graceTime), '|')
}

func (f *printer) past(p *past) {
	f.add(p.last.attempt[15], f.fence(p.last.fence), count(p.number), f.since(p.until, 0), f.since(p.expires, graceTime))
	f.add(flag(p.over), flag(p.doubt), body(p.told), f.since(p.toldTill, 0))
}

// swap counts its version from the record's: at three behind it is as stale as
// at four.
func (f *printer) swap(s *Swap, rec *Record) {
	if s != nil {
		f.add(byte(s.Kind), f.fence(s.Fence), byte(max(-1, min(rec.Version-s.Version, 3))))
	}
}

// since is t counted from now, where everything more than memory ago is alike.
func (f *printer) since(t Time, memory Time) byte {
	return byte(max(-memory, min(t-f.now, 100)))
}

func (f *printer) fence(fence Fence) byte {
	if fence == 0 {
		return 0
	}
	if ahead := fence - Fence(f.now); ahead >= 0 {
		return byte(100 + ahead)
	}
	i, _ := slices.BinarySearch(f.fences, fence)
	return byte(len(f.fences) - i)
}

func (f *printer) rank(w *world) {
	f.old(w.rec.Fence, w.past.last.fence)
	for i := range w.clients {
		f.old(w.clients[i].fence, w.clients[i].late.fence)
		if t := w.clients[i].trip; t != nil {
			f.old(t.swap.Fence)
		}
	}
	if v := w.admin.verb; v != nil {
		f.old(v.Fence)
	}
	if w.admin.swap != nil {
		f.old(w.admin.swap.Fence)
	}
	if w.monitor != nil {
		f.old(w.monitor.Fence)
	}
	slices.Sort(f.fences)
	f.fences = slices.Compact(f.fences)
}

func (f *printer) old(fences ...Fence) {
	for _, fence := range fences {
		if fence != 0 && fence < Fence(f.now) {
			f.fences = append(f.fences, fence)
		}
	}
}

// count is exact as far as an attempt cap of two can tell.
func count(attempt uint32) byte { return byte(min(attempt, 3)) }

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func body(c *Completion) byte {
	if c == nil {
		return 0
	}
	return c.Sum[0] | 1
}
