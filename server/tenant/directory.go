package tenant

import (
	"crypto/sha256"
	"crypto/subtle"
	"strings"
	"sync/atomic"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// Principal is who calls: a tenant, or the platform, through one of its keys.
// It is immutable.
type Principal struct {
	// Tenant is nil for keys of the platform: they act for no tenant.
	Tenant *Tenant
	KeyID  string
	Scopes Scope
	// ConsumerPrefix limits the key to consumers whose names begin with it.
	ConsumerPrefix string
}

// Consumer reports whether the key may act for consumers of that name. Where it
// may not, the answer is that of a missing scope.
func (p *Principal) Consumer(name string) bool { return strings.HasPrefix(name, p.ConsumerPrefix) }

// TenantName is the tenant's name, and "" for keys of the platform.
func (p *Principal) TenantName() string {
	if p.Tenant == nil {
		return ""
	}
	return p.Tenant.Name
}

// Directory is the table in force. It is safe for concurrent use.
type Directory struct {
	table atomic.Pointer[Table]
}

// NewDirectory returns a directory that answers from t.
func NewDirectory(t *Table) *Directory {
	d := &Directory{}
	d.table.Store(t)
	return d
}

// Swap puts a new table in force. Requests that already have their principal
// finish under the old one; the next request sees the new one.
func (d *Directory) Swap(t *Table) { d.table.Store(t) }

// Table is the one in force.
func (d *Directory) Table() *Table { return d.table.Load() }

// Tenant returns the tenant of that name from the table in force.
func (d *Directory) Tenant(name string) (*Tenant, bool) { return d.table.Load().Tenant(name) }

// Authenticate returns the principal of a credential at now. Wrong, revoked,
// expired, unknown and malformed ones are all the same false, and an unknown
// key ID is compared with a decoy so that it takes the same path. It notes when
// the key was used, reads memory only, and does not allocate.
func (d *Directory) Authenticate(credential string, now time.Time) (*Principal, bool) {
	id, secret, wellFormed := ParseKey(credential)
	c, known := d.table.Load().keys[id]
	if !known {
		c = &decoy
	}
	var text [secretChars]byte
	copy(text[:], secret)
	sum := sha256.Sum256(text[:])
	same := subtle.ConstantTimeCompare(sum[:], c.sum[:]) == 1
	if !wellFormed || !known || !same || c.revoked || (!c.expiresAt.IsZero() && !now.Before(c.expiresAt)) {
		return nil, false
	}
	c.use.note(claim.FromTime(now))
	return &c.principal, true
}

// Current returns the principal of a key that was authenticated before, as it is
// now; false where the key is let in no more.
func (d *Directory) Current(keyID string, now time.Time) (*Principal, bool) {
	c, known := d.table.Load().keys[keyID]
	if !known || c.revoked || !c.expiresAt.IsZero() && !now.Before(c.expiresAt) {
		return nil, false
	}
	return &c.principal, true
}

// Used returns the keys whose last use is at least registry.SeenGrain newer
// than what was returned of them before, for Registry.Seen. Configured keys are
// left out: the registry does not know them. It is for one caller at a time.
func (d *Directory) Used() map[string]claim.Time {
	used := map[string]claim.Time{}
	for id, c := range d.table.Load().keys {
		if !c.stored {
			continue
		}
		last := claim.Time(c.use.last.Load())
		if told := claim.Time(c.use.told.Load()); last.Sub(told) >= registry.SeenGrain {
			c.use.told.Store(int64(last))
			used[id] = last
		}
	}
	return used
}

// credential is a key of the table with everything its requests need.
type credential struct {
	sum       [sha256.Size]byte
	revoked   bool
	expiresAt time.Time
	stored    bool // in the registry
	principal Principal
	use       *use
}

var decoy credential

func newCredential(k *Key, owner *Tenant) *credential {
	scopes := k.Scopes
	if scopes == 0 {
		scopes = ScopeDefault
	}
	return &credential{
		sum: k.SecretSHA256, revoked: k.Revoked, expiresAt: k.ExpiresAt, use: &use{},
		principal: Principal{Tenant: owner, KeyID: k.ID, Scopes: scopes},
	}
}

// use is when a key was used last. It outlives the tables that lead to it.
type use struct {
	last atomic.Int64 // claim.Time
	told atomic.Int64 // what Used has returned; 0: nothing yet
}

// useGrain is how exact the note in memory is: a line of the cache that every
// request writes would be fought over by all processors.
const useGrain = int64(time.Second / time.Microsecond)

// note remembers the later of two uses that race only roughly: whichever is
// kept, it is of this second.
func (u *use) note(now claim.Time) {
	if int64(now)-u.last.Load() >= useGrain {
		u.last.Store(int64(now))
	}
}
