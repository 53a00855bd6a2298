package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server/fault"
)

// fakeAPI is a server that keeps what it is told in memory, records every
// request, and fails when a test asks for it.
type fakeAPI struct {
	warifuv1connect.UnimplementedClaimServiceHandler
	warifuv1connect.UnimplementedClaimAdminServiceHandler
	warifuv1connect.UnimplementedTenantAdminServiceHandler
	warifuv1connect.UnimplementedPlatformAdminServiceHandler

	t    *testing.T
	url  string
	home string // of contexts
	env  []string
	mux  *http.ServeMux

	mu struct {
		sync.Mutex
		requests  []recorded
		tenants   map[string]*warifuv1.Tenant
		consumers map[string]*warifuv1.Consumer // by TENANT/NAME
		keys      []*warifuv1.Key
		findings  []*warifuv1.Finding
		entries   []*warifuv1.AuditEntry
		claims    []*warifuv1.ClaimRecord
		faults    map[string][]error // of the next calls of a method
		bulk      []*warifuv1.ResolveClaimsResponse
		made      map[string]bool // change IDs
		hang      chan struct{}   // ListConsumers waits for it
	}
}

// recorded is one request.
type recorded struct {
	method  string
	key     string // the credential
	message proto.Message
}

const fakeKey = "wf_live_3v8kq2m4x7np5rwt_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa_00000000"

// fakeNow is what commands take for the time.
var fakeNow = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()
	f := &fakeAPI{t: t, home: t.TempDir()}
	f.mu.tenants, f.mu.consumers = map[string]*warifuv1.Tenant{}, map[string]*warifuv1.Consumer{}
	f.mu.faults, f.mu.made = map[string][]error{}, map[string]bool{}
	api := connect.NewServer()
	warifuv1connect.RegisterClaimServiceHandler(api, f)
	warifuv1connect.RegisterClaimAdminServiceHandler(api, f)
	warifuv1connect.RegisterTenantAdminServiceHandler(api, f)
	warifuv1connect.RegisterPlatformAdminServiceHandler(api, f)
	f.mux = http.NewServeMux()
	connecthttp.Mount(f.mux, api)
	server := httptest.NewServer(f.mux)
	t.Cleanup(server.Close)
	f.url = server.URL
	f.env = []string{"WARIFU_URL=" + f.url, "WARIFU_API_KEY=" + fakeKey, "XDG_CONFIG_HOME=" + f.home}
	return f
}

// keyboard is a terminal at which answers have been typed.
type keyboard struct{ io.Reader }

func (keyboard) terminal() bool { return true }

// do runs a command where nobody can be asked.
func (f *fakeAPI) do(args ...string) outcome { return f.on(strings.NewReader(""), args...) }

// typing runs a command at a terminal.
func (f *fakeAPI) typing(answers string, args ...string) outcome {
	return f.on(keyboard{strings.NewReader(answers)}, args...)
}

func (f *fakeAPI) on(stdin io.Reader, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	code := run(f.t.Context(), system{
		args: args, environ: f.env, stdin: stdin, stdout: &stdout, stderr: &stderr, now: func() time.Time { return fakeNow },
	})
	return outcome{stdout.String(), stderr.String(), code}
}

// got returns the requests since the last call, and forgets them.
func (f *fakeAPI) got() []recorded {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.mu.requests
	f.mu.requests = nil
	return all
}

// methods are the names of the requests since the last call.
func (f *fakeAPI) methods() string {
	var names []string
	for _, r := range f.got() {
		name := r.method
		if c := changeIn(r.message); c.GetDryRun() {
			name += "(dry)"
		}
		if b, ok := r.message.(*warifuv1.ResolveClaimsRequest); ok && b.GetDryRun() {
			name += "(dry)"
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func changeIn(m proto.Message) *warifuv1.Change {
	if c, ok := m.(interface{ GetChange() *warifuv1.Change }); ok {
		return c.GetChange()
	}
	return nil
}

// fail has the next calls of a method fail.
func (f *fakeAPI) fail(method string, errs ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.faults[method] = append(f.mu.faults[method], errs...)
}

func refusal(r warifuv1.Reason) error { return fault.New(r, "refused: "+r.String()).Wire("req-1") }

// lost is what a call fails with whose reply never came.
func lost() error { return connect.NewError(connect.CodeUnavailable, "the reply was lost") }

// begin records a request and locks what is kept. The caller unlocks.
func (f *fakeAPI) begin(ctx context.Context, method string, m proto.Message) error {
	f.mu.Lock()
	key := ""
	if info, ok := connect.CallInfoForServerContext(ctx); ok {
		key = strings.TrimPrefix(info.RequestHeader().Get("Authorization"), "Bearer ")
	}
	f.mu.requests = append(f.mu.requests, recorded{method, key, proto.Clone(m)})
	if next := f.mu.faults[method]; len(next) > 0 {
		f.mu.faults[method] = next[1:]
		return next[0]
	}
	return nil
}

// version judges a change of what has a version: made says that it was made
// before.
func (f *fakeAPI) version(c *warifuv1.Change, now int64) (made bool, err error) {
	switch {
	case c.GetReason() == "":
		return false, refusal(warifuv1.Reason_REASON_INVALID_FIELD)
	case f.mu.made[c.GetChangeId()]:
		return true, nil
	case c.GetExpectedVersion() != now:
		return false, refusal(warifuv1.Reason_REASON_CONFLICT)
	}
	if !c.GetDryRun() {
		f.mu.made[c.GetChangeId()] = true
	}
	return false, nil
}

var fakeConsequence = &warifuv1.Consequence{
	RetainedKeys: 42, LiveLeases: 3, InDoubt: 1, CountedAt: timestamppb.New(fakeNow), Notes: []string{"a note of the server"},
}

// cutPage is one page; its tokens are numbers.
func cutPage[R any](all []R, size uint32, token string) (on []R, next string) {
	from, _ := strconv.Atoi(token)
	if size == 0 {
		size = 50
	}
	from = min(from, len(all))
	to := min(from+int(size), len(all))
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	return all[from:to], next
}
