package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"reflect"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/storage/claim"
)

// A message of 1 MiB can hold half a million empty items, which decode to a
// hundred times that. What is too many is refused while it is still bytes.
const (
	// messagesMax bounds the items, digests and metadata entries of a request:
	// as many as the largest valid batch has.
	messagesMax = claim.BatchItemsMax * (1 + claim.DigestsMax + claim.MetadataMax)
	// tokensMax bounds the objects and fields of a JSON request. The largest
	// valid item has 57.
	tokensMax = claim.BatchItemsMax * 64
)

var limitRequest = fmt.Sprintf("at most %d items with %d digests and %d metadata entries each",
	claim.BatchItemsMax, claim.DigestsMax, claim.MetadataMax)

// generated is a message with generated code (protoc-gen-go-vtproto), which
// needs half of the time of reflection and checks less: not UTF-8, not all
// that can be wrong with bytes. A shape checks the rest.
type generated interface {
	proto.Message
	SizeVT() int
	MarshalToSizedBufferVT(buf []byte) (int, error)
	UnmarshalVTUnsafe(data []byte) error
}

// binaryCodec refuses what would decode to far more than it says, and uses
// generated code for what is exactly as the schema says. All else goes the way
// of the plain codec, which also says what is wrong with it.
type binaryCodec struct{ connect.StableCodec }

func newBinaryCodec() connect.Codec { return &binaryCodec{connectproto.NewBinaryCodec()} }

// UnmarshalRead implements connect.Codec. The strings and bytes of a message
// with generated code share one copy of the data, which lives as long as any of
// them: who keeps one for longer than the call copies it.
func (c *binaryCodec) UnmarshalRead(ctx context.Context, src io.Reader, msg any) error {
	into, ok := msg.(proto.Message)
	buffered, inMemory := src.(*bytes.Buffer)
	if !ok || !inMemory {
		return c.StableCodec.UnmarshalRead(ctx, src, msg)
	}
	data := buffered.Bytes() // without the copy that the plain codec would make
	fast, ok := msg.(generated)
	s := shapes[reflect.TypeOf(msg)]
	if !ok || s == nil {
		return proto.Unmarshal(data, into)
	}
	r := s.read(data)
	if r.messages > messagesMax {
		return fault.Invalid("request", limitRequest)
	}
	if r.strange {
		return proto.Unmarshal(data, into)
	}
	proto.Reset(into)
	if batch, ok := msg.(*warifuv1.BatchClaimRequest); ok {
		batch.Items = roomForClaims(fieldsIn(data))
	}
	return fast.UnmarshalVTUnsafe(bytes.Clone(data))
}

// claimRoom is a claim with the digest that most have.
type claimRoom struct {
	claim   warifuv1.ClaimRequest
	digest  warifuv1.Digest
	digests [1]*warifuv1.Digest
}

// roomForClaims returns no claims, and room behind them that generated code
// takes before it allocates: two allocations a batch and not three a claim.
func roomForClaims(n int) []*warifuv1.ClaimRequest {
	n = min(n, claim.BatchItemsMax) // more are refused
	slab, items := make([]claimRoom, n), make([]*warifuv1.ClaimRequest, n)
	for i := range slab {
		room := &slab[i]
		room.digests[0] = &room.digest
		room.claim.Digests = room.digests[:0]
		items[i] = &room.claim
	}
	return items[:0]
}

// MarshalWrite implements connect.Codec.
func (c *binaryCodec) MarshalWrite(ctx context.Context, dst io.Writer, msg any) error {
	fast, ok := msg.(generated)
	buffer, inMemory := dst.(*bytes.Buffer)
	s := shapes[reflect.TypeOf(msg)]
	if !ok || !inMemory || s == nil {
		return c.StableCodec.MarshalWrite(ctx, dst, msg)
	}
	size := fast.SizeVT()
	buffer.Grow(size)
	data := buffer.AvailableBuffer()[:size]
	if _, err := fast.MarshalToSizedBufferVT(data); err != nil || s.read(data).strange {
		return c.StableCodec.MarshalWrite(ctx, dst, msg)
	}
	_, err := buffer.Write(data)
	return err
}

// jsonCodec refuses what would decode to far more than it says. It decodes from
// the transport's buffer, without the copy that the plain codec would make.
type jsonCodec struct{ *connectproto.JSONCodec }

func newJSONCodec() connect.Codec { return &jsonCodec{connectproto.NewJSONCodec()} }

// UnmarshalRead implements connect.Codec.
func (c *jsonCodec) UnmarshalRead(ctx context.Context, src io.Reader, msg any) error {
	into, ok := msg.(proto.Message)
	buffered, inMemory := src.(*bytes.Buffer)
	if !ok || !inMemory || buffered.Len() == 0 {
		return c.JSONCodec.UnmarshalRead(ctx, src, msg)
	}
	if excessiveJSON(buffered.Bytes()) {
		return fault.Invalid("request", limitRequest)
	}
	return c.UnmarshalOptions.Unmarshal(buffered.Bytes(), into)
}

// excessiveJSON counts objects and fields, strings left out.
func excessiveJSON(data []byte) bool {
	if len(data) <= tokensMax {
		return false
	}
	n, inString := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case !inString && (c == '{' || c == ':'):
			if n++; n > tokensMax {
				return true
			}
		}
	}
	return false
}
