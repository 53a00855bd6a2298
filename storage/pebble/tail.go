package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage/claim"
)

// The engine's own log replays up to the first chunk it cannot read in its
// last stretch, and calls that the end: a flipped byte, a cut or a deleted file
// there would silently take back what was acknowledged. So every batch is
// written a second time, to the tail log, and acknowledged when both copies are
// durable; the two are synced at the same time. On open the two are compared:
// batches that the engine has lost are put back from the tail, and a gap that
// the tail does not cover refuses to start.
//
// The tail is two files of bounded size, written in turns, so that it always
// holds at least the last tailFileBytes of batches.
const (
	tailFileBytes  = 8 << 20
	tailHeaderLen  = 40
	tailMagic      = 0x57617269 // "Wari"
	tailRecordsMax = 1 << 20    // batches read back at most
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var tailNames = [2]string{"tail.0", "tail.1"}

// tailRecord is one batch as the tail keeps it.
type tailRecord struct {
	meta
	repr []byte
}

// tailLog appends batches. It belongs to the goroutine that syncs commits.
type tailLog struct {
	files [2]vfs.File
	cur   int
	off   int64
	buf   []byte
}

// encodeTail appends a record: magic, checksum, length, sequence, clock,
// fence ceiling, batch.
func encodeTail(dst []byte, m meta, repr []byte) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, tailMagic)
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(repr)))
	dst = m.append(dst)
	dst = append(dst, repr...)
	binary.LittleEndian.PutUint32(dst[start+4:], crc32.Checksum(dst[start+8:], castagnoli))
	return dst
}

// decodeTail reads one record, or reports that there is none at the start of b.
func decodeTail(b []byte) (rec tailRecord, size int, ok bool) {
	if len(b) < tailHeaderLen || binary.LittleEndian.Uint32(b) != tailMagic {
		return tailRecord{}, 0, false
	}
	n := binary.LittleEndian.Uint64(b[8:])
	if n > uint64(len(b)-tailHeaderLen) {
		return tailRecord{}, 0, false
	}
	size = tailHeaderLen + int(n)
	if crc32.Checksum(b[8:size], castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return tailRecord{}, 0, false
	}
	m, err := parseMeta(b[16 : 16+metaLen])
	return tailRecord{meta: m, repr: b[tailHeaderLen:size]}, size, err == nil
}

// createTail makes both files, empty and durable.
func createTail(fs vfs.FS, dir string) (*tailLog, error) {
	t := &tailLog{}
	for i, name := range tailNames {
		path := fs.PathJoin(dir, name)
		f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("create tail log: %w", err), t.close())
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return nil, errors.Join(fmt.Errorf("create tail log: %w", err), t.close())
		}
		if t.files[i], err = fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified); err != nil {
			return nil, errors.Join(fmt.Errorf("create tail log: %w", err), t.close())
		}
	}
	return t, nil
}

// readTail returns what both files hold, oldest first, without gaps; of a file
// overwritten from its beginning only the new part counts. The files are left
// as they are.
func readTail(fs vfs.FS, dir string) ([]tailRecord, error) {
	var runs [2][]tailRecord
	for i, name := range tailNames {
		data, err := readFile(fs, fs.PathJoin(dir, name))
		if err != nil {
			return nil, fmt.Errorf("read tail log: %w", err)
		}
		runs[i] = decodeRun(data)
	}
	first, second := runs[0], runs[1]
	if len(first) > 0 && len(second) > 0 && first[0].seq > second[0].seq {
		first, second = second, first
	}
	if len(first) > 0 && len(second) > 0 && first[len(first)-1].seq+1 != second[0].seq {
		first = nil // the newer file stands alone
	}
	return append(first, second...), nil
}

func decodeRun(data []byte) []tailRecord {
	var run []tailRecord
	for len(run) < tailRecordsMax {
		rec, size, ok := decodeTail(data)
		if !ok || (len(run) > 0 && rec.seq != run[len(run)-1].seq+1) {
			break
		}
		run = append(run, rec)
		data = data[size:]
	}
	return run
}

func readFile(fs vfs.FS, path string) (data []byte, err error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(f)
}

// append queues a batch's record; write makes all queued ones durable.
func (t *tailLog) append(m meta, repr []byte) { t.buf = encodeTail(t.buf, m, repr) }

// write writes and syncs what was appended, in the other file once this one is
// full. What the other file held is older than everything in this one, and all
// of it is in the engine's log by now, where later chunks vouch for it.
func (t *tailLog) write() error {
	if len(t.buf) == 0 {
		return nil
	}
	if t.off >= tailFileBytes {
		t.cur, t.off = 1-t.cur, 0
	}
	f := t.files[t.cur]
	if _, err := f.WriteAt(t.buf, t.off); err != nil {
		return fmt.Errorf("write tail log: %w", err)
	}
	if err := f.SyncData(); err != nil {
		return fmt.Errorf("sync tail log: %w", err)
	}
	t.off += int64(len(t.buf))
	t.buf = t.buf[:0]
	if cap(t.buf) > tailFileBytes {
		t.buf = nil
	}
	return nil
}

func (t *tailLog) close() error {
	var errs []error
	for _, f := range t.files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// tailFiles reports how many of the tail's files exist.
func tailFiles(fs vfs.FS, dir string) (int, error) {
	n := 0
	for _, name := range tailNames {
		switch _, err := fs.Stat(fs.PathJoin(dir, name)); {
		case err == nil:
			n++
		case !errors.Is(err, os.ErrNotExist):
			return 0, fmt.Errorf("look for tail log: %w", err)
		}
	}
	return n, nil
}

// highest returns the largest clock and fence ceiling in the records.
func highest(records []tailRecord) (hwm claim.Time, ceil claim.Fence) {
	for i := range records {
		hwm = max(hwm, records[i].hwm)
		ceil = max(ceil, records[i].ceil)
	}
	return hwm, ceil
}
