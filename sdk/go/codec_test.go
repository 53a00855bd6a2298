package warifu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// fullReplies are the replies that have generated code, with every text that
// they can carry: %n% stands in for one.
func fullReplies() []proto.Message {
	n := 0
	text := func() string { n++; return fmt.Sprintf("%%%04d%%", n) }
	failed := func() *warifuv1.ItemError {
		return &warifuv1.ItemError{Code: text(), Message: text(), Info: &warifuv1.ErrorInfo{
			Field: text(), Limit: text(), RequestId: text(), RetryAfter: durationpb.New(time.Second),
		}}
	}
	answer := func() *warifuv1.ClaimResponse {
		return &warifuv1.ClaimResponse{
			Consumer: text(), EventId: text(), Accepted: proto.Bool(true), ExpiresAt: timestamppb.New(time.Unix(1, 2)),
			Grant:  &warifuv1.Grant{Fence: 1, AttemptId: text()},
			Result: &warifuv1.StoredResult{Result: []byte("body"), ContentType: text(), Metadata: map[string]string{text(): text()}},
		}
	}
	return []proto.Message{
		answer(),
		&warifuv1.BatchClaimResponse{Results: []*warifuv1.BatchClaimResult{
			{Result: &warifuv1.BatchClaimResult_Claim{Claim: answer()}}, {Result: &warifuv1.BatchClaimResult_Error{Error: failed()}},
		}},
		&warifuv1.BatchCompleteResponse{Results: []*warifuv1.BatchCompleteResult{
			{Result: &warifuv1.BatchCompleteResult_Complete{Complete: &warifuv1.CompleteResponse{Consumer: text(), EventId: text()}}},
			{Result: &warifuv1.BatchCompleteResult_Error{Error: failed()}},
		}},
		&warifuv1.ExtendResponse{Results: []*warifuv1.ExtendResult{
			{Result: &warifuv1.ExtendResult_Extend{Extend: &warifuv1.ExtendAnswer{Consumer: text(), EventId: text()}}},
			{Result: &warifuv1.ExtendResult_Error{Error: failed()}},
		}},
	}
}

// textFields counts the text fields that the schema lets a message reach.
func textFields(d protoreflect.MessageDescriptor) (n int) {
	for i := range d.Fields().Len() {
		switch f := d.Fields().Get(i); f.Kind() {
		case protoreflect.StringKind:
			n++
		case protoreflect.MessageKind:
			n += textFields(f.Message())
		default: // has no text
		}
	}
	return n
}

// TestTextsOfRepliesAreUTF8: a reply in which any one text is not UTF-8 is
// refused in the words of the plain codec.
func TestTextsOfRepliesAreUTF8(t *testing.T) {
	t.Parallel()
	for _, m := range fullReplies() {
		name := string(m.ProtoReflect().Descriptor().Name())
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got := m.ProtoReflect().New().Interface()
		if err := newCodec().UnmarshalRead(t.Context(), bytes.NewBuffer(data), got); err != nil || !proto.Equal(got, m) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		texts := bytes.Count(data, []byte("%")) / 2
		if want := textFields(m.ProtoReflect().Descriptor()); texts != want {
			t.Errorf("%s: this test knows %d of %d texts", name, texts, want)
		}
		rest := data
		for range texts {
			begin := len(data) - len(rest) + bytes.IndexByte(rest, '%')
			rest = data[begin+len("%0000%"):]
			broken := bytes.Clone(data)
			copy(broken[begin:], "\xff\xff\xff\xff\xff\xff")
			err := newCodec().UnmarshalRead(t.Context(), bytes.NewBuffer(broken), m.ProtoReflect().New().Interface())
			want := proto.Unmarshal(broken, m.ProtoReflect().New().Interface())
			if want == nil || err == nil || err.Error() != want.Error() {
				t.Errorf("%s, text %s: %v, want %v", name, data[begin:begin+6], err, want)
			}
		}
	}
}

// TestRepliesAreTheCallers: a reply shares no memory with the transport.
func TestRepliesAreTheCallers(t *testing.T) {
	t.Parallel()
	for _, m := range fullReplies() {
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got := m.ProtoReflect().New().Interface()
		if err := newCodec().UnmarshalRead(t.Context(), bytes.NewBuffer(data), got); err != nil {
			t.Fatal(err)
		}
		clear(data)
		if !proto.Equal(got, m) {
			t.Errorf("%v became %v", m, got)
		}
	}
}

// TestStrangeReplies: what generated code cannot read is read by reflection.
func TestStrangeReplies(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"nothing": "", "unknown field": "\x7a\x01x", "unknown number": "\x78\x01", "another type": "\x10\x01", "cut": "\x12\x05x", "rubbish": "\xff\xff\xff",
	} {
		got, want := &warifuv1.ClaimResponse{Consumer: "before"}, &warifuv1.ClaimResponse{}
		err, wantErr := newCodec().UnmarshalRead(t.Context(), bytes.NewBufferString(data), got), proto.Unmarshal([]byte(data), want)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || err == nil && !proto.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, err, want, wantErr)
		}
	}
}

// TestCodecTakesWhatThePlainOneTakes: other messages, other writers and
// readers, and none that is no message.
func TestCodecTakesWhatThePlainOneTakes(t *testing.T) {
	t.Parallel()
	c := newCodec()
	for _, m := range append(fullReplies(), &warifuv1.LookupRequest{Consumer: "billing"}, benchRequest()) {
		var buffer, written bytes.Buffer
		if err := errors.Join(c.MarshalWrite(t.Context(), &buffer, m), c.MarshalWrite(t.Context(), struct{ io.Writer }{&written}, m)); err != nil {
			t.Fatal(err)
		}
		for _, src := range []io.Reader{strings.NewReader(buffer.String()), &written} {
			again := m.ProtoReflect().New().Interface()
			if err := connectproto.NewBinaryCodec().UnmarshalRead(t.Context(), src, again); err != nil || !proto.Equal(again, m) {
				t.Errorf("%v became %v: %v", m, again, err)
			}
		}
		again := m.ProtoReflect().New().Interface()
		if err := c.UnmarshalRead(t.Context(), strings.NewReader(buffer.String()), again); err != nil || !proto.Equal(again, m) {
			t.Errorf("%v became %v: %v", m, again, err)
		}
	}
	if err := c.MarshalWrite(t.Context(), &bytes.Buffer{}, 1); !errors.Is(err, connectproto.ErrNotProtoMessage) {
		t.Error(err)
	}
}

const benchItems = 128

func benchRequest() *warifuv1.BatchClaimRequest {
	m := &warifuv1.BatchClaimRequest{}
	for i := range benchItems {
		m.Items = append(m.Items, &warifuv1.ClaimRequest{
			Consumer: "billing/invoices", EventId: fmt.Sprintf("order-%08d-paid", i), AttemptId: "0e1a5b52-7c26-4b6e-9d5c-4a6f3a0f2a01",
			Digests:   []*warifuv1.Digest{{Scheme: "jcs-sha256/order.v2", Value: bytes.Repeat([]byte{byte(i), 0xc3}, 16)}},
			EventTime: &timestamppb.Timestamp{Seconds: 1_800_000_000, Nanos: 123_000_000},
		})
	}
	return m
}

func benchResponse() *warifuv1.BatchClaimResponse {
	m := &warifuv1.BatchClaimResponse{}
	for _, r := range benchRequest().GetItems() {
		m.Results = append(m.Results, &warifuv1.BatchClaimResult{Result: &warifuv1.BatchClaimResult_Claim{Claim: &warifuv1.ClaimResponse{
			Decision: warifuv1.Decision_DECISION_GRANTED, Consumer: r.GetConsumer(), EventId: r.GetEventId(),
			Accepted: proto.Bool(false), ProtocolVersion: 1, ExpiresAt: r.GetEventTime(),
			Grant: &warifuv1.Grant{
				Fence: 1_800_000_000_000_000, Attempt: 1, AttemptId: r.GetAttemptId(), LeaseRemaining: durationpb.New(30 * time.Second),
			},
		}}})
	}
	return m
}

// BenchmarkCodec is one batch of 128, by the client's codec and by the plain one
// that it stands in for.
func BenchmarkCodec(b *testing.B) {
	request := benchRequest()
	encoded, err := proto.Marshal(benchResponse())
	if err != nil {
		b.Fatal(err)
	}
	for _, side := range []struct {
		name  string
		codec connect.Codec
	}{{"ours", newCodec()}, {"plain", connectproto.NewBinaryCodec()}} {
		b.Run("decode/"+side.name, func(b *testing.B) {
			b.ReportAllocs()
			var src bytes.Buffer
			for b.Loop() {
				src.Reset()
				src.Write(encoded)
				if err := side.codec.UnmarshalRead(b.Context(), &src, &warifuv1.BatchClaimResponse{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("encode/"+side.name, func(b *testing.B) {
			b.ReportAllocs()
			var dst bytes.Buffer
			for b.Loop() {
				dst.Reset()
				if err := side.codec.MarshalWrite(b.Context(), &dst, request); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
