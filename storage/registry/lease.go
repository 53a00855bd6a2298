package registry

import (
	"time"

	"github.com/warifu/warifu/storage/claim"
)

// Taken is the rule of a lease: what owner gets of l, which is the zero Lease
// where there is none, at now. Fences are as those of claims: they grow also
// over a restore.
func (l Lease) Taken(name, owner string, ttl time.Duration, now claim.Time) (Lease, bool) {
	live := l.Owner != "" && now < l.Until
	if live && l.Owner != owner {
		return l, false
	}
	if !live {
		l.Fence = max(l.Fence+1, claim.Fence(now))
	}
	until := now.Add(ttl)
	if live { // a renewal that comes late does not shorten it
		until = max(until, l.Until)
	}
	l.Name, l.Owner, l.Until = name, owner, until
	return l, true
}
