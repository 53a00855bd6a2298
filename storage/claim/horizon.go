package claim

import "time"

// History is what the horizon depends on besides now: how long keys are
// remembered, and since when.
type History struct {
	Retention time.Duration
	// Raised says when retention was last raised, and from what: keys that
	// were forgotten under the old one are not known again. 0: never.
	Raised     Time
	RaisedFrom time.Duration
	// Restored is when the store was last restored from a backup: whatever was
	// made before may have been known and lost. 0: never.
	Restored Time
}

// Skew is how far ahead of the store's clock an event time may be: SkewMax,
// but at most half of what retention exceeds the window by. With more, an
// event redelivered inside its window would be called too old.
func Skew(window, retention time.Duration) time.Duration {
	return max(0, min(SkewMax, (retention-window)/2))
}

// Horizon is the instant at or before which an event may have been known and
// forgotten.
func (h History) Horizon(now Time) Time {
	horizon := now.Add(-h.Retention)
	if h.Raised > 0 {
		horizon = max(horizon, min(now.Add(-h.RaisedFrom), h.Raised))
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
	if h.Raised > 0 && made <= h.Raised {
		return made.Add(min(h.Retention, h.RaisedFrom))
	}
	return made.Add(h.Retention)
}
