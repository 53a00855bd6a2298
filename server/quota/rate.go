package quota

import (
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// TakeRequest charges a tenant for one call that may be refused, and says
// whether it is. A refused call is not charged. It does not allocate.
func (q *Quotas) TakeRequest(tenant claim.TenantID, l *Limits) Exceeded {
	e, now := q.entry(tenant), q.monotonic()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.Requests > 0 {
		s := requestShape(l)
		e.mu.requests.turn(now, s)
		if e.mu.requests.take(1) == 0 {
			return Exceeded{What: Requests, Limit: l.Requests, RetryAfter: e.mu.requests.wait(1, s)}
		}
	} else {
		e.mu.requests.rate = 0 // a limit that comes later begins full
	}
	e.mu.rates.add(now, 1, 0)
	return Exceeded{}
}

// ChargeRequest charges a tenant for one call that is never refused.
func (q *Quotas) ChargeRequest(tenant claim.TenantID, l *Limits) {
	e, now := q.entry(tenant), q.monotonic()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.Requests > 0 {
		s := requestShape(l)
		e.mu.requests.turn(now, s)
		e.mu.requests.charge(1, s)
	} else {
		e.mu.requests.rate = 0
	}
	e.mu.rates.add(now, 1, 0)
}

// TakeItems charges a tenant for up to want items, a claim alone being one, and
// returns how many are admitted: the first ones, by convention. The others are
// not charged, and after is when they would be admitted together, as far as a
// burst goes. It does not allocate.
func (q *Quotas) TakeItems(tenant claim.TenantID, l *Limits, want int) (admitted int, after time.Duration) {
	if want <= 0 {
		return 0, 0
	}
	e, now := q.entry(tenant), q.monotonic()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.Items <= 0 {
		e.mu.items.rate = 0
		e.mu.rates.add(now, 0, int64(want))
		return want, 0
	}
	s := itemShape(l)
	e.mu.items.turn(now, s)
	got := e.mu.items.take(int64(want))
	e.mu.rates.add(now, 0, got)
	return int(got), e.mu.items.wait(int64(want)-got, s)
}

// ItemsExceeded is the answer to items that TakeItems did not admit.
func ItemsExceeded(l *Limits, after time.Duration) Exceeded {
	return Exceeded{What: Items, Limit: l.Items, RetryAfter: after}
}

// ChargeItems charges a tenant for n items that are never refused.
func (q *Quotas) ChargeItems(tenant claim.TenantID, l *Limits, n int) {
	if n <= 0 {
		return
	}
	e, now := q.entry(tenant), q.monotonic()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.Items > 0 {
		s := itemShape(l)
		e.mu.items.turn(now, s)
		e.mu.items.charge(int64(n), s)
	} else {
		e.mu.items.rate = 0
	}
	e.mu.rates.add(now, 0, int64(n))
}

// Rates of what was admitted or charged.
const (
	// RateWindow is over what time reported rates are taken.
	RateWindow = time.Minute
	rateSlot   = 10 * time.Second
	rateSlots  = int64(RateWindow/rateSlot) + 1 // and the one that fills
)

// rates count calls by time.
type rates struct {
	slot  int64 // the one that fills
	slots [rateSlots]struct{ requests, items int64 }
}

// turn empties the slots between the last call and now.
func (r *rates) turn(now time.Duration) {
	slot := int64(now / rateSlot)
	if slot <= r.slot {
		return // callers that read the clock before others may come after them
	}
	for i := max(r.slot+1, slot-rateSlots+1); i <= slot; i++ {
		r.slots[i%rateSlots] = struct{ requests, items int64 }{}
	}
	r.slot = slot
}

func (r *rates) add(now time.Duration, requests, items int64) {
	r.turn(now)
	s := &r.slots[r.slot%rateSlots]
	s.requests += requests
	s.items += items
}

// perSecond is taken over the last whole slots.
func (r *rates) perSecond(now time.Duration) (requests, items float64) {
	r.turn(now)
	for i := range r.slots {
		if int64(i) == r.slot%rateSlots {
			continue
		}
		requests += float64(r.slots[i].requests)
		items += float64(r.slots[i].items)
	}
	return requests / RateWindow.Seconds(), items / RateWindow.Seconds()
}
