package pebble

import (
	"encoding/binary"
	"hash/crc32"
)

// What the log is made of; wal.go says why.
const (
	blockBytes   = 4096
	frameMagic   = 0x57617266 // "Warf"
	segmentMagic = 0x57617273 // "Wars"
	frameHeader  = 32
	frameSeals   = 1              // flag: the next segment goes on
	framesFrom   = 2 * blockBytes // the segment's header stands there twice
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame is what one sync made durable.
type frame struct {
	nonce uint64 // that of its segment
	first uint64 // sequence number of its first commit, or of the one to come
	seals bool
	body  []byte
	size  int // of one copy
}

var zeroBlock [blockBytes]byte

// finishFrame fills in the header of a frame whose body follows it in b, and
// appends padding and the second copy.
func finishFrame(b []byte, nonce, first uint64, seals bool) []byte {
	binary.LittleEndian.PutUint32(b, frameMagic)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-frameHeader))
	var flags uint32
	if seals {
		flags = frameSeals
	}
	binary.LittleEndian.PutUint32(b[12:], flags)
	binary.LittleEndian.PutUint64(b[16:], first)
	binary.LittleEndian.PutUint64(b[24:], nonce)
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	b = append(b, zeroBlock[:padding(len(b))]...)
	return append(b, b...)
}

func padding(n int) int { return (blockBytes - n%blockBytes) % blockBytes }

// parseFrame reads one copy of a frame at the start of b, or reports that there
// is none.
func parseFrame(b []byte) (frame, bool) {
	if len(b) < frameHeader || binary.LittleEndian.Uint32(b) != frameMagic {
		return frame{}, false
	}
	n := int(binary.LittleEndian.Uint32(b[8:]))
	if n > len(b)-frameHeader {
		return frame{}, false
	}
	if crc32.Checksum(b[8:frameHeader+n], castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return frame{}, false
	}
	size := frameHeader + n
	return frame{
		nonce: binary.LittleEndian.Uint64(b[24:]),
		first: binary.LittleEndian.Uint64(b[16:]),
		seals: binary.LittleEndian.Uint32(b[12:])&frameSeals != 0,
		body:  b[frameHeader:size],
		size:  size + padding(size),
	}, true
}

// header is what a segment says of itself. Its frames carry the nonce, which is
// drawn when a segment is begun and never leaves the store: neither what a file
// held before it was used again, nor what a caller puts into a result in the
// shape of a frame, is taken for one.
type header struct {
	number uint64
	size   int64
	nonce  uint64
}

const headerLen = 32

func (h header) block() []byte {
	b := make([]byte, blockBytes)
	binary.LittleEndian.PutUint32(b, segmentMagic)
	binary.LittleEndian.PutUint64(b[8:], h.number)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.size))
	binary.LittleEndian.PutUint64(b[24:], h.nonce)
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:headerLen], castagnoli))
	return b
}

func parseHeader(b []byte) (header, bool) {
	if len(b) < headerLen || binary.LittleEndian.Uint32(b) != segmentMagic ||
		crc32.Checksum(b[8:headerLen], castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return header{}, false
	}
	return header{
		number: binary.LittleEndian.Uint64(b[8:]),
		size:   int64(binary.LittleEndian.Uint64(b[16:])),
		nonce:  binary.LittleEndian.Uint64(b[24:]),
	}, true
}
