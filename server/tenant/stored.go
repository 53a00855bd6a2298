package tenant

import (
	"errors"
	"fmt"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// CheckConsumer returns every rule that a row breaks, its name's included; nil
// when claims can be decided under it.
func CheckConsumer(row *registry.Consumer) error {
	_, faults := rowConsumer(row)
	return errors.Join(faults...)
}

// EffectiveRetention is how long keys are remembered under a row: its
// Retention, or the default that its window leads to.
func EffectiveRetention(row *registry.Consumer) time.Duration {
	c := rowConfig(row)
	return c.withDefaults().Retention
}

// PolicyVersion is the version that clients are told of a row's policy, "" where
// the row breaks rules.
func PolicyVersion(row *registry.Consumer) string {
	c, faults := rowConsumer(row)
	if len(faults) > 0 {
		return ""
	}
	return c.Version
}

// rowConsumer returns the policy of a row, or every rule that the row breaks.
func rowConsumer(row *registry.Consumer) (*Consumer, []error) {
	config := rowConfig(row)
	c, faults := newConsumer(&config)
	if !ValidConsumer(row.Name) {
		faults = append(faults, errConsumerName)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	c.retired = row.Retired
	return c, nil
}

func rowConfig(row *registry.Consumer) ConsumerConfig {
	c := ConsumerConfig{
		Name: row.Name, Window: row.Window, Retention: row.Retention,
		LeaseDefault: row.LeaseDefault, LeaseMax: row.LeaseMax, HoldMax: row.HoldMax,
		Hold: row.Hold, AttemptsMax: row.AttemptsMax, OnUnavailable: OnUnavailable(row.OnUnavailable),
		AcceptHoldFailOpen: row.AcceptHoldFailOpen, ResultBytesMax: int(row.ResultBytesMax),
		DigestRequired: row.DigestRequired, AcceptNoCommonScheme: row.AcceptNoCommonScheme,
	}
	for _, r := range row.Raises {
		c.Raises = append(c.Raises, claim.Raise{At: r.At, From: r.From})
	}
	return c
}

// rowKey returns the credential of a row. Scopes that are not known here, of a
// later version perhaps, give no right and are reported; every other fault makes
// the key unusable.
func rowKey(row *registry.Key) (k *Key, usable bool, faults []error) {
	k = &Key{ID: row.ID, SecretSHA256: row.Secret, Revoked: row.Revoked != 0}
	if row.Expires != 0 {
		k.ExpiresAt = row.Expires.Std()
	}
	var unknown []error
	for _, name := range row.Scopes {
		s, ok := ParseScope(name)
		if !ok {
			unknown = append(unknown, fmt.Errorf("scope %q is unknown and gives no right", name))
		}
		k.Scopes |= s
	}
	for _, err := range k.faults() {
		if row.Tenant == 0 && errors.Is(err, errPlatformScope) {
			continue
		}
		faults = append(faults, err)
	}
	if row.Tenant < 0 {
		faults = append(faults, errors.New("its tenant is negative"))
	}
	return k, len(faults) == 0, append(faults, unknown...)
}
