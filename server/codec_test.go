package server

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/storage/claim"
)

// full is a batch with as many parts as the contract allows.
func full() *warifuv1.BatchClaimRequest {
	m := &warifuv1.BatchClaimRequest{}
	for range claim.BatchItemsMax {
		item := &warifuv1.ClaimRequest{Record: &warifuv1.Completion{Metadata: map[string]string{}}}
		for i := range claim.DigestsMax {
			item.Digests = append(item.Digests, &warifuv1.Digest{Scheme: fmt.Sprint(i), Value: []byte{1}})
		}
		for i := range claim.MetadataMax {
			item.Record.Metadata[fmt.Sprint(i)] = ""
		}
		m.Items = append(m.Items, item)
	}
	return m
}

// field is one length-delimited field, n times.
func field(number protowire.Number, value []byte, n int) []byte {
	one := protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
	return bytes.Repeat(one, n)
}

// TestExcessiveBinary: what decodes to too much is refused before it does.
func TestExcessiveBinary(t *testing.T) {
	t.Parallel()
	pad := field(15, make([]byte, 30_000), 1) // long enough to be looked at
	rows := []struct {
		name string
		data []byte
		into proto.Message
		want bool
	}{
		{"items", field(1, nil, messagesMax+1), &warifuv1.BatchClaimRequest{}, true},
		{"items at the bound", append(field(1, nil, messagesMax), pad...), &warifuv1.BatchClaimRequest{}, false},
		{"completions", field(1, nil, messagesMax+1), &warifuv1.BatchCompleteRequest{}, true},
		{"extensions", field(1, nil, messagesMax+1), &warifuv1.ExtendRequest{}, true},
		{"digests of one claim", field(4, nil, messagesMax+1), &warifuv1.ClaimRequest{}, true},
		{"digests of an item", field(1, field(4, nil, messagesMax), 1), &warifuv1.BatchClaimRequest{}, true},
		{"digests spread", field(1, field(4, nil, 30), 500), &warifuv1.BatchClaimRequest{}, true},
		{"metadata of a record", field(8, field(4, nil, messagesMax+1), 1), &warifuv1.ClaimRequest{}, true},
		{"metadata of records that merge", field(8, field(4, nil, 2), messagesMax), &warifuv1.ClaimRequest{}, true},
		{"metadata of a completion", field(5, field(4, nil, messagesMax+1), 1), &warifuv1.CompleteRequest{}, true},
		{"items with tags of two bytes", bytes.Repeat([]byte{0x8a, 0x00, 0}, messagesMax+1), &warifuv1.BatchClaimRequest{}, true},
		{"items behind a strange field", append([]byte{0x10, 1}, field(1, nil, messagesMax+1)...), &warifuv1.BatchClaimRequest{}, true},
		{"metadata of a batch", field(1, field(5, field(4, nil, 30), 1), 500), &warifuv1.BatchCompleteRequest{}, true},
		{"one long field", field(2, make([]byte, 1<<20), 1), &warifuv1.ClaimRequest{}, false},
		{"malformed", append(field(1, nil, 10), bytes.Repeat([]byte{0xff}, 1<<20)...), &warifuv1.BatchClaimRequest{}, false},
		{"other messages", field(1, nil, messagesMax+1), &warifuv1.LookupRequest{}, false},
	}
	for _, row := range rows {
		err := newBinaryCodec().UnmarshalRead(t.Context(), bytes.NewBuffer(row.data), row.into)
		var f *fault.Fault
		if got := errors.As(err, &f); got != row.want || got && f.Limit != limitRequest {
			t.Errorf("%s: %v, want refused %v", row.name, err, row.want)
		}
	}
}

func TestExcessiveJSON(t *testing.T) {
	t.Parallel()
	items := func(item string, n int) string {
		return `{"items":[` + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]}"
	}
	for _, row := range []struct {
		name, text string
		want       bool
	}{
		{"items", items("{}", tokensMax), true},
		{"digests", items(`{"digests":[{},{},{},{},{},{},{},{},{},{}]}`, 3000), true},
		{"metadata", `{"items":[{"record":{"metadata":{` + strings.Repeat(`"a":"",`, tokensMax) + `"b":""}}}]}`, true},
		{"items below", items("{}", tokensMax-2), false},
		{"braces in a string", items(`{"eventId":"`+strings.Repeat("{:", tokensMax)+`"}`, 1), false},
		{"braces behind a quoted quote", items(`{"eventId":"\"`+strings.Repeat("{:", tokensMax)+`"}`, 1), false},
		{"braces behind a quoted backslash", `{"eventId":"\\","x":[` + strings.Repeat("{:", tokensMax), true},
	} {
		if got := excessiveJSON([]byte(row.text)); got != row.want {
			t.Errorf("%s: excessive %v, want %v", row.name, got, row.want)
		}
	}
}

// TestFullBatchIsNotExcessive: the largest valid batch is decoded, to what the
// plain codecs make of it.
func TestFullBatchIsNotExcessive(t *testing.T) {
	t.Parallel()
	m := full()
	binary, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got := &warifuv1.BatchClaimRequest{}
	if err := newBinaryCodec().UnmarshalRead(t.Context(), bytes.NewBuffer(binary), got); err != nil || !proto.Equal(got, m) {
		t.Errorf("binary: %v", err)
	}
	got = &warifuv1.BatchClaimRequest{}
	if err := newJSONCodec().UnmarshalRead(t.Context(), bytes.NewBuffer(text), got); err != nil || !proto.Equal(got, m) {
		t.Errorf("JSON: %v", err)
	}
	if n := shapes[reflect.TypeOf(m)].read(binary).messages; n != messagesMax {
		t.Errorf("a full batch counts %d messages, want %d", n, messagesMax)
	}
	// From anything but a buffer the plain codec reads.
	got = &warifuv1.BatchClaimRequest{}
	if err := newBinaryCodec().UnmarshalRead(t.Context(), bytes.NewReader(binary), got); err != nil || !proto.Equal(got, m) {
		t.Errorf("from a reader: %v", err)
	}
}

// TestShapes holds the shapes against the schema: every repeated message field
// that a request can reach is counted.
func TestShapes(t *testing.T) {
	t.Parallel()
	for _, m := range []proto.Message{
		&warifuv1.ClaimRequest{}, &warifuv1.BatchClaimRequest{}, &warifuv1.CompleteRequest{}, &warifuv1.BatchCompleteRequest{},
		&warifuv1.ExtendRequest{}, &warifuv1.LookupRequest{}, &warifuv1.ReleaseRequest{}, &warifuv1.GetPolicyRequest{}, &warifuv1.ListClaimsRequest{},
	} {
		checkShape(t, m.ProtoReflect().Descriptor(), shapes[reflect.TypeOf(m)])
	}
}
