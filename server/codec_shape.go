package server

import (
	"reflect"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// shape is what the schema says of one message, in the form in which bytes are
// held against it before they are decoded and after they are encoded. Fields
// from shapeFields on are unknown; their tags have more than one byte.
type shape struct {
	kinds   [shapeFields]fieldKind
	tags    [shapeFields]byte // as they stand before the values
	counted [shapeFields]bool // messages that come in numbers
	within  [shapeFields]*shape
}

const shapeFields = 16

// fieldKind is how the values of a field are read.
type fieldKind uint8

const (
	kindUnknown fieldKind = iota
	kindVarint
	kindBytes
	kindText // bytes that have to be UTF-8
	kindMessage
)

// shapes has the messages that have generated code: the batches, what they
// carry, and their answers.
var shapes = shapesOf(
	&warifuv1.ClaimRequest{}, &warifuv1.ClaimResponse{}, &warifuv1.BatchClaimRequest{}, &warifuv1.BatchClaimResponse{},
	&warifuv1.CompleteRequest{}, &warifuv1.CompleteResponse{}, &warifuv1.BatchCompleteRequest{}, &warifuv1.BatchCompleteResponse{},
	&warifuv1.ExtendRequest{}, &warifuv1.ExtendResponse{},
)

func shapesOf(messages ...proto.Message) map[reflect.Type]*shape {
	out := make(map[reflect.Type]*shape, len(messages))
	for _, m := range messages {
		out[reflect.TypeOf(m)] = newShape(m.ProtoReflect().Descriptor())
	}
	return out
}

func newShape(d protoreflect.MessageDescriptor) *shape {
	s := &shape{}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		n := f.Number()
		if n >= shapeFields {
			continue
		}
		s.kinds[n] = kindOf(f)
		s.tags[n] = byte(protowire.EncodeTag(n, wireOf(s.kinds[n]))) //nolint:gosec // below shapeFields they are one byte
		if s.kinds[n] == kindMessage {
			s.counted[n] = f.Cardinality() == protoreflect.Repeated
			s.within[n] = newShape(f.Message())
		}
	}
	return s
}

// kindOf knows the kinds that the messages above are made of. What it does not
// know is decoded by reflection.
func kindOf(f protoreflect.FieldDescriptor) fieldKind {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return kindMessage
	case protoreflect.StringKind:
		return kindText
	case protoreflect.BytesKind:
		return kindBytes
	case protoreflect.BoolKind, protoreflect.EnumKind, protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Uint32Kind:
		if f.IsList() { // and may be packed
			return kindUnknown
		}
		return kindVarint
	default:
		return kindUnknown
	}
}

func wireOf(k fieldKind) protowire.Type {
	if k == kindVarint {
		return protowire.VarintType
	}
	return protowire.BytesType
}

// reading is what is found of a message while it is still bytes.
type reading struct {
	messages int  // the counted ones, or somewhat more than messagesMax
	strange  bool // not, field by field, what the schema says
}

// read holds data against the shape. Where that finds nothing strange, the
// generated code, which checks less, makes of data what reflection would.
func (s *shape) read(data []byte) (r reading) {
	s.readInto(&r, data)
	return r
}

func (s *shape) readInto(r *reading, data []byte) {
	for len(data) > 0 && r.messages <= messagesMax {
		tag := data[0]
		kind := s.kinds[tag>>3&(shapeFields-1)]
		if kind == kindUnknown || tag != s.tags[tag>>3&(shapeFields-1)] {
			data = s.readStrange(r, data)
			continue
		}
		value, size := consumeValue(kind, data[1:])
		if size < 0 {
			r.strange = true // decoding says what is wrong
			return
		}
		data = data[1+size:]
		switch kind {
		case kindText:
			r.strange = r.strange || !utf8.Valid(value)
		case kindMessage:
			s.readMessage(r, protowire.Number(tag>>3), value)
		case kindUnknown, kindVarint, kindBytes:
		}
	}
}

func (s *shape) readMessage(r *reading, number protowire.Number, value []byte) {
	if s.counted[number] {
		r.messages++
	}
	s.within[number].readInto(r, value)
}

// consumeValue reads a value of a known kind, the short ones in a short way.
func consumeValue(kind fieldKind, data []byte) (value []byte, size int) {
	switch {
	case kind == kindVarint:
		_, size = protowire.ConsumeVarint(data)
		return nil, size
	case len(data) > 0 && data[0] < 0x80 && int(data[0]) < len(data):
		size = 1 + int(data[0])
		return data[1:size], size
	}
	return protowire.ConsumeBytes(data)
}

// fieldsIn counts the fields of a message of messages in which nothing is
// strange.
func fieldsIn(data []byte) (n int) {
	for len(data) > 0 {
		_, size := consumeValue(kindMessage, data[1:])
		data = data[1+size:]
		n++
	}
	return n
}

// readStrange goes over a field that the schema does not have or has with
// another type, or whose tag is longer than it has to be, and counts what
// reflection would decode. What cannot be read ends the reading.
func (s *shape) readStrange(r *reading, data []byte) (rest []byte) {
	r.strange = true
	number, wire, size := protowire.ConsumeTag(data)
	if size < 0 {
		return nil
	}
	data = data[size:]
	if size = protowire.ConsumeFieldValue(number, wire, data); size < 0 {
		return nil
	}
	if wire == protowire.BytesType && number < shapeFields && s.kinds[number] == kindMessage {
		value, _ := protowire.ConsumeBytes(data)
		s.readMessage(r, number, value)
	}
	return data[size:]
}
