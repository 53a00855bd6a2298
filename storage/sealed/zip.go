package sealed

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

const (
	// zipMin is from which size on compression is tried: below, a frame's own
	// bytes and the time are not worth it.
	zipMin = 512
	// zipWorth is the largest share of its size, in percent, that a compressed
	// body may have to be kept.
	zipWorth = 90
	// zipWorkers bounds how many bodies are compressed, and how many expanded, at
	// once: each worker keeps its memory.
	zipWorkers = 4
)

// The coders are made when they are first needed, and shared: without a stream
// they have no goroutines. A decoder never makes more of a body than a body may
// have, whatever a frame says.
var (
	encoder = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(zipWorkers),
			zstd.WithWindowSize(claim.ResultBytesMax), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
	})
	decoder = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderConcurrency(zipWorkers), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(claim.ResultBytesMax), zstd.WithDecoderMaxWindow(claim.ResultBytesMax))
	})
)

// shrink returns body compressed, or nil where that is not worth it.
func shrink(body []byte) []byte {
	if len(body) < zipMin || len(body) > claim.ResultBytesMax {
		return nil
	}
	enc, err := encoder()
	if err != nil {
		return nil
	}
	small := enc.EncodeAll(body, make([]byte, 0, len(body)))
	if len(small) > len(body)*zipWorth/100 {
		return nil
	}
	return small
}

// grow is the inverse of shrink.
func grow(small []byte) ([]byte, error) {
	dec, err := decoder()
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	body, err := dec.DecodeAll(small, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: a result does not decompress: %v", storage.ErrDamaged, err) //nolint:errorlint // no caller knows zstd's errors
	}
	return body, nil
}
