package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
)

// tenantConfig is one entry of `tenants`.
type tenantConfig struct {
	ID        int64            `koanf:"id"`
	Name      string           `koanf:"name"`
	Strict    bool             `koanf:"strict"`
	Default   policyConfig     `koanf:"default"`
	Keys      []keyConfig      `koanf:"keys"`
	Consumers []consumerConfig `koanf:"consumers"`
}

// keyConfig is a credential. `warifu keys new` prints both halves.
type keyConfig struct {
	ID           string    `koanf:"id"`
	SecretSHA256 string    `koanf:"secret_sha256"`
	Scopes       []string  `koanf:"scopes"`
	Revoked      bool      `koanf:"revoked"`
	ExpiresAt    time.Time `koanf:"expires_at"`
}

type consumerConfig struct {
	Name   string       `koanf:"name"`
	Policy policyConfig `koanf:",squash"`
}

// policyConfig has the names of the API's Policy.
type policyConfig struct {
	OnLeaseLoss          string        `koanf:"on_lease_loss"`
	OnUnavailable        string        `koanf:"on_unavailable"`
	AcceptHoldFailOpen   bool          `koanf:"accept_hold_fail_open"`
	RedeliveryWindow     time.Duration `koanf:"redelivery_window"`
	Retention            time.Duration `koanf:"retention"`
	RetentionRaisedAt    time.Time     `koanf:"retention_raised_at"`
	RetentionRaisedFrom  time.Duration `koanf:"retention_raised_from"`
	LeaseDefault         time.Duration `koanf:"lease_default"`
	LeaseMax             time.Duration `koanf:"lease_max"`
	HoldMax              time.Duration `koanf:"hold_max"`
	AttemptsMax          uint32        `koanf:"attempts_max"`
	ResultBytesMax       int           `koanf:"result_bytes_max"`
	DigestRequired       bool          `koanf:"digest_required"`
	AcceptNoCommonScheme bool          `koanf:"accept_no_common_scheme"`
}

// tenantTable builds the table that requests read; all faults are reported
// together, first those of the text, then those of the rules.
func tenantTable(configured []tenantConfig) (*tenant.Table, error) {
	var built []tenant.Config
	var faults []error
	for i := range configured {
		t, err := configured[i].build()
		if err != nil {
			faults = append(faults, fmt.Errorf("tenant %q: %w", configured[i].Name, err))
		}
		built = append(built, t)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, exit(exitUsage, fmt.Errorf("configuration: %w", err))
	}
	table, err := tenant.NewTable(built)
	if err != nil {
		return nil, exit(exitUsage, fmt.Errorf("configuration: %w", err))
	}
	return table, nil
}

func (c *tenantConfig) build() (tenant.Config, error) {
	out := tenant.Config{ID: claim.TenantID(c.ID), Name: c.Name, Strict: c.Strict}
	var faults []error
	var err error
	if out.Default, err = c.Default.build(""); err != nil {
		faults = append(faults, fmt.Errorf("default: %w", err))
	}
	for i := range c.Keys {
		k, err := c.Keys[i].build()
		if err != nil {
			faults = append(faults, fmt.Errorf("key %q: %w", c.Keys[i].ID, err))
		}
		out.Keys = append(out.Keys, k)
	}
	for i := range c.Consumers {
		cc, err := c.Consumers[i].Policy.build(c.Consumers[i].Name)
		if err != nil {
			faults = append(faults, fmt.Errorf("consumer %q: %w", c.Consumers[i].Name, err))
		}
		out.Consumers = append(out.Consumers, cc)
	}
	return out, errors.Join(faults...)
}

func (k *keyConfig) build() (tenant.Key, error) {
	out := tenant.Key{ID: k.ID, Revoked: k.Revoked, ExpiresAt: k.ExpiresAt}
	sum, err := hex.DecodeString(k.SecretSHA256)
	if err != nil || len(sum) != sha256.Size {
		return out, errors.New("secret_sha256 is not 64 hexadecimal digits; 'warifu keys new' prints it (quote it in YAML)")
	}
	copy(out.SecretSHA256[:], sum)
	for _, name := range k.Scopes {
		scope, ok := tenant.ParseScope(name)
		if !ok {
			return out, fmt.Errorf("scope %q is unknown; known are claim, read", name)
		}
		out.Scopes |= scope
	}
	return out, nil
}

func (p *policyConfig) build(name string) (tenant.ConsumerConfig, error) {
	out := tenant.ConsumerConfig{
		Name: name, Window: p.RedeliveryWindow, Retention: p.Retention,
		RetentionRaisedAt: p.RetentionRaisedAt, RetentionRaisedFrom: p.RetentionRaisedFrom,
		LeaseDefault: p.LeaseDefault, LeaseMax: p.LeaseMax, HoldMax: p.HoldMax,
		AttemptsMax: p.AttemptsMax, AcceptHoldFailOpen: p.AcceptHoldFailOpen,
		ResultBytesMax: p.ResultBytesMax, DigestRequired: p.DigestRequired,
		AcceptNoCommonScheme: p.AcceptNoCommonScheme,
	}
	var faults []error
	switch p.OnLeaseLoss {
	case "", "REGRANT":
	case "HOLD":
		out.Hold = true
	default:
		faults = append(faults, fmt.Errorf("on_lease_loss %q is not REGRANT or HOLD", p.OnLeaseLoss))
	}
	switch p.OnUnavailable {
	case "", "FAIL_CLOSED":
	case "FAIL_OPEN":
		out.OnUnavailable = tenant.FailOpen
	default:
		faults = append(faults, fmt.Errorf("on_unavailable %q is not FAIL_CLOSED or FAIL_OPEN", p.OnUnavailable))
	}
	return out, errors.Join(faults...)
}
