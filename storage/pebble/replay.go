package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// errLog is what is wrong with a log. A store with such a log is not opened.
var errLog = errors.New("its log is damaged")

// replay reads the log from segment number on and calls each with every commit
// after seq, in order, and the segment it is in. It fails with errLog where
// anything that was acknowledged may be missing.
func replay(fs vfs.FS, dir string, number, seq uint64, each func(segment uint64, m meta, ops []byte) error) error {
	r := replayer{seq: seq, each: each}
	for {
		data, nonce, err := readSegment(fs, dir, number)
		if err != nil {
			return err
		}
		sealed, err := r.segment(number, nonce, data)
		if err != nil {
			return err
		}
		number++
		if !sealed {
			return r.unused(fs, dir, number)
		}
	}
}

// readSegment returns a segment's blocks, headers included, and its nonce.
func readSegment(fs vfs.FS, dir string, number uint64) ([]byte, uint64, error) {
	name := segmentName(number)
	data, err := readFile(fs, fs.PathJoin(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, fmt.Errorf("%w: %s is missing", errLog, name)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w: read %s: %w", errLog, name, err)
	}
	h, ok := readHeader(data)
	switch {
	case !ok:
		return nil, 0, fmt.Errorf("%w: %s has no readable header", errLog, name)
	case h.number != number:
		return nil, 0, fmt.Errorf("%w: %s says that it is number %d", errLog, name, h.number)
	case h.size != int64(len(data)):
		return nil, 0, fmt.Errorf("%w: %s has %d bytes of %d", errLog, name, len(data), h.size)
	}
	return data, h.nonce, nil
}

// readHeader reads whichever copy of a segment's header is readable.
func readHeader(data []byte) (h header, ok bool) {
	for _, at := range [...]int{0, blockBytes} {
		if at < len(data) {
			if h, ok = parseHeader(data[at:]); ok {
				return h, true
			}
		}
	}
	return header{}, false
}

// replayer walks frames.
type replayer struct {
	seq  uint64 // last commit that the engine has, or that was handed out
	next uint64 // first commit of the frame to come; 0 before the first frame
	each func(segment uint64, m meta, ops []byte) error
}

// segment replays one segment and reports whether another follows.
func (r *replayer) segment(number, nonce uint64, data []byte) (sealed bool, err error) {
	for off := framesFrom; off < len(data); {
		f, ok, err := r.find(nonce, data, off)
		if err != nil {
			return false, fmt.Errorf("%w: %s: %w", errLog, segmentName(number), err)
		}
		if !ok || f.seals {
			return f.seals, nil
		}
		if err := r.frame(number, f); err != nil {
			return false, err
		}
		off += 2 * f.size
	}
	return false, nil
}

// unused makes sure that the log does not go on in a segment, which may have
// been prepared, though the one before it is not sealed.
func (r *replayer) unused(fs vfs.FS, dir string, number uint64) error {
	data, err := readFile(fs, fs.PathJoin(dir, segmentName(number)))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: read %s: %w", errLog, segmentName(number), err)
	}
	h, ok := readHeader(data)
	if !ok || h.number != number {
		return nil // its preparation was interrupted
	}
	for off := framesFrom; off < len(data); off += blockBytes {
		if f, ok := parseFrame(data[off:]); ok && f.nonce == h.nonce {
			return fmt.Errorf("%w: %s goes on, and the one before it is not sealed", errLog, segmentName(number))
		}
	}
	return nil
}

// find returns the frame that begins at off, from its second copy if need be.
// There is none at the end of the log, and then nothing valid may come later
// either: that would mean that something in between is lost.
func (r *replayer) find(nonce uint64, data []byte, off int) (frame, bool, error) {
	for at := off; at < len(data); at += blockBytes {
		f, ok := parseFrame(data[at:])
		switch {
		case !ok || f.nonce != nonce:
		case r.next == 0 && f.first > r.seq+1:
			return frame{}, false, fmt.Errorf("commits %d to %d are missing", r.seq+1, f.first-1)
		case r.next != 0 && f.first != r.next:
			return frame{}, false, fmt.Errorf("commit %d is missing: %d follows", r.next, f.first)
		case at != off && at != off+f.size:
			return frame{}, false, fmt.Errorf("the frame at %d is unreadable, another stands at %d", off, at)
		default:
			return f, true, nil
		}
	}
	return frame{}, false, nil
}

// frame hands out the commits of one frame that are not known yet.
func (r *replayer) frame(number uint64, f frame) error {
	r.next = f.first
	for body := f.body; len(body) > 0; {
		if len(body) < metaLen+4 {
			return fmt.Errorf("%w: a frame is cut short", errLog)
		}
		m, err := parseMeta(body[:metaLen])
		n := int(binary.LittleEndian.Uint32(body[metaLen:]))
		body = body[metaLen+4:]
		if err != nil || n > len(body) || m.seq != r.next {
			return fmt.Errorf("%w: a frame does not hold what it says", errLog)
		}
		if m.seq > r.seq {
			if err := r.each(number, m, body[:n]); err != nil {
				return err
			}
			r.seq = m.seq
		}
		r.next++
		body = body[n:]
	}
	return nil
}

func readFile(fs vfs.FS, path string) (data []byte, err error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(f)
}
