package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/journal"
	quotas "github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sealed"
)

// platform is who may call this server and how much they may use: tenants and
// keys of the store, beside those of the configuration.
type platform struct {
	directory *tenant.Directory
	syncer    *tenant.Syncer
	quotas    *quotas.Quotas
	census    *quotas.Census
	journal   *journal.Journal // nil: there is none
	ring      *sealed.Ring     // nil: results are not sealed
	store     storage.Store    // what the server uses
	admin     *server.Platform
}

// openPlatform prepares all of it and starts nothing. The directory is empty but
// for the configuration until the syncer has run.
func (d *daemon) openPlatform(store *opened, configured *tenant.Table) (*platform, error) {
	p := &platform{directory: tenant.NewDirectory(configured), store: store.Store}
	owner := "server-" + uuid.NewString()
	if err := errors.Join(d.openSealed(p, store), d.openSyncer(p, store, configured), d.openQuotas(p, store, owner)); err != nil {
		return nil, err
	}
	p.admin = &server.Platform{
		Registry: store.registry, Refresh: p.syncer.Refresh, Owner: owner, Pause: pause, Reserved: largest(configured),
		Configured: func(name string) bool { _, ok := configured.Tenant(name); return ok },
	}
	if p.ring != nil {
		p.admin.DataKeys = p.ring
	}
	return p, d.openJournal(p)
}

// openSealed puts the seal in front of the store. It is there without keys too:
// what was sealed once must not be given out as it lies there.
func (d *daemon) openSealed(p *platform, store *opened) error {
	keks, err := d.config.keks()
	if err != nil {
		return exit(exitUsage, err)
	}
	c := sealed.Config{Store: store.Store, WritePlain: len(keks) == 0, Logger: d.log, Clock: d.sys.now}
	if len(keks) > 0 {
		p.ring, err = sealed.NewRing(sealed.RingConfig{Registry: store.registry, KEKs: keks, Clock: d.sys.now, Logger: d.log})
		if err != nil {
			return err
		}
		c.Keys = p.ring
	}
	p.store, err = sealed.New(c)
	return err
}

func (d *daemon) openSyncer(p *platform, store *opened, configured *tenant.Table) (err error) {
	p.syncer, err = tenant.NewSyncer(tenant.SyncConfig{
		Registry: store.registry, Directory: p.directory, Configured: configured, Clock: d.sys.now, Logger: d.log,
		OnChange: func(c *registry.Changes) {
			if p.ring != nil {
				p.ring.Update(*c)
			}
		},
	})
	return err
}

func (d *daemon) openQuotas(p *platform, store *opened, owner string) (err error) {
	began := d.sys.now()
	p.quotas, err = quotas.New(quotas.Config{Monotonic: func() time.Duration { return d.sys.now().Sub(began) }})
	if err != nil {
		return err
	}
	defaults := d.config.quotas()
	p.census, err = quotas.NewCensus(quotas.CensusConfig{
		Quotas: p.quotas, Registry: store.registry, Store: store.Store, Owner: owner, Logger: d.log,
		Tenants: func() (all []quotas.Tenant) {
			for t := range p.directory.Table().Tenants() {
				if t.State != registry.TenantDeleting && t.State != registry.TenantDeleted {
					all = append(all, quotas.Tenant{ID: t.ID, Limits: defaults.Resolve(t.Limits)})
				}
			}
			return all
		},
	})
	return err
}

func (d *daemon) openJournal(p *platform) (err error) {
	dir := d.config.journalDir()
	if dir == "" {
		d.log.Info("no journal is configured: consumers that are FAIL_OPEN fail closed on this server")
		return nil
	}
	p.journal, err = journal.New(journal.Config{Dir: dir, BytesMax: int64(d.config.JournalSize), Clock: d.sys.now, Logger: d.log})
	if err != nil {
		return fmt.Errorf("open the journal of unprotected runs in %s: %w", dir, err)
	}
	return nil
}

// close ends what has no loop.
func (p *platform) close() error {
	if p.journal == nil {
		return nil
	}
	if err := p.journal.Close(); err != nil {
		return fmt.Errorf("close the journal: %w", err)
	}
	return nil
}

// start has the loops run. Nothing is counted before the tenants are known.
func (p *platform) start(loop *workers) {
	loop.start("directory", p.syncer.Run)
	loop.start("census", func(ctx context.Context) error {
		for p.syncer.Ready() != nil {
			if err := pause(ctx, directoryPause); err != nil {
				return err
			}
		}
		return p.census.Run(ctx)
	})
}

// directoryPause is between looks at whether the tenants are known.
const directoryPause = 100 * time.Millisecond

// pause waits, or returns why not.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// largest is the largest ID of the configured tenants.
func largest(t *tenant.Table) (id claim.TenantID) {
	for c := range t.Tenants() {
		id = max(id, c.ID)
	}
	return id
}

// seedTriesMax bounds how often processes that start at once get in each
// other's way.
const seedTriesMax = 8

// seed makes the tenant of `warifu dev` and its two keys, if they are not there.
func seed(ctx context.Context, reg registry.Registry, team, operator tenant.Key) error {
	for try := 1; ; try++ {
		c, err := missing(ctx, reg, team, operator)
		if err != nil || len(c.Audit) == 0 {
			return err
		}
		_, err = reg.Apply(ctx, c)
		if err == nil || !errors.Is(err, registry.ErrConflict) || try == seedTriesMax {
			return err
		}
	}
}

// missing is the change that makes what is not there.
func missing(ctx context.Context, reg registry.Registry, team, operator tenant.Key) (registry.Change, error) {
	c := registry.Change{ID: registry.ID(uuid.New())}
	known, err := reg.Load(ctx, 0)
	if err != nil {
		return c, err
	}
	note := func(of claim.TenantID, action, target string) {
		c.Audit = append(c.Audit, registry.AuditEntry{Tenant: of, Actor: "warifu dev", Action: action, Target: target, Reason: "there was none"})
	}
	dev := claim.TenantID(0)
	for i := range known.Tenants {
		if t := &known.Tenants[i]; !t.Deleted && t.Name == devTenantName && t.State != registry.TenantDeleted {
			dev = t.ID
		}
	}
	if dev == 0 {
		dev = known.LastTenant + 1
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(registry.Tenant{ID: dev, Name: devTenantName, State: registry.TenantActive})}
		note(dev, "tenant.create", devTenantName)
	}
	stored := map[string]bool{}
	for i := range known.Keys {
		stored[known.Keys[i].ID] = !known.Keys[i].Deleted
	}
	for _, k := range []struct {
		key    tenant.Key
		of     claim.TenantID
		scopes tenant.Scope
	}{
		{team, dev, tenant.ScopeClaim | tenant.ScopeRead | tenant.ScopeResolve | tenant.ScopeAdminTenant},
		{operator, 0, tenant.ScopeRead | tenant.ScopeResolve | tenant.ScopeAdminTenant | tenant.ScopeAdminPlatform},
	} {
		if stored[k.key.ID] {
			continue
		}
		c.Keys = append(c.Keys, registry.Put(registry.Key{
			ID: k.key.ID, Tenant: k.of, Secret: registry.Hash(k.key.SecretSHA256), Scopes: k.scopes.Names(), Note: "made by warifu dev",
		}))
		note(k.of, "key.create", k.key.ID)
	}
	return c, nil
}
