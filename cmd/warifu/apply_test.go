package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

const twoTenants = `
tenants:
  - name: shop
    strict: true
    note: team shop
    quotas: {retained_keys_max: 1000}
    consumers:
      - name: inventory
        redelivery_window: 4h
        on_lease_loss: HOLD
      - name: payments
        on_unavailable: FAIL_OPEN
        note: cards
  - name: paper
`

func (f *fakeAPI) declare(text string) string {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "warifu.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// apply runs it with a reason.
func (f *fakeAPI) apply(text string, more ...string) outcome {
	return f.do(append([]string{"apply", "-f", f.declare(text), "--reason", "why"}, more...)...)
}

// changes are the requests that change something.
func (f *fakeAPI) changes() string {
	var out []string
	for _, name := range strings.Fields(f.methods()) {
		if !strings.HasPrefix(name, "Get") && !strings.HasPrefix(name, "List") && !strings.HasSuffix(name, "(dry)") {
			out = append(out, name)
		}
	}
	return strings.Join(out, " ")
}

// TestApply: what is missing is made, what differs is changed, what is as it
// should be is left alone.
func TestApply(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.apply(twoTenants).want(t, exitOK, "made 4 changes", "+ consumer shop/inventory")
	if got := f.changes(); got != "CreateTenant PutConsumer PutConsumer CreateTenant" {
		t.Error(got)
	}
	if c := f.mu.consumers["shop/inventory"]; c.GetPolicy().GetRedeliveryWindow().AsDuration() != 4*time.Hour ||
		c.GetPolicy().GetOnLeaseLoss() != warifuv1.OnLeaseLoss_ON_LEASE_LOSS_HOLD {
		t.Errorf("%v", c)
	}
	if tt := f.mu.tenants["shop"]; !tt.GetStrictConsumers() || tt.GetQuotas().GetRetainedKeysMax() != 1000 || tt.GetNote() != "team shop" {
		t.Errorf("%v", tt)
	}
	f.do("apply", "-f", f.declare(twoTenants)).want(t, exitOK, "no change", "") // no reason is needed
	if got := f.changes(); got != "" {
		t.Errorf("the second run made %s", got)
	}
	longer := strings.Replace(twoTenants, "4h", "6h", 1)
	f.apply(longer).want(t, exitOK, "made 1 change", "redelivery_window: 4h -> 6h")
	if got := f.changes(); got != "PutConsumer" {
		t.Error(got)
	}
	wider := strings.Replace(longer, "1000", "2000", 1)
	f.apply(wider, "-o", "json").want(t, exitOK, `"field": "retained-keys-max"`, "")
	if got := f.changes(); got != "UpdateTenant" {
		t.Error(got)
	}
}

// TestApplyOwn is for keys of one tenant.
func TestApplyOwn(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	const own = "consumers:\n  - name: inventory\n    retention: 3d\n"
	f.pipe(own, "apply", "-f", "-", "--reason", "r").want(t, exitOK, "made 1 change", "+ consumer inventory")
	f.pipe(own, "apply", "-f", "-").want(t, exitOK, "no change", "")
	if asked := f.methods(); strings.Contains(asked, "Tenant") {
		t.Errorf("tenants were asked for: %s", asked)
	}
	f.pipe(own, "apply", "-f", "-", "--reason", "r", "--tenant", "shop").want(t, exitOK, "made 1 change", "shop/inventory")
	if f.mu.consumers["shop/inventory"] == nil {
		t.Error("--tenant was not heard")
	}
}

// TestApplyEqual: what the server says in other words is the same.
func TestApplyEqual(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.mu.consumers["/a"] = &warifuv1.Consumer{Name: "a", Version: 1, Policy: &warifuv1.ConsumerPolicy{
		OnLeaseLoss: 1, OnUnavailable: 1, RedeliveryWindow: durationpb.New(36 * time.Hour), LeaseMax: durationpb.New(90 * time.Minute),
	}}
	f.mu.consumers["/b"] = &warifuv1.Consumer{Name: "b", Version: 1}
	f.do("apply", "-f", f.declare("consumers:\n  - {name: a, redelivery_window: 1d12h, lease_max: 1h30m, retention: 0s}\n  - {name: b, on_lease_loss: REGRANT}\n")).
		want(t, exitOK, "no change", "")
}

// TestApplyAsks: for what promises less, and for what is deleted.
func TestApplyAsks(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.apply(twoTenants).want(t, exitOK, "", "")
	f.mu.consumers["shop/old"] = &warifuv1.Consumer{Name: "old", Version: 9}
	f.mu.consumers["ink/other"] = &warifuv1.Consumer{Name: "other", Version: 9}
	f.mu.tenants["ink"] = &warifuv1.Tenant{Name: "ink", Version: 1}
	_ = f.got()
	f.apply(twoTenants).want(t, exitOK, "no change", "")
	f.apply(twoTenants, "--prune").want(t, exitDeclined, "", "- consumer shop/old")
	f.apply(strings.Replace(twoTenants, "4h", "3h", 1)).want(t, exitDeclined, "", "shortened")
	f.apply(strings.Replace(twoTenants, "1000", "999", 1)).want(t, exitDeclined, "", "claims may be refused")
	f.typing("no\n", "apply", "-f", f.declare(twoTenants), "--prune", "--reason", "r").want(t, exitDeclined, "", "Type apply")
	if got := f.changes(); got != "" {
		t.Fatalf("%s without a confirmation", got)
	}
	f.do("apply", "-f", f.declare(twoTenants), "--prune", "--dry-run").want(t, exitOK, "would make 1 change", "42 retained keys")
	if got := f.changes(); got != "" {
		t.Fatalf("a dry run sends %s", got)
	}
	f.typing("apply\n", "apply", "-f", f.declare(twoTenants), "--prune", "--reason", "r").want(t, exitOK, "made 1 change", "42 retained keys")
	if got := f.changes(); got != "DeleteConsumer" {
		t.Error(got)
	}
	if f.mu.tenants["ink"] == nil || f.mu.consumers["ink/other"] == nil {
		t.Error("what the file does not name was touched")
	}
}

// TestApplyPrunesLists: what a file has no list of is not looked at, and an empty
// list is a list.
func TestApplyPrunesLists(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	for _, name := range []string{"shop", "paper"} {
		f.mu.tenants[name] = &warifuv1.Tenant{Name: name, Version: 1}
		f.mu.consumers[name+"/old"] = &warifuv1.Consumer{Name: "old", Version: 3}
	}
	f.mu.consumers["/own"] = &warifuv1.Consumer{Name: "own", Version: 3}
	for _, text := range []string{"tenants: [{name: shop}, {name: paper}]\n", "tenants:\n  - name: shop\n    consumers:\n"} {
		f.apply(text, "--prune", "--yes").want(t, exitOK, "no change", "")
	}
	const empty = "tenants: [{name: shop, consumers: []}, {name: paper}]\n"
	f.apply(empty).want(t, exitOK, "no change", "")
	f.apply(empty, "--prune").want(t, exitDeclined, "", "- consumer shop/old")
	if got := f.changes(); got != "" {
		t.Fatalf("%s without a confirmation, or without a list", got)
	}
	f.apply(empty, "--prune", "--yes").want(t, exitOK, "made 1 change", "")
	f.apply("consumers: []\n", "--prune", "--yes").want(t, exitOK, "made 1 change", "- consumer own")
	if f.mu.consumers["shop/old"] != nil || f.mu.consumers["/own"] != nil || f.mu.consumers["paper/old"] == nil {
		t.Errorf("left: %v", f.mu.consumers)
	}
}

// TestApplyRehearses: when the server refuses one change, none is made.
func TestApplyRehearses(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.mu.tenants["shop"] = &warifuv1.Tenant{Name: "shop", Version: 1}
	f.fail("PutConsumer", refusal(warifuv1.Reason_REASON_INVALID_FIELD))
	got := f.apply(twoTenants)
	got.want(t, exitUsage, "", "nothing was changed")
	if !strings.Contains(got.stderr, "consumer shop/inventory: ") {
		t.Errorf("%q", got.stderr)
	}
	if got := f.changes(); got != "" {
		t.Error(got)
	}
}

// TestApplyGoesOn: what was broken off is taken up by the next run, each change
// under an ID of its own.
func TestApplyGoesOn(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.fail("PutConsumer", nil, refusal(warifuv1.Reason_REASON_CONFLICT))
	f.apply(twoTenants).want(t, exitConflict, "", "made 2 of 4 changes")
	ids := map[string]bool{}
	for _, r := range f.got() {
		if c := changeIn(r.message); c != nil && !c.GetDryRun() {
			ids[c.GetChangeId()] = true
		}
	}
	if len(ids) != 3 {
		t.Errorf("change IDs: %v", ids)
	}
	f.apply(twoTenants).want(t, exitOK, "made 2 changes", "")
	f.apply(twoTenants).want(t, exitOK, "no change", "")
}

// TestApplyJSON says what was done.
func TestApplyJSON(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	var steps []step
	if err := json.Unmarshal([]byte(f.apply(twoTenants, "-o", "json", "--dry-run").stdout), &steps); err != nil {
		t.Fatal(err)
	}
	if len(steps) != 4 || steps[1].Action != stepCreate || steps[1].Consumer != "inventory" || steps[1].Done {
		t.Errorf("%+v", steps)
	}
	if err := json.Unmarshal([]byte(f.apply(twoTenants, "-o", "json").stdout), &steps); err != nil || !steps[3].Done {
		t.Errorf("%v, %+v", err, steps)
	}
	f.apply(twoTenants, "-o", "json").want(t, exitOK, "[]\n", "")
}

// TestApplyRefusesFiles: all faults are told, and nothing is asked.
func TestApplyRefusesFiles(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	for text, says := range map[string]string{
		"":                                    "EOF",
		"tenants: []":                         "neither tenants nor consumers",
		"consumers:\n  - nam: x":              "nam",
		"consumers:\n  - {}":                  "name",
		"consumers: [{name: x}, {name: x}]":   "there twice",
		"tenants: [{name: x}, {name: x}]":     "there twice",
		"tenants: [{name: x, retention: 1h}]": "retention",
		"consumers: [{name: x, retention: 3 days}, {name: y, on_lease_loss: hold}]": "REGRANT or HOLD",
		"consumers: []\n---\nconsumers: []":                                         "more than one document",
	} {
		got := f.apply(text)
		if got.code != exitUsage || !strings.Contains(got.stderr, says) {
			t.Errorf("%q: %+v, want %q", text, got, says)
		}
	}
	f.do("apply", "-f", "none", "--reason", "r").want(t, exitUsage, "", "none")
	if asked := f.methods(); asked != "" {
		t.Error(asked)
	}
}

// TestApplyOnDeleting: a name that is not free yet.
func TestApplyOnDeleting(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.mu.tenants["shop"] = &warifuv1.Tenant{Name: "shop", State: warifuv1.TenantState_TENANT_STATE_DELETING, Version: 2}
	f.apply(twoTenants).want(t, exitPrecondition, "", "being deleted")
	if got := f.changes(); got != "" {
		t.Error(got)
	}
}

// TestLengthsAreReadAsWritten: what lengthText writes parseDuration reads.
func TestLengthsAreReadAsWritten(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{
		time.Nanosecond, time.Second, 90 * time.Second, time.Minute, time.Hour, 90 * time.Minute, 24 * time.Hour, 36 * time.Hour, 48 * time.Hour,
		49 * time.Hour, 400 * 24 * time.Hour, 72*time.Hour + 10*time.Minute, 10*time.Hour + time.Second, 48*time.Hour + time.Millisecond,
	} {
		got, err := parseDuration(lengthText(d))
		if err != nil || got != d {
			t.Errorf("%v is written %q and read %v, %v", d, lengthText(d), got, err)
		}
	}
	for d, want := range map[time.Duration]string{10 * time.Minute: "10m", 4 * time.Hour: "4h", 24 * time.Hour: "24h", 84 * time.Hour: "3d12h"} {
		if got := lengthText(d); got != want {
			t.Errorf("%v is written %q", d, got)
		}
	}
}
