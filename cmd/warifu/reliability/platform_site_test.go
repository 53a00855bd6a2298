package reliability_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
)

// knownMax is how soon a change of tenants, keys and policies is in force on
// every server of a store.
const knownMax = 5 * time.Second

// operator is a person at a terminal: the commands of the program, with contexts
// in a folder of its own.
type operator struct {
	t    *testing.T
	home string
}

// run runs a command that has to go well, and returns what it prints.
func (o *operator) run(stdin string, args ...string) []byte {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), patience)
	defer cancel()
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Dir, cmd.Stdin = cleanEnv("XDG_CONFIG_HOME="+o.home), o.home, strings.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		o.t.Fatalf("warifu %s: %v\n%s%s", strings.Join(args, " "), err, out.Bytes(), said.Bytes())
	}
	return out.Bytes()
}

// read runs a command and reads the JSON that it prints.
func (o *operator) read(into any, args ...string) {
	o.t.Helper()
	out := o.run("", append(args, "-o", "json")...)
	if err := json.Unmarshal(out, into); err != nil {
		o.t.Fatalf("warifu %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// change runs a command that changes something, with a reason.
func (o *operator) change(args ...string) {
	o.t.Helper()
	o.run("", append(args, "--reason", "a test", "--yes")...)
}

// made is what the commands that make keys print.
type made struct {
	Key    struct{ ID string }
	Secret string
}

// key makes a key of a tenant, or one that follows another.
func (o *operator) key(args ...string) made {
	o.t.Helper()
	var m made
	o.read(&m, append(append([]string{"keys"}, args...), "--reason", "a test", "--yes")...)
	if m.Key.ID == "" || m.Secret == "" {
		o.t.Fatalf("no key was made: %+v", m)
	}
	return m
}

// site is an installation without anything: a store and a folder for each server.
type site struct {
	*operator
	store string // its URL; empty: a folder of the one server
	hosts []*host
}

func newSite(t *testing.T, store string, servers int) *site {
	t.Helper()
	s := &site{operator: &operator{t, t.TempDir()}, store: store}
	for range servers {
		h := &host{t: t, dir: t.TempDir()}
		place := "data: " + h.data()
		if store != "" {
			place = fmt.Sprintf("store: %q", store)
		}
		config := "listen: 127.0.0.1:0\nmetrics_listen: 127.0.0.1:0\nlog_level: info\nlog_format: json\ndrain_delay: 0s\n" + place + "\n"
		if err := os.WriteFile(h.config(), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		s.hosts = append(s.hosts, h)
	}
	return s
}

func (h *host) data() string { return filepath.Join(h.dir, "data") }

// open makes the first key and starts the servers; commands ask the first one.
func (s *site) open() []*process {
	s.t.Helper()
	place := []string{"--data", s.hosts[0].data()}
	if s.store != "" {
		place = []string{"--store", s.store}
	}
	var first struct{ Key string }
	s.read(&first, append([]string{"keys", "bootstrap"}, place...)...)
	var all []*process
	for _, h := range s.hosts {
		all = append(all, h.start())
	}
	s.run(first.Key+"\n", "context", "add", "ops", "--url", all[0].url, "--api-key-stdin")
	return all
}

// metrics are those of a server, as they are scraped.
func (p *process) metrics() string {
	p.t.Helper()
	var address string
	for line := range strings.Lines(p.output()) {
		var said struct{ Msg, Listen string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "metrics" {
			address = said.Listen
		}
	}
	network := newNetwork()
	defer network.CloseIdleConnections()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	res, err := (&http.Client{Transport: network}).Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	var text bytes.Buffer
	_, err = text.ReadFrom(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK {
		p.t.Fatalf("metrics: status %d: %v", res.StatusCode, err)
	}
	return text.String()
}

// team is a tenant's program: its key may change while it works.
type team struct {
	t   *testing.T
	key *atomic.Pointer[string]
	api
}

// RoundTrip implements http.RoundTripper: the key of the moment.
func (m *teamNetwork) RoundTrip(r *http.Request) (*http.Response, error) {
	return bearer{*m.key.Load(), m.next}.RoundTrip(r)
}

type teamNetwork struct {
	key  *atomic.Pointer[string]
	next http.RoundTripper
}

func (p *process) team(key *atomic.Pointer[string]) *team {
	network := newNetwork()
	p.t.Cleanup(network.CloseIdleConnections)
	transport := connecthttp.NewTransport(&http.Client{Transport: &teamNetwork{key, network}}, p.url, connecthttp.WithCompressors())
	return &team{p.t, key, warifuv1connect.NewClaimServiceClient(connect.NewClient(transport))}
}

func keyOf(text string) *atomic.Pointer[string] {
	var p atomic.Pointer[string]
	p.Store(&text)
	return &p
}

// claim claims a fresh event.
func (m *team) claim(consumer string) (op, error) {
	o := op{kind: claimCall, consumer: consumer, event: uuid.NewString(), attempt: uuid.NewString()}
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	res, err := m.Claim(ctx, &warifuv1.ClaimRequest{
		Consumer: o.consumer, EventId: o.event, AttemptId: o.attempt, Lease: durationpb.New(leaseLength),
	})
	if err == nil && res.GetDecision() != warifuv1.Decision_DECISION_GRANTED {
		err = fmt.Errorf("a fresh event is answered %v", res.GetDecision())
	}
	o.fence = res.GetGrant().GetFence()
	return o, err
}

// complete completes what claim has claimed.
func (m *team) complete(o op) error {
	o.body = "done"
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	res, err := m.Complete(ctx, o.complete())
	if err == nil && !res.GetAccepted() {
		err = fmt.Errorf("a completion is answered %v", res.GetStatus())
	}
	return err
}

// within waits until something is so, at most knownMax after since.
func within(t *testing.T, since time.Time, what string, so func() bool) {
	t.Helper()
	ticker := time.NewTicker(lookPause)
	defer ticker.Stop()
	for !so() {
		if took := time.Since(since); took > knownMax {
			t.Errorf("%s: not after %v", what, took)
			return
		}
		<-ticker.C
	}
	t.Logf("%s: after %v", what, time.Since(since).Round(time.Millisecond))
}

// crew is a team at work on several servers until it is told to stop.
type crew struct {
	all   sync.WaitGroup
	calls atomic.Int64
	ended atomic.Bool
	fault atomic.Pointer[error] // of the first call that failed
}

const (
	crewSize = 4 // programs of one team at one server
	crewTask = 100
)

// newCrew claims and completes, again and again.
func newCrew(consumer string, teams ...*team) *crew {
	c := &crew{}
	for _, m := range teams {
		for range crewSize {
			c.all.Go(func() {
				for !c.ended.Load() && c.fault.Load() == nil {
					o, err := m.claim(consumer)
					if err == nil {
						err = m.complete(o)
					}
					if err != nil {
						c.fault.CompareAndSwap(nil, &err)
					}
					c.calls.Add(2)
				}
			})
		}
	}
	return c
}

// task waits until the crew has made some more calls, or one has failed.
func (c *crew) task() {
	ticker := time.NewTicker(lookPause)
	defer ticker.Stop()
	for until := c.calls.Load() + crewTask; c.calls.Load() < until && c.fault.Load() == nil; {
		<-ticker.C
	}
}

// end stops the crew and returns the first call that failed.
func (c *crew) end() error {
	c.ended.Store(true)
	c.all.Wait()
	if err := c.fault.Load(); err != nil {
		return *err
	}
	return nil
}
