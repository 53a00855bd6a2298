package warifu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
)

// overHTTP serves f on a loopback port; wrap sees every request first.
func overHTTP(t *testing.T, f *fake, wrap func(http.Handler) http.Handler) *httptest.Server {
	t.Helper()
	f.mu.records, f.mu.rpcs, f.mu.attempts = map[string]*fakeRecord{}, map[string]int{}, map[string][]string{}
	s := connect.NewServer()
	warifuv1connect.RegisterClaimServiceHandler(s, f)
	mux := http.NewServeMux()
	connecthttp.Mount(mux, s)
	server := httptest.NewServer(wrap(mux))
	t.Cleanup(server.Close)
	return server
}

func dialed(t *testing.T, url string, opts ...Option) *Client {
	t.Helper()
	c, err := New(url, append([]Option{WithAPIKey("wf_test_key"), WithRetry(RetryPolicy{Tries: 1})}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestRequestsOverHTTP(t *testing.T) {
	t.Parallel()
	var (
		conns   sync.Map
		opened  atomic.Int32
		headers = make(chan http.Header, 64)
	)
	server := overHTTP(t, &fake{}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, known := conns.LoadOrStore(r.RemoteAddr, true); !known {
				opened.Add(1)
			}
			headers <- r.Header.Clone()
			next.ServeHTTP(w, r)
		})
	})
	c := dialed(t, server.URL)
	for i := range 20 {
		if _, err := c.Claim(t.Context(), event(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if got := opened.Load(); got != 1 {
		t.Errorf("%d connections for calls one after another", got)
	}
	h := <-headers
	for name, want := range map[string]string{
		"Authorization": "Bearer wf_test_key", "Accept-Encoding": "identity", "Content-Encoding": "", "Content-Type": "application/proto",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if h.Get("Connect-Timeout-Ms") == "" {
		t.Error("the server is not told how long the client waits")
	}
}

func TestErrorDetailsOverHTTP(t *testing.T) {
	t.Parallel()
	f := &fake{}
	info := &warifuv1.ErrorInfo{
		Reason: warifuv1.Reason_REASON_STORE_FULL, RequestId: "req-7", RetryAfter: durationpb.New(9 * time.Second), NotApplied: true,
	}
	f.before = func(context.Context, string) error { return rpcError(t, connect.CodeUnavailable, info) }
	server := overHTTP(t, f, func(h http.Handler) http.Handler { return h })
	c := dialed(t, server.URL)
	_, err := c.Claim(t.Context(), event("e"))
	e, ok := errors.AsType[*Error](err)
	if !ok || !errors.Is(e, ErrUnavailable) || e.Reason != "STORE_FULL" || e.RequestID != "req-7" || e.RetryAfter != 9*time.Second ||
		!e.NotApplied || e.Code != "unavailable" || e.Message != "told by the server" {
		t.Errorf("%#v", e)
	}
}

func TestRetryInfoOfAGateway(t *testing.T) {
	t.Parallel()
	detail, err := connectproto.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	e := failedCall("claim", connect.NewError(connect.CodeUnavailable, "").WithDetail(detail))
	if e.RetryAfter != 3*time.Second {
		t.Errorf("retry after %s", e.RetryAfter)
	}
	broken := &connect.ErrorDetail{Type: "warifu.v1.ErrorInfo", Value: []byte{0xff}}
	if e = failedCall("claim", connect.NewError(connect.CodeUnavailable, "").WithDetail(broken)); !errors.Is(e, ErrUnavailable) || e.NotApplied {
		t.Errorf("with a broken detail: %v", e)
	}
}

func TestWhatIsNotAWarifuServer(t *testing.T) {
	t.Parallel()
	page := func(status int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for _, tt := range []struct {
		name string
		h    http.HandlerFunc
		want error
	}{
		{"login page", page(200, "text/html", "<html>"), ErrReply},
		{"empty success", page(200, "application/proto", ""), ErrReply},
		{"rubbish", page(200, "application/proto", "\xff\xff\xff"), nil},
		{"not found", page(404, "text/plain", "no"), ErrReply},
		{"proxy without upstream", page(502, "text/html", "bad gateway"), ErrUnavailable},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				t.Error("the API key went elsewhere")
			}
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, ErrReply},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tt.h)
			defer server.Close()
			c := dialed(t, server.URL)
			_, err := c.Claim(t.Context(), event("e"))
			if err == nil || !errors.Is(err, ErrOutcomeUnknown) || (tt.want != nil && !errors.Is(err, tt.want)) {
				t.Errorf("error: %v, want %v", err, tt.want)
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c := dialed(t, "http://"+l.Addr().String())
	_, err = c.Claim(t.Context(), event("e"))
	if !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("error: %v", err)
	}
}

func TestNewReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := New("ftp://x", WithAPIKey("a\nb"), WithTimeout(-1), WithRetry(RetryPolicy{Tries: 99, DelayMin: time.Hour, DelayMax: 1}),
		WithBatching(Batching{ItemsMax: 501, Senders: 65}), WithLogger(slog.New(slog.DiscardHandler)), WithHTTPClient(http.DefaultClient))
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"URL", "API key", "timeout", "tries", "delay", "items", "senders"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
	if strings.Contains(err.Error(), "a\nb") {
		t.Error("the error shows the key")
	}
}

func TestNewReadsTheEnvironment(t *testing.T) {
	t.Setenv(envURL, "http://127.0.0.1:1")
	t.Setenv(envAPIKey, "wf_from_a_file\n")
	c, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	t.Setenv(envAPIKey, "")
	if _, err := New(""); err == nil || !strings.Contains(err.Error(), envAPIKey) {
		t.Errorf("without a key: %v", err)
	}
}

// tracer is what tracing libraries put around the default transport.
type tracer struct{ http.RoundTripper }

func TestNewWithAWrappedDefaultTransport(t *testing.T) {
	server := overHTTP(t, &fake{}, func(h http.Handler) http.Handler { return h })
	own := http.DefaultTransport
	defer func() { http.DefaultTransport = own }()
	http.DefaultTransport = tracer{own}
	c := dialed(t, server.URL)
	if got, err := c.Claim(t.Context(), event("e")); err != nil || got.Decision != Granted {
		t.Errorf("%+v, %v", got, err)
	}
}
