package admin

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

const (
	// raiseAllowance is added to the time at which retention is raised: until
	// every server knows of it, keys are still remembered for the old one. It is
	// far above the 5 s in which they do, and above what clocks differ by.
	raiseAllowance = 5 * time.Minute
	// consumersMax and keysMax are how many rows of a kind a tenant may have:
	// each is in the memory of every server.
	consumersMax = 10_000
	keysMax      = 1_000
	// retentionMax keeps expiries far from the end of time.
	retentionMax = 10 * 366 * 24 * time.Hour
)

var limitConsumer = fmt.Sprintf("1-%d characters of [A-Za-z0-9._/-]", claim.ConsumerCharsMax)

var errNoConsumer = fault.New(warifuv1.Reason_REASON_NOT_FOUND, "no consumer of this name is declared")

// PutConsumer declares a consumer, or replaces its policy.
func (a *team) PutConsumer(ctx context.Context, m *warifuv1.PutConsumerRequest) (*warifuv1.PutConsumerResponse, error) {
	if err := why(m.GetChange(), false); err != nil {
		return nil, err
	}
	w, err := a.of(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	if err := w.takesNew(len(w.consumers[w.id()]), consumersMax, "consumers"); err != nil {
		return nil, err
	}
	before := w.consumers[w.id()][m.GetName()] // a retired one too
	row, err := a.policy(m, before)
	if err != nil {
		return nil, err
	}
	row.Tenant, row.Name, row.Note, row.Retired = w.id(), m.GetName(), m.GetNote(), false
	if err := tenant.CheckConsumer(&row); err != nil {
		return nil, fault.Invalid("policy", err.Error())
	}
	c := a.consequence(w.tenant, row.Name, notes(before, &row))
	if m.GetChange().GetDryRun() {
		version := int64(0)
		if d := w.declared(w.id(), m.GetName()); d != nil {
			version = d.Version
		}
		return &warifuv1.PutConsumerResponse{Consumer: consumerMessage(&row), Consequence: c}, holds(m.GetChange(), version)
	}
	if row.Version = m.GetChange().GetExpectedVersion(); row.Version == 0 && before != nil && before.Retired {
		row.Version = before.Version // for the caller there is none
	}
	err = a.apply(ctx, registry.Change{
		ID: w.changeID(m), Consumers: []registry.Write[registry.Consumer]{registry.Put(row)},
		Audit: []registry.AuditEntry{w.entry("consumer.put", row.Name, m.GetChange(), consumerMessage(w.declared(row.Tenant, row.Name)), consumerMessage(&row))},
	})
	if err != nil {
		return nil, writeFault(err)
	}
	stored, err := a.consumer(ctx, row.Tenant, row.Name)
	return shown(&warifuv1.PutConsumerResponse{Consumer: stored, Consequence: c}, err)
}

// policy is what a request declares, with the history and the unknown fields of
// the row before.
func (a *Admin) policy(m *warifuv1.PutConsumerRequest, before *registry.Consumer) (registry.Consumer, error) {
	if !tenant.ValidConsumer(m.GetName()) {
		return registry.Consumer{}, fault.Invalid("name", limitConsumer)
	}
	row := registry.Consumer{}
	if before != nil {
		row = *before
	}
	p := m.GetPolicy()
	switch p.GetOnLeaseLoss() {
	case warifuv1.OnLeaseLoss_ON_LEASE_LOSS_UNSPECIFIED, warifuv1.OnLeaseLoss_ON_LEASE_LOSS_REGRANT:
		row.Hold = false
	case warifuv1.OnLeaseLoss_ON_LEASE_LOSS_HOLD:
		row.Hold = true
	default:
		return row, fault.Invalid("policy.on_lease_loss", "ON_LEASE_LOSS_REGRANT or ON_LEASE_LOSS_HOLD")
	}
	switch p.GetOnUnavailable() {
	case warifuv1.OnUnavailable_ON_UNAVAILABLE_UNSPECIFIED, warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_CLOSED:
		row.OnUnavailable = registry.FailClosed
	case warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_OPEN:
		row.OnUnavailable = registry.FailOpen
	default:
		return row, fault.Invalid("policy.on_unavailable", "ON_UNAVAILABLE_FAIL_CLOSED or ON_UNAVAILABLE_FAIL_OPEN")
	}
	if p.GetResultBytesMax() > claim.ResultBytesMax {
		return row, fault.Invalid("policy.result_bytes_max", fmt.Sprintf("0-%d", claim.ResultBytesMax))
	}
	row.AcceptHoldFailOpen, row.AttemptsMax, row.ResultBytesMax = p.GetAcceptHoldFailOpen(), p.GetAttemptsMax(), int32(p.GetResultBytesMax()) //nolint:gosec // checked above
	row.DigestRequired, row.AcceptNoCommonScheme = p.GetDigestRequired(), p.GetAcceptNoCommonScheme()
	old := remembered(before)
	for field, d := range map[string]struct {
		from *durationpb.Duration
		to   *time.Duration
	}{
		"redelivery_window": {p.GetRedeliveryWindow(), &row.Window}, "retention": {p.GetRetention(), &row.Retention},
		"lease_default": {p.GetLeaseDefault(), &row.LeaseDefault}, "lease_max": {p.GetLeaseMax(), &row.LeaseMax}, "hold_max": {p.GetHoldMax(), &row.HoldMax},
	} {
		if d.from.CheckValid() != nil && d.from != nil || d.from.AsDuration() < 0 {
			return row, fault.Invalid("policy."+field, "a length of time, not negative")
		}
		*d.to = d.from.AsDuration()
	}
	switch now := tenant.EffectiveRetention(&row); {
	case now > retentionMax:
		return row, fault.Invalid("policy.retention", fmt.Sprintf("at most %v", retentionMax))
	case now > old:
		return row, a.raise(&row, old)
	}
	return row, nil
}

// remembered is for how long keys of a consumer have been remembered so far:
// before it was declared, and after its declaration was taken back, as the
// default policy says.
func remembered(before *registry.Consumer) time.Duration {
	if before == nil {
		before = &registry.Consumer{}
	}
	return tenant.EffectiveRetention(before)
}

// raise notes that retention was raised: what was forgotten under the old one
// stays forgotten, and the horizon knows.
func (a *Admin) raise(row *registry.Consumer, from time.Duration) error {
	at := claim.FromTime(a.cfg.Clock().Add(raiseAllowance))
	var kept []registry.Raise
	for _, r := range row.Raises {
		if at.Sub(r.At) < tenant.EffectiveRetention(row) { // older ones no longer matter
			kept = append(kept, r)
			at = max(at, r.At)
		}
	}
	if len(kept) >= registry.RaisesMax {
		return fault.New(warifuv1.Reason_REASON_PRECONDITION,
			fmt.Sprintf("retention was raised %d times within one retention; wait, or raise it further at once later", len(kept)))
	}
	kept = append(kept, registry.Raise{At: at, From: from})
	row.Raises = kept
	return nil
}

// notes says what a new policy means for what is stored.
func notes(before, row *registry.Consumer) []string {
	if before == nil {
		return nil
	}
	var out []string
	if old, now := tenant.EffectiveRetention(before), tenant.EffectiveRetention(row); now < old {
		out = append(out, fmt.Sprintf("retention is shortened from %v to %v for new records; those stored keep theirs, and events older than %v are TOO_OLD where nothing is known of them", old, now, now))
	} else if now > old {
		out = append(out, fmt.Sprintf("retention is raised from %v to %v for new records; what was forgotten before stays forgotten, and the horizon takes that into account", old, now))
	}
	if before.Hold != row.Hold {
		out = append(out, "claims that are granted from now on follow the new rule for lost leases; those granted before keep the old one")
	}
	if before.OnUnavailable != row.OnUnavailable {
		out = append(out, "clients learn of the new failure policy with their next refresh")
	}
	return out
}

// consumer returns a declared consumer as it is now.
func (a *Admin) consumer(ctx context.Context, id claim.TenantID, name string) (*warifuv1.Consumer, error) {
	k, err := a.look(ctx)
	if err != nil {
		return nil, readFault(err)
	}
	if k.declared(id, name) == nil {
		return nil, errNoConsumer
	}
	return consumerMessage(k.declared(id, name)), nil
}

// GetConsumer returns a declared consumer.
func (a *team) GetConsumer(ctx context.Context, m *warifuv1.GetConsumerRequest) (*warifuv1.GetConsumerResponse, error) {
	w, err := a.of(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	c, err := a.consumer(ctx, w.id(), m.GetName())
	return &warifuv1.GetConsumerResponse{Consumer: c}, err
}

// ListConsumers pages through declared consumers.
func (a *team) ListConsumers(ctx context.Context, m *warifuv1.ListConsumersRequest) (*warifuv1.ListConsumersResponse, error) {
	w, err := a.of(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	p, err := a.page(w, "consumers", m.GetPageSize(), m.GetPageToken(), m.GetPrefix())
	if err != nil {
		return nil, err
	}
	rows, cursor := cut(w.consumersOf(w.id(), m.GetPrefix(), string(p.cursor)), p.limit, func(c *registry.Consumer) string { return c.Name })
	res := &warifuv1.ListConsumersResponse{NextPageToken: a.next(&p, cursor)}
	for _, c := range rows {
		res.Consumers = append(res.Consumers, consumerMessage(c))
	}
	return res, nil
}

// DeleteConsumer takes a declaration back. The row stays, retired, with the
// default policy and its history: what was forgotten under a shorter retention
// is not taken for new, and what was shredded stays so.
func (a *team) DeleteConsumer(ctx context.Context, m *warifuv1.DeleteConsumerRequest) (*warifuv1.DeleteConsumerResponse, error) {
	if err := why(m.GetChange(), true); err != nil {
		return nil, err
	}
	w, err := a.of(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	before := w.consumers[w.id()][m.GetName()]
	if before == nil {
		return nil, errNoConsumer
	}
	then := "claims have the default policy from now on"
	if w.tenant.StrictConsumers {
		then = "claims are refused from now on"
	}
	c := a.consequence(w.tenant, m.GetName(), []string{then + "; records stay until they expire"})
	if m.GetChange().GetDryRun() {
		return &warifuv1.DeleteConsumerResponse{Consequence: c}, holds(m.GetChange(), before.Version)
	}
	row := registry.Consumer{
		Head: before.Head, Tenant: before.Tenant, Name: before.Name, Retired: true, Raises: before.Raises, DataKeys: before.DataKeys,
	}
	if old := remembered(before); tenant.EffectiveRetention(&row) > old {
		if err := a.raise(&row, old); err != nil {
			return nil, err
		}
	}
	row.Version = m.GetChange().GetExpectedVersion()
	err = a.apply(ctx, registry.Change{
		ID: w.changeID(m), Consumers: []registry.Write[registry.Consumer]{registry.Put(row)},
		Audit: []registry.AuditEntry{w.entry("consumer.delete", m.GetName(), m.GetChange(), consumerMessage(before), nil)},
	})
	if err != nil {
		return nil, writeFault(err)
	}
	return &warifuv1.DeleteConsumerResponse{Consequence: c}, nil
}
