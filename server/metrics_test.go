package server_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/storage"
)

// scrape returns the metrics as Prometheus reads them.
func scrape(t *testing.T, r *rig) string {
	t.Helper()
	w := httptest.NewRecorder()
	r.server.MetricsHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("metrics: status %d", w.Code)
	}
	return w.Body.String()
}

// metric returns one series' value.
func metric(t *testing.T, r *rig, series string) float64 {
	t.Helper()
	for line := range strings.Lines(scrape(t, r)) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("there is no series %s", series)
	return 0
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.client("shop")
	r.grant(request("e", attemptA))
	released(t, setup(t)) // another server: its counts are its own
	if _, err := c.Claim(t.Context(), request("e", attemptB)); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Claim(t.Context(), request("", attemptB)) // counted below
	if _, err := c.Complete(t.Context(), &warifuv1.CompleteRequest{Consumer: "orders", EventId: "gone", AttemptId: attemptA, Fence: 7, Completion: success("")}); err != nil {
		t.Fatal(err)
	}
	for series, want := range map[string]float64{
		`warifu_rpc_requests_total{code="ok",method="Claim"}`:                                     2,
		`warifu_rpc_requests_total{code="invalid_argument",method="Claim"}`:                       1,
		`warifu_rpc_duration_seconds_count{method="Claim"}`:                                       3,
		`warifu_claims_total{consumer="declared",decision="granted",on_lease_loss="regrant"}`:     1,
		`warifu_claims_total{consumer="declared",decision="in_progress",on_lease_loss="regrant"}`: 1,
		`warifu_claims_total{consumer="declared",decision="unprotected",on_lease_loss="regrant"}`: 0,
		`warifu_transitions_total{kind="complete",status="stale"}`:                                1,
		`warifu_transitions_total{kind="complete",status="ok"}`:                                   0,
		`warifu_lost_completions_total`:                                                           1,
		`warifu_store_up`:                                                                         1,
		`warifu_ready`:                                                                            1,
		`warifu_arbiter_items_total{lane="claim"}`:                                                2,
	} {
		if got := metric(t, r, series); got != want {
			t.Errorf("%s = %v, want %v", series, got, want)
		}
	}
	if !strings.Contains(scrape(t, r), `warifu_build_info{go_version="go`) {
		t.Error("there is no warifu_build_info")
	}
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v %v", problems, err)
	}
	for line := range strings.Lines(scrape(t, r)) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if !strings.HasPrefix(name, "warifu_") && !strings.HasPrefix(name, "promhttp_") {
			t.Errorf("a foreign name: %s", line)
		}
	}
}

// TestMetricsAreBounded: nothing that callers choose becomes a label.
func TestMetricsAreBounded(t *testing.T) {
	t.Parallel()
	r := setup(t)
	before := strings.Count(scrape(t, r), "\n")
	for _, name := range []string{"x1", "x2", "x3"} {
		m := request(name, "")
		m.Consumer = name
		r.grant(m)
		r.post("shop", "NoSuchMethod"+name, "{}")
	}
	if after := strings.Count(scrape(t, r), "\n"); after != before {
		t.Errorf("%d lines of metrics became %d", before, after)
	}
}

func TestMetricsWithoutStore(t *testing.T) {
	t.Parallel()
	r := setup(t)
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	if up := metric(t, r, "warifu_store_up"); up != 0 {
		t.Errorf("warifu_store_up = %v on a closed store", up)
	}
	if strings.Contains(scrape(t, r), "warifu_filter_keys ") {
		t.Error("a store that does not answer shows numbers")
	}
	_, err := r.client("shop").Claim(t.Context(), request("e", attemptA))
	if info(t, err).GetReason() != warifuv1.Reason_REASON_SHUTTING_DOWN {
		t.Errorf("claim on a closed store: %v (%v)", err, storage.ErrClosed)
	}
}
