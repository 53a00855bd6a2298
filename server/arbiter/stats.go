package arbiter

import "sync/atomic"

// Stats are counters since New, for metrics.
type Stats struct {
	Claims, Transitions, Lookups LaneStats

	Waiters        int64 // waiting now
	WatchedKeys    int64 // keys they wait for
	WaitersRefused int64 // answered without waiting: too many wait
	Polls          int64 // looks at watched keys
}

// LaneStats count what passed through one kind of calls.
type LaneStats struct {
	Batches    int64 // taken by senders
	Items      int64 // in them; an item that goes again is counted again
	Folded     int64 // of these, answered or deferred behind another of the same key
	Trips      int64 // store calls
	Again      int64 // calls that went through the queue again
	Overloaded int64 // items refused by a full queue
	Dropped    int64 // items whose caller left before they were sent
	Left       int64 // calls whose caller left after they were sent
	Queued     int64 // items waiting for a sender now
}

type laneCounters struct {
	batches, items, folded, trips, again, overloaded, dropped, left atomic.Int64
}

// Stats returns the counters.
func (a *Arbiter) Stats() Stats {
	s := a.waits.stats()
	s.Claims, s.Transitions, s.Lookups = a.claims.stats(), a.transitions.stats(), a.lookups.stats()
	return s
}

func (l *lane[Q, A]) stats() LaneStats {
	c := &l.count
	s := LaneStats{
		Batches: c.batches.Load(), Items: c.items.Load(), Folded: c.folded.Load(), Trips: c.trips.Load(),
		Again: c.again.Load(), Overloaded: c.overloaded.Load(), Dropped: c.dropped.Load(), Left: c.left.Load(),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Queued = int64(l.mu.items)
	return s
}
