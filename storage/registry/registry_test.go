package registry_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// TestDocuments pins what is on disk: names of fields, and their units.
func TestDocuments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		row  any
		want string
	}{
		{
			registry.Tenant{
				Head: registry.Head{Version: 3, Created: 5, Deleted: true}, ID: 7, Name: "n", State: registry.TenantDeleting, StrictConsumers: true,
				Limits: registry.Limits{1, 2, 3, 4, 5, 6}, Note: "x",
			},
			`{"id":7,"name":"n","state":3,"strict_consumers":true,"requests_per_second":1,"items_per_second":2,"live_leases_max":3,` +
				`"keys_max":4,"bytes_max":5,"in_doubt_max":6,"note":"x"}`,
		},
		{
			registry.Consumer{
				Tenant: 7, Name: "c", Hold: true, AttemptsMax: 1, Window: 2, Retention: 3, HoldMax: 4, ResultBytesMax: 5, Sliding: true,
				Raises: []registry.Raise{{At: 6, From: 7}}, LeaseDefault: 8, LeaseMax: 9, OnUnavailable: registry.FailOpen,
				AcceptHoldFailOpen: true, DigestRequired: true, AcceptNoCommonScheme: true, Note: "x",
			},
			`{"tenant":7,"name":"c","hold":true,"attempts_max":1,"window_ns":2,"retention_ns":3,"hold_max_ns":4,"result_bytes_max":5,` +
				`"sliding":true,"raises":[{"at_us":6,"from_ns":7}],"lease_default_ns":8,"lease_max_ns":9,"on_unavailable":1,` +
				`"accept_hold_fail_open":true,"digest_required":true,"accept_no_common_scheme":true,"note":"x"}`,
		},
		{
			registry.Key{ID: "k", Tenant: 7, Secret: registry.Hash{0xab}, Scopes: []string{"s"}, ConsumerPrefix: "p", Expires: 1, Revoked: 2, Note: "x"},
			`{"id":"k","tenant":7,"secret":"ab` + strings.Repeat("0", 62) + `","scopes":["s"],"consumer_prefix":"p","expires_us":1,"revoked_us":2,"note":"x"}`,
		},
		{
			registry.Finding{
				ID: registry.ID{0xcd}, Tenant: 7, Kind: "k", State: registry.FindingResolved, Consumer: "c", EventID: "e", Assignee: "a",
				Details: json.RawMessage(`{}`),
			},
			`{"id":"cd` + strings.Repeat("0", 30) + `","tenant":7,"kind":"k","state":3,"consumer":"c","event_id":"e","assignee":"a","details":{}}`,
		},
		{
			registry.Job{
				ID: registry.ID{0xcd}, Tenant: 7, Kind: "k", State: registry.JobCancelled, Params: json.RawMessage(`{}`), Cursor: []byte{1},
				Done: 1, Total: 2, Error: "e",
			},
			`{"id":"cd` + strings.Repeat("0", 30) + `","tenant":7,"kind":"k","state":5,"params":{},"cursor":"AQ==","done":1,"total":2,"error":"e"}`,
		},
		{
			registry.AuditEntry{
				N: 1, Revision: 2, At: 3, Tenant: 7, Actor: "a", Action: "b", Target: "c", Reason: "d", RequestID: "e",
				Before: json.RawMessage(`1`), After: json.RawMessage(`2`),
			},
			`{"tenant":7,"actor":"a","action":"b","target":"c","reason":"d","request_id":"e","before":1,"after":2}`,
		},
	} {
		got, err := json.Marshal(c.row)
		if err != nil || string(got) != c.want {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, c.want)
		}
	}
}

func TestIDsAreTexts(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		`"` + strings.Repeat("0f", 16) + `"`: true, `"` + strings.Repeat("0f", 15) + `"`: false,
		`"` + strings.Repeat("0f", 17) + `"`: false, `"` + strings.Repeat("0g", 16) + `"`: false, `""`: false,
	} {
		var id registry.ID
		if err := json.Unmarshal([]byte(text), &id); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
		if ok && `"`+id.String()+`"` != text {
			t.Errorf("%s became %s", text, id)
		}
	}
}

// TestTenantRefsAreInOrder: the last tenant is the one with the largest name.
func TestTenantRefsAreInOrder(t *testing.T) {
	t.Parallel()
	last := ""
	for _, id := range []claim.TenantID{1, 9, 10, 15, 16, 255, 256, 1 << 40, registry.TenantIDMax} {
		name := registry.TenantRef(id).Name
		if name <= last {
			t.Errorf("%q of %d does not follow %q", name, id, last)
		}
		last = name
	}
}

func TestLeaseRule(t *testing.T) {
	t.Parallel()
	const now = claim.Time(1_000_000)
	mine := registry.Lease{Name: "l", Owner: "me", Fence: 2_000_000, Until: now + 1}
	lapsed, free, old := mine, mine, mine
	lapsed.Until = now
	free.Owner = ""
	old.Fence, old.Until = 5, now
	for _, c := range []struct {
		name  string
		from  registry.Lease
		owner string
		held  bool
		fence claim.Fence
	}{
		{"none", registry.Lease{}, "me", true, claim.Fence(now)},
		{"live, mine", mine, "me", true, mine.Fence},
		{"live, another's", mine, "you", false, mine.Fence},
		{"lapsed, another's", lapsed, "you", true, mine.Fence + 1},
		{"lapsed, mine", lapsed, "me", true, mine.Fence + 1},
		{"nobody's", free, "you", true, mine.Fence + 1},
		{"old fence", old, "you", true, claim.Fence(now)},
	} {
		got, held := c.from.Taken("l", c.owner, time.Second, now)
		if held != c.held || got.Fence != c.fence || held && (got.Owner != c.owner || got.Until != now.Add(time.Second)) {
			t.Errorf("%s: %+v, %v", c.name, got, held)
		}
	}
}

func TestErrorsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	c := registry.Change{ID: registry.ID{1}, Keys: []registry.Write[registry.Key]{registry.Put(registry.Key{ID: strings.Repeat("k", registry.NameCharsMax+1)})}}
	_, err := c.Prepare()
	var invalid *registry.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != "key.id" || !strings.Contains(err.Error(), "129 characters; it has 1–128") {
		t.Errorf("%v", err)
	}
	conflict := error(&registry.ConflictError{Ref: registry.ConsumerRef(7, "c")})
	if !errors.Is(conflict, registry.ErrConflict) || errors.Is(conflict, registry.ErrInvalid) || !strings.HasPrefix(conflict.Error(), "consumer 0000000000000007/c: ") {
		t.Errorf("%v", conflict)
	}
}

// TestRowLimits: at the limit, and one over it.
func TestRowLimits(t *testing.T) {
	t.Parallel()
	text := func(n int) string { return strings.Repeat("x", n) }
	raises := make([]registry.Raise, registry.RaisesMax+1)
	scopes := make([]string, registry.ScopesMax+1)
	tenant := registry.Tenant{ID: 1, Name: "n", State: registry.TenantActive}
	for name, c := range map[string]struct{ at, over func(*registry.Change) }{
		"tenant ID": {
			func(c *registry.Change) {
				put(&c.Tenants, tenant, func(t *registry.Tenant) { t.ID = registry.TenantIDMax })
			},
			func(c *registry.Change) {
				put(&c.Tenants, tenant, func(t *registry.Tenant) { t.ID = registry.TenantIDMax + 1 })
			},
		},
		"tenant name": {
			func(c *registry.Change) {
				put(&c.Tenants, tenant, func(t *registry.Tenant) { t.Name = text(registry.NameCharsMax) })
			},
			func(c *registry.Change) {
				put(&c.Tenants, tenant, func(t *registry.Tenant) { t.Name = text(registry.NameCharsMax + 1) })
			},
		},
		"tenant state": {
			func(c *registry.Change) {
				put(&c.Tenants, tenant, func(t *registry.Tenant) { t.State = registry.TenantDeleted })
			},
			func(c *registry.Change) {
				put(&c.Tenants, tenant, func(t *registry.Tenant) { t.State = registry.TenantDeleted + 1 })
			},
		},
		"quota": {
			func(c *registry.Change) { put(&c.Tenants, tenant, func(t *registry.Tenant) { t.KeysMax = 0 }) },
			func(c *registry.Change) { put(&c.Tenants, tenant, func(t *registry.Tenant) { t.KeysMax = -1 }) },
		},
		"raises": {
			func(c *registry.Change) {
				put(&c.Consumers, registry.Consumer{Tenant: 1, Name: "c"}, func(v *registry.Consumer) { v.Raises = raises[1:] })
			},
			func(c *registry.Change) {
				put(&c.Consumers, registry.Consumer{Tenant: 1, Name: "c"}, func(v *registry.Consumer) { v.Raises = raises })
			},
		},
		"window": {
			func(c *registry.Change) {
				put(&c.Consumers, registry.Consumer{Tenant: 1, Name: "c"}, func(v *registry.Consumer) { v.Window = 0 })
			},
			func(c *registry.Change) {
				put(&c.Consumers, registry.Consumer{Tenant: 1, Name: "c"}, func(v *registry.Consumer) { v.Window = -1 })
			},
		},
		"scopes": {
			func(c *registry.Change) {
				put(&c.Keys, registry.Key{ID: "k"}, func(k *registry.Key) { k.Scopes = scopes[1:] })
			},
			func(c *registry.Change) {
				put(&c.Keys, registry.Key{ID: "k"}, func(k *registry.Key) { k.Scopes = scopes })
			},
		},
		"event ID": {
			func(c *registry.Change) {
				put(&c.Findings, aFinding(), func(f *registry.Finding) { f.EventID = text(claim.EventIDBytesMax) })
			},
			func(c *registry.Change) {
				put(&c.Findings, aFinding(), func(f *registry.Finding) { f.EventID = text(claim.EventIDBytesMax + 1) })
			},
		},
		"kind": {
			func(c *registry.Change) {
				put(&c.Findings, aFinding(), func(f *registry.Finding) { f.Kind = text(registry.KindCharsMax) })
			},
			func(c *registry.Change) {
				put(&c.Findings, aFinding(), func(f *registry.Finding) { f.Kind = text(registry.KindCharsMax + 1) })
			},
		},
		"reason": {
			func(c *registry.Change) { c.Audit[0].Reason = text(registry.TextBytesMax) },
			func(c *registry.Change) { c.Audit[0].Reason = text(registry.TextBytesMax + 1) },
		},
	} {
		for over, fill := range []func(*registry.Change){c.at, c.over} {
			change := registry.Change{ID: registry.ID{1}, Audit: []registry.AuditEntry{{Actor: "a", Action: "b"}}}
			fill(&change)
			if _, err := change.Prepare(); errors.Is(err, registry.ErrInvalid) != (over == 1) {
				t.Errorf("%s, %d over the limit: %v", name, over, err)
			}
		}
	}
}

func aFinding() registry.Finding {
	return registry.Finding{ID: registry.ID{1}, Kind: "k", State: registry.FindingOpen}
}

func put[R any](to *[]registry.Write[R], row R, change func(*R)) {
	change(&row)
	*to = append(*to, registry.Put(row))
}
