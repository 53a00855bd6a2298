package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// Records are what is stored of tenants. storage.Store has them.
type Records interface {
	Purge(ctx context.Context, s storage.TenantStep) (storage.Purged, error)
	Tally(ctx context.Context, s storage.TenantStep) (storage.Tallied, error)
}

const (
	purgeKind = "tenant.purge"
	// purgeDelay is how long a tenant is left alone after its deletion: servers
	// learn of it within 5 s, and calls that began before end within their
	// longest time.
	purgeDelay = time.Minute
	// purgeEvery is how often work is looked for; purgeLease is how long another
	// server waits for one that has died.
	purgeEvery = 30 * time.Second
	purgeLease = 2 * time.Minute
	purgeStep  = storage.TenantStepMax
	purgePause = 20 * time.Millisecond // between steps: traffic comes first
	// purgeSaveSteps is how many steps are lost at the most when a server dies.
	purgeSaveSteps = 50
	purgeActor     = "warifu"
	// jobPagesMax bounds how many jobs are looked through.
	jobPagesMax = 1000
)

// purgeParams is what a purge has to know.
type purgeParams struct {
	Tenant claim.TenantID `json:"tenant"`
}

// Run purges deleted tenants until ctx ends. Any number of servers may run it:
// one at a time has the lease, and two would do no harm.
func (a *Admin) Run(ctx context.Context) error {
	for {
		if err := a.purgeAll(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Logger.WarnContext(ctx, "purging tenants goes on later", "error", err)
		}
		if err := a.cfg.Pause(ctx, purgeEvery); ctx.Err() != nil {
			return nil //nolint:nilerr // that it was asked to end is no fault
		} else if err != nil {
			return err
		}
	}
}

// purgeAll does what there is to do, if no other server does it.
func (a *Admin) purgeAll(ctx context.Context) error {
	q := registry.JobQuery{
		Scope: registry.Platform(), States: []registry.JobState{registry.JobPending, registry.JobRunning}, Limit: registry.PageMax,
	}
	var jobs []registry.Job
	for range jobPagesMax {
		page, err := a.cfg.Registry.Jobs(ctx, q)
		if err != nil {
			return err
		}
		for _, j := range page.Jobs {
			if j.Kind == purgeKind {
				jobs = append(jobs, j)
			}
		}
		if q.Cursor = page.Cursor; q.Cursor == nil {
			break
		}
	}
	var faults []error
	for _, j := range slices.Backward(jobs) { // the oldest first; one that fails holds up no other
		if err := a.purgeAlone(ctx, &j); err != nil {
			faults = append(faults, fmt.Errorf("job %s: %w", j.ID, err))
		}
	}
	return errors.Join(faults...)
}

// purgeAlone does one job under the lease; another server may have it.
func (a *Admin) purgeAlone(ctx context.Context, j *registry.Job) error {
	lease, held, err := a.cfg.Registry.Lease(ctx, purgeKind, a.cfg.Owner, purgeLease)
	if err != nil || !held {
		return err
	}
	err = a.purge(ctx, j)
	if endErr := a.cfg.Registry.Unlease(context.WithoutCancel(ctx), purgeKind, lease.Fence); endErr != nil {
		err = errors.Join(err, fmt.Errorf("end the lease: %w", endErr))
	}
	return err
}

// purge does one job, from where it stopped.
func (a *Admin) purge(ctx context.Context, j *registry.Job) error {
	var p purgeParams
	if err := json.Unmarshal(j.Params, &p); err != nil || p.Tenant == 0 {
		j.State, j.Error = registry.JobFailed, "its parameters cannot be read"
		return a.saveJob(ctx, j)
	}
	now, err := a.storeTime(ctx)
	if err != nil || now < j.Created.Add(purgeDelay) {
		return err
	}
	j.State = registry.JobRunning
	for n := 1; ; n++ {
		step, err := a.cfg.Records.Purge(ctx, storage.TenantStep{Tenant: p.Tenant, Cursor: j.Cursor, Limit: purgeStep})
		if errors.Is(err, storage.ErrCursor) && j.Cursor != nil {
			j.Cursor = nil // begin again: what is gone is gone
			continue
		}
		if err != nil {
			return errors.Join(err, a.saveJob(ctx, j))
		}
		j.Done, j.Cursor = j.Done+int64(step.Deleted), step.Cursor
		if step.Cursor == nil {
			break
		}
		if n%purgeSaveSteps == 0 {
			if _, held, err := a.cfg.Registry.Lease(ctx, purgeKind, a.cfg.Owner, purgeLease); err != nil || !held {
				return err
			}
			if err := a.saveJob(ctx, j); err != nil {
				return err
			}
		}
		if err := a.cfg.Pause(ctx, purgePause); err != nil {
			return errors.Join(err, a.saveJob(context.WithoutCancel(ctx), j))
		}
	}
	return a.bury(ctx, j, p.Tenant)
}

// storeTime is the time of the registry, by which rows are dated.
func (a *Admin) storeTime(ctx context.Context) (claim.Time, error) {
	l, err := a.cfg.Registry.Leases(ctx)
	return l.Now, err
}

// saveJob stores how far a job is, and takes its new version over.
func (a *Admin) saveJob(ctx context.Context, j *registry.Job) error {
	if err := a.apply(ctx, registry.Change{ID: newID(), Jobs: []registry.Write[registry.Job]{registry.Put(*j)}}); err != nil {
		return fmt.Errorf("save a job: %w", err)
	}
	j.Version++
	return nil
}

// bury deletes the rows of a tenant without records, and gives its name free.
func (a *Admin) bury(ctx context.Context, j *registry.Job, t claim.TenantID) error {
	if err := a.buryFindings(ctx, t); err != nil {
		return err
	}
	k, err := a.look(ctx)
	if err != nil {
		return err
	}
	var c registry.Change
	flush := func(atLeast int) error {
		if len(c.Consumers)+len(c.Keys) < atLeast {
			return nil
		}
		c.ID, c.Audit = newID(), purged(t)
		err := a.apply(ctx, c)
		c = registry.Change{}
		return err
	}
	const batch = registry.ChangeRowsMax / 2
	for _, row := range k.consumers[t] { // retired ones too
		c.Consumers = append(c.Consumers, registry.Delete(*row))
		if err := flush(batch); err != nil {
			return err
		}
	}
	for _, row := range k.keysOf(t, "") {
		c.Keys = append(c.Keys, registry.Delete(*row))
		if err := flush(batch); err != nil {
			return err
		}
	}
	if row := k.tenants[t]; row != nil && row.State == registry.TenantDeleting {
		gone := *row
		gone.State, gone.DataKeys = registry.TenantDeleted, nil
		for _, k := range row.DataKeys { // there is nothing left that they open
			k.Wrapped = nil
			if k.Shredded == 0 {
				k.Shredded = claim.FromTime(a.cfg.Clock())
			}
			gone.DataKeys = append(gone.DataKeys, k)
		}
		c.Tenants = []registry.Write[registry.Tenant]{registry.Put(gone)}
	}
	j.State, j.Cursor, j.Error = registry.JobDone, nil, ""
	c.Jobs = []registry.Write[registry.Job]{registry.Put(*j)}
	if err := flush(0); err != nil {
		return err
	}
	a.cfg.Logger.InfoContext(ctx, "a tenant is purged", "tenant", int64(t), "records", j.Done)
	return nil
}

// buryFindings deletes what was found about a tenant: findings name events.
func (a *Admin) buryFindings(ctx context.Context, t claim.TenantID) error {
	for range jobPagesMax {
		page, err := a.cfg.Registry.Findings(ctx, registry.FindingQuery{Scope: registry.Of(t), Limit: registry.ChangeRowsMax / 2})
		if err != nil || len(page.Findings) == 0 {
			return err
		}
		c := registry.Change{ID: newID(), Audit: purged(t)}
		for i := range page.Findings {
			c.Findings = append(c.Findings, registry.Delete(page.Findings[i]))
		}
		if err := a.apply(ctx, c); err != nil {
			return fmt.Errorf("delete findings: %w", err)
		}
	}
	return errors.New("there are more findings than one job deletes")
}

func purged(t claim.TenantID) []registry.AuditEntry {
	return []registry.AuditEntry{{Tenant: t, Actor: purgeActor, Action: purgeKind, Reason: "the tenant was deleted"}}
}
