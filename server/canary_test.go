package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storagetest"
)

// The canaries, one for each kind of thing that callers send.
const (
	canaryEvent  = "CANARYevent"
	canaryBytes  = "CANARYbytes" // results and digests
	canaryMeta   = "CANARYmeta"
	canaryReason = "CANARYreason"
	canaryKey    = "CANARYkey"
	canaryOther  = "CANARYother"
)

// traps is where canaries must not turn up: everything that leaves the server
// but answers and the store.
type traps struct {
	*installation
	spans *tracetest.InMemoryExporter
	rows  *failingRegistry
}

// failingRegistry is a registry that a test can fail.
type failingRegistry struct {
	registry.Registry
	fault settable
}

func (f *failingRegistry) Load(ctx context.Context, since registry.Revision) (registry.Changes, error) {
	if err := f.fault.get(); err != nil {
		return registry.Changes{}, err
	}
	return f.Registry.Load(ctx, since)
}

func (f *failingRegistry) Apply(ctx context.Context, c registry.Change) (registry.Applied, error) {
	if err := f.fault.get(); err != nil {
		return registry.Applied{}, err
	}
	return f.Registry.Apply(ctx, c)
}

func (f *failingRegistry) Audit(ctx context.Context, q registry.AuditQuery) (registry.AuditPage, error) {
	if err := f.fault.get(); err != nil {
		return registry.AuditPage{}, err
	}
	return f.Registry.Audit(ctx, q)
}

func setTraps(t *testing.T, opts ...option) *traps {
	t.Helper()
	tr := &traps{spans: tracetest.NewInMemoryExporter(), rows: &failingRegistry{}}
	tr.installation = install(t, append(opts, func(c *server.Config) {
		c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(tr.spans))
		tr.rows.Registry = c.Platform.Registry
		c.Platform.Registry = tr.rows
	})...)
	tr.tenant("acme", map[string][]string{"acme": {"claim", "read", "resolve", "admin:tenant"}})
	_, err := tr.team("acme").PutConsumer(t.Context(), &warifuv1.PutConsumerRequest{Name: "orders", Change: reason(0), Policy: &warifuv1.ConsumerPolicy{
		OnUnavailable: warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_OPEN,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// finish makes an event that is completed with canaries, and returns its fence.
func (tr *traps) finish(event string) int64 {
	tr.t.Helper()
	m := request(event, attemptA)
	m.Digests = []*warifuv1.Digest{{Scheme: "s", Value: []byte(canaryBytes)}}
	res, err := tr.client("acme").Claim(tr.t.Context(), m)
	if err != nil || res.GetGrant() == nil {
		tr.t.Fatalf("claim: %v, %v", res, err)
	}
	_, err = tr.client("acme").Complete(tr.t.Context(), &warifuv1.CompleteRequest{
		Consumer: "orders", EventId: event, AttemptId: attemptA, Fence: res.GetGrant().GetFence(),
		Completion: &warifuv1.Completion{
			Outcome: warifuv1.Outcome_OUTCOME_SUCCEEDED, Result: []byte(canaryBytes), ContentType: canaryMeta + "/type",
			Metadata: map[string]string{canaryMeta: canaryMeta},
		},
	})
	if err != nil {
		tr.t.Fatal(err)
	}
	return res.GetGrant().GetFence()
}

// spoil puts a canary into everything of a message that callers choose freely;
// where all is set, also into what has a form, which makes it invalid.
func spoil(m protoreflect.Message, all bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
		case f.Kind() == protoreflect.MessageKind && f.IsList():
			for i := range v.List().Len() {
				spoil(v.List().Get(i).Message(), all)
			}
		case f.Kind() == protoreflect.MessageKind:
			spoil(v.Message(), all)
		case f.Kind() == protoreflect.StringKind && all && f.IsList():
			v.List().Set(0, protoreflect.ValueOfString(canaryOther+" \x1b\nx"))
		case f.Kind() == protoreflect.StringKind && all:
			m.Set(f, protoreflect.ValueOfString(canaryOther+" \x1b\nx"))
		}
		return true
	})
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch f.Name() {
		case "reason", "note", "assignee":
			m.Set(f, protoreflect.ValueOfString(canaryReason))
		case "content_type":
			m.Set(f, protoreflect.ValueOfString(canaryMeta+"/type"))
		}
		switch {
		case f.Kind() == protoreflect.BytesKind && f.Name() != "result_sha256" && !f.IsList():
			m.Set(f, protoreflect.ValueOfBytes([]byte(canaryBytes)))
		case f.IsMap() && f.MapKey().Kind() == protoreflect.StringKind && f.MapValue().Kind() == protoreflect.StringKind:
			m.Mutable(f).Map().Set(protoreflect.ValueOfString(canaryMeta).MapKey(), protoreflect.ValueOfString(canaryMeta))
		}
	}
}

// requests are one that is as right as a generated one can be, one with a page
// token that is none, and one that is wrong everywhere.
func (tr *traps) requests(method protoreflect.MethodDescriptor, fence int64) (out []protoreflect.Message) {
	for n := range 3 {
		things := names{
			tenant: "acme", consumer: "orders", event: canaryEvent, prefix: canaryEvent[:8], attempt: attemptA, key: "0123456789abcdef",
			finding: uuid.NewString(), fence: fence, tokens: map[string]string{string(method.Input().Name()): canaryOther},
		}
		var with []protoreflect.Name
		if n > 0 {
			with = []protoreflect.Name{"page_token"}
		}
		m := dynamicpb.NewMessage(method.Input())
		tr.fill(m, &things, with)
		spoil(m, n == 2)
		out = append(out, m)
	}
	return out
}

// call sends a request as a client of the network does. Whatever it can say
// beside the message is a canary too.
func (tr *traps) call(w http.ResponseWriter, credential string, method protoreflect.MethodDescriptor, body io.Reader) {
	path := fmt.Sprintf("/%s/%s?%s", method.Parent().FullName(), method.Name(), canaryOther)
	req := httptest.NewRequestWithContext(tr.t.Context(), http.MethodPost, path, body)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Authorization": "Bearer " + credential, "X-Request-Id": canaryOther + " x", "User-Agent": canaryOther,
		"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Baggage": "a=" + canaryOther, "Cookie": canaryOther,
	} {
		req.Header.Set(name, value)
	}
	tr.server.Handler().ServeHTTP(w, req)
}

// brokenWriter is a connection whose every write panics.
type brokenWriter struct{ http.ResponseWriter }

func (brokenWriter) Write([]byte) (int, error) { panic("the writer is broken") }

// brokenReader is a connection that panics once all was read.
type brokenReader struct{ io.Reader }

func (b brokenReader) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		panic("the reader is broken")
	}
	return n, nil
}

// TestCanaries calls every procedure with canaries in all that callers choose,
// while all is well, with a store that fails in every way and quotes what it
// fails on, with a bug, and under overload. None comes out where nobody may look
// for it.
func TestCanaries(t *testing.T) {
	t.Parallel()
	for _, service := range services() {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			t.Run(string(method.FullName()), func(t *testing.T) {
				t.Parallel()
				tr := setTraps(t)
				tr.ways(method, tr.finish(canaryEvent))
				tr.look()
			})
		}
	}
}

// ways calls a procedure in every way.
func (tr *traps) ways(method protoreflect.MethodDescriptor, fence int64) {
	tr.t.Helper()
	keys := []string{tr.keys["acme"], tr.keys["platform"], "wf_test_" + canaryKey, withChecksum("wf_test_0123456789abcdef_" + canaryKey)}
	each := func(send func(credential string, body []byte)) {
		for _, key := range keys {
			for _, m := range tr.requests(method, fence) {
				body, err := protojson.Marshal(m.Interface())
				if err != nil {
					tr.t.Fatal(err)
				}
				send(key, body)
			}
			send(key, []byte(canaryOther))
			send(key, []byte(`{"`+canaryOther+`":1}`))
		}
	}
	answered := func(credential string, body []byte) { tr.answered(method, credential, body) }
	each(answered)
	for _, sentinel := range []error{
		storage.ErrUnknown, storage.ErrUnavailable, storage.ErrFull, storage.ErrClockSuspect, storage.ErrDamaged, storage.ErrCursor, errors.New("a bug"),
	} {
		fault := fmt.Errorf(`%w: ERROR: restart transaction: WriteTooOldError: key /Table/106/1/4/"orders"/"%s"/0: value '%s' (SQLSTATE 40001)`, sentinel, canaryEvent, canaryBytes)
		if !errors.Is(sentinel, storage.ErrUnknown) { // of an engine that names no codes
			fault = fmt.Errorf(`%w: row "%s" is '%s'`, sentinel, canaryEvent, canaryBytes)
		}
		tr.rows.fault.set(fault)
		tr.failing(failAll(fault))
		each(answered)
		tr.failing(func(context.Context, storagetest.Call) storagetest.Fault {
			return storagetest.Fault{Lose: map[int]error{0: fault}}
		})
		each(answered)
	}
	tr.rows.fault.set(nil)
	tr.failing(nil)
	each(func(credential string, body []byte) {
		defer func() { _ = recover() }() // of the error's own answer, which cannot be written either
		tr.call(brokenWriter{httptest.NewRecorder()}, credential, method, bytes.NewReader(body))
	})
	each(func(credential string, body []byte) {
		tr.call(httptest.NewRecorder(), credential, method, brokenReader{bytes.NewReader(body)})
	})
	if !strings.Contains(tr.log.String(), "panic while serving") {
		tr.t.Error("there was no panic")
	}
}

// answered demands that an error repeats nothing of the request.
func (tr *traps) answered(method protoreflect.MethodDescriptor, credential string, body []byte) {
	tr.t.Helper()
	w := httptest.NewRecorder()
	tr.call(w, credential, method, bytes.NewReader(body))
	text, err := io.ReadAll(w.Result().Body)
	if err != nil {
		tr.t.Fatal(err)
	}
	generated := bytes.HasPrefix(body, []byte("{")) && !bytes.HasPrefix(body, []byte(`{"`+canaryOther))
	if w.Code != http.StatusOK && generated {
		tr.clean("an error", string(text))
	}
	if strings.Contains(fmt.Sprint(w.Header()), "CANARY") {
		tr.t.Errorf("headers %v", w.Header())
	}
}

// look looks into all traps.
func (tr *traps) look() {
	tr.t.Helper()
	tr.clean("the log", tr.log.String())
	for _, format := range []string{"text/plain", "application/openmetrics-text"} {
		req := httptest.NewRequestWithContext(tr.t.Context(), http.MethodGet, "/metrics", nil)
		req.Header.Set("Accept", format)
		w := httptest.NewRecorder()
		tr.server.MetricsHandler().ServeHTTP(w, req)
		tr.clean("metrics as "+format, w.Body.String())
	}
	spans := tr.spans.GetSpans()
	if len(spans) == 0 || !strings.Contains(tr.log.String(), `"trace_id":"0af7651916cd43dd8448eb211c80319c"`) {
		tr.t.Error("nothing was traced")
	}
	tr.clean("a span", fmt.Sprintf("%+v", spans))
	page, err := tr.installation.rows.Audit(tr.t.Context(), registry.AuditQuery{Scope: registry.Platform(), Limit: registry.PageMax})
	if err != nil {
		tr.t.Fatal(err)
	}
	for _, e := range page.Entries {
		// Whom it is about and why is what the log is for.
		tr.clean("the audit log", strings.NewReplacer(canaryEvent, "", canaryReason, "").Replace(fmt.Sprintf("%s %s %s %s %s", e.Actor, e.Action, e.Target, e.Before, e.After)))
	}
}

// clean demands that a text has no canary, and no secret of a credential.
func (tr *traps) clean(where, text string) {
	tr.t.Helper()
	// As it is, in base64 as JSON has bytes, and as %v prints bytes.
	for _, form := range append([]string{"CANARY", "Q0FOQVJZ", "67 65 78 65 82 89"}, secrets(tr.rig)...) {
		at := strings.Index(text, form)
		if at < 0 {
			continue
		}
		tr.t.Errorf("%s shows %q: …%s…", where, form, text[max(0, at-300):min(len(text), at+100)])
	}
}

// TestCanariesUnderOverload: a call that is shed says nothing either.
func TestCanariesUnderOverload(t *testing.T) {
	t.Parallel()
	tr := setTraps(t, func(c *server.Config) { c.InFlightMax = 1 })
	fence := tr.finish(canaryEvent)
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	tr.failing(func(context.Context, storagetest.Call) storagetest.Fault {
		once.Do(func() { close(entered); <-leave })
		return storagetest.Fault{}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = tr.client("acme").Claim(tr.t.Context(), request("busy", attemptA)) // it only takes the room
	}()
	<-entered
	for _, service := range services() {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			for _, m := range tr.requests(method, fence) {
				body, err := protojson.Marshal(m.Interface())
				if err != nil {
					t.Fatal(err)
				}
				tr.answered(method, tr.keys["acme"], body)
			}
		}
	}
	close(leave)
	<-done
	tr.look()
	if shed := metric(t, tr.rig, `warifu_rpc_shed_total{class="claim"}`); shed == 0 {
		t.Error("nothing was shed")
	}
}

// TestAuditHoldsNoResult: what an operator does to a completed claim is in the
// log, and its result is not.
func TestAuditHoldsNoResult(t *testing.T) {
	t.Parallel()
	tr, ctx := setTraps(t), t.Context()
	_, err := tr.adminClient("acme").ForgetClaim(ctx, &warifuv1.ForgetClaimRequest{
		Consumer: "orders", EventId: canaryEvent, ExpectedFence: tr.finish(canaryEvent), ExpectedState: warifuv1.State_STATE_COMPLETED, Reason: canaryReason,
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := tr.installation.rows.Audit(ctx, registry.AuditQuery{Scope: registry.Platform(), Limit: registry.PageMax})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(page.Entries, func(e registry.AuditEntry) bool { return e.Action == "claim.forget" })
	if i < 0 || !strings.Contains(string(page.Entries[i].Before), "STATE_COMPLETED") || !strings.Contains(string(page.Entries[i].Before), "OUTCOME_SUCCEEDED") {
		t.Fatalf("the log does not say what was forgotten: %v", page.Entries)
	}
	for _, digest := range []string{"sha256", "Sha256"} {
		if strings.Contains(string(page.Entries[i].Before), digest) {
			t.Errorf("the log has the digest of the result: %s", page.Entries[i].Before)
		}
	}
	tr.clean("the audit log", strings.ReplaceAll(string(page.Entries[i].Before), canaryEvent, ""))
}
