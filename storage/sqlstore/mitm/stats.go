package mitm

// tripsMax bounds the trips that Count looks at.
const tripsMax = 1 << 18

// Stats counts what happened since Reset.
type Stats struct {
	Connections int // of clients that sent a StartupMessage
	Cancels     int // CancelRequests
	Asked       int // trips that Decide was asked about, of every kind
	Trips       int // of Asked, those with a text to execute, whatever became of them
	Forwarded   int // trips that reached the database, without second deliveries
}

// Stats returns the counters.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.stats
}

// Trips counts the trips with a text to execute since Reset: what the client
// asked for, whatever became of it. Preparing a statement is none.
func (p *Proxy) Trips() int { return p.Stats().Trips }

// Count counts the trips since Reset that match, of those with a text and of
// those without. It knows the first 262144.
func (p *Proxy) Count(match func(Trip) bool) int {
	p.mu.Lock()
	trips := p.mu.trips // only ever appended to
	p.mu.Unlock()
	n := 0
	for _, t := range trips {
		if match(t) {
			n++
		}
	}
	return n
}

// Reset sets the counters, Trip.Index and the list behind Count to zero, and
// forgets the trips that wait for Redeliver. What Late waits for stays.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.stats = Stats{}
	p.mu.trips = nil
	p.mu.behind = behind{pending: p.mu.behind.pending}
}

func (p *Proxy) count(with func(*Stats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	with(&p.mu.stats)
}

// connected counts a connection and gives it its number.
func (p *Proxy) connected() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.stats.Connections++
	p.mu.numbers++
	return p.mu.numbers - 1
}

// decide records a trip and asks what becomes of it.
func (p *Proxy) decide(t *Trip) Fault {
	p.mu.Lock()
	t.Index = p.mu.stats.Asked
	p.mu.stats.Asked++
	if len(t.SQL) > 0 {
		p.mu.stats.Trips++
	}
	if len(p.mu.trips) < tripsMax {
		p.mu.trips = append(p.mu.trips, *t)
	}
	p.mu.Unlock()
	f := p.config.Decide(*t)
	if f.Kind == Late || f.Kind == Twice {
		// Before the client hears anything: its next call may be Late.
		p.mu.Lock()
		p.mu.behind.pending++
		p.mu.Unlock()
	}
	return f
}
