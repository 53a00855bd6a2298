package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
)

// shaped are new messages of all types that have generated code.
func shaped() []proto.Message {
	return []proto.Message{
		&warifuv1.ClaimRequest{}, &warifuv1.ClaimResponse{}, &warifuv1.BatchClaimRequest{}, &warifuv1.BatchClaimResponse{},
		&warifuv1.CompleteRequest{}, &warifuv1.CompleteResponse{}, &warifuv1.BatchCompleteRequest{}, &warifuv1.BatchCompleteResponse{},
		&warifuv1.ExtendRequest{}, &warifuv1.ExtendResponse{},
	}
}

// sameAsPlain decodes data with the server's codec and the plain one, and fails
// when they differ in the message or in the error.
func sameAsPlain(t *testing.T, name string, data []byte, m proto.Message) error {
	t.Helper()
	want, got := m.ProtoReflect().New().Interface(), m.ProtoReflect().New().Interface()
	src := bytes.Clone(data)
	wantErr := connectproto.NewBinaryCodec().UnmarshalRead(t.Context(), bytes.NewReader(data), want)
	err := newBinaryCodec().UnmarshalRead(t.Context(), bytes.NewBuffer(src), got)
	clear(src) // the transport takes its buffer back
	if f := (*fault.Fault)(nil); errors.As(err, &f) {
		return err // a bound that the plain codec does not have
	}
	if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
		t.Errorf("%s: error %v, the plain codec says %v", name, err, wantErr)
	}
	if err == nil && !proto.Equal(got, want) {
		t.Errorf("%s: decoded to %v, by the plain codec to %v", name, got, want)
	}
	return err
}

// TestBytesThatAreNotPlain: what the generated code would let pass, or read in
// another way, is taken as the plain codec takes it.
func TestBytesThatAreNotPlain(t *testing.T) {
	t.Parallel()
	item := func(b ...byte) []byte { return field(1, b, 1) }
	overflow := append(bytes.Repeat([]byte{0xff}, 9), 0x7f)
	rows := []struct {
		name string
		data []byte
		into proto.Message
	}{
		{"nothing", nil, &warifuv1.BatchClaimRequest{}},
		{"unknown field", item(0x4a, 1, 'x'), &warifuv1.BatchClaimRequest{}},
		{"unknown field of two bytes", field(200, []byte("x"), 1), &warifuv1.ClaimRequest{}},
		{"unknown group", []byte{0x4b, 0x08, 1, 0x4c}, &warifuv1.ClaimRequest{}},
		{"group that ends as another", []byte{0x4b, 0x08, 1, 0x54}, &warifuv1.ClaimRequest{}},
		{"unknown field of a timestamp", field(5, []byte{0x08, 1, 0x18, 2}, 1), &warifuv1.ClaimRequest{}},
		{"unknown field of a map entry", field(8, field(4, []byte{0x0a, 1, 'a', 0x1a, 1, 'b'}, 1), 1), &warifuv1.ClaimRequest{}},
		{"another type", []byte{0x08, 1}, &warifuv1.ClaimRequest{}},
		{"another type in a map entry", field(8, field(4, []byte{0x08, 1, 'a'}, 1), 1), &warifuv1.ClaimRequest{}},
		{"map key longer than its entry", field(8, append(field(4, []byte{0x0a, 3, 'a'}, 1), 0x1a, 2, 'x', 'y'), 1), &warifuv1.ClaimRequest{}},
		{"tag longer than it has to be", []byte{0x8a, 0x00, 1, 'x'}, &warifuv1.ClaimRequest{}},
		{"length longer than it has to be", []byte{0x0a, 0x81, 0x00, 'x'}, &warifuv1.ClaimRequest{}},
		{"field number beyond 32 bits", append([]byte{0x8a, 0x80, 0x80, 0x80, 0x80, 0x10}, 1, 'x'), &warifuv1.ClaimRequest{}},
		{"field zero", []byte{0x02, 0}, &warifuv1.ClaimRequest{}},
		{"number beyond 64 bits", append([]byte{0x20}, overflow...), &warifuv1.CompleteRequest{}},
		{"length beyond 64 bits", append([]byte{0x0a}, overflow...), &warifuv1.CompleteRequest{}},
		{"cut in a tag", []byte{0x8a}, &warifuv1.CompleteRequest{}},
		{"cut behind a tag", []byte{0x0a}, &warifuv1.CompleteRequest{}},
		{"cut in a text", []byte{0x0a, 5, 'x'}, &warifuv1.CompleteRequest{}},
		{"a claim given twice", append(item(0x0a, 1, 'x'), item(0x0a, 1, 'y', 0x0a, 1, 'z')...), &warifuv1.BatchClaimRequest{}},
		{"a record in two parts", append(field(8, []byte{0x08, 1}, 1), field(8, []byte{0x1a, 1, 'x'}, 1)...), &warifuv1.ClaimRequest{}},
		{"both sides of an answer", item(0x0a, 2, 0x08, 1, 0x12, 3, 0x0a, 1, 'x', 0x0a, 2, 0x28, 1), &warifuv1.BatchClaimResponse{}},
		{"empty bytes", field(4, []byte{0x12, 0}, 1), &warifuv1.ClaimRequest{}},
		{"two digests and none", append(item(append(field(4, []byte{0x0a, 1, 'x'}, 1), field(4, []byte{0x0a, 1, 'y'}, 1)...)...), item()...), &warifuv1.BatchClaimRequest{}},
		{"a packed list", field(3, []byte{1, 2}, 1), &warifuv1.ListClaimsRequest{}},
	}
	for _, row := range rows {
		_ = sameAsPlain(t, row.name, row.data, row.into) // compared there
	}
}

// mark is a text that stands in for one that is not UTF-8 until it is encoded.
const mark = "%%%04d%%"

// fill sets every field of m, texts to marks that are counted in texts. Of a
// list it makes one element for each side of a oneof.
func fill(m protoreflect.Message, side int, texts *int) {
	value := func(f protoreflect.FieldDescriptor, empty func() protoreflect.Value) protoreflect.Value {
		switch f.Kind() {
		case protoreflect.MessageKind:
			v := empty()
			fill(v.Message(), side, texts)
			return v
		case protoreflect.StringKind:
			*texts++
			return protoreflect.ValueOfString(fmt.Sprintf(mark, *texts))
		case protoreflect.BytesKind:
			return protoreflect.ValueOfBytes([]byte{1})
		case protoreflect.EnumKind:
			return protoreflect.ValueOfEnum(1)
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(1)
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64(1)
		case protoreflect.Uint32Kind:
			return protoreflect.ValueOfUint32(1)
		default:
			return protoreflect.ValueOfBool(true)
		}
	}
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch of := f.ContainingOneof(); {
		case f.IsMap():
			entries := m.Mutable(f).Map()
			entries.Set(value(f.MapKey(), nil).MapKey(), value(f.MapValue(), entries.NewValue))
		case f.IsList():
			for side = range 2 {
				list := m.Mutable(f).List()
				list.Append(value(f, list.NewElement))
			}
		case of == nil || of.IsSynthetic() || of.Fields().Get(side) == f:
			m.Set(f, value(f, func() protoreflect.Value { return m.NewField(f) }))
		}
	}
}

// TestTextsAreUTF8: a message in which any one text is not UTF-8 is neither
// decoded nor encoded, and the error is the plain codec's.
func TestTextsAreUTF8(t *testing.T) {
	t.Parallel()
	for _, m := range shaped() {
		name, texts := string(m.ProtoReflect().Descriptor().Name()), 0
		fill(m.ProtoReflect(), 0, &texts)
		data, err := proto.Marshal(m)
		if err != nil || texts < 2 {
			t.Fatalf("%s: %d texts, %v", name, texts, err)
		}
		if err := sameAsPlain(t, name, data, m); err != nil || shapes[reflect.TypeOf(m)].read(data).strange {
			t.Errorf("%s with all fields does not go the short way: %v", name, err)
		}
		for n := range texts {
			text := fmt.Sprintf(mark, n+1)
			broken := bytes.Replace(data, []byte(text), []byte(strings.Repeat("\xff", len(text))), 1)
			if bytes.Equal(broken, data) {
				t.Fatalf("%s: text %d is not there", name, n)
			}
			if err := sameAsPlain(t, name, broken, m); err == nil || !strings.Contains(err.Error(), "invalid UTF-8") {
				t.Errorf("%s: text %d may be anything: %v", name, n, err)
			}
			if !shapes[reflect.TypeOf(m)].read(broken).strange {
				t.Errorf("%s: text %d goes the short way", name, n)
			}
		}
	}
}

// TestEncode: what is encoded is what was given, wherever it is written to, and
// what the plain codec refuses is refused in its words.
func TestEncode(t *testing.T) {
	t.Parallel()
	ours, plain := newBinaryCodec(), connectproto.NewBinaryCodec()
	for _, m := range append(shaped(), &warifuv1.LookupResponse{}) {
		texts := 0
		for _, m := range []proto.Message{proto.Clone(m), m} { // empty, and full
			var buffer, written bytes.Buffer
			if err := errors.Join(ours.MarshalWrite(t.Context(), &buffer, m), ours.MarshalWrite(t.Context(), struct{ io.Writer }{&written}, m)); err != nil {
				t.Error(err)
			}
			for _, data := range [][]byte{buffer.Bytes(), written.Bytes()} {
				again := m.ProtoReflect().New().Interface()
				if err := proto.Unmarshal(data, again); err != nil || !proto.Equal(again, m) {
					t.Errorf("%v became %v: %v", m, again, err)
				}
			}
			fill(m.ProtoReflect(), 0, &texts)
		}
	}
	for _, m := range []proto.Message{
		&warifuv1.ClaimResponse{EventId: "\xff"}, &warifuv1.ClaimResponse{Result: &warifuv1.StoredResult{Metadata: map[string]string{"a": "\xff"}}},
		&warifuv1.BatchCompleteResponse{Results: []*warifuv1.BatchCompleteResult{{Result: &warifuv1.BatchCompleteResult_Error{Error: &warifuv1.ItemError{Message: "\xff"}}}}},
	} {
		var buffer bytes.Buffer
		buffer.WriteString("before")
		err, want := ours.MarshalWrite(t.Context(), &buffer, m), plain.MarshalWrite(t.Context(), io.Discard, m)
		if err == nil || want == nil || err.Error() != want.Error() || buffer.String() != "before" {
			t.Errorf("%v, want %v; written: %q", err, want, buffer.String())
		}
	}
	if err := ours.MarshalWrite(t.Context(), &bytes.Buffer{}, "no message"); !errors.Is(err, connectproto.ErrNotProtoMessage) {
		t.Error(err)
	}
	if err := ours.UnmarshalRead(t.Context(), &bytes.Buffer{}, new(int)); !errors.Is(err, connectproto.ErrNotProtoMessage) {
		t.Error(err)
	}
}

// TestDecodeReplaces: a message that is decoded into keeps nothing of before.
func TestDecodeReplaces(t *testing.T) {
	t.Parallel()
	for _, m := range shaped() {
		texts := 0
		fill(m.ProtoReflect(), 0, &texts)
		if err := newBinaryCodec().UnmarshalRead(t.Context(), &bytes.Buffer{}, m); err != nil || proto.Size(m) != 0 {
			t.Errorf("%v is left: %v", m, err)
		}
	}
}

// FuzzBinaryCodec: arbitrary bytes are the same message or the same error as by
// the plain codec. What has nothing strange is encoded to the same again; the
// generated code would leave out unknown fields of timestamps and durations,
// which no message has that this program made.
func FuzzBinaryCodec(f *testing.F) {
	for i, m := range shaped() {
		texts := 0
		fill(m.ProtoReflect(), 0, &texts)
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, uint8(i))
		f.Add(append(data, 0x8a, 0x00, 1, 'x'), uint8(i))
		f.Add(protowire.AppendVarint(data, 1<<40|2), uint8(i))
	}
	codec := newBinaryCodec()
	f.Fuzz(func(t *testing.T, data []byte, kind uint8) {
		m := shaped()[int(kind)%len(shaped())]
		if sameAsPlain(t, string(m.ProtoReflect().Descriptor().Name()), data, m) != nil || shapes[reflect.TypeOf(m)].read(data).strange {
			return
		}
		var buffer bytes.Buffer
		again := m.ProtoReflect().New().Interface()
		if err := codec.UnmarshalRead(t.Context(), bytes.NewBuffer(data), m); err != nil {
			t.Fatal(err)
		}
		if err := codec.MarshalWrite(t.Context(), &buffer, m); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(buffer.Bytes(), again); err != nil || !proto.Equal(again, m) {
			t.Fatalf("%v became %v: %v", m, again, err)
		}
	})
}
