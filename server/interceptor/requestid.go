package interceptor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
)

// RequestIDHeader carries the request ID both ways.
const RequestIDHeader = "X-Request-Id"

// requestIDCharsMax bounds the request IDs that are taken from callers.
const requestIDCharsMax = 64

// RequestID begins the Call: it takes the caller's request ID, or makes one
// where there is none worth taking, echoes it, and turns whatever error comes
// back into a wire error that carries it. It must be the outermost.
func RequestID(methods Methods, clock func() time.Time) connect.ServerInterceptor {
	ids := newIDs()
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			call := &Call{Context: ctx, Began: clock(), Method: methods[spec.Procedure]}
			info, _ := connect.CallInfoForServerContext(ctx)
			if call.RequestID = info.RequestHeader().Get(RequestIDHeader); !validRequestID(call.RequestID) {
				call.RequestID = ids.next()
			}
			info.ResponseHeader().Set(RequestIDHeader, call.RequestID)
			if call.Method == nil {
				return fault.New(warifuv1.Reason_REASON_UNSPECIFIED, "this procedure is not served").Wire(call.RequestID)
			}
			if err := next(call, spec, stream); err != nil {
				return fault.Of(err).Wire(call.RequestID)
			}
			return nil
		}
	}
}

// ids makes request IDs that are unique across processes and cheap: a random
// prefix and a counter, always 21 characters.
type ids struct {
	prefix  [9]byte
	counter atomic.Uint64
}

func newIDs() *ids {
	var seed [4]byte
	_, _ = rand.Read(seed[:]) // never fails: it ends the process instead
	s := &ids{}
	hex.Encode(s.prefix[:8], seed[:])
	s.prefix[8] = '-'
	return s
}

func (s *ids) next() string {
	var id [21]byte
	copy(id[:], s.prefix[:])
	n := s.counter.Add(1)
	for i := len(id) - 1; i >= len(s.prefix); i-- {
		id[i] = "0123456789abcdef"[n&0xf]
		n >>= 4
	}
	return string(id[:])
}

func validRequestID(s string) bool {
	if s == "" || len(s) > requestIDCharsMax {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
