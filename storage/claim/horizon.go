package claim

import "time"

// History is what the horizon depends on besides now: how long keys are
// remembered, and since when.
type History struct {
	Retention time.Duration
	// Raises are the times that retention was raised, in any order: keys that
	// were forgotten under an old one are not known again. Empty: never.
	Raises []Raise
	// Restored is when the store was last restored from a backup: whatever was
	// made before may have been known and lost. 0: never.
	Restored Time
}

// Raise says when retention was raised, and from what. One whose At is 0 never
// was.
type Raise struct {
	At   Time
	From time.Duration
}

// Skew is how far ahead of the store's clock an event time may be: SkewMax,
// but at most half of what retention exceeds the window by. With more, an
// event redelivered inside its window would be called too old.
func Skew(window, retention time.Duration) time.Duration {
	return max(0, min(SkewMax, (retention-window)/2))
}

// Horizon is the instant at or before which an event may have been known and
// forgotten. Every raise counts, not the last alone: what was claimed before the
// first one was kept for what it was raised from, however often it was raised
// since.
func (h History) Horizon(now Time) Time {
	horizon := now.Add(-h.Retention)
	for _, r := range h.Raises {
		if r.At > 0 {
			horizon = max(horizon, min(now.Add(-r.From), r.At))
		}
	}
	return max(horizon, h.Restored)
}

// InsertBefore is the instant from which an absent key with this event time is
// TOO_OLD: eventTime <= Horizon(now)+skew exactly when now >= InsertBefore.
// Stores check it in the statement that inserts. Never when no time is given.
func (h History) InsertBefore(eventTime Time, skew time.Duration) Time {
	if eventTime == 0 {
		return Never
	}
	made := eventTime.Add(-skew)
	if made <= h.Restored {
		return 0
	}
	kept := h.Retention
	for _, r := range h.Raises {
		if r.At > 0 && made <= r.At {
			kept = min(kept, r.From)
		}
	}
	return made.Add(kept)
}
