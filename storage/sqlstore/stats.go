package sqlstore

import "time"

// PoolStats are the state of one connection pool now, and its counters since
// Open.
type PoolStats struct {
	// Name is "traffic" or "sweeps".
	Name string
	// Max is how many connections there may be. Idle, Used and Making are those
	// that there are, the last ones being made.
	Max, Idle, Used, Making int
	// Acquired counts calls that got a connection, Waited those of them that found
	// none idle, and Left those that gave up.
	Acquired, Waited, Left int64
	// Wait is how long the calls that Waited did, all together.
	Wait time.Duration
	// Made counts connections that were made.
	Made int64
}

// PoolStats returns the state of both pools. It asks the database nothing.
func (s *Store) PoolStats() []PoolStats {
	out := make([]PoolStats, 0, 2)
	for _, p := range []struct {
		name string
		pool *pool
	}{{"traffic", s.traffic}, {"sweeps", s.sweeps}} {
		st := p.pool.Stat()
		out = append(out, PoolStats{
			Name: p.name, Max: int(st.MaxConns()), Idle: int(st.IdleConns()), Used: int(st.AcquiredConns()), Making: int(st.ConstructingConns()),
			Acquired: st.AcquireCount(), Waited: st.EmptyAcquireCount(), Left: st.CanceledAcquireCount(),
			Wait: st.EmptyAcquireWaitTime(), Made: st.NewConnsCount(),
		})
	}
	return out
}
