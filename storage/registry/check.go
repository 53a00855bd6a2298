package registry

import "time"

func (t *Tenant) check() error {
	if t.State < TenantActive || t.State > TenantDeleted {
		return invalid("tenant.state", "is %d", t.State)
	}
	for _, n := range []int64{
		t.RequestsPerSecond, t.ItemsPerSecond, t.LiveLeasesMax, t.KeysMax, t.BytesMax, t.InDoubtMax,
	} {
		if n < 0 {
			return invalid("tenant.limits", "hold %d, which is negative", n)
		}
	}
	return first(checkTenant("tenant.id", t.ID, 1), checkName("tenant.name", t.Name), checkText("tenant.note", t.Note, TextBytesMax))
}

func (c *Consumer) check() error {
	for _, d := range []time.Duration{c.Window, c.Retention, c.HoldMax, c.LeaseDefault, c.LeaseMax} {
		if d < 0 {
			return invalid("consumer", "has a length of time of %v", d)
		}
	}
	if len(c.Raises) > RaisesMax {
		return invalid("consumer.raises", "are %d; at most %d", len(c.Raises), RaisesMax)
	}
	for i := 1; i < len(c.Raises); i++ {
		if c.Raises[i].At < c.Raises[i-1].At {
			return invalid("consumer.raises", "are not oldest first")
		}
	}
	return first(checkTenant("consumer.tenant", c.Tenant, 1), checkName("consumer.name", c.Name), checkText("consumer.note", c.Note, TextBytesMax))
}

func (k *Key) check() error {
	if len(k.Scopes) > ScopesMax {
		return invalid("key.scopes", "are %d; at most %d", len(k.Scopes), ScopesMax)
	}
	for _, s := range k.Scopes {
		if err := checkText("key.scopes", s, KindCharsMax); err != nil {
			return err
		}
	}
	return first(
		checkName("key.id", k.ID), checkTenant("key.tenant", k.Tenant, 0),
		checkText("key.consumer_prefix", k.ConsumerPrefix, NameCharsMax), checkText("key.note", k.Note, TextBytesMax),
	)
}

func (f *Finding) check() error {
	if f.State < FindingOpen || f.State > FindingResolved {
		return invalid("finding.state", "is %d", f.State)
	}
	if f.ID == (ID{}) {
		return invalid("finding.id", "is missing")
	}
	return first(
		checkTenant("finding.tenant", f.Tenant, 0), checkKind("finding.kind", f.Kind),
		checkText("finding.consumer", f.Consumer, NameCharsMax), checkText("finding.event_id", f.EventID, eventIDBytesMax),
		checkText("finding.assignee", f.Assignee, TextBytesMax), checkJSON("finding.details", f.Details),
	)
}

func (j *Job) check() error {
	if j.State < JobPending || j.State > JobCancelled {
		return invalid("job.state", "is %d", j.State)
	}
	if j.ID == (ID{}) {
		return invalid("job.id", "is missing")
	}
	return first(
		checkTenant("job.tenant", j.Tenant, 0), checkKind("job.kind", j.Kind),
		checkText("job.error", j.Error, TextBytesMax), checkJSON("job.params", j.Params),
	)
}

func (e *AuditEntry) check() error {
	if e.Actor == "" || e.Action == "" {
		return invalid("audit", "has no actor or no action")
	}
	for field, text := range map[string]string{
		"actor": e.Actor, "action": e.Action, "target": e.Target, "reason": e.Reason, "request_id": e.RequestID,
	} {
		if err := checkText("audit."+field, text, TextBytesMax); err != nil {
			return err
		}
	}
	return first(checkTenant("audit.tenant", e.Tenant, 0), checkJSON("audit.before", e.Before), checkJSON("audit.after", e.After))
}
