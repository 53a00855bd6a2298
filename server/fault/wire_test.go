package fault

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// details are what a client finds in a wire error.
func details(t *testing.T, err *connect.Error) (infos []*warifuv1.ErrorInfo, delays []*errdetails.RetryInfo) {
	t.Helper()
	for _, d := range err.Details() {
		m, unpackErr := connectproto.UnmarshalErrorDetail(d)
		if unpackErr != nil {
			t.Fatal(unpackErr)
		}
		switch m := m.(type) {
		case *warifuv1.ErrorInfo:
			infos = append(infos, m)
		case *errdetails.RetryInfo:
			delays = append(delays, m)
		default:
			t.Errorf("a detail %s that nobody knows of", d.Type)
		}
	}
	return infos, delays
}

// TestWire: every reason goes out with one ErrorInfo, and with advice in both
// places exactly where asking again may help. As the answer to an item it says
// the same.
func TestWire(t *testing.T) {
	t.Parallel()
	for number, name := range warifuv1.Reason_name {
		reason := warifuv1.Reason(number)
		f := &Fault{Reason: reason, Message: "text", Field: "lease", Limit: "1 s-24 h", cause: errDisk}
		want := &warifuv1.ErrorInfo{
			Reason: reason, Field: "lease", Limit: "1 s-24 h", RequestId: "r-1", NotApplied: !promises[reason].mayApply,
		}
		if after := promises[reason].retryAfter; after > 0 {
			want.RetryAfter = durationpb.New(after)
		}
		err := f.Wire("r-1")
		if err.Code() != promises[reason].code || err.Message() != "text" || err.IsRemote() || !errors.Is(err, f) {
			t.Errorf("%s went out as %v", name, err)
		}
		infos, delays := details(t, err)
		if len(infos) != 1 || !proto.Equal(infos[0], want) {
			t.Errorf("%s: ErrorInfo %v, want %v", name, infos, want)
		}
		if got := delaysOf(delays); len(got) > 1 || (len(got) == 1) != (want.RetryAfter != nil) || (len(got) == 1 && got[0] != promises[reason].retryAfter) {
			t.Errorf("%s: RetryInfo %v, want %v", name, got, promises[reason].retryAfter)
		}
		item := &warifuv1.ItemError{Code: promises[reason].code.String(), Message: "text", Info: want}
		if got := f.Item("r-1"); !proto.Equal(got, item) {
			t.Errorf("%s: item %v, want %v", name, got, item)
		}
	}
}

func delaysOf(infos []*errdetails.RetryInfo) (out []time.Duration) {
	for _, i := range infos {
		out = append(out, i.GetRetryDelay().AsDuration())
	}
	return out
}

// TestWireWithoutDetail: a detail that cannot be packed costs itself and not the
// error.
func TestWireWithoutDetail(t *testing.T) {
	t.Parallel()
	f := &Fault{Reason: warifuv1.Reason_REASON_STORE_FULL, Message: "full", Field: "not UTF-8: \xff"}
	err := f.Wire("r-1")
	infos, delays := details(t, err)
	if err.Code() != connect.CodeResourceExhausted || err.Message() != "full" || len(infos) != 0 || len(delays) != 1 {
		t.Errorf("it went out as %v with %v and %v", err, infos, delays)
	}
	if Of(err) != f {
		t.Errorf("it came back as %v", Of(err))
	}
}

// secret is in every cause below and may be in no byte that is sent.
const secret = "hunter4711"

// TestNothingLeaks looks at the bytes that each protocol sends.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	cause := errors.New("open /var/lib/" + secret)
	faults := map[string]*Fault{
		"a fault":          New(warifuv1.Reason_REASON_STORE_UNAVAILABLE, "ask again").WithCause(cause),
		"a field":          Invalid("lease", "1 s-24 h").WithCause(cause).Within("items[1]"),
		"a bug":            Of(cause),
		"a panic's error":  Internal(cause),
		"a peer's refusal": Of(connect.NewError(connect.CodeInvalidArgument, secret).WithRemote()),
		"a store's error":  Of(connect.NewError(connect.CodeDataLoss, secret)),
		"a read limit":     Of(connect.NewError(connect.CodeResourceExhausted, secret)),
		"a read deadline":  Of(connect.NewError(connect.CodeDeadlineExceeded, secret)),
		"a fault's fault":  New(warifuv1.Reason_REASON_OUTCOME_UNKNOWN, "resend").WithCause(Internal(cause)),
	}
	for name, f := range faults {
		if !strings.Contains(f.Error(), secret) {
			t.Errorf("%s: the log would not say why: %v", name, f)
		}
		item, err := proto.Marshal(f.Item("r-1"))
		if err != nil || !bytes.Contains(item, []byte(f.Message)) || bytes.Contains(item, []byte(secret)) {
			t.Errorf("%s: as an item %q, %v", name, item, err)
		}
		for _, contentType := range []string{"application/json", "application/proto", "application/grpc", "application/grpc-web+proto"} {
			sent := sentAs(t, contentType, f.Wire("r-1"))
			if !bytes.Contains(sent, []byte(f.Message)) || !bytes.Contains(sent, []byte("r-1")) {
				t.Errorf("%s: %s lacks what was to be said: %q", name, contentType, sent)
			}
			if bytes.Contains(sent, []byte(secret)) {
				t.Errorf("%s: %s gives the cause away: %q", name, contentType, sent)
			}
		}
	}
}

// sentAs is all that a protocol sends of an error, with whatever is encoded
// decoded beside it.
func sentAs(t *testing.T, contentType string, err error) []byte {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
	request.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	if writeErr := connecthttp.NewErrorWriter().Write(w, request, err); writeErr != nil {
		t.Fatal(writeErr)
	}
	reply := w.Result()
	defer reply.Body.Close() //nolint:errcheck // it is in memory
	sent := bytes.Clone(w.Body.Bytes())
	for _, headers := range []http.Header{reply.Header, reply.Trailer} {
		for _, values := range headers {
			for _, v := range values {
				sent = append(append(sent, '\n'), decoded(v)...)
			}
		}
	}
	for _, line := range bytes.FieldsFunc(w.Body.Bytes(), func(r rune) bool { return r == '\r' || r == '\n' }) {
		if _, value, ok := bytes.Cut(line, []byte(": ")); ok { // gRPC-Web sends its trailers in the body
			sent = append(append(sent, '\n'), decoded(string(value))...)
		}
	}
	var inJSON struct{ Details []struct{ Value string } }
	if json.Unmarshal(w.Body.Bytes(), &inJSON) == nil {
		for _, d := range inJSON.Details {
			sent = append(append(sent, '\n'), decoded(d.Value)...)
		}
	}
	return sent
}

// decoded is a value as it is, without percents, and without base64.
func decoded(value string) []byte {
	out := []byte(value)
	if text, err := url.PathUnescape(value); err == nil {
		out = append(append(out, '\n'), text...)
	}
	if raw, err := base64.RawStdEncoding.DecodeString(value); err == nil {
		out = append(append(out, '\n'), raw...)
	}
	return out
}
