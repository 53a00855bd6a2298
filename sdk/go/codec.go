package warifu

import (
	"bytes"
	"context"
	"io"
	"unicode/utf8"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// generated is a message with generated code (protoc-gen-go-vtproto), which
// needs about half of the time of reflection. It does not look at UTF-8: what is sent
// was checked before (checkText), what is received is checked here.
type generated interface {
	proto.Message
	SizeVT() int
	MarshalToSizedBufferVT(buf []byte) (int, error)
	UnmarshalVTUnsafe(data []byte) error
}

// codec is the plain codec with a short way for batches. What the short way
// refuses goes the plain one, which decides.
type codec struct{ connect.StableCodec }

func newCodec() connect.Codec { return &codec{connectproto.NewBinaryCodec()} }

// MarshalWrite implements connect.Codec.
func (c *codec) MarshalWrite(ctx context.Context, dst io.Writer, msg any) error {
	fast, ok := msg.(generated)
	buffer, inMemory := dst.(*bytes.Buffer)
	if !ok || !inMemory {
		return c.StableCodec.MarshalWrite(ctx, dst, msg)
	}
	size := fast.SizeVT()
	buffer.Grow(size)
	data := buffer.AvailableBuffer()[:size]
	if _, err := fast.MarshalToSizedBufferVT(data); err != nil {
		return err
	}
	_, err := buffer.Write(data)
	return err
}

// UnmarshalRead implements connect.Codec. What is decoded shares memory with one
// copy of the reply, which the reader of the reply does not hand on: callers
// keep results for as long as they like.
func (c *codec) UnmarshalRead(ctx context.Context, src io.Reader, msg any) error {
	fast, ok := msg.(generated)
	buffered, inMemory := src.(*bytes.Buffer)
	if !ok || !inMemory {
		return c.StableCodec.UnmarshalRead(ctx, src, msg)
	}
	proto.Reset(fast)
	if fast.UnmarshalVTUnsafe(bytes.Clone(buffered.Bytes())) == nil && validText(fast) {
		return nil
	}
	return proto.Unmarshal(buffered.Bytes(), fast)
}

// validText reports whether all strings of a reply are UTF-8.
func validText(m generated) bool {
	switch m := m.(type) {
	case *warifuv1.BatchClaimResponse:
		for _, r := range m.GetResults() {
			if !validClaim(r.GetClaim()) || !validError(r.GetError()) {
				return false
			}
		}
	case *warifuv1.BatchCompleteResponse:
		for _, r := range m.GetResults() {
			if !validEcho(r.GetComplete()) || !validError(r.GetError()) {
				return false
			}
		}
	case *warifuv1.ExtendResponse:
		for _, r := range m.GetResults() {
			if !validEcho(r.GetExtend()) || !validError(r.GetError()) {
				return false
			}
		}
	case *warifuv1.ClaimResponse:
		return validClaim(m)
	default: // not a reply of a call that this client makes
		return false
	}
	return true
}

func validEcho(m interface {
	GetConsumer() string
	GetEventId() string
}) bool {
	return utf8.ValidString(m.GetConsumer()) && utf8.ValidString(m.GetEventId())
}

func validClaim(m *warifuv1.ClaimResponse) bool {
	stored := m.GetResult()
	if !validEcho(m) || !utf8.ValidString(m.GetGrant().GetAttemptId()) || !utf8.ValidString(stored.GetContentType()) {
		return false
	}
	for name, value := range stored.GetMetadata() {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return false
		}
	}
	return true
}

func validError(m *warifuv1.ItemError) bool {
	info := m.GetInfo()
	return utf8.ValidString(m.GetCode()) && utf8.ValidString(m.GetMessage()) &&
		utf8.ValidString(info.GetField()) && utf8.ValidString(info.GetLimit()) && utf8.ValidString(info.GetRequestId())
}
