package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for _, c := range []struct {
		args         []string
		code         int
		stdout, says string
	}{
		{nil, exitOK, "Start with 'warifu dev'", ""},
		{[]string{"--help"}, exitOK, "Run a command once per event", ""},
		{[]string{"exit-codes", "--help"}, exitOK, "somebody has to look at it", ""},
		{[]string{"devv"}, exitUsage, "", "unknown command"},
		{[]string{"dev", "--lisen", "x"}, exitUsage, "", "unknown flag: --lisen"},
		{[]string{"dev", "extra"}, exitUsage, "", "unknown command"},
		{[]string{"claims"}, exitUsage, "", "needs a command"},
		{[]string{"claims", "get", "one"}, exitUsage, "", "accepts 2 arg"},
		{[]string{"version", "-o", "xml"}, exitUsage, "", "table, json, yaml"},
		{[]string{"conformance"}, exitUsage, "", "--store is missing"},
		{[]string{"conformance", "--store", "tape"}, exitUsage, "", "mem, pebble:DIR"},
		{[]string{"claims", "list"}, exitDenied, "", "no API key"},
		{[]string{"claims", "list", "--api-key-file", "none"}, exitUsage, "", "none"},
	} {
		t.Run(strings.Join(append([]string{"warifu"}, c.args...), "_"), func(t *testing.T) {
			t.Parallel()
			f.warifu(c.args...).want(t, c.code, c.stdout, c.says)
		})
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	var v versionInfo
	if err := json.Unmarshal([]byte(f.warifu("version", "-o", "json").stdout), &v); err != nil {
		t.Fatal(err)
	}
	if v.Version == "" || v.Go == "" || v.ProtocolVersion != protocolVersion {
		t.Fatalf("%+v", v)
	}
	f.warifu("version").want(t, 0, "warifu", "")
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		f.warifu("completion", shell).want(t, 0, "warifu", "")
	}
	f.warifu("__complete", "version", "-o", "").want(t, 0, "yaml", "")
	script := f.warifu("completion", "bash")
	f.write("completion.bash", script.stdout)
	f.sh("bash -n completion.bash").want(t, 0, "", "")
}

func TestClaimsList(t *testing.T) {
	t.Parallel()
	f, server := onceFolder(t)
	for n, event := range []string{"a-1", "a-2", "b\x1b[31m"} {
		server.call("Claim", claimOf("c", event, n))
	}
	server.call("Claim", claimOf("d", "a-1", 9))
	if got := f.list(); strings.Join(got, " ") != "c/a-1 c/a-2 c/b\x1b[31m d/a-1" {
		t.Errorf("all: %q", got)
	}
	if got := f.list("--consumer", "c", "--prefix", "a-"); strings.Join(got, " ") != "c/a-1 c/a-2" {
		t.Errorf("prefix: %q", got)
	}
	if got := f.list("--limit", "1"); strings.Join(got, " ") != "c/a-1" {
		t.Errorf("limit: %q", got)
	}
	if got := f.list("--state", "completed"); len(got) != 0 {
		t.Errorf("state: %q", got)
	}
	table := f.warifu("claims", "list")
	table.want(t, 0, `"b\x1b[31m"`, "")
	if strings.Contains(table.stdout, "\x1b") {
		t.Errorf("an event ID reaches the terminal as it is: %q", table.stdout)
	}
	f.warifu("claims", "list", "--state", "DONE").want(t, exitUsage, "", "IN_DOUBT")
	f.warifu("claims", "list", "--prefix", "a").want(t, exitUsage, "", "consumer")
}

// TestClaimsListYAML: one event ID that YAML could not hold as it is does not
// hide the others.
func TestClaimsListYAML(t *testing.T) {
	t.Parallel()
	f, server := onceFolder(t)
	for n, event := range []string{"a", "b\x7f\u0085"} {
		server.call("Claim", claimOf("c", event, n))
	}
	got := f.warifu("claims", "list", "-o", "yaml")
	var records []struct {
		EventID string `yaml:"eventId"`
		Attempt int    `yaml:"attempt"`
	}
	if err := yaml.Unmarshal([]byte(got.stdout), &records); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	if len(records) != 2 || records[1].EventID != "b\x7f\u0085" || records[1].Attempt != 1 {
		t.Errorf("%+v", records)
	}
}

// TestYAMLKeepsAll: every character, and every digit.
func TestYAMLKeepsAll(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for r := range rune(0x3000) {
		text.WriteRune(r)
	}
	text.WriteString("\ufeff\ufffd\ufffe\uffff\U0001f600\U0010ffff")
	type values struct {
		Text  string
		Words []string
		Large uint64
		Small float64
		Yes   bool
	}
	want := values{text.String(), []string{"", "yes", "1", "null", "~", "- a: b", "1e3"}, 1<<64 - 1, 1e-7, true}
	var out bytes.Buffer
	if err := writeYAML(&out, want); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Text  string   `yaml:"Text"`
		Words []string `yaml:"Words"`
		Large uint64   `yaml:"Large"`
		Small float64  `yaml:"Small"`
		Yes   bool     `yaml:"Yes"`
	}
	if err := yaml.Unmarshal(out.Bytes(), &got); err != nil || !reflect.DeepEqual(values(got), want) {
		t.Errorf("%v; got %+v", err, got)
	}
}

func (f *folder) list(args ...string) []string {
	f.t.Helper()
	got := f.warifu(append([]string{"claims", "list", "-o", "json"}, args...)...)
	var records []struct{ Consumer, EventID string }
	if err := json.Unmarshal([]byte(got.stdout), &records); err != nil {
		f.t.Fatalf("%v: %+v", err, got)
	}
	var names []string
	for _, r := range records {
		names = append(names, r.Consumer+"/"+r.EventID)
	}
	return names
}

func TestClientExitCodes(t *testing.T) {
	t.Parallel()
	f, server := onceFolder(t)
	f.write("wrong.key", f.wrongKey())
	f.warifu("claims", "list", "--api-key-file", "wrong.key").want(t, exitDenied, "", "")
	f.warifu("claims", "get", "c", "never").want(t, exitNotFound, "", "nothing is stored")
	server.kill()
	f.warifu("claims", "list").want(t, exitUnavailable, "", server.url)
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	f, server := onceFolder(t)
	f.warifu("doctor", "--live").want(t, 0, "", "")
	f.warifu("doctor", "--write").want(t, 0, "claimed and completed", "")
	f.warifu("doctor", "--data", "warifu-data").want(t, 0, "held: a server is running", "")
	f.write("wrong.key", f.wrongKey())
	f.warifu("doctor", "--api-key-file", "wrong.key").want(t, exitFailed, "fail  api key", "")
	server.kill()
	f.warifu("doctor").want(t, exitFailed, "fail  server", "")
	f.warifu("doctor", "--live").want(t, exitUnavailable, "", "")
	f.warifu("doctor", "--data", "warifu-data").want(t, 0, "free: no server is running", "")
	f.warifu("doctor", "--data", "nowhere").want(t, exitFailed, "fail  data", "")
}

// TestDoctorSeesOtherClocks: what a server's Date says about its clock.
func TestDoctorSeesOtherClocks(t *testing.T) {
	t.Parallel()
	for off, status := range map[time.Duration]string{0: statusOK, 3 * time.Second: statusOK, -time.Minute: statusWarn, time.Hour: statusWarn} {
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		if got := skew(now.Add(off), now, now.Add(10*time.Millisecond)); got.Status != status {
			t.Errorf("%v apart: %+v, want %s", off, got, status)
		}
	}
}

// TestDoctorOnAnotherServer: something else listens there.
func TestDoctorOnAnotherServer(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	f := newFolder(t)
	f.warifu("doctor", "--url", other.URL).want(t, exitFailed, "is this a warifu server?", "")
}

func TestConformance(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.warifu("conformance", "--store", "mem").want(t, 0, "PASS", "")
	left, err := filepath.Glob(f.path("conformance-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestKeysNew(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	a, id, sum := f.keyLines()
	b, _, _ := f.keyLines()
	if a == b || !strings.HasPrefix(a, "wf_live_"+id+"_") || len(sum) != 64 {
		t.Fatalf("%q %q %q", a, b, sum)
	}
	f.warifu("keys", "new", "--env", "test").want(t, 0, "WARIFU_API_KEY=wf_test_", "")
}
