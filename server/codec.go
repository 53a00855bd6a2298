package server

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/encoding/protowire"
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
	// messageBytesMin is the least that one of them takes: tag and length.
	messageBytesMin = 2
	// tokensMax bounds the objects and fields of a JSON request. The largest
	// valid item has 57.
	tokensMax = claim.BatchItemsMax * 64
)

var limitRequest = fmt.Sprintf("at most %d items with %d digests and %d metadata entries each",
	claim.BatchItemsMax, claim.DigestsMax, claim.MetadataMax)

// boundedCodec refuses what would decode to far more than it says. It decodes
// from the transport's buffer, without the copy that the codec would make.
type boundedCodec struct {
	connect.StableCodec
	excessive func(data []byte, into proto.Message) bool
	unmarshal func(data []byte, into proto.Message) error
}

func newBinaryCodec() connect.Codec {
	return &boundedCodec{connectproto.NewBinaryCodec(), excessiveBinary, proto.Unmarshal}
}

func newJSONCodec() connect.Codec {
	codec := connectproto.NewJSONCodec()
	return &boundedCodec{codec, excessiveJSON, codec.UnmarshalOptions.Unmarshal}
}

// UnmarshalRead implements connect.Codec.
func (c *boundedCodec) UnmarshalRead(ctx context.Context, src io.Reader, msg any) error {
	into, ok := msg.(proto.Message)
	buffered, inMemory := src.(*bytes.Buffer)
	if !ok || !inMemory || buffered.Len() == 0 {
		return c.StableCodec.UnmarshalRead(ctx, src, msg)
	}
	data := buffered.Bytes()
	if c.excessive(data, into) {
		return fault.Invalid("request", limitRequest)
	}
	return c.unmarshal(data, into)
}

// shape says which fields of a message are messages that come in numbers, and
// which lead to some. Fields beyond shapeFields are none of these.
type shape struct {
	counted [shapeFields]bool
	within  [shapeFields]*shape
}

const shapeFields = 9

var (
	completionShape    = &shape{counted: [shapeFields]bool{4: true}}
	claimShape         = &shape{counted: [shapeFields]bool{4: true}, within: [shapeFields]*shape{8: completionShape}}
	completeShape      = &shape{within: [shapeFields]*shape{5: completionShape}}
	batchClaimShape    = &shape{counted: [shapeFields]bool{1: true}, within: [shapeFields]*shape{1: claimShape}}
	batchCompleteShape = &shape{counted: [shapeFields]bool{1: true}, within: [shapeFields]*shape{1: completeShape}}
	extendShape        = &shape{counted: [shapeFields]bool{1: true}}
)

func excessiveBinary(data []byte, into proto.Message) bool {
	if len(data) <= messageBytesMin*messagesMax {
		return false
	}
	var s *shape
	switch into.(type) {
	case *warifuv1.BatchClaimRequest:
		s = batchClaimShape
	case *warifuv1.BatchCompleteRequest:
		s = batchCompleteShape
	case *warifuv1.ExtendRequest:
		s = extendShape
	case *warifuv1.ClaimRequest:
		s = claimShape
	case *warifuv1.CompleteRequest:
		s = completeShape
	default: // no repeated messages
		return false
	}
	return s.count(data) > messagesMax
}

// count returns how many counted messages data has, or somewhat more than
// messagesMax. Malformed data ends it: decoding says what is wrong.
func (s *shape) count(data []byte) int {
	n := 0
	for len(data) > 0 && n <= messagesMax {
		number, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return n
		}
		data = data[size:]
		size = protowire.ConsumeFieldValue(number, kind, data)
		if size < 0 {
			return n
		}
		if kind == protowire.BytesType && number < shapeFields {
			if s.counted[number] {
				n++
			}
			if inner := s.within[number]; inner != nil {
				value, _ := protowire.ConsumeBytes(data)
				n += inner.count(value)
			}
		}
		data = data[size:]
	}
	return n
}

// excessiveJSON counts objects and fields, strings left out.
func excessiveJSON(data []byte, _ proto.Message) bool {
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
