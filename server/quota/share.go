package quota

import (
	"sync"
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// Fairness.
const (
	// ShareDefault is the part of the slots that one tenant may have while
	// others call and slots are short.
	ShareDefault = 0.5
	// OthersMax is how long a tenant that has called is counted on to call
	// again. Without it, whoever calls now and then would always meet the queue
	// that a noisy tenant filled while it was alone.
	OthersMax = 10 * time.Second
	// shareRetry is what a call beyond its share is told: a slot comes free
	// with every call that ends.
	shareRetry = 50 * time.Millisecond
)

// fairness counts the calls that have entered and not left, queued ones
// included. One lock for all: what it guards is a handful of numbers.
type fairness struct {
	share float64
	mu    struct {
		sync.Mutex
		all int64
		// last is who entered last, at lastAt; somebody else did at otherAt.
		last            *entry
		lastAt, otherAt time.Duration
		other           bool // otherAt is set
	}
}

// fits is the rule: all slots may be used by anybody, but once calls have to
// queue for them nobody enters beyond its share, unless it is alone.
//
// mine and all are calls that have entered; limit is how many are worked on at
// once.
func fits(mine, all, limit int64, share float64, alone bool) bool {
	if alone || all < limit {
		return true
	}
	return mine < max(1, int64(float64(limit)*share))
}

// Slot is one entered call. The zero Slot holds nothing.
type Slot struct {
	fair *fairness
	of   *entry
}

// Enter counts a call in, if its tenant's share allows it: ask it before the
// concurrency limiter, whose limit now is given, and Leave when the call ends
// or parks. A call that finishes granted work is counted and always enters. It
// does not allocate. What a refused call is told is ShareExceeded.
func (q *Quotas) Enter(tenant claim.TenantID, limit int64, finishes bool) (Slot, bool) {
	e, now, f := q.entry(tenant), q.monotonic(), &q.fair
	f.mu.Lock()
	defer f.mu.Unlock()
	alone := f.alone(e, now)
	f.seen(e, now)
	if !finishes && !fits(e.running, f.mu.all, limit, f.share, alone) {
		return Slot{}, false
	}
	e.running++
	f.mu.all++
	return Slot{fair: f, of: e}, true
}

// ShareExceeded is the answer to a call that did not Enter.
func ShareExceeded() Exceeded { return Exceeded{What: Share, RetryAfter: shareRetry} }

// Leave counts the call out. Only the first one does anything.
func (s *Slot) Leave() {
	if s.fair == nil {
		return
	}
	s.fair.mu.Lock()
	s.of.running--
	s.fair.mu.all--
	s.fair.mu.Unlock()
	*s = Slot{}
}

// alone reports whether nobody but e has entered lately. Calls of others that
// are still inside have been seen, or are old enough to be long polls.
func (f *fairness) alone(e *entry, now time.Duration) bool {
	at, seen := f.mu.otherAt, f.mu.other
	if f.mu.last != nil && f.mu.last != e {
		at, seen = f.mu.lastAt, true
	}
	return !seen || now-at >= OthersMax
}

func (f *fairness) seen(e *entry, now time.Duration) {
	if f.mu.last != e {
		f.mu.otherAt, f.mu.other = f.mu.lastAt, f.mu.last != nil
		f.mu.last = e
	}
	f.mu.lastAt = now
}
