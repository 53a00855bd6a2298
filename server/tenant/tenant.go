// Package tenant knows who may call and under which policy: credentials lead
// to a tenant, a tenant and a consumer name lead to the policy in force.
//
// What requests read is in memory and immutable. A Table is built whole and
// swapped into the Directory; no request ever waits for a look-up or sees half
// of a change. Tenants come from two places. Those of a configuration are
// checked whole by NewTable: a file with a fault is not taken. Those of the
// registry are kept up to date by a Syncer, which asks the store about every
// second what has changed; there a faulty row is left out and reported, because
// one team's row must not stop the others.
//
// To wire it: a Directory with the configured Table goes to the server, a Syncer
// with the registry and that Directory runs beside it (Run, and wait for it), its
// Ready is a check of readiness, and whoever applies a change to the registry
// calls Refresh before answering.
package tenant

import (
	"errors"
	"fmt"
	"iter"
	"maps"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// Errors of Tenant.Consumer.
var (
	// ErrUnknownConsumer means that the tenant is strict and the consumer is not
	// declared. Declare it, or correct the name.
	ErrUnknownConsumer = errors.New("the tenant accepts declared consumers only")
	// ErrFaultyConsumer means that the consumer is declared and its stored
	// policy breaks rules. Nothing is granted under a policy that was guessed:
	// correct the policy.
	ErrFaultyConsumer = errors.New("the stored policy of the consumer cannot be followed")
)

// NameCharsMax bounds the names of configured tenants, and key IDs.
const NameCharsMax = 64

// Config describes one tenant of a configuration.
type Config struct {
	// ID isolates the tenant in the store: positive, unique, and never reused,
	// not even for a tenant of the same name.
	ID claim.TenantID
	// Name is for people: 1-64 characters of [A-Za-z0-9._-], unique.
	Name string
	// Strict refuses consumers that are not declared. Otherwise they get Default.
	Strict bool
	// Default is the policy of undeclared consumers; its Name stays empty. The
	// zero value: window 24 h, retention 48 h, lease 30 s, REGRANT, FAIL_CLOSED.
	Default ConsumerConfig
	// Consumers are the declared ones.
	Consumers []ConsumerConfig
	// Keys are the credentials that act for the tenant.
	Keys []Key
}

// Tenant is the isolation boundary. It is immutable.
type Tenant struct {
	ID     claim.TenantID
	Name   string
	Strict bool
	// State is never TenantDeleted: what is deleted is not here. Configured
	// tenants are always active.
	State registry.TenantState
	// Limits are the quotas; 0 is the installation's default.
	Limits registry.Limits
	// Version is that of the registry's row, 0 for configured tenants.
	Version int64

	fallback  *Consumer
	consumers map[string]*Consumer // nil: the row is faulty
}

// Suspended reports whether the tenant gets no new work. What was granted may
// be finished, and reading goes on.
func (t *Tenant) Suspended() bool { return t.State == registry.TenantSuspended }

// serves reports whether keys of the tenant are let in.
func (t *Tenant) serves() bool {
	return t.State == registry.TenantActive || t.State == registry.TenantSuspended
}

// Consumer returns the policy in force for a consumer name and whether the
// consumer is declared. An undeclared one has the tenant's default policy, or
// ErrUnknownConsumer when the tenant is strict. A declared one whose policy
// breaks rules is ErrFaultyConsumer. It does not allocate.
func (t *Tenant) Consumer(name string) (c *Consumer, declared bool, err error) {
	if c, ok := t.consumers[name]; ok {
		if c == nil {
			return nil, true, ErrFaultyConsumer
		}
		if !c.retired {
			return c, true, nil
		}
		if !t.Strict {
			return c, false, nil
		}
	}
	if t.Strict {
		return nil, false, ErrUnknownConsumer
	}
	return t.fallback, false, nil
}

// Fallback is the policy of undeclared consumers, whether the tenant takes new
// claims of theirs or not.
func (t *Tenant) Fallback() *Consumer { return t.fallback }

// Table holds all tenants and credentials. It is immutable.
type Table struct {
	tenants map[string]*Tenant
	byID    map[claim.TenantID]*Tenant
	keys    map[string]*credential
}

// NewTable checks all configurations and builds the table. The error joins
// every fault found, so that one look repairs a file.
func NewTable(configs []Config) (*Table, error) {
	t := &Table{
		tenants: make(map[string]*Tenant, len(configs)), byID: make(map[claim.TenantID]*Tenant, len(configs)),
		keys: map[string]*credential{},
	}
	var faults []error
	for i := range configs {
		c := &configs[i]
		if err := c.identity(i); err != nil {
			faults = append(faults, err)
			continue
		}
		if other, taken := t.byID[c.ID]; taken {
			faults = append(faults, fmt.Errorf("tenant %q: id %d is tenant %q's", c.Name, c.ID, other.Name))
		}
		if _, taken := t.tenants[c.Name]; taken {
			faults = append(faults, fmt.Errorf("tenant %q is configured twice", c.Name))
		}
		built, errs := c.build()
		faults = append(faults, errs...)
		faults = append(faults, t.addKeys(c, built)...)
		t.tenants[c.Name], t.byID[c.ID] = built, built
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return t, nil
}

// Tenant returns the tenant of that name.
func (t *Table) Tenant(name string) (*Tenant, bool) {
	found, ok := t.tenants[name]
	return found, ok
}

// TenantByID returns the tenant with that ID.
func (t *Table) TenantByID(id claim.TenantID) (*Tenant, bool) {
	found, ok := t.byID[id]
	return found, ok
}

// Tenants returns all tenants, those that are being deleted included, in no
// order.
func (t *Table) Tenants() iter.Seq[*Tenant] { return maps.Values(t.byID) }

func (c *Config) identity(i int) error {
	switch {
	case !ValidName(c.Name):
		return fmt.Errorf("tenants[%d]: name %q is not 1-%d characters of [A-Za-z0-9._-]", i, c.Name, NameCharsMax)
	case c.ID <= 0:
		return fmt.Errorf("tenant %q: id %d is not positive", c.Name, c.ID)
	}
	return nil
}

func (c *Config) build() (*Tenant, []error) {
	t := &Tenant{
		ID: c.ID, Name: c.Name, Strict: c.Strict, State: registry.TenantActive,
		consumers: make(map[string]*Consumer, len(c.Consumers)),
	}
	var faults []error
	fault := func(who string, errs []error) {
		for _, err := range errs {
			faults = append(faults, fmt.Errorf("tenant %q: %s: %w", c.Name, who, err))
		}
	}
	var errs []error
	t.fallback, errs = newConsumer(&c.Default)
	if c.Default.Name != "" {
		errs = append(errs, errors.New("the default policy has no name"))
	}
	fault("default policy", errs)
	for i := range c.Consumers {
		cc := &c.Consumers[i]
		who := fmt.Sprintf("consumer %q", cc.Name)
		if !ValidConsumer(cc.Name) {
			fault(who, []error{errConsumerName})
		}
		if _, twice := t.consumers[cc.Name]; twice {
			fault(who, []error{errors.New("is declared twice")})
		}
		built, errs := newConsumer(cc)
		fault(who, errs)
		t.consumers[cc.Name] = built
	}
	return t, faults
}

func (t *Table) addKeys(c *Config, owner *Tenant) []error {
	var faults []error
	for i := range c.Keys {
		k := &c.Keys[i]
		who := fmt.Sprintf("tenant %q: key %q", c.Name, k.ID)
		if _, taken := t.keys[k.ID]; taken {
			faults = append(faults, fmt.Errorf("%s: this key ID is configured twice", who))
		}
		for _, err := range k.faults() {
			faults = append(faults, fmt.Errorf("%s: %w", who, err))
		}
		t.keys[k.ID] = newCredential(k, owner)
	}
	return faults
}

// ValidName reports whether s is 1-64 characters of [A-Za-z0-9._-].
func ValidName(s string) bool {
	if s == "" || len(s) > NameCharsMax {
		return false
	}
	for i := range len(s) {
		if !nameChar(s[i]) {
			return false
		}
	}
	return true
}

var errConsumerName = fmt.Errorf("name is not 1-%d characters of [A-Za-z0-9._/-]", claim.ConsumerCharsMax)

// ValidConsumer reports whether name is 1-128 characters of [A-Za-z0-9._/-].
func ValidConsumer(name string) bool {
	if name == "" || len(name) > claim.ConsumerCharsMax {
		return false
	}
	for i := range len(name) {
		if !nameChar(name[i]) && name[i] != '/' {
			return false
		}
	}
	return true
}

func nameChar(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}
