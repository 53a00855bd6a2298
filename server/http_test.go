package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect/v2"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// listen serves the public handler on a loopback port with the product's own
// http.Server. It stops with the test.
func (r *rig) listen() (url string, srv *http.Server) {
	r.t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(r.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	srv = server.NewHTTPServer(r.server.Handler())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	r.t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			r.t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			r.t.Error(err)
		}
	})
	return "http://" + ln.Addr().String(), srv
}

// httpClient speaks HTTP/1.1, or HTTP/2 without TLS.
func (r *rig) httpClient(h2c bool) *http.Client {
	p := &http.Protocols{}
	p.SetHTTP1(!h2c)
	p.SetUnencryptedHTTP2(h2c)
	tr := &http.Transport{Protocols: p}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (r *rig) raw(url string, header http.Header, body io.Reader) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, url, body)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.keys["shop"])
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := r.httpClient(false).Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// TestProtocols claims over every protocol and codec the listener speaks.
func TestProtocols(t *testing.T) {
	t.Parallel()
	r := setup(t)
	url, _ := r.listen()
	for name, tr := range map[string]connect.Transport{
		"connect":          connecthttp.NewTransport(r.httpClient(false), url),
		"connect over h2c": connecthttp.NewTransport(r.httpClient(true), url),
		"connect, json":    connecthttp.NewTransport(r.httpClient(false), url, connecthttp.WithProtoJSON()),
		"grpc":             connecthttp.NewTransport(r.httpClient(true), url, connecthttp.WithGRPC()),
		"grpc-web":         connecthttp.NewTransport(r.httpClient(false), url, connecthttp.WithGRPCWeb()),
	} {
		c := warifuv1connect.NewClaimServiceClient(connect.NewClient(tr, bearer(r.keys["shop"])))
		res, err := c.Claim(t.Context(), request(name, attemptA))
		if err != nil || res.GetDecision() != warifuv1.Decision_DECISION_GRANTED || res.Accepted == nil {
			t.Errorf("%s: %v, %v", name, res, err)
		}
		if _, err = c.Claim(t.Context(), request("", attemptA)); info(t, err).GetField() != "event_id" {
			t.Errorf("%s: %v", name, err)
		}
	}
	get := connecthttp.NewTransport(r.httpClient(false), url, connecthttp.WithHTTPGet())
	c := warifuv1connect.NewClaimServiceClient(connect.NewClient(get, bearer(r.keys["shop"])))
	if res, err := c.Lookup(t.Context(), &warifuv1.LookupRequest{Consumer: "orders", EventId: "grpc"}); err != nil || res.GetRecord().GetState() != warifuv1.State_STATE_IN_PROGRESS {
		t.Errorf("look-up by GET: %v, %v", res, err)
	}
}

// TestCompressedRequests: nothing is decompressed, so there is no bomb.
func TestCompressedRequests(t *testing.T) {
	t.Parallel()
	r := setup(t)
	url, _ := r.listen()
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := io.CopyN(z, zeros{}, 64<<20); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for _, encoding := range []string{"gzip", "br", "zstd", "deflate", "GZIP", "gzip, gzip"} {
		for _, contentType := range []string{"application/json", "application/proto"} {
			got := r.raw(url+"/warifu.v1.ClaimService/BatchClaim",
				http.Header{"Content-Type": {contentType}, "Content-Encoding": {encoding}}, bytes.NewReader(bomb.Bytes()))
			if got.status != http.StatusNotImplemented || !strings.Contains(got.body, "unimplemented") {
				t.Errorf("%s %s: %d %.200s", contentType, encoding, got.status, got.body)
			}
		}
	}
	// A gRPC message that says that it is compressed, in a call that does not.
	frame := append([]byte{1, 0, 0, 0, 0}, bomb.Bytes()...)
	binary.BigEndian.PutUint32(frame[1:], uint32(bomb.Len()))
	got := r.raw(url+"/warifu.v1.ClaimService/BatchClaim", http.Header{"Content-Type": {"application/grpc-web+proto"}}, bytes.NewReader(frame))
	if strings.Contains(got.String(), "decision") || r.store.Trips() != 0 {
		t.Errorf("a compressed message in gRPC-Web: %s", got)
	}
	// The client is told nothing is compressed back, whatever it accepts.
	small := r.raw(url+"/warifu.v1.ClaimService/GetPolicy",
		http.Header{"Content-Type": {"application/json"}, "Accept-Encoding": {"gzip"}}, strings.NewReader(`{"consumer":"orders"}`))
	if small.status != http.StatusOK || small.header.Get("Content-Encoding") != "" {
		t.Errorf("policy: %s", small)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestBodies: too large, malformed, of another type, empty.
func TestBodies(t *testing.T) {
	t.Parallel()
	r := setup(t)
	url, _ := r.listen()
	jsonType := http.Header{"Content-Type": {"application/json"}}
	slightly := fmt.Sprintf(`{"items":[{"consumer":"orders","eventId":"e","attemptId":%q}],"x":%q}`, attemptA, strings.Repeat("x", claim.BatchBytesMax))
	huge := `{"items":[],"x":"` + strings.Repeat("x", 3<<20) + `"}`
	many := `{"items":[` + strings.Repeat("{},", 300_000) + `{}]}`
	deep := strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)
	rows := []struct {
		name   string
		header http.Header
		body   string
		status int
		want   string
	}{
		{"a little over a batch", jsonType, slightly, http.StatusBadRequest, "at most 1048576 bytes"},
		{"3 MiB", jsonType, huge, http.StatusBadRequest, "at most 1 MiB"},
		{"300,000 empty items", jsonType, many, http.StatusBadRequest, "at most 500 items with 8 digests"},
		{"500,000 empty items", http.Header{"Content-Type": {"application/proto"}}, strings.Repeat("\x0a\x00", 500_000), http.StatusBadRequest, "at most 500 items with 8 digests"},
		{"with a charset", http.Header{"Content-Type": {"application/json; charset=utf-8"}}, `{}`, http.StatusBadRequest, "1-500 items"},
		{"malformed JSON", jsonType, `{"items":[`, http.StatusBadRequest, "invalid_argument"},
		{"deep JSON", jsonType, deep, http.StatusBadRequest, "invalid_argument"},
		{"malformed protobuf", http.Header{"Content-Type": {"application/proto"}}, "\xff\xff\xff", http.StatusBadRequest, "invalid_argument"},
		{"not UTF-8", http.Header{"Content-Type": {"application/proto"}}, "\x0a\x03\x0a\x01\xff", http.StatusBadRequest, "invalid_argument"},
		{"empty", jsonType, "", http.StatusBadRequest, "invalid_argument"},
		{"another type", http.Header{"Content-Type": {"text/plain"}}, "{}", http.StatusUnsupportedMediaType, ""},
		{"a form", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, "a=b", http.StatusUnsupportedMediaType, ""},
	}
	for _, row := range rows {
		got := r.raw(url+"/warifu.v1.ClaimService/BatchClaim", row.header, strings.NewReader(row.body))
		if got.status != row.status || !strings.Contains(got.body, row.want) {
			t.Errorf("%s: %d %.300s", row.name, got.status, got.body)
		}
		if row.status == http.StatusBadRequest && !strings.Contains(got.body, "warifu.v1.ErrorInfo") {
			t.Errorf("%s: no ErrorInfo in %.300s", row.name, got.body)
		}
	}
	if n := r.store.Trips(); n != 0 {
		t.Errorf("the store was asked %d times", n)
	}
}

// TestRequestID: a good one is taken, any other replaced, and both echoed in
// header and error.
func TestRequestID(t *testing.T) {
	t.Parallel()
	r := setup(t)
	url, _ := r.listen()
	for given, taken := range map[string]bool{
		"order-7.retry_2": true, "": false, "a b": false, strings.Repeat("x", 64): true, strings.Repeat("x", 65): false, "naïve": false, "a;b": false,
	} {
		header := http.Header{"Content-Type": {"application/json"}}
		if given != "" {
			header.Set("X-Request-Id", given)
		}
		got := r.raw(url+"/warifu.v1.ClaimService/Claim", header, strings.NewReader("{}"))
		id := got.header.Get("X-Request-Id")
		if (id == given) != taken || id == "" || !strings.Contains(got.body, `"requestId":"`+id+`"`) && !strings.Contains(got.body, `"requestId": "`+id+`"`) {
			t.Errorf("given %q, got %q in %s", given, id, got.body)
		}
	}
}

// TestHeaders: answers are not cached, guessed at or framed.
func TestHeaders(t *testing.T) {
	t.Parallel()
	r := setup(t)
	url, _ := r.listen()
	for _, path := range []string{"/livez", "/readyz", "/", "/warifu.v1.ClaimService/Claim", "/nothing"} {
		got := r.raw(url+path, http.Header{"Content-Type": {"application/json"}}, strings.NewReader("{}"))
		if got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("Cache-Control") != "no-store" || got.header.Get("Content-Security-Policy") == "" {
			t.Errorf("%s: %v", path, got.header)
		}
	}
	if got := r.raw(url+"/livez", nil, nil); got.status != http.StatusMethodNotAllowed {
		t.Errorf("POST /livez: status %d", got.status)
	}
	if got := r.raw(url+"/", nil, nil); got.status != http.StatusNotFound {
		t.Errorf("POST /: status %d", got.status)
	}
	if got := r.raw(url+"/warifu.v1.ClaimService/Nothing", http.Header{"Content-Type": {"application/json"}}, strings.NewReader("{}")); got.status != http.StatusNotImplemented || !strings.Contains(got.body, "warifu.v1.ErrorInfo") {
		t.Errorf("unknown method: %s", got)
	}
	srv := server.NewHTTPServer(http.NotFoundHandler())
	if srv.ReadHeaderTimeout == 0 || srv.IdleTimeout == 0 || srv.MaxHeaderBytes == 0 || srv.HTTP2.MaxConcurrentStreams == 0 ||
		srv.ReadTimeout <= server.CallTimeoutDefault || srv.WriteTimeout <= server.CallTimeoutDefault || server.CallTimeoutDefault <= claim.WaitMax {
		t.Errorf("a bound is missing or too short: %+v", srv)
	}
}

// TestHealth follows readiness over all its doors: not running, running,
// store away, back, draining.
func TestHealth(t *testing.T) {
	t.Parallel()
	clock := storagetest.NewClock(storagetest.Start)
	var log lockedBuffer
	stub := &unready{Model: storagetest.NewModel(clock.Now, claim.SweepGrace)}
	r := setup(t) // for its directory
	srv, err := server.New(server.Config{Store: stub, Directory: r.dir, Clock: clock.Now, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	r.server = srv
	look := func(path string) string {
		w := httptest.NewRecorder()
		srv.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return fmt.Sprint(w.Code, " ", strings.ReplaceAll(strings.TrimSpace(w.Body.String()), "\n", ", "))
	}
	demand := func(when, path, want string) {
		t.Helper()
		if got := look(path); got != want {
			t.Errorf("%s: %s = %q, want %q", when, path, got, want)
		}
	}
	demand("before Run", "/livez", "200 ok")
	demand("before Run", "/readyz", "503 not ready")
	demand("before Run", "/startupz", "503 not ready")
	demand("before Run", "/readyz?verbose", "503 [-] arbiter failed: the reason is in the log, [+] draining ok, [+] store ok, not ready")
	r.run()
	demand("running", "/readyz?verbose", "200 [+] arbiter ok, [+] draining ok, [+] store ok, ok")
	demand("running", "/startupz", "200 ok")
	stub.set(fmt.Errorf("disk 4711: %w", storage.ErrUnavailable))
	demand("store away", "/readyz?verbose", "503 [+] arbiter ok, [+] draining ok, [-] store failed: the reason is in the log, not ready")
	demand("store away", "/livez", "200 ok")
	demand("store away", "/startupz", "200 ok")
	if !strings.Contains(log.String(), "disk 4711") {
		t.Errorf("the log does not say why: %s", log.String())
	}
	for range 100 {
		look("/readyz?verbose")
	}
	if n := strings.Count(log.String(), "disk 4711"); n != 1 {
		t.Errorf("the reason is logged %d times, want once", n)
	}
	stub.set(nil)
	demand("store back", "/readyz", "200 ok")
	url, _ := r.listen()
	health := grpchealth.NewClient(r.httpClient(true), url)
	for _, service := range []string{"", warifuv1connect.ClaimServiceName, warifuv1connect.ClaimAdminServiceName} {
		if res, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: service}); err != nil || res.Status != grpchealth.StatusServing {
			t.Errorf("gRPC health of %q: %v, %v", service, res, err)
		}
	}
	if _, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: "nothing"}); err == nil {
		t.Error("gRPC health knows a service that is not there")
	}
	srv.Drain()
	demand("draining", "/readyz?verbose", "503 [+] arbiter ok, [-] draining failed: the reason is in the log, [+] store ok, not ready")
	if res, err := health.Check(t.Context(), &grpchealth.CheckRequest{}); err != nil || res.Status != grpchealth.StatusNotServing {
		t.Errorf("gRPC health while draining: %v, %v", res, err)
	}
	// Draining servers still serve.
	if res, err := r.client("shop").Claim(t.Context(), request("e", attemptA)); err != nil || res.GetDecision() != warifuv1.Decision_DECISION_GRANTED {
		t.Errorf("a claim while draining: %v, %v", res, err)
	}
}

// unready is a store whose readiness a test decides.
type unready struct {
	*storagetest.Model
	state settable
}

func (u *unready) set(err error) { u.state.set(err) }

func (u *unready) Ready(context.Context) error { return u.state.get() }

// TestDrain: the documented order loses nothing that was accepted.
func TestDrain(t *testing.T) {
	t.Parallel()
	r := setup(t)
	url, srv := r.listen()
	entered, proceed := make(chan struct{}), make(chan struct{})
	r.failing(func(context.Context, storagetest.Call) storagetest.Fault {
		close(entered)
		<-proceed
		return storagetest.Fault{}
	})
	c := warifuv1connect.NewClaimServiceClient(connect.NewClient(connecthttp.NewTransport(r.httpClient(false), url), bearer(r.keys["shop"])))
	answers := make(chan error, 1)
	go func() {
		res, err := c.Claim(context.WithoutCancel(t.Context()), request("e", attemptA))
		if err == nil && res.GetDecision() != warifuv1.Decision_DECISION_GRANTED {
			err = fmt.Errorf("%v", res)
		}
		answers <- err
	}()
	<-entered
	r.server.Drain()
	if got := r.get(r.server.Handler(), "/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("ready while draining: %d", got)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Shutdown(context.WithoutCancel(t.Context())) }()
	select {
	case err := <-stopped:
		t.Fatalf("Shutdown did not wait for the call in flight: %v", err)
	case err := <-answers:
		t.Fatalf("answered before its store call ended: %v", err)
	default:
	}
	close(proceed)
	if err := <-answers; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestPanic: a bug in a handler is one failed call, in the log with its stack.
func TestPanic(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.failing(func(context.Context, storagetest.Call) storagetest.Fault { panic("boom 4711") })
	_, err := r.adminClient("shop").ListClaims(t.Context(), &warifuv1.ListClaimsRequest{})
	if i := info(t, err); connect.CodeOf(err) != connect.CodeInternal || i.GetReason() != warifuv1.Reason_REASON_INTERNAL || i.GetNotApplied() || strings.Contains(err.Error(), "4711") {
		t.Errorf("a panic became %v, %v", err, i)
	}
	if log := r.log.String(); !strings.Contains(log, "boom 4711") || !strings.Contains(log, "list.go") || !strings.Contains(log, info(t, err).GetRequestId()) {
		t.Errorf("the log lacks the panic, its stack or its request ID: %s", log)
	}
	r.failing(nil)
	r.grant(request("e", attemptA))
}

// TestReflection needs a key and shows the services.
func TestReflection(t *testing.T) {
	t.Parallel()
	r := setup(t)
	url, _ := r.listen()
	names := func(key string) ([]string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		tr := connecthttp.NewTransport(r.httpClient(true), url, connecthttp.WithGRPC())
		stream := grpcreflect.NewClient(connect.NewClient(tr, bearer(key))).NewStream(ctx)
		list, err := stream.ListServices()
		_ = stream.Close()
		out := make([]string, len(list))
		for i := range list {
			out[i] = string(list[i])
		}
		return out, err
	}
	got, err := names(r.keys["shop"])
	if err != nil || !strings.Contains(fmt.Sprint(got), "warifu.v1.ClaimService") {
		t.Errorf("services = %v, %v", got, err)
	}
	if got, err := names("wf_nothing"); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("without a key: %v, %v", got, err)
	}
}

// TestWireSize: 500 duplicates with the largest metadata fit what clients read
// by default (4 MiB).
func TestWireSize(t *testing.T) {
	t.Parallel()
	item := &warifuv1.ClaimResponse{
		Consumer: strings.Repeat("c", claim.ConsumerCharsMax), EventId: strings.Repeat("e", claim.EventIDBytesMax),
		Result: &warifuv1.StoredResult{ContentType: strings.Repeat("t", claim.ContentTypeMax), Metadata: map[string]string{"k": strings.Repeat("v", claim.MetadataBytesMax)}},
	}
	if n := claim.BatchItemsMax*(proto.Size(item)+64) + claim.ReplyBodyBytesMax; n > 4<<20 {
		t.Errorf("a batch reply can have %d bytes", n)
	}
}
