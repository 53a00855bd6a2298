package pebble

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// testLog is a log of small segments, written frame by frame.
type testLog struct {
	t    *testing.T
	fs   *vfs.MemFS
	wal  *wal
	seq  uint64
	want []string // what each commit holds
}

const testSegmentBytes = framesFrom + sealBytes + 4*2*blockBytes

func newTestLog(t *testing.T) *testLog {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll("log", 0o700); err != nil {
		t.Fatal(err)
	}
	l := &testLog{t: t, fs: fs, wal: newWAL(&Config{FS: fs, Dir: "log", LogSegmentBytes: testSegmentBytes})}
	if err := l.wal.begin(firstSegment); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.wal.close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// write writes one frame of commits that hold size bytes each.
func (l *testLog) write(commits, size int) {
	l.t.Helper()
	var group []*commit
	for range commits {
		l.seq++
		ops := []byte(fmt.Sprintf("%d:", l.seq) + strings.Repeat("x", size))
		l.want = append(l.want, string(ops))
		group = append(group, &commit{meta: meta{seq: l.seq, hwm: 7, ceil: 8}, ops: ops})
	}
	if err := l.wal.write(group); err != nil {
		l.t.Fatal(err)
	}
}

// replay returns what a start would replay after seq, from a segment on.
func (l *testLog) replay(segment, seq uint64) (got []string, err error) {
	err = replay(l.fs, "log", segment, seq, func(_ uint64, m meta, ops []byte) error {
		if m.hwm != 7 || m.ceil != 8 {
			return fmt.Errorf("commit %d has meta %+v", m.seq, m)
		}
		got = append(got, string(ops))
		return nil
	})
	return got, err
}

// change rewrites a segment's file; nil removes it.
func (l *testLog) change(segment uint64, to func([]byte) []byte) {
	l.t.Helper()
	path := l.fs.PathJoin("log", segmentName(segment))
	data, err := readFile(l.fs, path)
	if err != nil {
		l.t.Fatal(err)
	}
	f, err := l.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := f.Write(to(data)); err != nil {
		l.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *testLog) expect(what string, segment, seq uint64, want []string) {
	l.t.Helper()
	got, err := l.replay(segment, seq)
	if err != nil || !slices.Equal(got, want) {
		l.t.Errorf("%s: replayed %d commits, want %d: %v", what, len(got), len(want), err)
	}
}

func (l *testLog) refused(what string, segment, seq uint64) {
	l.t.Helper()
	if got, err := l.replay(segment, seq); !errors.Is(err, errLog) {
		l.t.Errorf("%s: replayed %d commits of %d, %v; want a refusal", what, len(got), len(l.want), err)
	}
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte { b[at] ^= 0x10; return b }
}

func TestLogReplaysWhatWasWritten(t *testing.T) {
	t.Parallel()
	l := newTestLog(t)
	l.expect("empty", 1, 0, nil)
	for i := range 11 { // three segments
		l.write(1+i%3, 10*i)
	}
	if n := l.wal.mu.cur.number; n != 3 {
		t.Fatalf("segment %d is current, want 3", n)
	}
	l.expect("all", 1, 0, l.want)
	l.expect("within a segment", 1, 3, l.want[3:])
	l.expect("within a frame", 1, 2, l.want[2:])
	l.expect("nothing new", 1, l.seq, nil)
	from := l.wal.holding(12)
	if from != 2 {
		t.Fatalf("commit 13 is in segment %d, want 2", from)
	}
	l.expect("from a later segment", from, 12, l.want[12:])
	l.refused("a segment too late", 3, 12)
}

// TestLogSurvivesOneBadPlace: whichever byte of a log is wrong, nothing is lost
// and nothing is taken for the end.
func TestLogSurvivesOneBadPlace(t *testing.T) {
	t.Parallel()
	l := newTestLog(t)
	for range 6 {
		l.write(2, 100)
	}
	for _, segment := range []uint64{1, 2} {
		for at := 0; at < testSegmentBytes; at += 61 {
			l.change(segment, flip(at))
			l.expect(fmt.Sprintf("segment %d, byte %d", segment, at), 1, 0, l.want)
			l.change(segment, flip(at))
		}
	}
}

func TestLogRefuses(t *testing.T) {
	t.Parallel()
	frameAt := func(n, dup int) int { return framesFrom + (2*n+dup)*blockBytes + 5 }
	both := func(n int) func([]byte) []byte {
		return func(b []byte) []byte { return flip(frameAt(n, 1))(flip(frameAt(n, 0))(b)) }
	}
	for _, row := range []struct {
		name    string
		segment uint64
		change  func([]byte) []byte
	}{
		{"a cut into the last frame", 2, func(b []byte) []byte { return b[:framesFrom+3*blockBytes] }},
		{"a cut behind the last frame", 2, func(b []byte) []byte { return b[:len(b)-1] }},
		{"a file of nothing", 2, func([]byte) []byte { return nil }},
		{"both headers unreadable", 1, func(b []byte) []byte { return flip(9)(flip(9 + blockBytes)(b)) }},
		{"both copies of a frame with others behind", 1, both(1)},
		{"both copies of the first frame", 1, both(0)},
		{"both copies of a seal", 1, both(4)},
		{"another segment in this one's place", 2, func([]byte) []byte { return header{number: 1, size: blockBytes}.block() }},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := newTestLog(t)
			for range 6 {
				l.write(1, 100)
			}
			l.change(row.segment, row.change)
			l.refused(row.name, 1, 0)
		})
	}
	t.Run("a missing segment", func(t *testing.T) {
		t.Parallel()
		l := newTestLog(t)
		for range 6 {
			l.write(1, 100)
		}
		if err := l.fs.Rename("log/"+segmentName(2), "log/elsewhere"); err != nil {
			t.Fatal(err)
		}
		l.refused("missing", 1, 0)
	})
}

// TestLogUsesSegmentsAgain: what is not flushed stays, however far behind the
// engine is, and what an old segment held is not replayed from the one that
// took its file.
func TestLogUsesSegmentsAgain(t *testing.T) {
	t.Parallel()
	for lag := range uint64(10) {
		l := newTestLog(t)
		most := 0
		for range 60 {
			l.write(1, 100)
			if l.seq <= lag {
				continue
			}
			done := l.seq - lag
			from := l.wal.holding(done)
			if err := l.wal.flushed(from); err != nil {
				t.Fatal(err)
			}
			l.expect(fmt.Sprintf("%d behind", lag), from, done, l.want[done:])
			numbers, err := segments(l.fs, "log")
			if err != nil {
				t.Fatal(err)
			}
			most = max(most, len(numbers))
		}
		if limit := int(lag)/4 + 4; most > limit {
			t.Errorf("%d files at a time for a lag of %d, want %d at most", most, lag, limit)
		}
		if n := l.wal.mu.cur.number; n < 13 {
			t.Errorf("only %d segments were begun", n)
		}
	}
}

// TestLogTakesLargeFrames: a frame larger than a segment gets a larger one.
func TestLogTakesLargeFrames(t *testing.T) {
	t.Parallel()
	l := newTestLog(t)
	l.write(1, 10)
	l.write(2, 3*testSegmentBytes)
	l.write(1, 10)
	l.write(1, 10*testSegmentBytes)
	l.expect("large", 1, 0, l.want)
	if err := l.wal.flushed(l.wal.holding(l.seq - 1)); err != nil {
		t.Fatal(err)
	}
	if len(l.wal.mu.spare) > 0 && l.wal.mu.spare[0].size != testSegmentBytes {
		t.Error("an outsized segment is kept")
	}
}

// TestLogGrows: segments of a small store are small.
func TestLogGrows(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	w := newWAL(&Config{FS: fs, Dir: "", LogSegmentBytes: 64 << 20})
	if err := w.begin(1); err != nil {
		t.Fatal(err)
	}
	for want := int64(segmentBytesMin); ; want = min(want*segmentGrowth, w.sizeMax) {
		if w.mu.cur.size != want {
			t.Fatalf("segment %d has %d bytes, want %d", w.mu.cur.number, w.mu.cur.size, want)
		}
		if w.mu.cur.number == 4 {
			break
		}
		w.useful = want // it held operations
		if err := w.rotate(1, blockBytes); err != nil {
			t.Fatal(err)
		}
	}
	before := w.mu.cur.size
	if err := w.rotate(1, blockBytes); err != nil { // it held nothing but beats
		t.Fatal(err)
	}
	if w.mu.cur.size > before {
		t.Errorf("an idle log grew from %d to %d", before, w.mu.cur.size)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
}

// FuzzLog: whatever a segment's bytes become, a replay ends, and hands out
// nothing but what was written, in order.
func FuzzLog(f *testing.F) {
	f.Add(uint16(100), []byte{1}, false)
	f.Add(uint16(framesFrom), []byte("Warf"), true)
	f.Add(uint16(framesFrom+frameHeader), make([]byte, 3*blockBytes), true)
	f.Fuzz(func(t *testing.T, at uint16, patch []byte, cut bool) {
		l := newTestLog(t)
		for range 4 {
			l.write(2, 900)
		}
		l.change(1, func(b []byte) []byte {
			n := copy(b[min(int(at), len(b)):], patch)
			if cut {
				return b[:min(int(at)+n, len(b))]
			}
			return b
		})
		got, err := l.replay(1, 0)
		if err != nil && !errors.Is(err, errLog) {
			t.Fatal(err)
		}
		if len(got) > len(l.want) || !slices.Equal(got, l.want[:len(got)]) {
			t.Fatalf("%d commits were replayed that were not written so", len(got))
		}
		if cut && err == nil && len(got) < len(l.want) {
			t.Fatal("a cut was taken for the end")
		}
	})
}
