package quota

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// errLost says that another replica counts now.
var errLost = errors.New("the lease is another replica's")

// round is one pass over all tenants. It belongs to one call of take.
type round struct {
	*Census
	fence    claim.Fence
	held     time.Duration // when the lease was last extended
	progress progress

	pending []counted
	since   time.Duration // when the first of pending was counted
}

// counted is a report that is not published yet.
type counted struct {
	tenant Tenant
	report *Report
	began  time.Duration // on this process's clock
}

// take takes the lease and goes on with the round, or begins one.
func (c *Census) take(ctx context.Context) error {
	r := &round{Census: c}
	cursor, err := r.hold(ctx)
	if errors.Is(err, errLost) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() {
		// What others wait for is given back also when this process ends.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		if err := c.cfg.Registry.Unlease(end, LeaseName, r.fence); err != nil {
			c.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "census: give the lease back", slog.Any("error", err))
		}
	}()
	l, err := c.lease(ctx)
	if err != nil {
		return err
	}
	// Somebody may have counted since the look: their rows come first.
	if err := c.catchUp(ctx, l.clock, string(cursor)); err != nil {
		return err
	}
	if len(cursor) == 0 || json.Unmarshal(cursor, &r.progress) != nil || r.progress.Done {
		if r.progress.Done && l.now < r.progress.Began.Add(c.cfg.Interval) {
			return nil
		}
		r.progress = progress{Began: l.now}
	}
	if err := r.run(ctx, c.cfg.Tenants(), l.now); !errors.Is(err, errLost) {
		return err
	}
	return nil // whoever has the lease goes on
}

// hold takes the lease, or extends it when it is time to. It returns the
// cursor.
func (r *round) hold(ctx context.Context) ([]byte, error) {
	now := r.cfg.Quotas.monotonic()
	if r.fence != 0 && now-r.held < leaseTTL/3 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	l, held, err := r.cfg.Registry.Lease(ctx, LeaseName, r.cfg.Owner, leaseTTL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("take the lease: %w", err)
	case !held, r.fence != 0 && l.Fence != r.fence: // it lapsed, and somebody may have counted meanwhile
		return nil, errLost
	}
	r.fence, r.held = l.Fence, now
	return l.Cursor, nil
}

// run counts the tenants behind the progress, in order of IDs.
func (r *round) run(ctx context.Context, tenants []Tenant, now claim.Time) error {
	tenants = slices.SortedFunc(slices.Values(tenants), func(a, b Tenant) int { return cmp.Compare(a.ID, b.ID) })
	failures := 0
	for _, t := range tenants {
		if t.ID <= r.progress.After {
			continue
		}
		n, err := r.count(ctx, t)
		switch {
		case errors.Is(err, errLost), ctx.Err() != nil:
			return err
		case err != nil:
			r.stats.failures.Add(1)
			r.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "census: a tenant is left out of a round",
				slog.Int64("tenant", int64(t.ID)), slog.Any("error", err))
			if failures++; failures >= failuresMax {
				return fmt.Errorf("leave the round: %w", err)
			}
			continue
		}
		failures = 0
		if err := r.add(ctx, n); err != nil {
			return err
		}
	}
	if err := r.publish(ctx); err != nil {
		return err
	}
	if err := r.end(ctx, tenants, now); err != nil {
		return err
	}
	r.progress.Done = true
	if err := r.save(ctx); err != nil {
		return err
	}
	r.stats.rounds.Add(1)
	return nil
}

// count counts one tenant, step by step.
func (r *round) count(ctx context.Context, t Tenant) (counted, error) {
	n := counted{tenant: t, began: r.cfg.Quotas.monotonic()}
	var sum tally
	step := storage.TenantStep{Tenant: t.ID, Limit: storage.TenantStepMax}
	for {
		if _, err := r.hold(ctx); err != nil {
			return n, err
		}
		began := r.cfg.Quotas.monotonic()
		tallied, err := r.tally(ctx, step)
		if err != nil {
			return n, fmt.Errorf("tally: %w", err)
		}
		r.stats.steps.Add(1)
		sum.add(&tallied)
		took := r.cfg.Quotas.monotonic() - began
		if err := r.rest(ctx, min(max(r.cfg.Pause, restShare*took), restMax)); err != nil {
			return n, err
		}
		if step.Cursor = tallied.Cursor; step.Cursor == nil {
			n.report = sum.done()
			return n, nil
		}
	}
}

func (r *round) tally(ctx context.Context, step storage.TenantStep) (storage.Tallied, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.cfg.Store.Tally(ctx, step)
}

// add keeps a report until it is worth a write.
func (r *round) add(ctx context.Context, n counted) error {
	now := r.cfg.Quotas.monotonic()
	if len(r.pending) == 0 {
		r.since = now
	}
	r.pending = append(r.pending, n)
	if len(r.pending) < publishRowsMax && now-r.since < publishAgeMax {
		return nil
	}
	return r.publish(ctx)
}

// save stores the progress, and shows others that there is something to read.
func (r *round) save(ctx context.Context) error {
	cursor, err := json.Marshal(&r.progress)
	if err != nil {
		return fmt.Errorf("save the cursor: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	saved, err := r.cfg.Registry.SaveCursor(ctx, LeaseName, r.fence, cursor)
	switch {
	case err != nil:
		return fmt.Errorf("save the cursor: %w", err)
	case !saved:
		return errLost
	}
	r.seen = string(cursor) // what was published here is known here
	return nil
}

// end takes the rows of tenants that are gone out of the running ones, with
// what they said of them.
func (r *round) end(ctx context.Context, tenants []Tenant, now claim.Time) error {
	there := make(map[claim.TenantID]bool, len(tenants))
	for i := range tenants {
		there[tenants[i].ID] = true
	}
	var gone []registry.Job
	for id, head := range r.heads {
		// A tenant that is not in this replica's table yet is not gone: another
		// replica has counted it lately.
		if !there[id] && head.Updated.Add(r.cfg.Interval) <= now {
			gone = append(gone, registry.Job{Head: head, ID: JobID(id), Tenant: id, Kind: JobKind, State: registry.JobDone})
		}
	}
	for jobs := range slices.Chunk(gone, publishRowsMax) {
		_, err := r.apply(ctx, jobs)
		if errors.Is(err, registry.ErrConflict) { // the next round ends them
			return r.readAgain(ctx, registry.JobRunning)
		}
		if err != nil {
			return err
		}
		for i := range jobs {
			delete(r.heads, jobs[i].Tenant)
		}
	}
	return nil
}
