package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"connectrpc.com/connect/v2/connectproto"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/journal"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Attempts of the tests.
const (
	attemptA = "0e1a5b52-7c26-4b6e-9d5c-4a6f3a0f2a01"
	attemptB = "0e1a5b52-7c26-4b6e-9d5c-4a6f3a0f2a02"
)

// rig is a server over the in-memory model, with a clock that stands still and
// two tenants, "shop" and "other".
type rig struct {
	t        *testing.T
	clock    *storagetest.Clock
	store    *storagetest.Counting
	server   *server.Server
	registry *prometheus.Registry
	log      *lockedBuffer
	table    *tenant.Table
	dir      *tenant.Directory
	// undeclared is the table without any consumer.
	undeclared *tenant.Table
	keys       map[string]string // credentials by name
	fail       func(context.Context, storagetest.Call) storagetest.Fault
	mu         sync.Mutex
}

type option func(*server.Config)

// lockedBuffer collects logs of concurrent calls.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// consumers that the tenant "shop" declares.
func consumers() []tenant.ConsumerConfig {
	return []tenant.ConsumerConfig{
		{Name: "orders"},
		{Name: "held", Hold: true},
		{Name: "open", OnUnavailable: tenant.FailOpen},
		{Name: "capped", AttemptsMax: 1},
		{Name: "signed", DigestRequired: true},
		{Name: "loose", AcceptNoCommonScheme: true},
		{Name: "small", ResultBytesMax: 16, LeaseMax: time.Minute},
		{Name: "tight", Window: time.Hour, Retention: time.Hour + 10*time.Second},
	}
}

func setup(t *testing.T, opts ...option) *rig {
	t.Helper()
	r := &rig{
		t: t, clock: storagetest.NewClock(storagetest.Start), registry: prometheus.NewPedanticRegistry(),
		log: &lockedBuffer{}, keys: map[string]string{},
	}
	key := func(name string, edit func(*tenant.Key)) tenant.Key {
		text, k := tenant.NewKey("test")
		edit(&k)
		r.keys[name] = text
		return k
	}
	keep := func(*tenant.Key) {}
	configs := []tenant.Config{
		{ID: 1, Name: "shop", Consumers: consumers(), Keys: []tenant.Key{
			key("shop", keep),
			key("revoked", func(k *tenant.Key) { k.Revoked = true }),
			key("expired", func(k *tenant.Key) { k.ExpiresAt = storagetest.Start }),
			key("claim only", func(k *tenant.Key) { k.Scopes = tenant.ScopeClaim }),
			key("read only", func(k *tenant.Key) { k.Scopes = tenant.ScopeRead }),
		}},
		{ID: 2, Name: "other", Keys: []tenant.Key{key("other", keep)}},
		{ID: 3, Name: "strict", Strict: true, Consumers: []tenant.ConsumerConfig{{Name: "known"}}, Keys: []tenant.Key{key("strict", keep)}},
	}
	var err error
	if r.table, err = tenant.NewTable(configs); err != nil {
		t.Fatal(err)
	}
	for i := range configs {
		configs[i].Consumers = nil
	}
	if r.undeclared, err = tenant.NewTable(configs); err != nil {
		t.Fatal(err)
	}
	r.dir = tenant.NewDirectory(r.table)
	model := storagetest.NewModel(r.clock.Now, claim.SweepGrace)
	r.store = storagetest.NewCounting(storagetest.NewFaulty(model, func(ctx context.Context, c storagetest.Call) storagetest.Fault {
		r.mu.Lock()
		fail := r.fail
		r.mu.Unlock()
		if fail == nil {
			return storagetest.Fault{}
		}
		return fail(ctx, c)
	}))
	unprotected, err := journal.New(journal.Config{Dir: filepath.Join(t.TempDir(), "journal"), Clock: r.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unprotected.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := server.Config{
		Store: r.store, Directory: r.dir, Journal: unprotected, Clock: r.clock.Now, Registry: r.registry, Version: "test",
		Logger: slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, opt := range opts {
		opt(&cfg)
	}
	if r.server, err = server.New(cfg); err != nil {
		t.Fatal(err)
	}
	r.run()
	return r
}

// run starts the server; it stops with the test.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.server.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
	r.until(func() bool { return r.get(r.server.Handler(), "/readyz") == http.StatusOK })
}

// until yields until ok; the test's own timeout is the bound.
func (r *rig) until(ok func() bool) {
	r.t.Helper()
	for r.t.Context().Err() == nil {
		if ok() {
			return
		}
	}
	r.t.Fatal("did not happen")
}

func (r *rig) get(h http.Handler, path string) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code
}

// failing makes store calls fail as hook says, nil to stop.
func (r *rig) failing(hook func(context.Context, storagetest.Call) storagetest.Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = hook
}

func failAll(err error) func(context.Context, storagetest.Call) storagetest.Fault {
	return func(context.Context, storagetest.Call) storagetest.Fault { return storagetest.Fault{Before: err} }
}

// client is an in-process client with a named key.
func (r *rig) client(key string) warifuv1connect.ClaimServiceClient {
	return warifuv1connect.NewClaimServiceClient(r.connectClient(key))
}

func (r *rig) adminClient(key string) warifuv1connect.ClaimAdminServiceClient {
	return warifuv1connect.NewClaimAdminServiceClient(r.connectClient(key))
}

func (r *rig) connectClient(key string) *connect.Client {
	return connect.NewClient(connectinprocess.New(r.server.Connect()), bearer(r.keys[key]))
}

func bearer(credential string) connect.ClientInterceptor {
	return func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			info, _ := connect.CallInfoForClientContext(ctx)
			info.RequestHeader().Set("Authorization", "Bearer "+credential)
			return next(ctx, spec)
		}
	}
}

// post sends JSON with a named key to a procedure of ClaimService and returns
// status and body.
func (r *rig) post(key, method, body string) (int, string) {
	r.t.Helper()
	req := httptest.NewRequestWithContext(r.t.Context(), http.MethodPost, "/warifu.v1.ClaimService/"+method, bytes.NewReader([]byte(body)))
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+r.keys[key])
	}
	w := httptest.NewRecorder()
	r.server.Handler().ServeHTTP(w, req)
	out, err := io.ReadAll(w.Result().Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return w.Code, string(out)
}

// compact takes the spaces out of JSON, which protojson adds at random.
func compact(t *testing.T, body string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(body)); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	return b.String()
}

// request is a valid claim.
func request(eventID, attempt string) *warifuv1.ClaimRequest {
	return &warifuv1.ClaimRequest{Consumer: "orders", EventId: eventID, AttemptId: attempt}
}

func success(result string) *warifuv1.Completion {
	return &warifuv1.Completion{Outcome: warifuv1.Outcome_OUTCOME_SUCCEEDED, Result: []byte(result)}
}

// grant claims and demands a grant.
func (r *rig) grant(m *warifuv1.ClaimRequest) *warifuv1.Grant {
	r.t.Helper()
	res, err := r.client("shop").Claim(r.t.Context(), m)
	if err != nil {
		r.t.Fatal(err)
	}
	if res.GetDecision() != warifuv1.Decision_DECISION_GRANTED {
		r.t.Fatalf("decision = %v, want GRANTED", res.GetDecision())
	}
	return res.GetGrant()
}

// complete completes a grant of "orders" and demands OK.
func (r *rig) complete(eventID string, g *warifuv1.Grant, c *warifuv1.Completion) {
	r.t.Helper()
	res, err := r.client("shop").Complete(r.t.Context(), &warifuv1.CompleteRequest{
		Consumer: "orders", EventId: eventID, AttemptId: g.GetAttemptId(), Fence: g.GetFence(), Completion: c,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if res.GetStatus() != warifuv1.Status_STATUS_OK || !res.GetAccepted() {
		r.t.Fatalf("complete = %v", res)
	}
}

// info takes the ErrorInfo out of an error; every error has one.
func info(t *testing.T, err error) *warifuv1.ErrorInfo {
	t.Helper()
	var wire *connect.Error
	if !errors.As(err, &wire) {
		t.Fatalf("%v is no Connect error", err)
	}
	for _, d := range wire.Details() {
		m, err := connectproto.UnmarshalErrorDetail(d)
		if err != nil {
			t.Fatal(err)
		}
		if found, ok := m.(*warifuv1.ErrorInfo); ok {
			return found
		}
	}
	t.Fatalf("%v carries no ErrorInfo", err)
	return nil
}

// retryInfo takes google.rpc.RetryInfo out of an error, nil when there is none.
func retryInfo(t *testing.T, err error) *durationpb.Duration {
	t.Helper()
	var wire *connect.Error
	if !errors.As(err, &wire) {
		t.Fatalf("%v is no Connect error", err)
	}
	for _, d := range wire.Details() {
		m, err := connectproto.UnmarshalErrorDetail(d)
		if err != nil {
			t.Fatal(err)
		}
		if found, ok := m.(*errdetails.RetryInfo); ok {
			return found.GetRetryDelay()
		}
	}
	return nil
}

var _ storage.Store = (*storagetest.Counting)(nil)

// settable is an error that a test sets while a server reads it.
type settable struct {
	mu  sync.Mutex
	err error
}

func (s *settable) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *settable) get() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// withChecksum gives a made-up credential the checksum that it needs to be
// looked up at all.
func withChecksum(body string) string {
	return body + "_" + fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(body)))
}
