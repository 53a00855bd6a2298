package claim

// SwapKind names a compare-and-set on a record that was read before.
type SwapKind uint8

// The swaps of claims (each followed by a new decision on what the store then
// holds), of the lease monitor, and of the admin verbs.
const (
	NoSwap          SwapKind = iota
	BeginAnew                // a new life on an expired or forgotten record
	TakeOver                 // a grant after a release or a lapsed lease
	Renew                    // the same grant again after its own lapsed lease
	RecordOwn                // one-shot outcome on the attempt's own live grant
	PutInDoubt               // lease monitor and attempt cap
	ResolveComplete          // admin: in doubt -> completed
	ResolveRetry             // admin: in progress or in doubt -> released
	Forget                   // admin: tombstone
)

// Swap changes one record if its fence and version are still the ones that
// were read and the guard of its kind holds at the store's time.
type Swap struct {
	Kind    SwapKind
	Key     Key
	Fence   Fence
	Version int64
	Request *Request    // BeginAnew, TakeOver, Renew, RecordOwn
	Result  *Completion // ResolveComplete

	// From and Digests are what the record said and what its digests become.
	// The version guards both: a store need not work them out again.
	From    State
	Digests []Digest
}

// NewSwap returns the swap of kind on the record that was read. req may be nil
// where the kind needs none.
func NewSwap(kind SwapKind, rec *Record, req *Request) Swap {
	return Swap{
		Kind: kind, Key: rec.Key, Fence: rec.Fence, Version: rec.Version, Request: req,
		From: rec.State, Digests: digestsAfter(kind, rec, req),
	}
}

// digestsAfter joins the schemes of a takeover where one agreed, so that a
// content schema can be migrated; a new life has its own.
func digestsAfter(kind SwapKind, rec *Record, req *Request) []Digest {
	switch {
	case kind == Forget:
		return nil
	case kind == BeginAnew && req != nil:
		return req.Digests
	case kind == TakeOver && req != nil && Compare(rec.Digests, req.Digests) == Agree:
		return union(rec.Digests, req.Digests)
	}
	return rec.Digests
}

func swap(kind SwapKind, rec *Record, r *Request) Step {
	return Step{Swap: NewSwap(kind, rec, r)}
}

// Fresh is the record of a first grant at now. Its fence is at least floor,
// which stores raise after a restore or a lost tail.
func Fresh(r *Request, now Time, floor Fence) Record {
	rec := Record{
		Key: r.Key, Version: 1, State: InProgress, Attempt: 1, AttemptID: r.Attempt,
		Fence: max(Fence(now), floor), Digests: r.Digests, EventTime: r.EventTime,
		ClaimedAt: now, GrantedAt: now, LeaseUntil: now.Add(r.Lease),
		HoldUntil: now.Add(max(r.Policy.HoldMax, r.Lease)),
		ExpiresAt: now.Add(r.Policy.Retention), Policy: r.Policy,
	}
	rec.keep(now)
	rec.recordShot(r, now)
	return rec
}

// recordShot completes a just granted record with its one-shot outcome.
func (r *Record) recordShot(req *Request, now Time) {
	if req.Record != nil {
		r.complete(req.Record, now)
	}
}

func (r *Record) complete(c *Completion, now Time) {
	r.State, r.Completion, r.EndedAt = Completed, c, now
}

// Apply returns what the record becomes, or false when the guard does not
// hold: then nothing may change and the caller looks again. It is the meaning
// of Replace in every store.
func (s *Swap) Apply(cur *Record, now Time, floor Fence) (Record, bool) {
	if cur.State == Absent || cur.Fence != s.Fence || cur.Version != s.Version || !s.guard(cur, now) {
		return Record{}, false
	}
	next := *cur
	switch s.Kind {
	case BeginAnew:
		next = Fresh(s.Request, now, max(floor, cur.Fence+1))
	case TakeOver:
		next.takeOver(s, now, floor)
	case Renew:
		next.LeaseUntil = now.Add(s.Request.Lease)
		next.HoldUntil = now.Add(max(cur.Policy.HoldMax, s.Request.Lease))
		next.recordShot(s.Request, now)
	case RecordOwn:
		next.recordShot(s.Request, now)
	case PutInDoubt:
		next.State, next.EndedAt = InDoubt, now
	case ResolveComplete:
		next.complete(s.Result, now)
	case ResolveRetry:
		next.State, next.EndedAt = Released, now
	case Forget:
		next.forget(now)
	case NoSwap:
		return Record{}, false
	}
	next.Version = cur.Version + 1
	next.keep(now)
	return next, true
}

// guard is the part of a swap's condition that depends on state and time.
func (s *Swap) guard(cur *Record, now Time) bool {
	switch s.Kind {
	case BeginAnew:
		return (cur.State == Forgotten || cur.Expired(now)) && now < s.Request.InsertBefore
	case TakeOver:
		return cur.State == Released || (cur.Lapsed(now) && !cur.Policy.Hold && !cur.AtCap())
	case Renew:
		return cur.Lapsed(now) && !cur.Policy.Hold && cur.AttemptID == s.Request.Attempt
	case RecordOwn:
		return cur.State == InProgress && cur.AttemptID == s.Request.Attempt
	case PutInDoubt:
		return cur.Lapsed(now) && (cur.Policy.Hold || cur.AtCap())
	case ResolveComplete:
		return cur.Effective(now) == InDoubt
	case ResolveRetry:
		return cur.State == InProgress || cur.State == InDoubt
	case Forget:
		return !cur.Live(now) && cur.State != Forgotten
	case NoSwap:
	}
	return false
}

// takeOver begins the next attempt of the same life. The policy snapshot, the
// first claim time and the event time stay.
func (r *Record) takeOver(s *Swap, now Time, floor Fence) {
	req, cause := s.Request, LeaseLapsed
	if r.State == Released {
		cause = AttemptReleased
	}
	r.Digests = s.Digests
	r.State, r.Takeover, r.Attempt, r.AttemptID = InProgress, cause, r.Attempt+1, req.Attempt
	r.Fence = max(r.Fence+1, Fence(now), floor)
	r.GrantedAt, r.LeaseUntil, r.EndedAt = now, now.Add(req.Lease), 0
	r.HoldUntil = now.Add(max(r.Policy.HoldMax, req.Lease))
	r.recordShot(req, now)
}

// forget drops content and result and keeps fence and last attempt, so that a
// late packet of that attempt resurrects nothing.
func (r *Record) forget(now Time) {
	r.State, r.EndedAt = Forgotten, now
	r.Completion, r.Digests, r.EventTime = nil, nil, 0
}
