package quota

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// FindingPercent is how full a quota of keys, bytes or doubt is when a finding
// is raised. People resolve it.
const FindingPercent = 80

// publish writes the pending reports, holds quotas to them, and raises what
// they show.
func (r *round) publish(ctx context.Context) error {
	if len(r.pending) == 0 {
		return nil
	}
	if _, err := r.hold(ctx); err != nil {
		return err
	}
	err := r.write(ctx)
	if errors.Is(err, registry.ErrConflict) {
		// Somebody wrote them meanwhile, or a row was ended and its tenant is
		// back: once more, on what is stored.
		if err := r.readAgain(ctx, registry.JobRunning, registry.JobDone); err != nil {
			return err
		}
		err = r.write(ctx)
	}
	if err != nil {
		return fmt.Errorf("publish reports: %w", err)
	}
	for _, n := range r.pending {
		r.cfg.Quotas.adopt(n.tenant.ID, n.report, n.began)
		r.findings(ctx, &n)
	}
	r.stats.tenants.Add(int64(len(r.pending)))
	r.progress.After = r.pending[len(r.pending)-1].tenant.ID
	r.pending = nil
	return r.save(ctx)
}

// readAgain learns what the rows in these states are now.
func (r *round) readAgain(ctx context.Context, states ...registry.JobState) error {
	l, err := r.lease(ctx)
	if err != nil {
		return err
	}
	return r.read(ctx, l.clock, states...)
}

// write puts the pending reports in one change.
func (r *round) write(ctx context.Context) error {
	jobs := make([]registry.Job, 0, len(r.pending))
	for _, n := range r.pending {
		params, err := json.Marshal(n.report)
		if err != nil {
			return fmt.Errorf("encode a report: %w", err)
		}
		jobs = append(jobs, registry.Job{
			Head: r.heads[n.tenant.ID], ID: JobID(n.tenant.ID), Tenant: n.tenant.ID,
			Kind: JobKind, State: registry.JobRunning, Params: params,
		})
	}
	made, err := r.apply(ctx, jobs)
	if err != nil {
		return err
	}
	for i := range jobs {
		head := jobs[i].Head
		head.Version, head.Updated = head.Version+1, made.At
		r.heads[jobs[i].Tenant] = head
	}
	return nil
}

func (r *round) apply(ctx context.Context, jobs []registry.Job) (registry.Applied, error) {
	c := registry.Change{ID: newChangeID()}
	for i := range jobs {
		c.Jobs = append(c.Jobs, registry.Put(jobs[i]))
	}
	return r.send(ctx, c)
}

// send makes a Change, asking again where the answer is missing.
func (r *round) send(ctx context.Context, c registry.Change) (registry.Applied, error) {
	for try := 1; ; try++ {
		made, err := r.sendOnce(ctx, c)
		again := errors.Is(err, storage.ErrUnknown) || errors.Is(err, storage.ErrUnavailable)
		if !again || try == applyTries || r.rest(ctx, r.cfg.Pause*10) != nil {
			return made, err
		}
	}
}

func (r *round) sendOnce(ctx context.Context, c registry.Change) (registry.Applied, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.cfg.Registry.Apply(ctx, c)
}

func newChangeID() (id registry.ID) {
	_, _ = rand.Read(id[:]) // never fails: it ends the process instead
	return id
}

// findingDetails are what a finding says of the quota.
type findingDetails struct {
	Quota string `json:"quota"`
	Used  int64  `json:"used"`
	Limit int64  `json:"limit"`
}

// findings raises what a report shows. One that fails is raised by the next
// round; one that was raised before is a conflict.
func (r *round) findings(ctx context.Context, n *counted) {
	if month := n.report.Ended.Std().Format("2006-01"); month != r.month {
		r.month = month
		clear(r.raised)
	}
	total, l := &n.report.Total, &n.tenant.Limits
	for _, q := range []struct {
		what        What
		used, limit int64
	}{{Keys, total.Keys, l.Keys}, {Bytes, total.Bytes, l.Bytes}, {InDoubt, total.InDoubt, l.InDoubt}} {
		id := FindingID(n.tenant.ID, q.what, n.report.Ended)
		if !near(q.used, q.limit) || r.raised[id] {
			continue
		}
		err := r.raise(ctx, id, n.tenant.ID, q.what, findingDetails{q.what.String(), q.used, q.limit})
		switch {
		case err == nil:
			r.stats.findings.Add(1)
		case !errors.Is(err, registry.ErrConflict): // it is there, or its tenant is not
			r.stats.failures.Add(1)
			r.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "census: raise a finding", slog.Any("error", err))
			continue
		}
		r.raised[id] = true
	}
}

// near reports whether a quota is at FindingPercent or above. A limit of 0 is
// none.
func near(used, limit int64) bool {
	return limit > 0 && float64(used) >= float64(limit)*FindingPercent/100
}

func (r *round) raise(ctx context.Context, id registry.ID, tenant claim.TenantID, what What, d findingDetails) error {
	details, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode a finding: %w", err)
	}
	f := registry.Finding{ID: id, Tenant: tenant, Kind: "quota." + what.String(), State: registry.FindingOpen, Details: details}
	_, err = r.send(ctx, registry.Change{ID: newChangeID(), Findings: []registry.Write[registry.Finding]{registry.Put(f)}})
	return err
}
