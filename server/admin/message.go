package admin

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// instant is nil for 0.
func instant(t claim.Time) *timestamppb.Timestamp {
	if t == 0 {
		return nil
	}
	return timestamppb.New(t.Std())
}

// length is nil for 0.
func length(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

var tenantStates = map[registry.TenantState]warifuv1.TenantState{
	registry.TenantActive: warifuv1.TenantState_TENANT_STATE_ACTIVE, registry.TenantSuspended: warifuv1.TenantState_TENANT_STATE_SUSPENDED,
	registry.TenantDeleting: warifuv1.TenantState_TENANT_STATE_DELETING, registry.TenantDeleted: warifuv1.TenantState_TENANT_STATE_DELETED,
}

func tenantMessage(t *registry.Tenant) *warifuv1.Tenant {
	if t == nil {
		return nil
	}
	return &warifuv1.Tenant{
		Id: int64(t.ID), Name: t.Name, State: tenantStates[t.State], StrictConsumers: t.StrictConsumers, Note: t.Note,
		Quotas: &warifuv1.Quotas{
			RequestsPerSecond: t.RequestsPerSecond, ItemsPerSecond: t.ItemsPerSecond, LiveLeasesMax: t.LiveLeasesMax,
			RetainedKeysMax: t.KeysMax, StoredBytesMax: t.BytesMax, InDoubtMax: t.InDoubtMax,
		},
		Version: t.Version, CreatedAt: instant(t.Created), UpdatedAt: instant(t.Updated),
	}
}

func limits(q *warifuv1.Quotas) registry.Limits {
	return registry.Limits{
		RequestsPerSecond: q.GetRequestsPerSecond(), ItemsPerSecond: q.GetItemsPerSecond(), LiveLeasesMax: q.GetLiveLeasesMax(),
		KeysMax: q.GetRetainedKeysMax(), BytesMax: q.GetStoredBytesMax(), InDoubtMax: q.GetInDoubtMax(),
	}
}

func consumerMessage(c *registry.Consumer) *warifuv1.Consumer {
	if c == nil {
		return nil
	}
	p := &warifuv1.ConsumerPolicy{
		OnLeaseLoss: warifuv1.OnLeaseLoss_ON_LEASE_LOSS_REGRANT, OnUnavailable: warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_CLOSED,
		AcceptHoldFailOpen: c.AcceptHoldFailOpen, RedeliveryWindow: length(c.Window), Retention: length(c.Retention),
		LeaseDefault: length(c.LeaseDefault), LeaseMax: length(c.LeaseMax), HoldMax: length(c.HoldMax), AttemptsMax: c.AttemptsMax,
		ResultBytesMax: uint32(c.ResultBytesMax), DigestRequired: c.DigestRequired, AcceptNoCommonScheme: c.AcceptNoCommonScheme, //nolint:gosec // never negative
	}
	if c.Hold {
		p.OnLeaseLoss = warifuv1.OnLeaseLoss_ON_LEASE_LOSS_HOLD
	}
	if c.OnUnavailable == registry.FailOpen {
		p.OnUnavailable = warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_OPEN
	}
	return &warifuv1.Consumer{
		Name: c.Name, Policy: p, Note: c.Note, Version: c.Version, CreatedAt: instant(c.Created), UpdatedAt: instant(c.Updated),
		PolicyVersion: tenant.PolicyVersion(c),
	}
}

func keyMessage(k *registry.Key, used claim.Time) *warifuv1.Key {
	if k == nil {
		return nil
	}
	return &warifuv1.Key{
		Id: k.ID, Scopes: k.Scopes, ConsumerPrefix: k.ConsumerPrefix, ExpiresAt: instant(k.Expires), RevokedAt: instant(k.Revoked),
		LastUsedAt: instant(used), CreatedAt: instant(k.Created), Note: k.Note, Version: k.Version,
	}
}

var findingStates = map[registry.FindingState]warifuv1.FindingState{
	registry.FindingOpen: warifuv1.FindingState_FINDING_STATE_OPEN, registry.FindingAssigned: warifuv1.FindingState_FINDING_STATE_ASSIGNED,
	registry.FindingResolved: warifuv1.FindingState_FINDING_STATE_RESOLVED,
}

func findingMessage(f *registry.Finding) *warifuv1.Finding {
	return &warifuv1.Finding{
		Id: f.ID.String(), Kind: f.Kind, State: findingStates[f.State], Consumer: f.Consumer, EventId: f.EventID, Assignee: f.Assignee,
		Details: string(f.Details), CreatedAt: instant(f.Created), UpdatedAt: instant(f.Updated), Version: f.Version,
	}
}

func auditMessage(e *registry.AuditEntry) *warifuv1.AuditEntry {
	return &warifuv1.AuditEntry{
		At: instant(e.At), Actor: e.Actor, Action: e.Action, Target: e.Target, Reason: e.Reason, RequestId: e.RequestID,
		Before: string(e.Before), After: string(e.After), ChangeId: e.Change.String(),
	}
}

var jobStates = map[registry.JobState]warifuv1.JobState{
	registry.JobPending: warifuv1.JobState_JOB_STATE_PENDING, registry.JobRunning: warifuv1.JobState_JOB_STATE_RUNNING,
	registry.JobDone: warifuv1.JobState_JOB_STATE_DONE, registry.JobFailed: warifuv1.JobState_JOB_STATE_FAILED,
	registry.JobCancelled: warifuv1.JobState_JOB_STATE_CANCELLED,
}

func jobMessage(j *registry.Job) *warifuv1.Job {
	return &warifuv1.Job{
		Id: j.ID.String(), Kind: j.Kind, State: jobStates[j.State], TenantId: int64(j.Tenant), Done: j.Done, Total: j.Total,
		Error: j.Error, CreatedAt: instant(j.Created), UpdatedAt: instant(j.Updated),
	}
}

// wordOf finds the registry's word for one of the API's; false for an unknown one.
func wordOf[R comparable, W comparable](words map[R]W, w W) (R, bool) {
	for r, word := range words {
		if word == w {
			return r, true
		}
	}
	var none R
	return none, false
}
