package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// load reads a configuration as `warifu serve` does.
func load(t *testing.T, yaml string, environ, args []string) (*config, error) {
	t.Helper()
	cmd := &cobra.Command{}
	configFlags(cmd, serveDefault)
	if yaml != "" {
		path := filepath.Join(t.TempDir(), "warifu.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return loadConfig(&system{environ: environ}, cmd.Flags(), serveDefault)
}

func TestConfigPrecedence(t *testing.T) {
	t.Parallel()
	file := "data: file\nlisten: file:1\nlog_level: error\n"
	environ := []string{"WARIFU_DATA=environment", "WARIFU_LISTEN=environment:1", "WARIFU_INSECURE_LISTEN=true"}
	c, err := load(t, file, environ, []string{"--data", "flag"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Data != "flag" || c.Listen != "environment:1" || c.LogLevel != "error" || c.LogFormat != logAuto {
		t.Fatalf("flags, environment, file, defaults in this order: %+v", c)
	}
}

// TestConfigFlagDefault: a flag that says what the default says still counts.
func TestConfigFlagDefault(t *testing.T) {
	t.Parallel()
	c, err := load(t, "listen: 127.0.0.1:1\n", nil, []string{"--listen", "127.0.0.1:8080"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:8080" {
		t.Fatalf("listen is %q", c.Listen)
	}
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, yaml string
		environ    []string
		says       []string
	}{
		{"UnknownKey", "lisen: a:1\n", nil, []string{"lisen"}},
		{"UnknownTenantKey", "tenants: [{id: 1, nam: x}]\n", nil, []string{"nam"}},
		{"UnknownPolicyKey", "tenants: [{id: 1, name: x, consumers: [{name: c, leese: 3s}]}]\n", nil, []string{"leese"}},
		{"UnknownVariable", "", []string{"WARIFU_LISTNE=a:1"}, []string{"WARIFU_LISTNE", "WARIFU_LISTEN"}},
		{"KeyTwice", "data: a\ndata: b\n", nil, []string{"data"}},
		{"NotYAML", "data: [\n", nil, []string{"warifu.yaml"}},
		{"DurationWithoutUnit", "drain_delay: 5\n", nil, []string{"30s"}},
		{"NotADuration", "tenants: [{id: 1, name: x, default: {retention: 2 days}}]\n", nil, []string{"2 days"}},
		{"TextForNumber", "tenants: [{id: one, name: x}]\n", nil, []string{"id"}},
		{"NumberForText", "data: 3\n", nil, []string{"data"}},
		{
			"AllAtOnce", "listen: nowhere\ndata: ''\nlog_level: loud\nlog_format: xml\ndrain_delay: 6m\nshutdown_timeout: 0s\nmetrics_listen: x\n", nil,
			[]string{"listen", "metrics_listen", "data", "log_level", "log_format", "drain_delay", "shutdown_timeout"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, c.yaml, c.environ, nil)
			if exitCodeOf(err) != exitUsage {
				t.Fatalf("got %v, want a fault with exit code %d", err, exitUsage)
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
		})
	}
}

// TestConfigInjectedVariables: an orchestrator's variables for a service that
// is called warifu, those of clients and those of `once` are nobody's mistake.
func TestConfigInjectedVariables(t *testing.T) {
	t.Parallel()
	_, err := load(t, "", []string{
		"WARIFU_SERVICE_HOST=10.0.0.1", "WARIFU_SERVICE_PORT=8080", "WARIFU_SERVICE_PORT_HTTP=8080",
		"WARIFU_PORT=tcp://10.0.0.1:8080", "WARIFU_PORT_8080_TCP=tcp://10.0.0.1:8080", "WARIFU_PORT_8080_TCP_ADDR=10.0.0.1",
		"WARIFU_METRICS_SERVICE_HOST=10.0.0.2", "WARIFU_URL=x", "WARIFU_API_KEY=x", "WARIFU_API_KEY_FILE=x", "WARIFU_FENCE=1",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0s": 0, "1500ms": 1500 * time.Millisecond, "36h": 36 * time.Hour, "7d": 7 * 24 * time.Hour,
		"1d12h": 36 * time.Hour, "0.5d": 12 * time.Hour, "400d": 400 * 24 * time.Hour, "1d2h30m": 26*time.Hour + 30*time.Minute, "-3s": -3 * time.Second,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "5", "-1d", "1d2", "7days", "1d1d", "1000000d", "NaNd", "1 d",
		"12h1d", "30m5d", "1h2d3h", "+1d", "1d-12h", "1d+12h", ".d", "100000d2562047h"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

const tenantYAML = `
tenants:
  - id: 7
    name: shop
    strict: true
    default: {redelivery_window: 1h}
    keys:
      - id: "k"
        secret_sha256: "` + sum64 + `"
        scopes: [claim]
        expires_at: 2027-01-31T00:00:00Z
    consumers:
      - name: inventory
        on_lease_loss: HOLD
        redelivery_window: 4h
        retention: 1d
        lease_default: 10s
        lease_max: 1m
        hold_max: 1h
        attempts_max: 3
        result_bytes_max: 1000
        digest_required: true
`

const sum64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestConfigTenants(t *testing.T) {
	t.Parallel()
	c, err := load(t, tenantYAML, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	table, err := tenantTable(c.Tenants)
	if err != nil {
		t.Fatal(err)
	}
	shop, ok := table.Tenant("shop")
	if !ok || shop.ID != 7 || !shop.Strict {
		t.Fatalf("tenant: %+v", shop)
	}
	got, declared, err := shop.Consumer("inventory")
	if err != nil || !declared {
		t.Fatal(declared, err)
	}
	p := got.Policy
	if !p.Hold || p.Window != 4*time.Hour || p.Retention != 24*time.Hour || p.HoldMax != time.Hour ||
		p.AttemptsMax != 3 || p.ResultBytesMax != 1000 || !got.DigestRequired ||
		got.LeaseDefault != 10*time.Second || got.LeaseMax != time.Minute {
		t.Fatalf("policy: %+v", got)
	}
	if expires := c.Tenants[0].Keys[0].ExpiresAt; !expires.Equal(time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC)) {
		t.Fatalf("expires at %v", expires)
	}
}

func TestConfigTenantFaults(t *testing.T) {
	t.Parallel()
	c, err := load(t, `
tenants:
  - id: 1
    name: a
    keys: [{id: k, secret_sha256: "12"}]
    consumers:
      - {name: x, on_lease_loss: KEEP}
      - {name: y, on_unavailable: OPEN}
  - id: 2
    name: b
    keys: [{id: l, secret_sha256: "`+sum64+`", scopes: [write]}]
`, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tenantTable(c.Tenants)
	if exitCodeOf(err) != exitUsage {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"64 hexadecimal digits", "REGRANT or HOLD", "FAIL_CLOSED or FAIL_OPEN", `scope "write"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
}

func TestConfigPrint(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("warifu.yaml", tenantYAML)
	f.setenv("WARIFU_CONFIG=warifu.yaml", "WARIFU_LOG_LEVEL=debug")
	got := f.warifu("config", "print", "--effective", "--data", "elsewhere")
	got.want(t, 0, "data: elsewhere", "")
	got.want(t, 0, "log_level: debug", "")
	got.want(t, 0, "redelivery_window: 4h", "")
	got.want(t, 0, `secret_sha256: '********'`, "")
	if strings.Contains(got.stdout, sum64) {
		t.Fatal("the hash of a secret is printed")
	}
	f.warifu("config", "print").want(t, 0, "WARIFU_METRICS_LISTEN", "")
	f.write("warifu.yaml", "tenants: [{id: 0, name: x}]")
	f.warifu("config", "print", "--effective").want(t, exitUsage, "", "x")
}
