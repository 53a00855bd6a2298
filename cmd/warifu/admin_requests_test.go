package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// furnished is a fake with one of everything.
func furnished(t *testing.T) *fakeAPI {
	t.Helper()
	f := newFakeAPI(t)
	f.mu.tenants["shop"] = &warifuv1.Tenant{
		Id: 7, Name: "shop", State: warifuv1.TenantState_TENANT_STATE_ACTIVE, StrictConsumers: true, Note: "n", Version: 4,
		Quotas: &warifuv1.Quotas{RetainedKeysMax: 1000, InDoubtMax: 5},
	}
	f.mu.consumers["/inventory"] = &warifuv1.Consumer{Name: "inventory", Version: 3, Note: "stock", Policy: &warifuv1.ConsumerPolicy{
		OnLeaseLoss: warifuv1.OnLeaseLoss_ON_LEASE_LOSS_HOLD, OnUnavailable: warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_CLOSED,
		RedeliveryWindow: durationpb.New(4 * time.Hour), Retention: durationpb.New(9 * time.Hour), AttemptsMax: 5,
	}}
	f.mu.keys = []*warifuv1.Key{{Id: "key1", Version: 1}, {Id: "key2", Version: 6, Note: "shop's", Scopes: []string{"claim"}}}
	f.mu.findings = []*warifuv1.Finding{{Id: "f1", Assignee: "ann", Version: 2}}
	f.mu.claims = []*warifuv1.ClaimRecord{
		{Consumer: "inventory", EventId: "a", State: warifuv1.State_STATE_IN_DOUBT, Fence: 77},
		{Consumer: "inventory", EventId: "a-1", State: warifuv1.State_STATE_COMPLETED, Fence: 78},
	}
	return f
}

// TestAdminRequests: what each command says, in the one request that counts.
func TestAdminRequests(t *testing.T) {
	t.Parallel()
	change := func(version int64) *warifuv1.Change { return &warifuv1.Change{Reason: "why", ExpectedVersion: version} }
	hold, open := warifuv1.OnLeaseLoss_ON_LEASE_LOSS_HOLD, warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_OPEN
	closed := warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_CLOSED
	regrant := warifuv1.OnLeaseLoss_ON_LEASE_LOSS_REGRANT
	succeeded := &warifuv1.Completion{Outcome: warifuv1.Outcome_OUTCOME_SUCCEEDED}
	for _, c := range []struct {
		args string
		want proto.Message
	}{
		{"tenants create paper --strict --note n --items-per-second 9", &warifuv1.CreateTenantRequest{
			Name: "paper", StrictConsumers: true, Note: "n", Quotas: &warifuv1.Quotas{ItemsPerSecond: 9}, Change: change(0),
		}},
		{"tenants update shop --live-leases-max 10 --yes", &warifuv1.UpdateTenantRequest{
			Name: "shop", StrictConsumers: true, Note: "n", Change: change(4),
			Quotas: &warifuv1.Quotas{RetainedKeysMax: 1000, InDoubtMax: 5, LiveLeasesMax: 10},
		}},
		{"tenants update shop --strict=false --note= --name store --yes --expected-version 4", &warifuv1.UpdateTenantRequest{
			Name: "shop", NewName: "store", Quotas: &warifuv1.Quotas{RetainedKeysMax: 1000, InDoubtMax: 5}, Change: change(4),
		}},
		{"tenants suspend shop --yes", &warifuv1.SuspendTenantRequest{Name: "shop", Change: change(4)}},
		{"tenants resume shop", &warifuv1.ResumeTenantRequest{Name: "shop", Change: change(4)}},
		{"tenants delete shop --yes", &warifuv1.DeleteTenantRequest{Name: "shop", ExpectedId: 7, Change: change(4)}},
		{"consumers put payments --tenant shop --redelivery-window 1d --retention 3d12h --lease-default 10s --lease-max 1h --hold-max 2h --attempts-max 3 " +
			"--result-bytes-max 9 --digest-required --accept-no-common-scheme --on-lease-loss HOLD --on-unavailable FAIL_OPEN --accept-hold-fail-open --note n",
			&warifuv1.PutConsumerRequest{Tenant: "shop", Name: "payments", Note: "n", Change: change(0), Policy: &warifuv1.ConsumerPolicy{
				OnLeaseLoss: hold, OnUnavailable: open, AcceptHoldFailOpen: true, RedeliveryWindow: durationpb.New(24 * time.Hour),
				Retention: durationpb.New(84 * time.Hour), LeaseDefault: durationpb.New(10 * time.Second), LeaseMax: durationpb.New(time.Hour),
				HoldMax: durationpb.New(2 * time.Hour), AttemptsMax: 3, ResultBytesMax: 9, DigestRequired: true, AcceptNoCommonScheme: true,
			}}},
		{"consumers put inventory --keep --retention 10h", &warifuv1.PutConsumerRequest{
			Name: "inventory", Note: "stock", Change: change(3), Policy: &warifuv1.ConsumerPolicy{
				OnLeaseLoss: hold, OnUnavailable: closed, RedeliveryWindow: durationpb.New(4 * time.Hour), Retention: durationpb.New(10 * time.Hour), AttemptsMax: 5,
			},
		}},
		{"consumers put inventory --yes", &warifuv1.PutConsumerRequest{
			Name: "inventory", Change: change(3), Policy: &warifuv1.ConsumerPolicy{OnLeaseLoss: regrant, OnUnavailable: closed},
		}},
		{"consumers delete inventory --yes", &warifuv1.DeleteConsumerRequest{Name: "inventory", Change: change(3)}},
		{"keys create --tenant shop --scope claim,read --consumer-prefix inv --expires 90d --note n --env test", &warifuv1.CreateKeyRequest{
			Tenant: "shop", Scopes: []string{"claim", "read"}, ConsumerPrefix: "inv", Note: "n", Environment: "test", Change: change(0),
			ExpiresAt: timestamppb.New(fakeNow.Add(90 * 24 * time.Hour)),
		}},
		{"keys rotate key2 --overlap 2h --env live", &warifuv1.RotateKeyRequest{Id: "key2", Overlap: durationpb.New(2 * time.Hour), Environment: "live", Change: change(6)}},
		{"keys revoke key2 --yes", &warifuv1.RevokeKeyRequest{Id: "key2", Change: change(6)}},
		{"keys revoke key2 --yes --expected-version 5", &warifuv1.RevokeKeyRequest{Id: "key2", Change: change(5)}},
		{"audit list --tenant shop --from 7d --until 2026-11-30T00:00:00Z --limit 20", &warifuv1.ListAuditRequest{
			Tenant: "shop", From: timestamppb.New(fakeNow.Add(-7 * 24 * time.Hour)), Until: timestamppb.New(fakeNow.Add(-12 * time.Hour)), PageSize: 20,
		}},
		{"usage --tenant shop", &warifuv1.GetUsageRequest{Tenant: "shop"}},
		{"findings list --state open,assigned", &warifuv1.ListFindingsRequest{PageSize: 500, States: []warifuv1.FindingState{1, 2}}},
		{"findings assign f1 --to bob", &warifuv1.UpdateFindingRequest{Id: "f1", State: 2, Assignee: "bob", Change: change(2)}},
		{"findings resolve f1", &warifuv1.UpdateFindingRequest{Id: "f1", State: 3, Assignee: "ann", Change: change(2)}},
		{"jobs list --state RUNNING", &warifuv1.ListJobsRequest{States: []warifuv1.JobState{2}, PageSize: 500}},
		{"results shred --consumer inventory --yes", &warifuv1.ShredResultsRequest{Consumer: "inventory", Change: change(3)}},
		{"results shred --all --tenant shop --yes", &warifuv1.ShredResultsRequest{Tenant: "shop", Change: change(4)}},
		{"data-keys rotate --tenant shop", &warifuv1.RotateDataKeyRequest{Tenant: "shop", Change: change(0)}},
		{"claims list --tenant shop --consumer inventory --prefix a --state in_doubt --age 36h --limit 7", &warifuv1.ListClaimsRequest{
			Tenant: "shop", Consumer: "inventory", EventIdPrefix: "a", States: []warifuv1.State{4}, AgeMin: durationpb.New(36 * time.Hour), PageSize: 7,
		}},
		{"claims get inventory a --tenant shop", &warifuv1.ListClaimsRequest{Tenant: "shop", Consumer: "inventory", EventIdPrefix: "a", PageSize: 1}},
		{"claims resolve inventory a --yes --result done --content-type text/plain --metadata by=ann --outcome rejected", &warifuv1.ResolveClaimRequest{
			Consumer: "inventory", EventId: "a", Resolution: 1, ExpectedFence: 77, ExpectedState: warifuv1.State_STATE_IN_DOUBT, Reason: "why",
			Completion: &warifuv1.Completion{Outcome: 2, Result: []byte("done"), ContentType: "text/plain", Metadata: map[string]string{"by": "ann"}},
		}},
		{"claims retry inventory a --yes --tenant shop", &warifuv1.ResolveClaimRequest{
			Tenant: "shop", Consumer: "inventory", EventId: "a", Resolution: 2, ExpectedFence: 77, ExpectedState: warifuv1.State_STATE_IN_DOUBT, Reason: "why",
		}},
		{"claims forget inventory a-1 --yes --expected-fence 78", &warifuv1.ForgetClaimRequest{
			Consumer: "inventory", EventId: "a-1", ExpectedFence: 78, ExpectedState: warifuv1.State_STATE_COMPLETED, Reason: "why",
		}},
		{"claims resolve-all inventory --yes --states IN_DOUBT --prefix x --age 7d", nil}, // nothing matches: nothing is changed
		{"claims retry-all inventory --dry-run --states IN_DOUBT,RELEASED", &warifuv1.ResolveClaimsRequest{
			Consumer: "inventory", States: []warifuv1.State{4, 3}, Action: 1, Reason: "why", DryRun: true,
		}},
		{"claims resolve-all inventory --dry-run --states IN_DOUBT --age 1h --prefix x", &warifuv1.ResolveClaimsRequest{
			Consumer: "inventory", States: []warifuv1.State{4}, Action: 3, Reason: "why", DryRun: true, Completion: succeeded, EventIdPrefix: "x",
			AgeMin: durationpb.New(time.Hour),
		}},
	} {
		t.Run(strings.ReplaceAll(c.args, "/", "_"), func(t *testing.T) {
			t.Parallel()
			f := furnished(t)
			args := strings.Fields(c.args)
			if hasFlag(t, args, "reason") {
				args = append(args, "--reason", "why")
			}
			f.do(args...).want(t, exitOK, "", "")
			f.lastIs(c.want)
		})
	}
}

// hasFlag asks the command itself.
func hasFlag(t *testing.T, args []string, name string) bool {
	t.Helper()
	begun := false
	root := newRoot(&system{}, &begun)
	cmd, _, err := root.Find(args)
	if err != nil {
		t.Fatal(err)
	}
	return cmd.Flags().Lookup(name) != nil
}

// lastIs compares the last request, whose change ID is its own. nil: nothing but
// a count was asked for.
func (f *fakeAPI) lastIs(want proto.Message) {
	f.t.Helper()
	all := f.got()
	if len(all) == 0 {
		f.t.Fatal("nothing was asked")
	}
	last := all[len(all)-1].message
	if want == nil {
		if b, ok := last.(*warifuv1.ResolveClaimsRequest); !ok || !b.GetDryRun() {
			f.t.Fatalf("the last request is %v", last)
		}
		return
	}
	if c := changeIn(last); c != nil {
		if len(c.GetChangeId()) != 36 {
			f.t.Errorf("change ID %q", c.GetChangeId())
		}
		c.ChangeId = ""
	}
	if !proto.Equal(last, want) {
		f.t.Errorf("got  %T %v\nwant %T %v", last, last, want, want)
	}
}

// TestAdminUsage: what is refused before anything is asked, and how.
func TestAdminUsage(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	long := strings.Repeat("x", reasonBytesMax+1)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"tenants"}, "needs a command"},
		{[]string{"tenants", "create", "x"}, "--reason"},
		{[]string{"tenants", "create", "x", "--reason", long}, "1-1024"},
		{[]string{"tenants", "create", "x", "--reason", "r", "--change-id", "7"}, "UUID"},
		{[]string{"tenants", "update", "x", "--reason", "r"}, "nothing to change"},
		{[]string{"tenants", "delete", "x", "--reason", "r", "--expected-version", "-1"}, "versions begin with 1"},
		{[]string{"consumers", "put", "x", "--reason", "r", "--on-lease-loss", "KEEP"}, "REGRANT or HOLD"},
		{[]string{"consumers", "put", "x", "--reason", "r", "--on-unavailable", "MAYBE"}, "FAIL_OPEN"},
		{[]string{"consumers", "put", "x", "--reason", "r", "--retention", "3 days"}, "retention"},
		{[]string{"consumers", "list", "--limit", "-1"}, "--limit"},
		{[]string{"consumers", "list", "--page-size", "501"}, "1-500"},
		{[]string{"consumers", "list", "--page-size", "0"}, "1-500"},
		{[]string{"consumers", "list", "-o", "xml"}, "table, json, yaml"},
		{[]string{"keys", "create", "--reason", "r"}, "--scope"},
		{[]string{"keys", "create", "--reason", "r", "--scope", "read", "--expires", "soon"}, "--expires"},
		{[]string{"keys", "revoke", "--reason", "r", fakeKey}, "not its ID"},
		{[]string{"keys", "rotate", "--reason", "r", "k", "--overlap", "long"}, "--overlap"},
		{[]string{"audit", "list", "--from", "yesterday"}, "--from"},
		{[]string{"findings", "list", "--state", "UNSPECIFIED"}, "OPEN, ASSIGNED, RESOLVED"},
		{[]string{"findings", "assign", "f1", "--reason", "r"}, "--to"},
		{[]string{"jobs", "list", "--state", "LOST"}, "PENDING"},
		{[]string{"results", "shred", "--reason", "r"}, "--consumer, or --all"},
		{[]string{"results", "shred", "--reason", "r", "--all"}, "--tenant"},
		{[]string{"claims", "list", "--state", "ABSENT"}, "IN_DOUBT"},
		{[]string{"claims", "list", "--age", "old"}, "--age"},
		{[]string{"claims", "retry-all", "c", "--reason", "r"}, "--states"},
		{[]string{"claims", "retry-all", "c", "--reason", "r", "--states", "DOUBT"}, "--states"},
		{[]string{"claims", "resolve", "c", "e", "--reason", "r", "--outcome", "MAYBE"}, "SUCCEEDED, REJECTED"},
		{[]string{"claims", "resolve", "c", "e", "--reason", "r", "--result-file", "none"}, "none"},
		{[]string{"claims", "forget", "c", "e"}, "--reason"},
		{[]string{"apply", "--reason", "r"}, "--file"},
	} {
		got := f.do(c.args...)
		if got.code != exitUsage || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%v: code %d, %q; want %d and %q", c.args, got.code, got.stderr, exitUsage, c.says)
		}
		if strings.Contains(got.stderr, fakeKey) {
			t.Errorf("%v: a key is shown: %q", c.args, got.stderr)
		}
		if asked := f.methods(); asked != "" {
			t.Errorf("%v: %s was asked", c.args, asked)
		}
	}
}

// TestResultFile: the result comes from a file as it is.
func TestResultFile(t *testing.T) {
	t.Parallel()
	f := furnished(t)
	path := filepath.Join(t.TempDir(), "result")
	if err := os.WriteFile(path, []byte("\xff\x00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.do("claims", "resolve", "inventory", "a", "--yes", "--reason", "r", "--result-file", path).want(t, exitOK, "COMPLETED", "IN_DOUBT")
	all := f.got()
	if got := all[len(all)-1].message.(*warifuv1.ResolveClaimRequest).GetCompletion().GetResult(); string(got) != "\xff\x00\n" {
		t.Errorf("result %q", got)
	}
}
