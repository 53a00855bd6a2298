package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/observe"
)

// TestTraceReachesTheStore: one trace leads from the caller's span over the
// server's and the batch's to the store's.
func TestTraceReachesTheStore(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	r := setup(t, func(c *server.Config) {
		c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		measured, err := observe.New(observe.Config{Store: c.Store, Registry: c.Registry, Clock: c.Clock, Tracer: c.Tracer})
		if err != nil {
			t.Fatal(err)
		}
		c.Store = measured
	})
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/warifu.v1.ClaimService/Claim", strings.NewReader(`{"consumer":"orders","eventId":"e"}`))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.keys["shop"])
	req.Header.Set("Traceparent", parent)
	w := httptest.NewRecorder()
	r.server.Handler().ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		t.Fatal(w.Body.String())
	}
	above := parent[36:52]
	for _, name := range []string{"warifu.v1.ClaimService/Claim", "arbiter claim", "store insert_or_get"} {
		var got tracetest.SpanStub
		r.until(func() bool { // the batch's span ends beside the answer
			all := spans.GetSpans()
			i := slices.IndexFunc(all, func(s tracetest.SpanStub) bool { return s.Name == name })
			if i >= 0 {
				got = all[i]
			}
			return i >= 0
		})
		if got.Parent.SpanID().String() != above || got.SpanContext.TraceID().String() != parent[3:35] {
			t.Errorf("%s is under %s of trace %s, want %s", name, got.Parent.SpanID(), got.SpanContext.TraceID(), above)
		}
		above = got.SpanContext.SpanID().String()
	}
	if !strings.Contains(r.log.String(), `"trace_id":"`+parent[3:35]+`"`) {
		t.Error("the log does not name the trace")
	}
}

// TestEventHashInLogs: who has the key finds the lines about an event.
func TestEventHashInLogs(t *testing.T) {
	t.Parallel()
	key := []byte("sixteen bytes or")
	r := setup(t, func(c *server.Config) { c.EventHashKey = key })
	r.grant(request("order-1", attemptA))
	if want := `"event":"` + interceptor.EventHash(key, "order-1") + `"`; !strings.Contains(r.log.String(), want) {
		t.Errorf("the log lacks %s:\n%s", want, r.log)
	}
	other := setup(t)
	other.grant(request("order-1", attemptA))
	if strings.Contains(other.log.String(), interceptor.EventHash(key, "order-1")) || strings.Contains(other.log.String(), interceptor.EventHash(nil, "order-1")) {
		t.Error("without a key the hash can be computed")
	}
	_, err := server.New(server.Config{Store: r.store, Directory: r.dir, Clock: r.clock.Now, EventHashKey: key[:15]})
	if err == nil || !strings.Contains(err.Error(), "EventHashKey") {
		t.Errorf("a key of 15 bytes: %v", err)
	}
}

// TestClaimsByClass: claims are counted by what is known of their consumer, also
// those of batches, and also those that fail.
func TestClaimsByClass(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.client("shop")
	item := func(consumer, event string) *warifuv1.ClaimRequest {
		return &warifuv1.ClaimRequest{Consumer: consumer, EventId: event, AttemptId: attemptA}
	}
	if _, err := c.BatchClaim(t.Context(), &warifuv1.BatchClaimRequest{Items: []*warifuv1.ClaimRequest{
		item("orders", "1"), item("held", "2"), item("anything", "3"), item("orders", "4"), item("", "5"), item("held", ""),
	}}); err != nil {
		t.Fatal(err)
	}
	r.failing(failAll(storage.ErrFull))
	if _, err := c.BatchClaim(t.Context(), &warifuv1.BatchClaimRequest{Items: []*warifuv1.ClaimRequest{item("held", "6"), item("anything", "7"), item("open", "8")}}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Claim(t.Context(), item("held", "9"))
	mustFail(t, err, warifuv1.Reason_REASON_STORE_FULL)
	for labels, want := range map[string]float64{
		`consumer="declared",decision="granted",on_lease_loss="regrant"`:     2,
		`consumer="declared",decision="granted",on_lease_loss="hold"`:        1,
		`consumer="undeclared",decision="granted",on_lease_loss="regrant"`:   1,
		`consumer="unknown",decision="failed",on_lease_loss="unknown"`:       2,
		`consumer="declared",decision="failed",on_lease_loss="hold"`:         2,
		`consumer="undeclared",decision="failed",on_lease_loss="regrant"`:    1,
		`consumer="declared",decision="unprotected",on_lease_loss="regrant"`: 1,
	} {
		if got := metric(t, r, "warifu_claims_total{"+labels+"}"); got != want {
			t.Errorf("%s = %v, want %v", labels, got, want)
		}
	}
	for series, want := range map[string]float64{
		"warifu_unprotected_runs_total": 1, "warifu_journal_entries": 1, "warifu_journal_up": 1,
		"warifu_journal_oldest_timestamp_seconds": float64(r.clock.Now().Unix()), `warifu_journal_refused_total{cause="full"}`: 0,
	} {
		if got := metric(t, r, series); got != want {
			t.Errorf("%s = %v, want %v", series, got, want)
		}
	}
}

// TestQuotaRefusals: each refusal is counted once, under its quota: of calls, of
// calls with one item, and of items of batches.
func TestQuotaRefusals(t *testing.T) {
	t.Parallel()
	var clock func() time.Time
	in := install(t, func(c *server.Config) {
		clock = c.Clock
		began := clock()
		var err error
		if c.Quotas, err = quota.New(quota.Config{Monotonic: func() time.Duration { return clock().Sub(began) }}); err != nil {
			t.Fatal(err)
		}
		c.QuotaDefaults = quota.Limits{Items: 1, Keys: 1_000}
	})
	ctx := t.Context()
	in.tenant("acme", map[string][]string{"acme": {"claim", "read"}})
	items := make([]*warifuv1.ClaimRequest, 500)
	for i := range items {
		items[i] = request(fmt.Sprint(i), attemptA)
	}
	refused := 0
	for range 2 { // the burst, and what is over it
		res, err := in.client("acme").BatchClaim(ctx, &warifuv1.BatchClaimRequest{Items: items})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range res.GetResults() {
			if item.GetError().GetInfo().GetReason() == warifuv1.Reason_REASON_QUOTA_EXCEEDED {
				refused++
			}
		}
	}
	if refused == 0 {
		t.Fatal("no item was refused")
	}
	for range 3 { // one more each
		_, err := in.client("acme").Claim(ctx, request("more", attemptA))
		mustFail(t, err, warifuv1.Reason_REASON_QUOTA_EXCEEDED)
	}
	_, err := in.client("acme").Lookup(ctx, &warifuv1.LookupRequest{Consumer: "orders", EventId: "1"})
	mustFail(t, err, warifuv1.Reason_REASON_QUOTA_EXCEEDED)
	if got := metric(t, in.rig, `warifu_quota_refused_total{quota="items"}`); got != float64(refused+4) {
		t.Errorf("%v refusals are counted, want %d", got, refused+4)
	}
	if got := metric(t, in.rig, `warifu_quota_refused_total{quota="keys"}`); got != 0 {
		t.Errorf("%v refusals for keys", got)
	}
}

// TestPlatformMetrics: tenants by state, the directory, classes of the limiter,
// and throttled addresses.
func TestPlatformMetrics(t *testing.T) {
	t.Parallel()
	var synced *tenant.Syncer
	in := install(t, func(c *server.Config) {
		rows := c.Platform.Registry
		var err error
		if synced, err = tenant.NewSyncer(tenant.SyncConfig{Registry: rows, Directory: c.Directory, Clock: c.Clock}); err != nil {
			t.Fatal(err)
		}
	})
	in.tenant("acme", nil)
	if _, err := in.platform("platform").SuspendTenant(t.Context(), &warifuv1.SuspendTenantRequest{Name: "acme", Change: reason(1)}); err != nil {
		t.Fatal(err)
	}
	for range interceptor.FailuresPerMinute + 5 {
		in.post("", "Claim", "{}")
	}
	in.grant(request("e", attemptA))
	for series, want := range map[string]float64{
		`warifu_tenants{state="active"}`: 3, `warifu_tenants{state="suspended"}`: 1, `warifu_tenants{state="deleting"}`: 0,
		"warifu_auth_throttled_total": 5, `warifu_rpc_admitted_total{class="claim"}`: 1, `warifu_rpc_admitted_total{class="finish"}`: 0,
		`warifu_rpc_queued{class="read"}`: 0, "warifu_rpc_slots_used": 0,
	} {
		if got := metric(t, in.rig, series); got != want {
			t.Errorf("%s = %v, want %v", series, got, want)
		}
	}
	if strings.Contains(scrape(t, in.rig), "warifu_directory_") {
		t.Error("a server without a syncer shows a directory")
	}
	own := prometheus.NewPedanticRegistry()
	s, err := server.New(server.Config{Store: in.store, Directory: in.dir, Clock: in.clock.Now, Registry: own, Synced: synced})
	if err != nil {
		t.Fatal(err)
	}
	in.clock.Advance(time.Minute)
	with := &rig{t: t, server: s, registry: own}
	if age := metric(t, with, "warifu_directory_age_seconds"); age != 60 {
		t.Errorf("the directory is %v s old", age)
	}
	if text := scrape(t, with); strings.Contains(text, "acme") || strings.Contains(text, "shop") {
		t.Error("a tenant is named")
	}
}
