package admin

import (
	"context"
	"slices"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/storage/registry"
)

// GetUsage says what the tenant uses of its quotas.
func (a *team) GetUsage(ctx context.Context, m *warifuv1.GetUsageRequest) (*warifuv1.GetUsageResponse, error) {
	w, err := a.of(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	u, known := a.usage(w.tenant)
	res := &warifuv1.GetUsageResponse{TenantVersion: w.tenant.Version, Usage: []*warifuv1.Usage{
		{What: quota.Requests.String(), Used: int64(u.RequestsPerSecond), Limit: u.Limits.Requests},
		{What: quota.Items.String(), Used: int64(u.ItemsPerSecond), Limit: u.Limits.Items},
		{What: quota.LiveLeases.String(), Used: u.Live, Limit: u.Limits.LiveLeases},
		{What: quota.Keys.String(), Used: u.Keys, Limit: u.Limits.Keys},
		{What: quota.Bytes.String(), Used: u.Bytes, Limit: u.Limits.Bytes},
		{What: quota.InDoubt.String(), Used: u.InDoubt, Limit: u.Limits.InDoubt},
	}}
	if !known {
		return res, nil
	}
	res.CountedAt = instant(u.Report.Began)
	lines := append(slices.Clone(u.Report.Consumers), quota.Consumer{Counts: u.Report.Rest})
	for _, c := range lines {
		if c.Counts != (quota.Counts{}) {
			res.Consumers = append(res.Consumers, &warifuv1.ConsumerUsage{
				Consumer: c.Name, RetainedKeys: c.Keys, LiveLeases: c.Live, InDoubt: c.InDoubt, StoredBytes: c.Bytes,
			})
		}
	}
	return res, nil
}

var errNotSealed = fault.New(warifuv1.Reason_REASON_PRECONDITION,
	"results are not sealed on this installation, so there is no key to rotate or destroy; its operator configures one, or forget the claims")

// RotateDataKey has new results sealed with a new key.
func (a *team) RotateDataKey(ctx context.Context, m *warifuv1.RotateDataKeyRequest) (*warifuv1.RotateDataKeyResponse, error) {
	entry, w, err := a.aboutKeys(ctx, "data_key.rotate", m, false)
	if err != nil || m.GetChange().GetDryRun() {
		return &warifuv1.RotateDataKeyResponse{}, err
	}
	id, err := a.cfg.DataKeys.Rotate(ctx, w.id(), m.GetConsumer(), entry)
	if err != nil {
		return nil, writeFault(err)
	}
	return &warifuv1.RotateDataKeyResponse{DataKeyId: id}, nil
}

// ShredResults destroys the keys of stored results.
func (a *team) ShredResults(ctx context.Context, m *warifuv1.ShredResultsRequest) (*warifuv1.ShredResultsResponse, error) {
	entry, w, err := a.aboutKeys(ctx, "results.shred", m, true)
	if err != nil {
		return nil, err
	}
	c := a.consequence(w.tenant, m.GetConsumer(), []string{
		"stored results cannot be read any more, by anybody; duplicates are answered without their result and never granted again",
		"backups of the store lose them too, except where they hold the keys",
	})
	if m.GetChange().GetDryRun() {
		version := w.tenant.Version
		if m.GetConsumer() != "" {
			version = w.consumers[w.id()][m.GetConsumer()].Version
		}
		return &warifuv1.ShredResultsResponse{Consequence: c}, holds(m.GetChange(), version)
	}
	if err := a.cfg.DataKeys.Shred(ctx, w.id(), m.GetConsumer(), m.GetChange().GetExpectedVersion(), entry); err != nil {
		return nil, writeFault(err)
	}
	if err := a.cfg.Refresh(ctx); err != nil {
		a.cfg.Logger.WarnContext(ctx, "keys are destroyed, and this server knows of it a little later", "error", err)
	}
	return &warifuv1.ShredResultsResponse{Consequence: c}, nil
}

// ofKeys is a request about data keys.
type ofKeys interface {
	changing
	GetTenant() string
	GetConsumer() string
}

// aboutKeys checks a change of data keys and makes its audit entry, without
// what it is about: keys are in no log.
func (a *team) aboutKeys(ctx context.Context, action string, m ofKeys, mustLook bool) (registry.AuditEntry, *acting, error) {
	var none registry.AuditEntry
	if err := why(m.GetChange(), mustLook); err != nil {
		return none, nil, err
	}
	w, err := a.of(ctx, m.GetTenant())
	if err != nil {
		return none, nil, err
	}
	if a.cfg.DataKeys == nil {
		return none, nil, errNotSealed
	}
	target := m.GetConsumer()
	if target == "" {
		target = w.tenant.Name
	} else if w.declared(w.id(), target) == nil {
		return none, nil, errNoConsumer
	}
	entry := w.entry(action, target, m.GetChange(), nil, nil)
	entry.Change = w.changeID(m) // the same call, sent again, makes nothing more
	return entry, w, nil
}
