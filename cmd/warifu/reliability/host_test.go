package reliability_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	warifu "github.com/warifu/warifu/sdk/go"
	"github.com/warifu/warifu/server/tenant"
)

// The consumers of every server here.
const (
	regrant = "regrant"
	hold    = "hold"
)

// patience bounds waiting for another process on a busy machine.
const patience = time.Minute

// host is a folder with a configuration and the data of one server, which
// outlive its processes.
type host struct {
	t   *testing.T
	dir string
	key string
}

// newHost keeps its claims in its own folder.
func newHost(t *testing.T) *host {
	t.Helper()
	return hostOn(t, newCredential(), "")
}

// credential is an API key, and what a server keeps of it.
type credential struct {
	text string
	key  tenant.Key
}

func newCredential() credential {
	text, key := tenant.NewKey("test")
	return credential{text, key}
}

// hostOn keeps its claims in the store of a URL; its own folder where there is
// none.
func hostOn(t *testing.T, c credential, store string) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir(), key: c.text}
	place := "data: " + filepath.Join(h.dir, "data")
	if store != "" {
		place = fmt.Sprintf("store: %q", store)
	}
	config := fmt.Sprintf(`listen: 127.0.0.1:0
metrics_listen: ""
%s
log_level: info
log_format: json
drain_delay: 0s
tenants:
  - id: 1
    name: shop
    strict: true
    keys: [{id: "%s", secret_sha256: "%s"}]
    consumers:
      - {name: %s, redelivery_window: 4h}
      - {name: %s, redelivery_window: 4h, on_lease_loss: HOLD}
`, place, c.key.ID, hex.EncodeToString(c.key.SecretSHA256[:]), regrant, hold)
	if err := os.WriteFile(h.config(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) config() string { return filepath.Join(h.dir, "warifu.yaml") }

// cleanEnv is our environment without what the program would read from it.
func cleanEnv(more ...string) []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "WARIFU_") {
			env = append(env, entry)
		}
	}
	return append(env, more...)
}

// process is one run of the server.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	key   string
	url   string        // once ready
	ready chan struct{} // closed when url is set
	ended chan struct{}

	mu struct {
		sync.Mutex
		said bytes.Buffer
	}
}

// launch starts a process and does not wait until it is ready.
func (h *host) launch() *process {
	h.t.Helper()
	p := &process{t: h.t, key: h.key, ready: make(chan struct{}), ended: make(chan struct{})}
	p.cmd = exec.Command(program, "serve", "--config", h.config())
	p.cmd.Env, p.cmd.Dir = cleanEnv(), h.dir
	said, err := p.cmd.StderrPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go p.listen(said)
	h.t.Cleanup(p.kill)
	return p
}

// start starts a process and waits until it is ready.
func (h *host) start() *process {
	h.t.Helper()
	p := h.launch()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ready:
	case <-p.ended:
		h.t.Fatalf("the server ended before it was ready:\n%s", p.output())
	case <-timer.C:
		h.t.Fatalf("the server does not become ready:\n%s", p.output())
	}
	return p
}

// listen reads what the process says until it ends.
func (p *process) listen(said io.Reader) {
	defer close(p.ended)
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		var line struct{ Msg, Listen string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "ready" {
			p.url = "http://" + line.Listen
			close(p.ready)
		}
		p.mu.Lock()
		p.mu.said.Write(append(lines.Bytes(), '\n'))
		p.mu.Unlock()
	}
	_ = p.cmd.Wait() // how it ended is looked at where it matters
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.said.String()
}

// kill is kill -9; when it returns the process is gone. Killing twice is fine.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("kill the server: %v", err)
	}
	<-p.ended
}

// mustBeKilled fails the test when the process ended by anything but our kill:
// a server that gives up by itself is a finding.
func (p *process) mustBeKilled() {
	p.t.Helper()
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		p.t.Fatalf("the server ended by itself: %v\n%s", p.cmd.ProcessState, p.output())
	}
}

// api is the generated client: what is sent and answered is seen as it is.
type api = warifuv1connect.ClaimServiceClient

// dial returns a client of the process; wrap, unless nil, stands between the
// client and the network. Connections end with the test or with hangUp.
func (p *process) dial(wrap func(http.RoundTripper) http.RoundTripper) (client api, hangUp func()) {
	network := newNetwork()
	p.t.Cleanup(network.CloseIdleConnections)
	var trip http.RoundTripper = bearer{p.key, network}
	if wrap != nil {
		trip = wrap(trip)
	}
	transport := connecthttp.NewTransport(&http.Client{Transport: trip}, p.url, connecthttp.WithCompressors())
	return warifuv1connect.NewClaimServiceClient(connect.NewClient(transport)), network.CloseIdleConnections
}

// sdk returns the product's own client.
func (p *process) sdk(wrap func(http.RoundTripper) http.RoundTripper, opts ...warifu.Option) *warifu.Client {
	p.t.Helper()
	network := newNetwork()
	p.t.Cleanup(network.CloseIdleConnections)
	var trip http.RoundTripper = network
	if wrap != nil {
		trip = wrap(trip)
	}
	opts = append([]warifu.Option{warifu.WithAPIKey(p.key), warifu.WithHTTPClient(&http.Client{Transport: trip})}, opts...)
	c, err := warifu.New(p.url, opts...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			p.t.Errorf("close the client: %v", err)
		}
	})
	return c
}

// connsMax keeps every connection of a test for its next call.
const connsMax = 256

func newNetwork() *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: connsMax, DisableCompression: true}
}

// bearer adds the credential.
type bearer struct {
	key  string
	next http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.key)
	return b.next.RoundTrip(r)
}
