package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// keyLines makes an API key and its lines of configuration.
func (f *folder) keyLines() (key, id, sum string) {
	f.t.Helper()
	var made newKey
	if err := json.Unmarshal([]byte(f.warifu("keys", "new", "-o", "json").stdout), &made); err != nil {
		f.t.Fatal(err)
	}
	return made.Key, made.ID, made.SecretSHA256
}

// serve starts `warifu serve` with two tenants and waits until it is ready.
func (f *folder) serve(args ...string) *process {
	f.t.Helper()
	return f.serveAgain(f.configure(), args...)
}

// configure writes warifu.yaml with two tenants and returns a key of the first.
func (f *folder) configure() string {
	f.t.Helper()
	key, id, sum := f.keyLines()
	_, otherID, otherSum := f.keyLines()
	f.write("warifu.yaml", `
listen: 127.0.0.1:0
metrics_listen: 127.0.0.1:0
tenants:
  - id: 7
    name: shop
    strict: true
    keys: [{id: "`+id+`", secret_sha256: "`+sum+`"}]
    consumers:
      - name: inventory
        redelivery_window: 4h
      - name: payments
        redelivery_window: 7d
        on_lease_loss: HOLD
  - id: 8
    name: other
    keys: [{id: "`+otherID+`", secret_sha256: "`+otherSum+`", revoked: true}]
`)
	return key
}

// serveAgain starts a server with the configuration of serve, and returns when
// it is ready.
func (f *folder) serveAgain(key string, args ...string) *process {
	f.t.Helper()
	p := f.start(serveArgs(args...)...)
	p.key = key
	p.url = "http://" + match(f.t, `"msg":"ready","listen":"([^"]+)"`, p.until(p.stderr, `"msg":"ready"`))
	return p
}

func serveArgs(args ...string) []string {
	return append([]string{"serve", "--config", "warifu.yaml", "--log-format", "json", "--log-level", "info"}, args...)
}

// metrics returns a page of the metrics listener.
func (p *process) metrics(path string) string {
	p.t.Helper()
	address := match(p.t, `"msg":"metrics","listen":"([^"]+)"`, p.stderr.String())
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	req.Close = true
	reply, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer reply.Body.Close() //nolint:errcheck // it has been read by then
	text, err := io.ReadAll(reply.Body)
	if err != nil || reply.StatusCode != http.StatusOK {
		p.t.Fatalf("%s: status %d, %v", path, reply.StatusCode, err)
	}
	return string(text)
}

// eventually asks another process again and again until it is as it should be.
func (p *process) eventually(what string, holds func() bool) {
	p.t.Helper()
	giveUp := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(giveUp) {
			p.t.Fatalf("never: %s\nstderr: %s", what, p.stderr)
		}
	}
}

func TestServeTenants(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	p := f.serve("--drain-delay", "0s")
	if got := p.call("Claim", claimOf("inventory", "e", 1)); got.Decision != "DECISION_GRANTED" {
		t.Errorf("declared consumer: %+v", got)
	}
	if got := p.call("Claim", claimOf("undeclared", "e", 1)); got.Code != "not_found" {
		t.Errorf("undeclared consumer of a strict tenant: %+v", got)
	}
	f.setenv("WARIFU_URL="+p.url, "WARIFU_API_KEY="+p.key)
	f.warifu("claims", "list", "-o", "yaml").want(t, 0, "eventId: e", "")
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr)
	}
}

// TestServeDrains: readiness ends first, while calls are still answered.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	p := f.serve("--drain-delay", "5m")
	p.signal(syscall.SIGTERM)
	p.eventually("it is not ready", func() bool {
		reply, err := get(t.Context(), p.url+"/readyz")
		if err != nil {
			t.Fatalf("it stopped serving before the delay was over: %v", err)
		}
		return reply.status == http.StatusServiceUnavailable
	})
	if got := p.call("Claim", claimOf("inventory", "late", 1)); got.Decision != "DECISION_GRANTED" {
		t.Fatalf("a claim while draining: %+v", got)
	}
	p.signal(syscall.SIGTERM)
	if code, want := p.wait(), exitSignalled+int(syscall.SIGTERM); code != want {
		t.Fatalf("second signal: exit code %d, want %d", code, want)
	}
}

// TestServeEndsLongPolls: a call that waits for another attempt does not hold
// up the end, and is answered.
func TestServeEndsLongPolls(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	p := f.serve("--drain-delay", "0s", "--shutdown-timeout", "1m")
	p.call("Claim", claimOf("inventory", "busy", 1))
	waiting := claimOf("inventory", "busy", 2)
	waiting["wait"] = "30s"
	waited := make(chan answer, 1)
	go func() { waited <- p.call("Claim", waiting) }()
	p.eventually("the call waits", func() bool { return strings.Contains(p.metrics("/metrics"), "\nwarifu_waiters 1\n") })
	begin := time.Now()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %v to end: the call was waited for", took)
	}
	if got := <-waited; got.Decision != "DECISION_IN_PROGRESS" && got.Code != "unavailable" {
		t.Errorf("the waiting call was answered %+v", got)
	}
	if strings.Contains(p.stderr.String(), "cut off") {
		t.Errorf("calls were cut off: %s", p.stderr)
	}
}

func TestServeMetricsAndProfiles(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	p := f.serve()
	p.call("Claim", claimOf("inventory", "e", 1))
	for path, want := range map[string]string{
		"/metrics":      `warifu_claims_total{consumer="declared",decision="granted",on_lease_loss="regrant"} 1`,
		"/debug/pprof/": "goroutine",
	} {
		if got := p.metrics(path); !strings.Contains(got, want) {
			t.Errorf("%s: without %q:\n%s", path, want, got)
		}
	}
}
