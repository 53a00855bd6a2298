package main

import (
	"context"
	"fmt"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sealed"
)

// sealedWith is one data key that lives, for each key-encryption key.
type sealedWith struct {
	tenant   claim.TenantID
	consumer string
	id       uint32
}

// checkSeal refuses to start where results are sealed with a key that is not
// configured, or is another one under the same name: such a server would write
// plain results beside sealed ones, and answer duplicates without theirs.
func (d *daemon) checkSeal(ctx context.Context, reg registry.Registry, ring *sealed.Ring) error {
	changes, err := reg.Load(ctx, 0)
	if err != nil {
		return fmt.Errorf("look for sealed results: %w", err)
	}
	keks, err := d.config.keks()
	if err != nil {
		return exit(exitUsage, err)
	}
	configured := map[string]bool{}
	for _, k := range keks {
		configured[k.ID()] = true
	}
	needed := liveKeys(&changes)
	for kek := range needed {
		if !configured[kek] {
			return exit(exitUsage, fmt.Errorf("results in this store are sealed with the key %q, which seal_key_files does not name: start with it, or shred them", kek))
		}
	}
	if ring == nil {
		return nil
	}
	ring.Update(changes)
	for kek, k := range needed {
		if _, err := ring.Open(ctx, k.tenant, k.consumer, k.id); err != nil {
			return exit(exitUsage, fmt.Errorf("the key %q of seal_key_files does not open what is sealed with it: %w", kek, err))
		}
	}
	return nil
}

func liveKeys(c *registry.Changes) map[string]sealedWith {
	found := map[string]sealedWith{}
	note := func(t claim.TenantID, consumer string, keys []registry.DataKey) {
		for _, k := range keys {
			if k.Shredded == 0 {
				found[k.KEK] = sealedWith{t, consumer, k.ID}
			}
		}
	}
	for i := range c.Tenants {
		if t := &c.Tenants[i]; !t.Deleted {
			note(t.ID, "", t.DataKeys)
		}
	}
	for i := range c.Consumers {
		if row := &c.Consumers[i]; !row.Deleted {
			note(row.Tenant, row.Name, row.DataKeys)
		}
	}
	return found
}
