package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/storage/sqlstore"
)

// TestTracingVariables: which variables ask for traces, and which are refused.
func TestTracingVariables(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"
	for _, c := range []struct {
		environ string
		on      bool
		fault   string
	}{
		{"", false, ""},
		{endpoint, true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:4318/v1/traces", true, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, ""},
		{endpoint + " OTEL_TRACES_EXPORTER=none", false, ""},
		{endpoint + " OTEL_SDK_DISABLED=true", false, ""},
		{endpoint + " OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, ""},
		{endpoint + " OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, "OTEL_EXPORTER_OTLP_PROTOCOL"},
		{endpoint + " OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", false, "OTEL_EXPORTER_OTLP_PROTOCOL"},
		{"OTEL_TRACES_EXPORTER=zipkin", false, "OTEL_TRACES_EXPORTER"},
		{"OTEL_SERVICE_NAME=claims", false, ""},
	} {
		on, err := tracing(&system{environ: strings.Fields(c.environ)})
		if on != c.on || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q: %v, %v", c.environ, on, err)
		}
	}
}

// TestHashIsTheServers: `warifu claims hash` says what logs say.
func TestHashIsTheServers(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef")
	if got, want := eventHash(key, "order-1"), interceptor.EventHash(key, "order-1"); got != want || hashKeyBytesMin != interceptor.EventHashKeyBytesMin {
		t.Errorf("hash %s, in logs %s", got, want)
	}
	f := newFolder(t)
	c := &config{platformConfig: platformConfig{LogHashKey: f.path(f.write("short", "0123456789abcde\n"))}}
	if _, err := c.eventHashKey(); err == nil || !strings.Contains(err.Error(), "15 bytes") {
		t.Errorf("a key of 15 bytes: %v", err)
	}
}

// collector takes spans as they come over the network.
type collector struct {
	mu   sync.Mutex
	took bytes.Buffer
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = io.Copy(&c.took, r.Body) // what is missing, the test misses
}

// TestServeTellsAboutItself: a server with everything on has all its metrics,
// under names that Prometheus likes, sends its spans before it ends, and logs
// the hash that `warifu claims hash` prints.
func TestServeTellsAboutItself(t *testing.T) {
	t.Parallel()
	sink := &collector{}
	otlp := httptest.NewServer(sink)
	defer otlp.Close()
	f := newFolder(t)
	key := f.configure()
	f.write("hash.key", "a key that nobody guesses\n")
	f.setenv("OTEL_EXPORTER_OTLP_ENDPOINT="+otlp.URL, "OTEL_EXPORTER_OTLP_COMPRESSION=none", "WARIFU_LOG_HASH_KEY_FILE=hash.key")
	p := f.start("serve", "--config", "warifu.yaml", "--log-format", "json", "--log-level", "debug")
	p.key = key
	p.url = "http://" + match(t, `"msg":"ready","listen":"([^"]+)"`, p.until(p.stderr, `"msg":"ready"`))
	p.call("Claim", claimOf("payments", "CANARY-1", 1))

	text := p.metrics("/metrics")
	for _, want := range []string{
		`warifu_claims_total{consumer="declared",decision="granted",on_lease_loss="hold"} 1`, `warifu_store_applied_items_total{operation="insert_or_get"} 1`,
		"warifu_census_rounds_total ", "warifu_census_failures_total 0", "warifu_sealed_results_total 0", "warifu_journal_up 1", "warifu_directory_age_seconds ",
		`warifu_tenants{state="active"} 2`, `warifu_quota_refused_total{quota="share"} 0`, `warifu_rpc_shed_total{class="claim"} 0`,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	for _, none := range []string{"warifu_sql_pool_connections", "warifu_tls_certificate_expiry_timestamp_seconds ", "CANARY", "shop", "payments"} {
		if strings.Contains(text, none) {
			t.Errorf("metrics show %s", none)
		}
	}
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr)
	}
	hash := strings.TrimSpace(f.warifu("claims", "hash", "CANARY-1", "--key-file", "hash.key").stdout)
	if log := p.stderr.String(); len(hash) != 16 || !strings.Contains(log, `"event":"`+hash+`"`) || strings.Contains(log, "CANARY") {
		t.Errorf("the log has not the hash %q, or has the event: %s", hash, log)
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	spans := sink.took.String()
	for _, want := range []string{"warifu.v1.ClaimService/Claim", "arbiter claim", "store insert_or_get", "service.name", "payments"} {
		if !strings.Contains(spans, want) {
			t.Errorf("no span came with %q", want)
		}
	}
	if strings.Contains(spans, "CANARY") {
		t.Error("a span tells the event")
	}
}

// TestPoolMetrics: pools and the certificate are shown where there are any.
func TestPoolMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	tel := &telemetry{registry: registry}
	registry.MustRegister(certificate{tel}, &pools{stats: func() []sqlstore.PoolStats {
		return []sqlstore.PoolStats{{Name: "traffic", Max: 16, Idle: 3, Used: 4, Making: 5, Acquired: 6, Waited: 7, Left: 8, Wait: 9 * time.Second, Made: 10}}
	}})
	end := time.Unix(1_800_000_000, 0)
	reloader := &tlsReloader{}
	reloader.current.Store(&tlsLoaded{end: end})
	tel.tls.Store(reloader)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	text := w.Body.String()
	for _, want := range []string{
		`connections{pool="traffic",state="idle"} 3`, `connections{pool="traffic",state="used"} 4`, `connections{pool="traffic",state="making"} 5`,
		`limit_connections{pool="traffic"} 16`, `acquired_total{pool="traffic"} 6`, `waited_total{pool="traffic"} 7`, `left_total{pool="traffic"} 8`,
		`wait_seconds_total{pool="traffic"} 9`, `connections_made_total{pool="traffic"} 10`,
	} {
		if !strings.Contains(text, "\nwarifu_sql_pool_"+want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if !strings.Contains(text, "\nwarifu_tls_certificate_expiry_timestamp_seconds 1.8e+09\n") {
		t.Error("metrics lack the end of the certificate")
	}
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}
