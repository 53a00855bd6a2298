package server_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storagetest"
)

// installation is a rig whose tenants are in a registry, with a key of the
// platform, and no tenant beside those of the rig's configuration.
type installation struct {
	*rig
	rows *storagetest.RegistryModel
	// paused is told how long background work would wait, and lets it go on.
	paused chan time.Duration
}

func install(t *testing.T, opts ...option) *installation {
	t.Helper()
	in := &installation{paused: make(chan time.Duration)}
	in.rig = setup(t, append([]option{func(c *server.Config) {
		in.rows = storagetest.NewRegistryModel(c.Clock)
		configured := c.Directory.Table()
		rows, err := tenant.NewRows(configured)
		if err != nil {
			t.Fatal(err)
		}
		refresh := func(ctx context.Context) error {
			changes, err := in.rows.Load(ctx, rows.Revision())
			if err != nil {
				return err
			}
			for _, fault := range rows.Merge(&changes) {
				t.Errorf("a row is left out: %v", fault)
			}
			c.Directory.Swap(rows.Table())
			return nil
		}
		c.Platform = &server.Platform{
			Registry: in.rows, Refresh: refresh, Owner: "test", Reserved: 3,
			Pause: func(ctx context.Context, d time.Duration) error {
				select {
				case in.paused <- d:
					return ctx.Err()
				case <-ctx.Done():
					return ctx.Err()
				}
			},
		}
	}}, opts...)...)
	in.keys["platform"] = in.platformKey("admin:platform", "admin:tenant", "read", "resolve")
	return in
}

// platformKey stores a key of the platform, as an operator does who has the
// store.
func (in *installation) platformKey(scopes ...string) string {
	in.t.Helper()
	text, made := tenant.NewKey("test")
	_, err := in.rows.Apply(in.t.Context(), registry.Change{
		ID:    registry.ID(uuid.New()),
		Keys:  []registry.Write[registry.Key]{registry.Put(registry.Key{ID: made.ID, Secret: registry.Hash(made.SecretSHA256), Scopes: scopes})},
		Audit: []registry.AuditEntry{{Actor: "test", Action: "bootstrap"}},
	})
	if err != nil {
		in.t.Fatal(err)
	}
	changes, err := in.rows.Load(in.t.Context(), 0)
	if err != nil {
		in.t.Fatal(err)
	}
	rows, err := tenant.NewRows(in.table)
	if err != nil {
		in.t.Fatal(err)
	}
	rows.Merge(&changes)
	in.dir.Swap(rows.Table())
	return text
}

func (in *installation) platform(key string) warifuv1connect.PlatformAdminServiceClient {
	return warifuv1connect.NewPlatformAdminServiceClient(in.connectClient(key))
}

func (in *installation) team(key string) warifuv1connect.TenantAdminServiceClient {
	return warifuv1connect.NewTenantAdminServiceClient(in.connectClient(key))
}

func reason(version int64) *warifuv1.Change {
	return &warifuv1.Change{Reason: "a test", ExpectedVersion: version}
}

// tenant makes a tenant with a key for each name, which has the scopes beside.
func (in *installation) tenant(name string, keys map[string][]string) *warifuv1.Tenant {
	in.t.Helper()
	made, err := in.platform("platform").CreateTenant(in.t.Context(), &warifuv1.CreateTenantRequest{Name: name, Change: reason(0)})
	if err != nil {
		in.t.Fatal(err)
	}
	for key, scopes := range keys {
		k, err := in.team("platform").CreateKey(in.t.Context(), &warifuv1.CreateKeyRequest{Tenant: name, Scopes: scopes, Change: reason(0)})
		if err != nil {
			in.t.Fatal(err)
		}
		in.keys[key] = k.GetSecret()
	}
	return made.GetTenant()
}

func mustFail(t *testing.T, err error, want warifuv1.Reason) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %v", want)
	}
	if got := info(t, err).GetReason(); got != want {
		t.Fatalf("%v: reason %v, want %v", err, got, want)
	}
}

// TestOperatorsDay is what an operator does with a fresh installation.
func TestOperatorsDay(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	acme := in.tenant("acme", map[string][]string{"acme": {"claim", "read"}, "acme admin": {"admin:tenant"}})
	in.tenant("globex", map[string][]string{"globex": {"claim"}})
	if acme.GetId() <= 3 || acme.GetVersion() != 1 {
		t.Errorf("tenant %v: its number is one that the configuration may use", acme)
	}
	admin := in.team("acme admin")

	put, err := admin.PutConsumer(ctx, &warifuv1.PutConsumerRequest{Name: "orders", Change: reason(0), Policy: &warifuv1.ConsumerPolicy{
		OnUnavailable: warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_OPEN, RedeliveryWindow: durationpb.New(4 * time.Hour),
	}})
	if err != nil {
		t.Fatal(err)
	}
	policy, err := in.client("acme").GetPolicy(ctx, &warifuv1.GetPolicyRequest{Consumer: "orders"})
	if err != nil || policy.GetVersion() != put.GetConsumer().GetPolicyVersion() || policy.GetPolicy().GetRetention().AsDuration() != 8*time.Hour {
		t.Fatalf("policy %v, %v; declared was %v", policy, err, put)
	}

	claimed, err := in.client("acme").Claim(ctx, request("e-1", attemptA))
	if err != nil || claimed.GetDecision() != warifuv1.Decision_DECISION_GRANTED {
		t.Fatalf("claim: %v, %v", claimed, err)
	}
	again, err := in.client("globex").Claim(ctx, request("e-1", attemptB))
	if err != nil || again.GetDecision() != warifuv1.Decision_DECISION_GRANTED {
		t.Fatalf("the same event of another tenant: %v, %v", again, err)
	}

	keys, err := admin.ListKeys(ctx, &warifuv1.ListKeysRequest{})
	if err != nil || len(keys.GetKeys()) != 2 {
		t.Fatalf("keys: %v, %v", keys, err)
	}
	old := keys.GetKeys()[slices.IndexFunc(keys.GetKeys(), func(k *warifuv1.Key) bool { return slices.Contains(k.GetScopes(), "claim") })]
	rotated, err := admin.RotateKey(ctx, &warifuv1.RotateKeyRequest{Id: old.GetId(), Overlap: durationpb.New(time.Hour), Change: reason(0)})
	if err != nil {
		t.Fatal(err)
	}
	in.keys["acme new"] = rotated.GetSecret()
	for _, key := range []string{"acme", "acme new"} {
		if _, err := in.client(key).Claim(ctx, request("e-2", attemptA)); err != nil {
			t.Errorf("%s within the overlap: %v", key, err)
		}
	}
	in.clock.Advance(time.Hour)
	if _, err := in.client("acme").Claim(ctx, request("e-2", attemptA)); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("the old key after the overlap: %v", err)
	}

	suspended, err := in.platform("platform").SuspendTenant(ctx, &warifuv1.SuspendTenantRequest{Name: "acme", Change: reason(1)})
	if err != nil || suspended.GetTenant().GetState() != warifuv1.TenantState_TENANT_STATE_SUSPENDED {
		t.Fatalf("suspend: %v, %v", suspended, err)
	}
	_, err = in.client("acme new").Claim(ctx, request("e-3", attemptA))
	mustFail(t, err, warifuv1.Reason_REASON_TENANT_SUSPENDED)
	res, err := in.client("acme new").Complete(ctx, &warifuv1.CompleteRequest{
		Consumer: "orders", EventId: "e-1", AttemptId: attemptA, Fence: claimed.GetGrant().GetFence(), Completion: success("done"),
	})
	if err != nil || !res.GetAccepted() {
		t.Errorf("what was granted before cannot be completed: %v, %v", res, err)
	}

	log, err := in.team("platform").ListAudit(ctx, &warifuv1.ListAuditRequest{Tenant: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, e := range log.GetEntries() {
		actions = append(actions, e.GetAction())
		if e.GetReason() != "a test" || e.GetActor() == "" || e.GetRequestId() == "" || e.GetAt() == nil {
			t.Errorf("an entry says too little: %v", e)
		}
	}
	want := []string{"tenant.suspend", "key.rotate", "consumer.put", "key.create", "key.create", "tenant.create"}
	if !slices.Equal(actions, want) {
		t.Errorf("audit log: %v, want %v", actions, want)
	}
	for _, secret := range []string{in.keys["acme"], in.keys["acme new"], in.keys["platform"]} {
		parts := strings.Split(secret, "_")
		if strings.Contains(in.log.String(), parts[3]) {
			t.Error("a secret is in the log")
		}
	}
}

// TestChangeIsMadeOnce: a call that is sent again with its change_id changes
// nothing more, although its expected version has moved on by its own doing.
func TestChangeIsMadeOnce(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", map[string][]string{"admin": {"admin:tenant"}})
	again := func(version int64) *warifuv1.Change {
		c := reason(version)
		c.ChangeId = uuid.NewString()
		return c
	}
	create := &warifuv1.CreateTenantRequest{Name: "once", Change: again(0)}
	put := &warifuv1.PutConsumerRequest{Name: "c", Change: again(0)}
	suspend := &warifuv1.SuspendTenantRequest{Name: "once", Change: again(1)}
	for n := range 2 {
		if _, err := in.platform("platform").CreateTenant(ctx, create); err != nil {
			t.Fatalf("create, time %d: %v", n, err)
		}
		if res, err := in.team("admin").PutConsumer(ctx, put); err != nil || res.GetConsumer().GetVersion() != 1 {
			t.Fatalf("put, time %d: %v, %v", n, res, err)
		}
	}
	for n := range 2 {
		if res, err := in.platform("platform").SuspendTenant(ctx, suspend); err != nil || res.GetTenant().GetVersion() != 2 {
			t.Fatalf("suspend, time %d: %v, %v", n, res, err)
		}
	}
	key := &warifuv1.CreateKeyRequest{Scopes: []string{"claim"}, Change: again(0)}
	if _, err := in.team("admin").CreateKey(ctx, key); err != nil {
		t.Fatal(err)
	}
	_, err := in.team("admin").CreateKey(ctx, key)
	mustFail(t, err, warifuv1.Reason_REASON_PRECONDITION)
	keys, err := in.team("admin").ListKeys(ctx, &warifuv1.ListKeysRequest{})
	if err != nil || len(keys.GetKeys()) != 2 {
		t.Errorf("%d keys, want the administrator's and one: %v", len(keys.GetKeys()), err)
	}
	_, err = in.platform("platform").CreateTenant(ctx, &warifuv1.CreateTenantRequest{Name: "once", Change: reason(0)})
	mustFail(t, err, warifuv1.Reason_REASON_ALREADY_EXISTS)
	_, err = in.platform("platform").ResumeTenant(ctx, &warifuv1.ResumeTenantRequest{Name: "once", Change: reason(1)})
	mustFail(t, err, warifuv1.Reason_REASON_CONFLICT)
}

// TestDryRunChangesNothing: it says what would be, and nothing is.
func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", map[string][]string{"admin": {"admin:tenant"}})
	p, a := in.platform("platform"), in.team("admin")
	if _, err := a.PutConsumer(ctx, &warifuv1.PutConsumerRequest{Name: "c", Change: reason(0)}); err != nil {
		t.Fatal(err)
	}
	before, err := in.rows.Load(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	dry := func(version int64) *warifuv1.Change {
		return &warifuv1.Change{Reason: "a look", DryRun: true, ExpectedVersion: version}
	}
	shorter := &warifuv1.ConsumerPolicy{RedeliveryWindow: durationpb.New(time.Hour)}
	put, err := a.PutConsumer(ctx, &warifuv1.PutConsumerRequest{Name: "c", Policy: shorter, Change: dry(1)})
	if err != nil || len(put.GetConsequence().GetNotes()) < 2 {
		t.Errorf("shortening retention says %v, %v", put.GetConsequence(), err)
	}
	for name, call := range map[string]func() error{
		"create tenant": func() error {
			_, err := p.CreateTenant(ctx, &warifuv1.CreateTenantRequest{Name: "new", Change: dry(0)})
			return err
		},
		"delete tenant": func() error {
			_, err := p.DeleteTenant(ctx, &warifuv1.DeleteTenantRequest{Name: "acme", ExpectedId: 4, Change: dry(1)})
			return err
		},
		"delete consumer": func() error {
			_, err := a.DeleteConsumer(ctx, &warifuv1.DeleteConsumerRequest{Name: "c", Change: dry(1)})
			return err
		},
		"create key": func() error {
			_, err := a.CreateKey(ctx, &warifuv1.CreateKeyRequest{Scopes: []string{"claim"}, Change: dry(0)})
			return err
		},
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = p.DeleteTenant(ctx, &warifuv1.DeleteTenantRequest{Name: "acme", ExpectedId: 4, Change: dry(7)})
	mustFail(t, err, warifuv1.Reason_REASON_CONFLICT)
	after, err := in.rows.Load(ctx, 0)
	if err != nil || after.Revision != before.Revision {
		t.Errorf("revision %d, was %d: %v", after.Revision, before.Revision, err)
	}
}

// TestRefusedChanges: each refusal names the field.
func TestRefusedChanges(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", map[string][]string{"admin": {"admin:tenant"}})
	a, p := in.team("admin"), in.platform("platform")
	for name, c := range map[string]struct {
		field string
		call  func() error
	}{
		"no reason": {"change.reason", func() error {
			_, err := a.PutConsumer(ctx, &warifuv1.PutConsumerRequest{Name: "c"})
			return err
		}},
		"not looked": {"change.expected_version", func() error {
			_, err := a.DeleteConsumer(ctx, &warifuv1.DeleteConsumerRequest{Name: "c", Change: reason(0)})
			return err
		}},
		"bad change ID": {"change.change_id", func() error {
			_, err := a.PutConsumer(ctx, &warifuv1.PutConsumerRequest{Name: "c", Change: &warifuv1.Change{Reason: "r", ChangeId: "x"}})
			return err
		}},
		"contradiction": {"policy", func() error {
			_, err := a.PutConsumer(ctx, &warifuv1.PutConsumerRequest{Name: "c", Change: reason(0), Policy: &warifuv1.ConsumerPolicy{
				OnLeaseLoss: warifuv1.OnLeaseLoss_ON_LEASE_LOSS_HOLD, OnUnavailable: warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_OPEN,
			}})
			return err
		}},
		"retention below the window": {"policy", func() error {
			_, err := a.PutConsumer(ctx, &warifuv1.PutConsumerRequest{Name: "c", Change: reason(0), Policy: &warifuv1.ConsumerPolicy{
				RedeliveryWindow: durationpb.New(2 * time.Hour), Retention: durationpb.New(time.Hour),
			}})
			return err
		}},
		"the platform's scope": {"scopes[0]", func() error {
			_, err := a.CreateKey(ctx, &warifuv1.CreateKeyRequest{Scopes: []string{"admin:platform"}, Change: reason(0)})
			return err
		}},
		"no scope": {"scopes", func() error {
			_, err := a.CreateKey(ctx, &warifuv1.CreateKeyRequest{Change: reason(0)})
			return err
		}},
		"a prefix for an administrator": {"consumer_prefix", func() error {
			_, err := a.CreateKey(ctx, &warifuv1.CreateKeyRequest{Scopes: []string{"admin:tenant"}, ConsumerPrefix: "x", Change: reason(0)})
			return err
		}},
		"expired at once": {"expires_at", func() error {
			_, err := a.CreateKey(ctx, &warifuv1.CreateKeyRequest{Scopes: []string{"claim"}, ExpiresAt: timestamppb.New(in.clock.Now()), Change: reason(0)})
			return err
		}},
		"tenant's name": {"name", func() error {
			_, err := p.CreateTenant(ctx, &warifuv1.CreateTenantRequest{Name: "a b", Change: reason(0)})
			return err
		}},
		"page size": {"page_size", func() error {
			_, err := a.ListKeys(ctx, &warifuv1.ListKeysRequest{PageSize: 501})
			return err
		}},
		"no tenant named": {"tenant", func() error {
			_, err := in.team("platform").ListConsumers(ctx, &warifuv1.ListConsumersRequest{})
			return err
		}},
	} {
		err := c.call()
		if err == nil {
			t.Errorf("%s: it is done", name)
			continue
		}
		if got := info(t, err); got.GetReason() != warifuv1.Reason_REASON_INVALID_FIELD || got.GetField() != c.field {
			t.Errorf("%s: %v, field %q, want %q", name, err, got.GetField(), c.field)
		}
	}
}

// TestRetentionRaised: what was forgotten under the shorter retention is not
// taken for new.
func TestRetentionRaised(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", map[string][]string{"acme": {"claim", "admin:tenant"}})
	put := func(version int64, window time.Duration) {
		t.Helper()
		_, err := in.team("acme").PutConsumer(ctx, &warifuv1.PutConsumerRequest{
			Name: "orders", Policy: &warifuv1.ConsumerPolicy{RedeliveryWindow: durationpb.New(window)}, Change: reason(version),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	old := func(age time.Duration) warifuv1.Decision {
		t.Helper()
		m := request(uuid.NewString(), attemptA)
		m.EventTime = timestamppb.New(in.clock.Now().Add(-age))
		res, err := in.client("acme").Claim(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		return res.GetDecision()
	}
	put(0, time.Hour) // remembered for 2 h
	put(1, 12*time.Hour)
	if got := old(3 * time.Hour); got != warifuv1.Decision_DECISION_TOO_OLD {
		t.Errorf("an event of 3 h ago, just after retention was raised from 2 h: %v", got)
	}
	in.clock.Advance(6 * time.Hour)
	if got := old(4 * time.Hour); got != warifuv1.Decision_DECISION_GRANTED {
		t.Errorf("an event of 4 h ago, 6 h after: %v", got)
	}
	put(2, 48*time.Hour)
	if got := old(7 * time.Hour); got != warifuv1.Decision_DECISION_TOO_OLD {
		t.Errorf("an event from before the first raise, after the second: %v", got)
	}
}

// TestDeclaredLater: a consumer that was used under the default policy and is
// declared with a longer retention takes nothing for new that it had forgotten.
func TestDeclaredLater(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", map[string][]string{"acme": {"claim", "admin:tenant"}})
	_, err := in.team("acme").PutConsumer(ctx, &warifuv1.PutConsumerRequest{
		Name: "orders", Policy: &warifuv1.ConsumerPolicy{RedeliveryWindow: durationpb.New(30 * 24 * time.Hour)}, Change: reason(0),
	})
	if err != nil {
		t.Fatal(err)
	}
	for age, want := range map[time.Duration]warifuv1.Decision{
		40 * time.Hour: warifuv1.Decision_DECISION_GRANTED, 50 * time.Hour: warifuv1.Decision_DECISION_TOO_OLD,
	} {
		m := request(uuid.NewString(), attemptA)
		m.EventTime = timestamppb.New(in.clock.Now().Add(-age))
		if res, err := in.client("acme").Claim(ctx, m); err != nil || res.GetDecision() != want {
			t.Errorf("an event of %v ago: %v, %v", age, res.GetDecision(), err)
		}
	}
}

// TestDeletedTenantIsPurged: keys stop at once; records go later; the name
// comes back without anything of the old tenant.
func TestDeletedTenantIsPurged(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	acme := in.tenant("acme", map[string][]string{"acme": {"claim", "read"}})
	for _, event := range []string{"a", "b", "c"} {
		if _, err := in.client("acme").Claim(ctx, request(event, attemptA)); err != nil {
			t.Fatal(err)
		}
	}
	res, err := in.platform("platform").DeleteTenant(ctx, &warifuv1.DeleteTenantRequest{Name: "acme", ExpectedId: acme.GetId(), Change: reason(1)})
	if err != nil || res.GetTenant().GetState() != warifuv1.TenantState_TENANT_STATE_DELETING {
		t.Fatalf("delete: %v, %v", res, err)
	}
	_, err = in.client("acme").Lookup(ctx, &warifuv1.LookupRequest{Consumer: "orders", EventId: "a"})
	mustFail(t, err, warifuv1.Reason_REASON_UNAUTHENTICATED)
	_, err = in.platform("platform").CreateTenant(ctx, &warifuv1.CreateTenantRequest{Name: "acme", Change: reason(0)})
	mustFail(t, err, warifuv1.Reason_REASON_ALREADY_EXISTS)

	in.clock.Advance(2 * time.Minute)
	in.awaitJob()
	again := in.tenant("acme", map[string][]string{"acme": {"claim", "read"}})
	if again.GetId() == acme.GetId() {
		t.Error("the number of a tenant is used again")
	}
	claimed, err := in.client("acme").Claim(ctx, request("a", attemptB))
	if err != nil || claimed.GetDecision() != warifuv1.Decision_DECISION_GRANTED {
		t.Errorf("a claim of the new tenant: %v, %v", claimed, err)
	}
	if left := in.recordsOf(acme.GetId()); left != 0 {
		t.Errorf("%d records are left", left)
	}
}

// awaitJob lets background work go on until its job is done.
func (in *installation) awaitJob() {
	in.t.Helper()
	for {
		<-in.paused
		jobs, err := in.platform("platform").ListJobs(in.t.Context(), &warifuv1.ListJobsRequest{})
		if err != nil || len(jobs.GetJobs()) != 1 {
			in.t.Fatalf("jobs: %v, %v", jobs, err)
		}
		j := jobs.GetJobs()[0]
		if j.GetState() == warifuv1.JobState_JOB_STATE_FAILED {
			in.t.Fatalf("the job failed: %v", j)
		}
		if j.GetState() == warifuv1.JobState_JOB_STATE_DONE {
			if j.GetDone() != 3 {
				in.t.Errorf("%d records were deleted: %v", j.GetDone(), j)
			}
			return
		}
	}
}

// TestOperatorDecides: the verbs act on what was looked at and nothing else, and
// each is in the log.
func TestOperatorDecides(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", map[string][]string{"acme": {"claim", "read"}, "resolver": {"resolve", "read"}, "admin": {"admin:tenant"}})
	_, err := in.team("admin").PutConsumer(ctx, &warifuv1.PutConsumerRequest{
		Name: "orders", Policy: &warifuv1.ConsumerPolicy{OnLeaseLoss: warifuv1.OnLeaseLoss_ON_LEASE_LOSS_HOLD}, Change: reason(0),
	})
	if err != nil {
		t.Fatal(err)
	}
	fence := map[string]int64{}
	for _, event := range []string{"a", "b", "c", "d"} {
		res, err := in.client("acme").Claim(ctx, request(event, attemptA))
		if err != nil {
			t.Fatal(err)
		}
		fence[event] = res.GetGrant().GetFence()
	}
	in.clock.Advance(time.Hour)
	decide := in.adminClient("resolver")
	resolve := func(event string, fence int64, state warifuv1.State, how warifuv1.Resolution, c *warifuv1.Completion) (*warifuv1.ResolveClaimResponse, error) {
		return decide.ResolveClaim(ctx, &warifuv1.ResolveClaimRequest{
			Consumer: "orders", EventId: event, ExpectedFence: fence, ExpectedState: state, Resolution: how, Completion: c, Reason: "looked it up",
		})
	}
	const doubt = warifuv1.State_STATE_IN_DOUBT
	_, err = resolve("a", fence["a"]+1, doubt, warifuv1.Resolution_RESOLUTION_RETRY, nil)
	mustFail(t, err, warifuv1.Reason_REASON_CONFLICT)
	_, err = resolve("nothing", 1, doubt, warifuv1.Resolution_RESOLUTION_RETRY, nil)
	mustFail(t, err, warifuv1.Reason_REASON_NOT_FOUND)
	for range 2 { // the second is a resend
		done, err := resolve("a", fence["a"], doubt, warifuv1.Resolution_RESOLUTION_COMPLETE, success("by hand"))
		if err != nil || done.GetRecord().GetState() != warifuv1.State_STATE_COMPLETED {
			t.Fatalf("complete: %v, %v", done, err)
		}
	}
	dup, err := in.client("acme").Claim(ctx, request("a", attemptB))
	if err != nil || string(dup.GetResult().GetResult()) != "by hand" {
		t.Errorf("after it was completed by hand: %v, %v", dup, err)
	}
	bulk := &warifuv1.ResolveClaimsRequest{
		Consumer: "orders", States: []warifuv1.State{doubt}, Action: warifuv1.BulkAction_BULK_ACTION_RETRY, Reason: "all again", DryRun: true,
	}
	seen, err := decide.ResolveClaims(ctx, bulk)
	if err != nil || seen.GetMatched() != 3 || seen.GetChanged() != 0 {
		t.Fatalf("a dry run: %v, %v", seen, err)
	}
	bulk.DryRun = false
	if done, err := decide.ResolveClaims(ctx, bulk); err != nil || done.GetChanged() != 3 {
		t.Fatalf("retry all: %v, %v", done, err)
	}
	if again, err := in.client("acme").Claim(ctx, request("b", attemptB)); err != nil || again.GetGrant() == nil {
		t.Errorf("after it was given back: %v, %v", again, err)
	}
	forgot, err := decide.ForgetClaim(ctx, &warifuv1.ForgetClaimRequest{
		Consumer: "orders", EventId: "a", ExpectedFence: fence["a"], ExpectedState: warifuv1.State_STATE_COMPLETED, Reason: "wrong",
	})
	if err != nil || forgot.GetRecord().GetState() != warifuv1.State_STATE_FORGOTTEN {
		t.Fatalf("forget: %v, %v", forgot, err)
	}
	log, err := in.team("admin").ListAudit(ctx, &warifuv1.ListAuditRequest{})
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, e := range log.GetEntries() {
		counts[e.GetAction()]++
	}
	if counts["claim.complete"] != 1 || counts["claim.retry"] != 3 || counts["claim.forget"] != 1 {
		t.Errorf("the log has %v", counts)
	}
	_, err = in.adminClient("acme").ForgetClaim(ctx, &warifuv1.ForgetClaimRequest{Consumer: "orders", EventId: "a", Reason: "r"})
	mustFail(t, err, warifuv1.Reason_REASON_PERMISSION_DENIED)
}

// TestPrefixedKey: a key that is limited to some consumers meets no other.
func TestPrefixedKey(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", map[string][]string{"admin": {"admin:tenant"}})
	made, err := in.team("admin").CreateKey(ctx, &warifuv1.CreateKeyRequest{Scopes: []string{"claim", "read"}, ConsumerPrefix: "billing/", Change: reason(0)})
	if err != nil {
		t.Fatal(err)
	}
	in.keys["billing"] = made.GetSecret()
	if _, err := in.client("billing").Claim(ctx, &warifuv1.ClaimRequest{Consumer: "billing/invoices", EventId: "e", AttemptId: attemptA}); err != nil {
		t.Errorf("its own consumer: %v", err)
	}
	_, err = in.client("billing").Claim(ctx, request("e", attemptA))
	mustFail(t, err, warifuv1.Reason_REASON_PERMISSION_DENIED)
	_, err = in.client("billing").GetPolicy(ctx, &warifuv1.GetPolicyRequest{Consumer: "orders"})
	mustFail(t, err, warifuv1.Reason_REASON_PERMISSION_DENIED)
	for _, consumer := range []string{"", "orders"} {
		_, err = in.adminClient("billing").ListClaims(ctx, &warifuv1.ListClaimsRequest{Consumer: consumer})
		mustFail(t, err, warifuv1.Reason_REASON_INVALID_FIELD)
	}
	if _, err := in.adminClient("billing").ListClaims(ctx, &warifuv1.ListClaimsRequest{Consumer: "billing/invoices"}); err != nil {
		t.Errorf("listing its own consumer: %v", err)
	}
}

// TestListsPage: every list of rows goes on where it stopped, for its own filter
// and its own tenant alone.
func TestListsPage(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", map[string][]string{"acme": {"admin:tenant"}})
	in.tenant("globex", map[string][]string{"globex": {"admin:tenant"}})
	for _, name := range []string{"a1", "a2", "a3", "b1"} {
		if _, err := in.team("acme").PutConsumer(ctx, &warifuv1.PutConsumerRequest{Name: name, Change: reason(0)}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	var tokens []string
	m := &warifuv1.ListConsumersRequest{PageSize: 2, Prefix: "a"}
	for {
		page, err := in.team("acme").ListConsumers(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.GetConsumers() {
			names = append(names, c.GetName())
		}
		if m.PageToken = page.GetNextPageToken(); m.PageToken == "" {
			break
		}
		tokens = append(tokens, m.GetPageToken())
	}
	if !slices.Equal(names, []string{"a1", "a2", "a3"}) || len(tokens) != 1 {
		t.Fatalf("%v in %d pages", names, len(tokens)+1)
	}
	for name, call := range map[string]func() error{
		"another tenant": func() error {
			_, err := in.team("globex").ListConsumers(ctx, &warifuv1.ListConsumersRequest{PageSize: 2, Prefix: "a", PageToken: tokens[0]})
			return err
		},
		"another filter": func() error {
			_, err := in.team("acme").ListConsumers(ctx, &warifuv1.ListConsumersRequest{PageSize: 2, PageToken: tokens[0]})
			return err
		},
		"another list": func() error {
			_, err := in.team("acme").ListKeys(ctx, &warifuv1.ListKeysRequest{PageToken: tokens[0]})
			return err
		},
	} {
		if err := call(); err == nil || info(t, err).GetReason() != warifuv1.Reason_REASON_INVALID_PAGE_TOKEN {
			t.Errorf("%s: %v", name, err)
		}
	}
	tenants, err := in.platform("platform").ListTenants(ctx, &warifuv1.ListTenantsRequest{PageSize: 1})
	if err != nil || len(tenants.GetTenants()) != 1 || tenants.GetNextPageToken() == "" {
		t.Fatalf("tenants: %v, %v", tenants, err)
	}
	tenants, err = in.platform("platform").ListTenants(ctx, &warifuv1.ListTenantsRequest{PageSize: 1, PageToken: tenants.GetNextPageToken()})
	if err != nil || len(tenants.GetTenants()) != 1 || tenants.GetTenants()[0].GetName() != "globex" || tenants.GetNextPageToken() != "" {
		t.Fatalf("tenants, second page: %v, %v", tenants, err)
	}
}

// recordsOf counts what is stored of a tenant.
func (in *installation) recordsOf(id int64) int {
	in.t.Helper()
	n := 0
	err := in.store.Scan(in.t.Context(), func(k claim.Key) error {
		if int64(k.Tenant) == id {
			n++
		}
		return nil
	})
	if err != nil {
		in.t.Fatal(err)
	}
	return n
}

// TestNumberOfRecordsIsNotGivenOut: whoever got the number of a tenant that was
// configured once would read what it has stored.
func TestNumberOfRecordsIsNotGivenOut(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	left := claim.Request{Key: claim.Key{Tenant: 4, Consumer: "orders", EventID: "e"}, Attempt: claim.AttemptID{1}, Lease: time.Minute, InsertBefore: claim.Never}
	if _, err := in.store.InsertOrGet(ctx, []claim.Request{left}); err != nil {
		t.Fatal(err)
	}
	made := in.tenant("acme", map[string][]string{"acme": {"claim", "read"}})
	if made.GetId() != 5 {
		t.Errorf("the new tenant has the number %d", made.GetId())
	}
	res, err := in.client("acme").Lookup(ctx, &warifuv1.LookupRequest{Consumer: "orders", EventId: "e"})
	if err != nil || res.GetRecord().GetState() != warifuv1.State_STATE_ABSENT {
		t.Errorf("it finds %v, %v", res, err)
	}
}

// TestDeletedConsumerIsRetired: what its row knows stays, and it is not declared.
func TestDeletedConsumerIsRetired(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", map[string][]string{"acme": {"claim", "admin:tenant"}})
	a := in.team("acme")
	_, err := a.PutConsumer(ctx, &warifuv1.PutConsumerRequest{
		Name: "orders", Policy: &warifuv1.ConsumerPolicy{RedeliveryWindow: durationpb.New(time.Hour)}, Change: reason(0),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.DeleteConsumer(ctx, &warifuv1.DeleteConsumerRequest{Name: "orders", Change: reason(1)}); err != nil {
		t.Fatal(err)
	}
	_, err = a.GetConsumer(ctx, &warifuv1.GetConsumerRequest{Name: "orders"})
	mustFail(t, err, warifuv1.Reason_REASON_NOT_FOUND)
	list, err := a.ListConsumers(ctx, &warifuv1.ListConsumersRequest{})
	if err != nil || len(list.GetConsumers()) != 0 {
		t.Errorf("declared are %v, %v", list, err)
	}
	policy, err := in.client("acme").GetPolicy(ctx, &warifuv1.GetPolicyRequest{Consumer: "orders"})
	if err != nil || policy.GetDeclared() || policy.GetPolicy().GetRetention().AsDuration() != 48*time.Hour {
		t.Errorf("policy %v, %v", policy, err)
	}
	m := request("e", attemptA)
	m.EventTime = timestamppb.New(in.clock.Now().Add(-10 * time.Hour))
	if res, err := in.client("acme").Claim(ctx, m); err != nil || res.GetDecision() != warifuv1.Decision_DECISION_TOO_OLD {
		t.Errorf("an event that was forgotten before: %v, %v", res.GetDecision(), err)
	}
}

// TestPlatformKeysOfLessScope: a key of the platform that acts for tenants gets
// no further by itself.
func TestPlatformKeysOfLessScope(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", nil)
	in.keys["for tenants"] = in.platformKey("admin:tenant")
	a := in.team("for tenants")
	if _, err := a.ListConsumers(ctx, &warifuv1.ListConsumersRequest{Tenant: "acme"}); err != nil {
		t.Errorf("for a tenant: %v", err)
	}
	for name, call := range map[string]func() error{
		"create": func() error {
			_, err := a.CreateKey(ctx, &warifuv1.CreateKeyRequest{Scopes: []string{"admin:platform"}, Change: reason(0)})
			return err
		},
		"list keys": func() error { _, err := a.ListKeys(ctx, &warifuv1.ListKeysRequest{}); return err },
		"rotate": func() error {
			_, err := a.RotateKey(ctx, &warifuv1.RotateKeyRequest{Id: strings.Split(in.keys["platform"], "_")[2], Change: reason(0)})
			return err
		},
		"audit": func() error { _, err := a.ListAudit(ctx, &warifuv1.ListAuditRequest{}); return err },
	} {
		if err := call(); err == nil || info(t, err).GetField() != "tenant" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestChangeIDProvesItsOwnCall: another call with the same ID is another change.
func TestChangeIDProvesItsOwnCall(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("a", nil)
	in.tenant("b", nil)
	c := reason(1)
	c.ChangeId = uuid.NewString()
	for _, name := range []string{"a", "b"} {
		res, err := in.platform("platform").SuspendTenant(ctx, &warifuv1.SuspendTenantRequest{Name: name, Change: c})
		if err != nil || res.GetTenant().GetState() != warifuv1.TenantState_TENANT_STATE_SUSPENDED {
			t.Errorf("%s: %v, %v", name, res, err)
		}
	}
	_, err := in.platform("platform").UpdateTenant(ctx, &warifuv1.UpdateTenantRequest{Name: "gone", NewName: "b", Change: reason(2)})
	mustFail(t, err, warifuv1.Reason_REASON_NOT_FOUND)
	rename := &warifuv1.UpdateTenantRequest{Name: "a", NewName: "c", Change: &warifuv1.Change{Reason: "r", ChangeId: uuid.NewString(), ExpectedVersion: 2}}
	for range 2 {
		if res, err := in.platform("platform").UpdateTenant(ctx, rename); err != nil || res.GetTenant().GetVersion() != 3 {
			t.Errorf("rename: %v, %v", res, err)
		}
	}
}

// TestWaiterIsLetInNoMore: a claim that waits is not granted to a tenant that was
// suspended meanwhile.
func TestWaiterIsLetInNoMore(t *testing.T) {
	t.Parallel()
	in, ctx := install(t), t.Context()
	in.tenant("acme", map[string][]string{"acme": {"claim"}})
	first, err := in.client("acme").Claim(ctx, request("e", attemptA))
	if err != nil {
		t.Fatal(err)
	}
	waiting := request("e", attemptB)
	waiting.Wait = durationpb.New(20 * time.Second)
	answer := make(chan error, 1)
	go func() {
		res, err := in.client("acme").Claim(ctx, waiting)
		if err == nil {
			err = fmt.Errorf("it is answered %v", res.GetDecision())
		}
		answer <- err
	}()
	in.until(func() bool { return strings.Contains(in.metricsText(), "\nwarifu_waiters 1\n") })
	if _, err := in.platform("platform").SuspendTenant(ctx, &warifuv1.SuspendTenantRequest{Name: "acme", Change: reason(1)}); err != nil {
		t.Fatal(err)
	}
	_, err = in.client("acme").Release(ctx, &warifuv1.ReleaseRequest{Consumer: "orders", EventId: "e", AttemptId: attemptA, Fence: first.GetGrant().GetFence()})
	if err != nil {
		t.Fatal(err)
	}
	mustFail(t, <-answer, warifuv1.Reason_REASON_TENANT_SUSPENDED)
}

func (in *installation) metricsText() string {
	w := httptest.NewRecorder()
	in.server.MetricsHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}
