package quota

import (
	"context"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// What a refused claim is told to wait. Levels fall when work ends, when
// records are swept, and when people do something.
const (
	leasesRetry = 5 * time.Second
	levelsRetry = time.Minute
)

// Reader reads what is stored of keys, which may repeat; *arbiter.Arbiter is
// one.
type Reader interface {
	Lookup(ctx context.Context, keys []claim.Key) ([]storage.Found, error)
}

// Standing is where a tenant stands with its level quotas.
type Standing struct {
	limits Limits
	used   Counts
	tight  bool
}

// Standing looks at a tenant's levels before want claims. It does not allocate.
func (q *Quotas) Standing(tenant claim.TenantID, l *Limits, want int) Standing {
	if l.LiveLeases <= 0 && l.Keys <= 0 && l.Bytes <= 0 && l.InDoubt <= 0 {
		return Standing{}
	}
	e, now := q.entry(tenant), q.monotonic()
	e.mu.Lock()
	used := e.mu.levels.used(now)
	e.mu.Unlock()
	n := int64(want)
	tight := l.LiveLeases > 0 && used.Live+n > l.LiveLeases || l.Keys > 0 && used.Keys+n > l.Keys ||
		l.Bytes > 0 && used.Bytes >= l.Bytes || l.InDoubt > 0 && used.InDoubt >= l.InDoubt
	return Standing{limits: *l, used: used, tight: tight}
}

// Tight reports whether the claims would go over a quota if all were granted:
// then Screen says which of them may be asked.
func (s *Standing) Tight() bool { return s.tight }

// Screen reads the claims' keys and returns for each claim nil, where it may be
// asked, an Exceeded, or the error of the read. What it may be asked is
// everything that would not be granted, and of what would be as many, in
// order, as the quotas have room for. A quota is only held against grants that
// add to it:
//
//   - keys and bytes against new lives of keys, expired and forgotten ones
//     included, whether they are swept or not;
//   - live leases against all grants but one-shot claims, which hold none;
//   - in doubt against grants that can come into doubt, by the policy that
//     would decide it.
func (q *Quotas) Screen(ctx context.Context, from Reader, s Standing, reqs []claim.Request) []error {
	errs := make([]error, len(reqs))
	keys := make([]claim.Key, len(reqs))
	for i := range reqs {
		keys[i] = reqs[i].Key
	}
	found, err := from.Lookup(ctx, keys)
	granted := map[claim.Key]bool{}
	for i := range reqs {
		switch {
		case err != nil:
			errs[i] = err
		case found[i].Err != nil:
			errs[i] = found[i].Err
		case granted[reqs[i].Key]: // the second of a key is not granted: it meets the first
		default:
			a := adds(&found[i].Record, &reqs[i], found[i].Now)
			if e := s.admit(a); e.Over() {
				errs[i] = e
			} else if a != (grant{}) {
				granted[reqs[i].Key] = true
			}
		}
	}
	return errs
}

// grant is what a claim would add if it is granted; its zero value is that of
// one that adds nothing.
type grant struct{ life, lease, doubt bool }

// adds says what a claim would add to what is stored, by the rules.
func adds(rec *claim.Record, r *claim.Request, now claim.Time) grant {
	doubtful := func(p *claim.Policy) bool { return p.Hold || p.AttemptsMax > 0 }
	step := claim.Decide(rec, r, now)
	lease := r.Record == nil
	switch {
	case step.Insert, step.Swap.Kind == claim.BeginAnew:
		return grant{life: true, lease: lease, doubt: lease && doubtful(&r.Policy)}
	case step.Swap.Kind == claim.TakeOver:
		return grant{lease: lease, doubt: lease && doubtful(&rec.Policy)}
	}
	return grant{}
}

// admit takes room for a grant, or says what it would exceed.
func (s *Standing) admit(g grant) Exceeded {
	l, u := &s.limits, &s.used
	switch {
	case g.doubt && l.InDoubt > 0 && u.InDoubt >= l.InDoubt:
		return Exceeded{InDoubt, l.InDoubt, u.InDoubt, levelsRetry}
	case g.life && l.Bytes > 0 && u.Bytes >= l.Bytes:
		return Exceeded{Bytes, l.Bytes, u.Bytes, levelsRetry}
	case g.life && l.Keys > 0 && u.Keys >= l.Keys:
		return Exceeded{Keys, l.Keys, u.Keys, levelsRetry}
	case g.lease && l.LiveLeases > 0 && u.Live >= l.LiveLeases:
		return Exceeded{LiveLeases, l.LiveLeases, u.Live, leasesRetry}
	}
	if g.life {
		u.Keys++
	}
	if g.lease {
		u.Live++
	}
	return Exceeded{}
}
