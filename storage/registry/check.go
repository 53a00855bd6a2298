package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// The limits of data keys. With all of them at their limit a row is still within
// DocumentMax.
const (
	DataKeysMax     = 32
	WrappedBytesMax = 512
)

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
	return first(
		checkTenant("tenant.id", t.ID, 1), checkName("tenant.name", t.Name), checkText("tenant.note", t.Note, TextBytesMax),
		checkDataKeys("tenant.data_keys", t.DataKeys),
	)
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
	return first(
		checkTenant("consumer.tenant", c.Tenant, 1), checkName("consumer.name", c.Name), checkText("consumer.note", c.Note, TextBytesMax),
		checkDataKeys("consumer.data_keys", c.DataKeys),
	)
}

func checkDataKeys(field string, keys []DataKey) error {
	if len(keys) > DataKeysMax {
		return invalid(field, "are %d; at most %d", len(keys), DataKeysMax)
	}
	for i := range keys {
		k := &keys[i]
		same := func(o DataKey) bool { return o.ID == k.ID }
		switch {
		case k.ID == 0 || slices.ContainsFunc(keys[:i], same):
			return invalid(field, "hold the ID %d, which is 0 or taken", k.ID)
		case k.Created < 0 || k.Shredded < 0:
			return invalid(field, "hold an instant before 1970")
		case k.Shredded != 0 && len(k.Wrapped) != 0:
			return invalid(field, "hold the shredded key %d, which is still there", k.ID)
		case k.Shredded == 0 && (len(k.Wrapped) == 0 || len(k.Wrapped) > WrappedBytesMax):
			return invalid(field, "hold a wrapped key of %d bytes; it has 1–%d", len(k.Wrapped), WrappedBytesMax)
		case k.Shredded != 0 && k.KEK == "":
			continue
		}
		if err := checkKind(field+".kek", k.KEK); err != nil {
			return err
		}
	}
	return nil
}

// KeepsDataKeys refuses a row in whose next version data keys are gone that were
// not shredded before, or are back that were: whoever builds a row anew instead of
// changing the one that was read would shred by accident.
// Both may be what is stored of any kind; nil, or a tombstone, has no keys.
// Wrapping a key anew and shredding it are no loss.
func KeepsDataKeys(old, next *Stored) error {
	before, err := dataKeysOf(old)
	if err != nil || len(before) == 0 {
		return err
	}
	if next == nil || next.Deleted {
		return nil // deleting a row says so, and is audited
	}
	after, err := dataKeysOf(next)
	if err != nil {
		return err
	}
	for _, k := range before {
		at := slices.IndexFunc(after, func(o DataKey) bool { return o.ID == k.ID })
		switch {
		case at < 0 && k.Shredded == 0:
			return invalid(next.Ref.String(), "loses the data key %d, which was not shredded", k.ID)
		case at >= 0 && k.Shredded != 0 && after[at].Shredded == 0:
			return invalid(next.Ref.String(), "has the data key %d again, which was shredded", k.ID)
		}
	}
	return nil
}

func dataKeysOf(s *Stored) ([]DataKey, error) {
	if s == nil || s.Deleted || s.Ref.Kind != KindTenant && s.Ref.Kind != KindConsumer {
		return nil, nil
	}
	var doc struct {
		DataKeys []DataKey `json:"data_keys"`
	}
	if err := json.Unmarshal(s.Doc, &doc); err != nil {
		return nil, fmt.Errorf("%w: data keys of %s: %w", ErrDocument, s.Ref, err)
	}
	return doc.DataKeys, nil
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
	return first(
		checkTenant("audit.tenant", e.Tenant, 0), checkJSON("audit.before", e.Before), checkJSON("audit.after", e.After),
		checkAudited("audit.before", e.Before), checkAudited("audit.after", e.After),
	)
}

// checkAudited refuses wrapped keys: somebody forgot Audited. A text that names
// the field has its quotes escaped and is let through.
func checkAudited(field string, doc json.RawMessage) error {
	var compact bytes.Buffer
	if len(doc) > 0 && json.Compact(&compact, doc) == nil && bytes.Contains(compact.Bytes(), []byte(`"wrapped_key":`)) {
		return invalid(field, "shows a wrapped key")
	}
	return nil
}
