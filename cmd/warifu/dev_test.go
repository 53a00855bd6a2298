package main

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/warifu/warifu/storage/registry"
)

// curls returns the requests that `warifu dev` prints.
func curls(t *testing.T, welcome string) (claim, complete string) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Fatal("missing: curl; '.ci/install curl' installs it")
	}
	var found []string
	for _, block := range strings.Split(welcome, "\n\n") {
		if strings.HasPrefix(block, "  curl ") {
			found = append(found, block)
		}
	}
	if len(found) != 2 {
		t.Fatalf("%d requests are printed, want 2: %q", len(found), welcome)
	}
	return found[0], found[1]
}

// TestDevLife is what a new user does: the printed requests, as they are, with
// a crash in between.
func TestDevLife(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	server := f.dev()
	claim, complete := curls(t, server.welcome)
	first := match(t, `"attemptId":"([^"]+)"`, claim)
	other := strings.Replace(claim, first, attempt(2), 1)

	granted := parseAnswer(t, f.sh(claim).stdout)
	if granted.Decision != "DECISION_GRANTED" || granted.Grant.Fence == "" {
		t.Fatalf("first claim: %+v", granted)
	}
	if again := parseAnswer(t, f.sh(claim).stdout); again.Decision != "DECISION_GRANTED" || again.Grant.Fence != granted.Grant.Fence {
		t.Fatalf("the same claim again: %+v, want the same grant as %+v", again, granted)
	}
	if busy := parseAnswer(t, f.sh(other).stdout); busy.Decision != "DECISION_IN_PROGRESS" {
		t.Fatalf("another attempt: %+v", busy)
	}
	done := parseAnswer(t, f.sh(strings.Replace(complete, "FENCE", granted.Grant.Fence, 1)).stdout)
	if done.Status != "STATUS_OK" {
		t.Fatalf("complete: %+v", done)
	}
	server.kill()

	again := f.dev()
	if again.key != server.key {
		t.Fatalf("the key changed with a restart: %q, then %q", server.key, again.key)
	}
	third := strings.Replace(strings.ReplaceAll(claim, server.url, again.url), first, attempt(3), 1)
	replay := parseAnswer(t, f.sh(third).stdout)
	if replay.Decision != "DECISION_DUPLICATE" || string(replay.Result.Result) != "reserved 3" {
		t.Fatalf("after kill -9: %+v", replay)
	}
	again.signal(syscall.SIGTERM)
	if code := again.wait(); code != 0 {
		t.Fatalf("SIGTERM: exit code %d\n%s", code, again.stderr)
	}
}

func TestDevKeepsItsSecrets(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	server := f.dev()
	for name, mode := range map[string]os.FileMode{"warifu-data": 0o700, "warifu-data/dev.key": 0o600} {
		info, err := os.Stat(f.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %04o, want %04o", name, info.Mode().Perm(), mode)
		}
	}
	if kept := strings.TrimSpace(f.read("warifu-data/dev.key")); kept != server.key {
		t.Errorf("kept key %q, printed key %q", kept, server.key)
	}
	left, err := filepath.Glob(f.path("warifu-data/.new-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDevRefusesADamagedKey(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev().kill()
	f.write("warifu-data/dev.key", "wf_dev_oops\n")
	f.warifu("dev", "--listen", "127.0.0.1:0").want(t, exitFailed, "", "holds no API key; delete it")
}

func TestSecondProcessRefuses(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	server := f.dev()
	f.warifu("dev", "--listen", "127.0.0.1:0").want(t, exitFailed, "", "in use by another process")
	if got := server.call("Claim", claimOf("c", "e", 1)); got.Decision != "DECISION_GRANTED" {
		t.Fatalf("the first process after that: %+v", got)
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	server := f.dev()
	address := strings.TrimPrefix(server.url, "http://")
	f.warifu("dev", "--data", "other", "--listen", address).want(t, exitFailed, "", address+" is in use")
	if _, err := os.Stat(f.path("other")); err == nil {
		t.Fatal("a store was made for a server that cannot listen")
	}
}

func TestDevHasNoMetricsUnlessAsked(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	server := f.dev()
	reply, err := get(t.Context(), server.url+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if reply.status != http.StatusNotFound {
		t.Fatalf("/metrics on the public listener: %d", reply.status)
	}
}

// TestDevOverTLS: what is printed to be copied is true.
func TestDevOverTLS(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	cert, key := newAuthority(t).issue("dev", 100*year)
	f.write("cert.pem", string(cert))
	f.write("key.pem", string(key))
	p := f.start("dev", "--listen", "127.0.0.1:0", "--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem")
	said := p.until(p.stdout, "Stop with Ctrl-C")
	if strings.Contains(said, "http://") {
		t.Errorf("it is not served so: %s", said)
	}
	url := match(t, `listens on (https://127\.0\.0\.1:\d+)\n`, said)
	for _, want := range []string{"curl -sS " + url + "/", "export WARIFU_URL=" + url + " "} {
		if !strings.Contains(said, want) {
			t.Errorf("without %q: %s", want, said)
		}
	}
}

// TestDevBeingDeleted: a key that can do nothing is not printed.
func TestDevBeingDeleted(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev().kill()
	store := f.openEmbedded("warifu-data")
	rows := store.Registry()
	all, err := rows.Load(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	dev := all.Tenants[0]
	dev.State = registry.TenantDeleting
	_, err = rows.Apply(t.Context(), registry.Change{
		ID: registry.ID{1}, Tenants: []registry.Write[registry.Tenant]{registry.Put(dev)},
		Audit: []registry.AuditEntry{{Actor: "test", Action: "tenant.delete", Target: dev.Name}},
	})
	if err = errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	got := f.warifu("dev", "--listen", "127.0.0.1:0")
	got.want(t, exitPrecondition, "", `the tenant "dev" of pebble:./warifu-data is being deleted`)
	got.want(t, exitPrecondition, "", "warifu serve --store pebble:./warifu-data")
	if got.stdout != "" {
		t.Errorf("it printed %q", got.stdout)
	}
}
