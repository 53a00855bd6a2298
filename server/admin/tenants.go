package admin

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// numberTriesMax bounds how often the next tenant number is taken by somebody
// else at the same time.
const numberTriesMax = 8

var limitTenantName = fmt.Sprintf("1-%d characters of [A-Za-z0-9._-]", tenant.NameCharsMax)

var errNameTaken = fault.New(warifuv1.Reason_REASON_ALREADY_EXISTS,
	"another tenant has this name; one that is being deleted keeps it until its records are gone")

// CreateTenant makes a tenant with the next free number.
func (a *platform) CreateTenant(ctx context.Context, m *warifuv1.CreateTenantRequest) (*warifuv1.CreateTenantResponse, error) {
	if err := why(m.GetChange(), false); err != nil {
		return nil, err
	}
	if a.cfg.Configured(m.GetName()) {
		return nil, errNameTaken
	}
	if !tenant.ValidName(m.GetName()) {
		return nil, fault.Invalid("name", limitTenantName)
	}
	for range numberTriesMax {
		w, err := a.maybeOf(ctx, "")
		if err != nil {
			return nil, err
		}
		number, err := a.freeNumber(ctx, max(w.lastTenant, a.cfg.Reserved)+1)
		if err != nil {
			return nil, err
		}
		row := registry.Tenant{
			ID: number, Name: m.GetName(), State: registry.TenantActive, StrictConsumers: m.GetStrictConsumers(),
			Limits: limits(m.GetQuotas()), Note: m.GetNote(),
		}
		if m.GetChange().GetDryRun() {
			if w.byName[row.Name] != nil {
				return nil, errNameTaken
			}
			return &warifuv1.CreateTenantResponse{Tenant: tenantMessage(&row)}, nil
		}
		entry := w.entry("tenant.create", row.Name, m.GetChange(), nil, logged(&row))
		entry.Tenant = row.ID // its team reads it too
		err = a.apply(ctx, registry.Change{
			ID: w.changeID(m), Tenants: []registry.Write[registry.Tenant]{registry.Put(row)}, Audit: []registry.AuditEntry{entry},
		})
		var conflict *registry.ConflictError
		switch {
		case err == nil:
			t, err := a.named(ctx, row.Name)
			return shown(&warifuv1.CreateTenantResponse{Tenant: t}, err)
		case errors.As(err, &conflict) && conflict.Ref == registry.TenantRef(row.ID):
			continue // another was made at the same time
		case errors.As(err, &conflict):
			return nil, errNameTaken
		}
		return nil, writeFault(err)
	}
	return nil, fault.New(warifuv1.Reason_REASON_CONFLICT, "too many tenants are made at once; nothing was applied, ask again")
}

// skippedMax bounds how many numbers are passed over because records have them.
const skippedMax = 1000

// freeNumber returns the first number from at on of which nothing is stored.
// Tenants of a configuration have left records that no row tells of: whoever got
// their number would be given what they stored.
func (a *Admin) freeNumber(ctx context.Context, at claim.TenantID) (claim.TenantID, error) {
	for id := at; id < at+skippedMax; id++ {
		empty, err := a.hasNothing(ctx, id)
		if err != nil {
			return 0, readFault(err)
		}
		if empty {
			return id, nil
		}
	}
	return 0, fault.New(warifuv1.Reason_REASON_PRECONDITION,
		fmt.Sprintf("records without a tenant have the numbers %d to %d: purge them first", at, at+skippedMax-1))
}

// hasNothing reports whether nothing is stored of a number. A step may find
// nothing and not be the last: stores count place by place.
func (a *Admin) hasNothing(ctx context.Context, id claim.TenantID) (bool, error) {
	step := storage.TenantStep{Tenant: id, Limit: storage.TenantStepMax}
	for {
		found, err := a.cfg.Records.Tally(ctx, step)
		if err != nil || len(found.Counts) > 0 {
			return false, err
		}
		if step.Cursor = found.Cursor; step.Cursor == nil {
			return true, nil
		}
	}
}

// logged is a tenant as its own team may read it in the audit log: numbers are
// given out in order, and would say how many tenants there are.
func logged(t *registry.Tenant) *warifuv1.Tenant {
	m := tenantMessage(t)
	m.Id, m.Note = 0, "" // notes are the operator's own
	return m
}

// named returns a tenant as it is now.
func (a *Admin) named(ctx context.Context, name string) (*warifuv1.Tenant, error) {
	k, err := a.look(ctx)
	if err != nil {
		return nil, readFault(err)
	}
	if k.byName[name] == nil {
		return nil, ErrNoTenant
	}
	return tenantMessage(k.byName[name]), nil
}

// GetTenant returns a tenant.
func (a *platform) GetTenant(ctx context.Context, m *warifuv1.GetTenantRequest) (*warifuv1.GetTenantResponse, error) {
	t, err := a.named(ctx, m.GetName())
	return &warifuv1.GetTenantResponse{Tenant: t}, err
}

// ListTenants pages through tenants.
func (a *platform) ListTenants(ctx context.Context, m *warifuv1.ListTenantsRequest) (*warifuv1.ListTenantsResponse, error) {
	w, err := a.maybeOf(ctx, "")
	if err != nil {
		return nil, err
	}
	p, err := a.page(w, "tenants", m.GetPageSize(), m.GetPageToken())
	if err != nil {
		return nil, err
	}
	var after claim.TenantID
	if len(p.cursor) == 8 {
		after = claim.TenantID(binary.BigEndian.Uint64(p.cursor)) //nolint:gosec // we have sealed it
	}
	rows, cursor := cut(w.tenantsAfter(after), p.limit, func(t *registry.Tenant) string {
		return string(binary.BigEndian.AppendUint64(nil, uint64(t.ID))) //nolint:gosec // positive
	})
	res := &warifuv1.ListTenantsResponse{NextPageToken: a.next(&p, cursor)}
	for _, t := range rows {
		res.Tenants = append(res.Tenants, tenantMessage(t))
	}
	return res, nil
}

// UpdateTenant replaces a tenant's settings.
func (a *platform) UpdateTenant(ctx context.Context, m *warifuv1.UpdateTenantRequest) (*warifuv1.UpdateTenantResponse, error) {
	if m.GetNewName() != "" && !tenant.ValidName(m.GetNewName()) {
		return nil, fault.Invalid("new_name", limitTenantName)
	}
	if a.cfg.Configured(m.GetNewName()) {
		return nil, errNameTaken
	}
	t, c, err := a.alter(ctx, []string{m.GetName(), m.GetNewName()}, "tenant.update", m, func(t *registry.Tenant) []string {
		var notes []string
		if m.GetNewName() != "" {
			t.Name = m.GetNewName()
		}
		if m.GetStrictConsumers() && !t.StrictConsumers {
			notes = append(notes, "claims of consumers that are not declared will be refused")
		}
		t.StrictConsumers, t.Limits, t.Note = m.GetStrictConsumers(), limits(m.GetQuotas()), m.GetNote()
		return append(notes, a.overQuota(t)...)
	})
	return &warifuv1.UpdateTenantResponse{Tenant: t, Consequence: c}, err
}

// SuspendTenant refuses a tenant's new claims.
func (a *platform) SuspendTenant(ctx context.Context, m *warifuv1.SuspendTenantRequest) (*warifuv1.SuspendTenantResponse, error) {
	t, c, err := a.alter(ctx, []string{m.GetName()}, "tenant.suspend", m, func(t *registry.Tenant) []string {
		t.State = registry.TenantSuspended
		return []string{"new claims are refused within 5 s; what was granted can be completed, extended and released"}
	})
	return &warifuv1.SuspendTenantResponse{Tenant: t, Consequence: c}, err
}

// ResumeTenant takes a tenant's claims again.
func (a *platform) ResumeTenant(ctx context.Context, m *warifuv1.ResumeTenantRequest) (*warifuv1.ResumeTenantResponse, error) {
	t, _, err := a.alter(ctx, []string{m.GetName()}, "tenant.resume", m, func(t *registry.Tenant) []string {
		t.State = registry.TenantActive
		return nil
	})
	return &warifuv1.ResumeTenantResponse{Tenant: t}, err
}

// DeleteTenant ends a tenant and begins its purge.
func (a *platform) DeleteTenant(ctx context.Context, m *warifuv1.DeleteTenantRequest) (*warifuv1.DeleteTenantResponse, error) {
	if m.GetExpectedId() <= 0 {
		return nil, fault.Invalid("expected_id", "required: the number of the tenant that was looked at")
	}
	t, c, err := a.alter(ctx, []string{m.GetName()}, "tenant.delete", m, func(t *registry.Tenant) []string {
		t.State = registry.TenantDeleting
		return []string{
			"its keys are refused within 5 s, and attempts that work now cannot be completed",
			"its records are purged; this cannot be taken back, and backups keep what they have",
		}
	})
	return &warifuv1.DeleteTenantResponse{Tenant: t, Consequence: c}, err
}

// alter changes one tenant at the version that was looked at. A tenant that is
// renamed is found by its new name where the call was sent before.
func (a *platform) alter(
	ctx context.Context, names []string, action string, req changing, edit func(*registry.Tenant) []string,
) (*warifuv1.Tenant, *warifuv1.Consequence, error) {
	m := req.GetChange()
	if err := why(m, true); err != nil {
		return nil, nil, err
	}
	w, err := a.of(ctx, names[0])
	if errors.Is(err, ErrNoTenant) && len(names) > 1 && names[1] != "" {
		renamed, again := a.of(ctx, names[1])
		if again == nil && renamed.tenant.Change == renamed.changeID(req) {
			w, err = renamed, nil // by this very change
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if d, ok := req.(*warifuv1.DeleteTenantRequest); ok && d.GetExpectedId() != int64(w.id()) {
		return nil, nil, fault.New(warifuv1.Reason_REASON_CONFLICT, "the name belongs to another tenant than the one that was looked at; nothing was applied")
	}
	id := w.changeID(req)
	before, row := w.tenant, *w.tenant
	if before.State == registry.TenantDeleting && action != "tenant.delete" {
		return nil, nil, fault.New(warifuv1.Reason_REASON_PRECONDITION, "the tenant is being deleted, which is not taken back")
	}
	notes := edit(&row)
	c := a.consequence(&row, "", notes)
	if m.GetDryRun() {
		return tenantMessage(&row), c, holds(m, before.Version)
	}
	row.Version = m.GetExpectedVersion()
	entry := w.entry(action, row.Name, m, logged(before), logged(&row))
	entry.Tenant = row.ID // its team reads it too
	change := registry.Change{ID: id, Tenants: []registry.Write[registry.Tenant]{registry.Put(row)}, Audit: []registry.AuditEntry{entry}}
	if row.State == registry.TenantDeleting {
		change.Jobs = []registry.Write[registry.Job]{registry.Put(purgeJob(id, row.ID))}
	}
	if err := a.apply(ctx, change); err != nil {
		return nil, nil, writeFault(err)
	}
	t, err := shown(a.named(ctx, row.Name))
	return t, c, err
}

// overQuota says which quotas are below what is used already.
func (a *Admin) overQuota(t *registry.Tenant) []string {
	u, known := a.usage(t)
	if !known {
		return nil
	}
	var notes []string
	for _, q := range []struct {
		name       string
		used, most int64
	}{
		{"live leases", u.Live, u.Limits.LiveLeases}, {"retained keys", u.Keys, u.Limits.Keys},
		{"stored bytes", u.Bytes, u.Limits.Bytes}, {"claims in doubt", u.InDoubt, u.Limits.InDoubt},
	} {
		if q.most > 0 && q.used > q.most {
			notes = append(notes, fmt.Sprintf("%d %s are above the new quota of %d: new claims are refused, what is stored stays", q.used, q.name, q.most))
		}
	}
	return notes
}

// usage is what is known of a tenant; false when nothing was counted yet.
func (a *Admin) usage(t *registry.Tenant) (quota.Usage, bool) {
	limits := a.cfg.QuotaDefaults.Resolve(t.Limits)
	if a.cfg.Quotas == nil {
		return quota.Usage{Limits: limits}, false
	}
	u := a.cfg.Quotas.Usage(t.ID, &limits)
	return u, u.Report != nil
}

// consequence is what is stored of a tenant, or of one of its consumers.
func (a *Admin) consequence(t *registry.Tenant, consumer string, notes []string) *warifuv1.Consequence {
	c := &warifuv1.Consequence{Notes: notes}
	u, known := a.usage(t)
	if !known {
		c.Notes = append(c.Notes, "nothing was counted yet, so the numbers are not known")
		return c
	}
	counts := u.Counts
	if consumer != "" {
		of := func(line quota.Consumer) bool { return line.Name == consumer }
		i := slices.IndexFunc(u.Report.Consumers, of)
		if counts = u.Report.Rest; i >= 0 {
			counts = u.Report.Consumers[i].Counts
		} else {
			c.Notes = append(c.Notes, "this consumer has no line of its own in the last count: the numbers are those of all that have none")
		}
	}
	c.RetainedKeys, c.LiveLeases, c.InDoubt = counts.Keys, counts.Live, counts.InDoubt
	c.CountedAt = instant(u.Report.Began)
	return c
}

// purgeJob has the ID of the change that asks for it: made once as that is.
func purgeJob(id registry.ID, t claim.TenantID) registry.Job {
	params, _ := json.Marshal(purgeParams{Tenant: t}) //nolint:errchkjson // a number
	return registry.Job{ID: id, Tenant: t, Kind: purgeKind, State: registry.JobPending, Params: params}
}
