package main

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func (f *fakeAPI) CreateTenant(ctx context.Context, m *warifuv1.CreateTenantRequest) (*warifuv1.CreateTenantResponse, error) {
	err := f.begin(ctx, "CreateTenant", m)
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if f.mu.tenants[m.GetName()] != nil && !f.mu.made[m.GetChange().GetChangeId()] {
		return nil, refusal(warifuv1.Reason_REASON_ALREADY_EXISTS)
	}
	if _, err := f.version(m.GetChange(), 0); err != nil {
		return nil, err
	}
	t := &warifuv1.Tenant{
		Id: int64(len(f.mu.tenants) + 1), Name: m.GetName(), State: warifuv1.TenantState_TENANT_STATE_ACTIVE,
		StrictConsumers: m.GetStrictConsumers(), Quotas: m.GetQuotas(), Note: m.GetNote(), Version: 1,
	}
	if !m.GetChange().GetDryRun() {
		f.mu.tenants[t.GetName()] = t
	}
	return &warifuv1.CreateTenantResponse{Tenant: t}, nil
}

func (f *fakeAPI) GetTenant(ctx context.Context, m *warifuv1.GetTenantRequest) (*warifuv1.GetTenantResponse, error) {
	err := f.begin(ctx, "GetTenant", m)
	defer f.mu.Unlock()
	if err == nil && f.mu.tenants[m.GetName()] == nil {
		err = refusal(warifuv1.Reason_REASON_NOT_FOUND)
	}
	return &warifuv1.GetTenantResponse{Tenant: proto.CloneOf(f.mu.tenants[m.GetName()])}, err
}

func (f *fakeAPI) ListTenants(ctx context.Context, m *warifuv1.ListTenantsRequest) (*warifuv1.ListTenantsResponse, error) {
	err := f.begin(ctx, "ListTenants", m)
	defer f.mu.Unlock()
	var all []*warifuv1.Tenant
	for _, t := range f.mu.tenants {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *warifuv1.Tenant) int { return cmp.Compare(a.GetId(), b.GetId()) })
	on, next := cutPage(all, m.GetPageSize(), m.GetPageToken())
	return &warifuv1.ListTenantsResponse{Tenants: on, NextPageToken: next}, err
}

// alter changes a tenant under its version.
func (f *fakeAPI) alter(name string, c *warifuv1.Change, edit func(*warifuv1.Tenant)) (*warifuv1.Tenant, *warifuv1.Consequence, error) {
	t := f.mu.tenants[name]
	if t == nil {
		return nil, nil, refusal(warifuv1.Reason_REASON_NOT_FOUND)
	}
	made, err := f.version(c, t.GetVersion())
	if err != nil || made {
		return t, fakeConsequence, err
	}
	next := proto.CloneOf(t)
	edit(next)
	if !c.GetDryRun() {
		next.Version++
		delete(f.mu.tenants, name)
		f.mu.tenants[next.GetName()] = next
	}
	return next, fakeConsequence, nil
}

func (f *fakeAPI) UpdateTenant(ctx context.Context, m *warifuv1.UpdateTenantRequest) (*warifuv1.UpdateTenantResponse, error) {
	err := f.begin(ctx, "UpdateTenant", m)
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	t, c, err := f.alter(m.GetName(), m.GetChange(), func(t *warifuv1.Tenant) {
		t.Name = cmp.Or(m.GetNewName(), t.GetName())
		t.StrictConsumers, t.Quotas, t.Note = m.GetStrictConsumers(), m.GetQuotas(), m.GetNote()
	})
	return &warifuv1.UpdateTenantResponse{Tenant: t, Consequence: c}, err
}

func (f *fakeAPI) SuspendTenant(ctx context.Context, m *warifuv1.SuspendTenantRequest) (*warifuv1.SuspendTenantResponse, error) {
	err := f.begin(ctx, "SuspendTenant", m)
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	t, c, err := f.alter(m.GetName(), m.GetChange(), func(t *warifuv1.Tenant) { t.State = warifuv1.TenantState_TENANT_STATE_SUSPENDED })
	return &warifuv1.SuspendTenantResponse{Tenant: t, Consequence: c}, err
}

func (f *fakeAPI) ResumeTenant(ctx context.Context, m *warifuv1.ResumeTenantRequest) (*warifuv1.ResumeTenantResponse, error) {
	err := f.begin(ctx, "ResumeTenant", m)
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	t, _, err := f.alter(m.GetName(), m.GetChange(), func(t *warifuv1.Tenant) { t.State = warifuv1.TenantState_TENANT_STATE_ACTIVE })
	return &warifuv1.ResumeTenantResponse{Tenant: t}, err
}

func (f *fakeAPI) DeleteTenant(ctx context.Context, m *warifuv1.DeleteTenantRequest) (*warifuv1.DeleteTenantResponse, error) {
	err := f.begin(ctx, "DeleteTenant", m)
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	t, c, err := f.alter(m.GetName(), m.GetChange(), func(t *warifuv1.Tenant) { t.State = warifuv1.TenantState_TENANT_STATE_DELETING })
	return &warifuv1.DeleteTenantResponse{Tenant: t, Consequence: c}, err
}

func (f *fakeAPI) ListJobs(ctx context.Context, m *warifuv1.ListJobsRequest) (*warifuv1.ListJobsResponse, error) {
	err := f.begin(ctx, "ListJobs", m)
	defer f.mu.Unlock()
	return &warifuv1.ListJobsResponse{Jobs: []*warifuv1.Job{
		{Id: "j1", Kind: "tenant.purge", State: warifuv1.JobState_JOB_STATE_RUNNING, TenantId: 7, Done: 5, Total: 9},
	}}, err
}
