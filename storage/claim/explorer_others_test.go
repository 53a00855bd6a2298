package claim

// What happens to a key besides claims and owner calls: time, sweeps, the lease
// monitor, operators.

// pass moves the clock to, or to just before, the next instant at which any
// rule may turn.
func (x *explorer) pass(w *world, almost bool) bool {
	to := Never
	stops := [...]Time{w.rec.ExpiresAt, w.rec.ExpiresAt.Add(shortGrace), x.cutoff, w.rec.LeaseUntil, w.rec.HoldUntil}
	for i, at := range stops {
		if at > w.now && (i < 3 || w.rec.State == InProgress) {
			to = min(to, at)
		}
	}
	if to == Never || (almost && to-1 == w.now) {
		return false
	}
	if almost {
		to--
	}
	w.now = to
	return true
}

func (x *explorer) sweep(w *world) bool {
	if w.rec.State == Absent || !x.rules.sweepable(w.rec, w.now, shortGrace) {
		return false
	}
	w.rec = &Record{}
	return true
}

// watch is the lease monitor: it reads what has lapsed under HOLD, and writes
// so later.
func (x *explorer) watch(w *world, landing bool) bool {
	if !landing {
		if w.monitor != nil || !w.rec.Lapsed(w.now) || !w.rec.Policy.Hold {
			return false
		}
		w.monitor = &Swap{Kind: PutInDoubt, Key: key, Fence: w.rec.Fence, Version: w.rec.Version}
		return true
	}
	if w.monitor == nil {
		return false
	}
	if after, applied := x.rules.swap(w.monitor, w.rec, w.now, 0); applied {
		x.write(w, after, cause{kind: PutInDoubt})
	}
	w.monitor = nil
	return true
}

var verbOf = map[act]SwapKind{adminResolvesComplete: ResolveComplete, adminResolvesRetry: ResolveRetry, adminForgets: Forget}

// administer is an operator: looks, sends, and the write lands. One verb for
// each history, sent as often as it takes.
func (x *explorer) administer(w *world, a act) bool {
	o := &w.admin
	switch a {
	case adminSends:
		if o.verb == nil || o.swap != nil {
			return false
		}
		if ruling, s := x.rules.rule(o.verb, w.rec, w.now); ruling == SwapAllowed {
			o.swap = &s
		}
	case adminLands:
		if o.swap == nil {
			return false
		}
		if after, applied := x.rules.swap(o.swap, w.rec, w.now, 0); applied {
			x.write(w, after, cause{kind: o.swap.Kind, verb: o.verb})
		}
		o.swap = nil
	default:
		if o.verb != nil || w.rec.State == Absent {
			return false
		}
		o.verb = &Verb{Kind: verbOf[a], Key: key, Fence: w.rec.Fence, State: w.rec.Effective(w.now), Result: ruled}
	}
	return true
}
