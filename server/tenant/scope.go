package tenant

import "math/bits"

// Scope is a set of things that a credential may do.
type Scope uint8

// The scopes. They are apart because who may claim need not see results, and
// who may do either need not rule on events or give out keys.
const (
	ScopeClaim         Scope = 1 << iota // claim, complete, extend, release, read policies
	ScopeRead                            // look up and list records, results included
	ScopeResolve                         // rule on events that are in doubt, forget them
	ScopeAdminTenant                     // consumers, keys and the log of one tenant
	ScopeAdminPlatform                   // all tenants; only for keys of the platform
	scopeEnd

	// ScopeDefault is what configured keys may do when nothing is said.
	ScopeDefault = ScopeClaim | ScopeRead
	scopesKnown  = scopeEnd - 1
)

// scopeNames are in the order of their bits. They are stored in rows and stand
// in configurations: they do not change.
var scopeNames = [...]string{"claim", "read", "resolve", "admin:tenant", "admin:platform"}

// Has reports whether s contains all of want.
func (s Scope) Has(want Scope) bool { return s&want == want }

// Names returns the names of the scopes in s, in a fixed order. Bits that have
// no name are left out.
func (s Scope) Names() []string {
	names := make([]string, 0, bits.OnesCount8(uint8(s)))
	for i, name := range scopeNames {
		if s.Has(1 << i) {
			names = append(names, name)
		}
	}
	return names
}

// ParseScope returns the scope of that name: "claim", "read", "resolve",
// "admin:tenant" or "admin:platform".
func ParseScope(name string) (Scope, bool) {
	for i, known := range scopeNames {
		if name == known {
			return 1 << i, true
		}
	}
	return 0, false
}
