package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/warifu/warifu/storage/claim"
)

// A file is a header and frames, each with what one Append brought; numbers
// are little-endian.
//
//	header  magic 4 | CRC-32C of the rest 4 | version 4 | 0 4 | first cursor 8 | nonce 8
//	frame   magic 4 | CRC-32C of the rest 4 | body bytes 4 | entries 4 | nonce 8 | first cursor 8 | durable 8 | body
//
// "durable" is how much of the file had been synced before the frame was
// written. The nonce is random and never leaves the file: no digest that
// a caller sends in the shape of a frame is taken for one.
const (
	headerMagic   = 0x5775_4a68
	frameMagic    = 0x5775_4a66
	formatVersion = 1
	headerBytes   = 32
	frameBytes    = 40 // of a frame's header
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	first Cursor
	nonce uint64
}

func (h header) encode() []byte {
	b := make([]byte, headerBytes)
	binary.LittleEndian.PutUint32(b, headerMagic)
	binary.LittleEndian.PutUint32(b[8:], formatVersion)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.first))
	binary.LittleEndian.PutUint64(b[24:], h.nonce)
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

// errVersion is not damage: a newer program wrote the file.
var errVersion = errors.New("its format is of a newer version of this program")

func parseHeader(b []byte) (header, error) {
	if len(b) < headerBytes || binary.LittleEndian.Uint32(b) != headerMagic ||
		crc32.Checksum(b[8:headerBytes], castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return header{}, ErrDamaged
	}
	if binary.LittleEndian.Uint32(b[8:]) != formatVersion {
		return header{}, errVersion
	}
	return header{first: Cursor(binary.LittleEndian.Uint64(b[16:])), nonce: binary.LittleEndian.Uint64(b[24:])}, nil
}

type frame struct {
	nonce   uint64
	first   Cursor
	durable int64
	count   int
	body    []byte
}

// append encodes f behind b.
func (f *frame) append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, frameBytes)...)
	b = append(b, f.body...)
	h := b[at:]
	binary.LittleEndian.PutUint32(h, frameMagic)
	binary.LittleEndian.PutUint32(h[8:], uint32(len(f.body))) //nolint:gosec // at most bodyBytesMax
	binary.LittleEndian.PutUint32(h[12:], uint32(f.count))    //nolint:gosec // at most EntriesMax
	binary.LittleEndian.PutUint64(h[16:], f.nonce)
	binary.LittleEndian.PutUint64(h[24:], uint64(f.first))
	binary.LittleEndian.PutUint64(h[32:], uint64(f.durable)) //nolint:gosec // a file's size
	binary.LittleEndian.PutUint32(h[4:], crc32.Checksum(h[8:], castagnoli))
	return b
}

// size is that of the encoded frame.
func (f *frame) size() int64 { return frameBytes + int64(len(f.body)) }

// parseFrame reads the frame at the start of b, or reports that there is none.
func parseFrame(b []byte, nonce uint64) (frame, bool) {
	if len(b) < frameBytes || binary.LittleEndian.Uint32(b) != frameMagic || binary.LittleEndian.Uint64(b[16:]) != nonce {
		return frame{}, false
	}
	n, count := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
	if n > uint32(bodyBytesMax) || int(n) > len(b)-frameBytes || count > EntriesMax {
		return frame{}, false
	}
	end := frameBytes + int(n)
	if crc32.Checksum(b[8:end], castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return frame{}, false
	}
	return frame{
		nonce: nonce, count: int(count), body: b[frameBytes:end],
		first:   Cursor(binary.LittleEndian.Uint64(b[24:])),
		durable: int64(binary.LittleEndian.Uint64(b[32:])), //nolint:gosec // what a checked frame has was a file's size
	}, true
}

// entries decodes the body. A frame that was checked and does not decode was
// written by something else.
func (f *frame) entries() ([]Entry, error) {
	d := decoder{b: f.body}
	out := make([]Entry, 0, f.count)
	for range f.count {
		out = append(out, d.entry())
	}
	if d.bad || len(d.b) > 0 {
		return nil, ErrDamaged
	}
	return out, nil
}

// scanned is what one file holds.
type scanned struct {
	header
	size    int64  // up to the end of the last whole frame
	next    Cursor // of the entry after the last one
	oldest  claim.Time
	vouched bool // the last frame has no entries: all before it was durable
}

// scan reads frames until there is none, and hands each to visit.
func scan(b []byte, visit func(*frame) error) (s scanned, err error) {
	if s.header, err = parseHeader(b); err != nil {
		return s, err
	}
	s.size, s.next, s.oldest = headerBytes, s.first, claim.Never
	for {
		f, ok := parseFrame(b[s.size:], s.nonce)
		if !ok {
			return s, nil
		}
		if f.first != s.next || f.durable > s.size {
			return s, ErrDamaged
		}
		if err := visit(&f); err != nil {
			return s, err
		}
		s.size += f.size()
		s.next += Cursor(f.count) //nolint:gosec // at most EntriesMax
		s.vouched = f.count == 0
	}
}

// vouchedFor reports whether a frame behind b[at] says that b[at] had been
// durable: then what stands there was acknowledged and is damaged. Lengths are
// not trusted on the way.
func vouchedFor(b []byte, at int64, nonce uint64) bool {
	magic := binary.LittleEndian.AppendUint32(nil, frameMagic)
	for from := at; ; from++ {
		i := bytes.Index(b[from:], magic)
		if i < 0 {
			return false
		}
		from += int64(i)
		if f, ok := parseFrame(b[from:], nonce); ok && f.durable > at {
			return true
		}
	}
}
