package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func newerVersion(b []byte) []byte {
	b = slices.Clone(b)
	binary.LittleEndian.PutUint32(b[8:], formatVersion+1)
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:headerBytes], castagnoli))
	return b
}

// only fails one kind of operation.
func only(op string, err error) func(string, string) error {
	return func(got, _ string) error {
		if got == op {
			return err
		}
		return nil
	}
}

// gather makes n appends wait behind one sync that is under way, so that they
// come in one group. They are entries 100 and up; the first one is written
// alone.
func gather(t *testing.T, j *Journal, fsys *memFS, n int) {
	t.Helper()
	syncing, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fsys.inject(func(op, _ string) error {
		if op == "sync" {
			once.Do(func() { close(syncing); <-proceed })
		}
		return nil
	})
	var all sync.WaitGroup
	add := func(i int) {
		all.Go(func() {
			if err := j.Append(context.Background(), []Entry{entry(100 + i)}); err != nil {
				t.Error(err)
			}
		})
	}
	add(0)
	<-syncing
	for i := 1; i < n; i++ {
		add(i)
	}
	awaitQueue(j, n-1)
	close(proceed)
	all.Wait()
	fsys.inject(nil)
}

// awaitQueue returns when n appends wait for the disk.
func awaitQueue(j *Journal, n int) {
	for {
		j.mu.Lock()
		queued := len(j.mu.queue)
		j.mu.Unlock()
		if queued == n {
			return
		}
		yieldNow()
	}
}

// TestGroup: what comes while the disk works is written at once, with one sync.
func TestGroup(t *testing.T) {
	t.Parallel()
	fsys := newMemFS()
	j := openOn(t, fsys, func(c *Config) { c.SegmentBytes = 1 << 20 })
	gather(t, j, fsys, 20)
	if s := j.Stats(); s.Groups != 2 || s.Entries != 20 {
		t.Errorf("%d groups of %d entries, want 2 of 20", s.Groups, s.Entries)
	}
}

// TestSyncFails: nothing is acknowledged any more, although later syncs would
// succeed; what was acknowledged is read, and a restart gives a journal whose
// pages are really on disk.
func TestSyncFails(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
		fsys, log := newMemFS(), &logged{}
		j := openOn(t, fsys, log.config)
		fill(t, j, 0, 3)
		fsys.inject(only("sync", cause))
		if err := j.Append(t.Context(), entries(3, 4)); !errors.Is(err, ErrBroken) || !errors.Is(err, cause) {
			t.Fatalf("append: %v", err)
		}
		fsys.inject(nil)
		if err := j.Append(t.Context(), entries(4, 5)); !errors.Is(err, ErrBroken) {
			t.Errorf("append after it: %v", err)
		}
		if err := j.Remove(1); !errors.Is(err, ErrBroken) {
			t.Errorf("remove: %v", err)
		}
		if s := j.Stats(); !s.Broken || s.Failed != 2 || s.Entries != 3 {
			t.Errorf("stats %+v", s)
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
			t.Errorf("%d lines, want 1: %s", n, log.String())
		}
		wantNumbers(t, j, 0, 3)
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		j = openOn(t, fsys)
		held := all(t, j, 0) // entry 3 looks written, and may be kept
		fill(t, j, 10, 11)
		for seed := range uint64(20) {
			again := openOn(t, fsys.crash(rand.New(rand.NewPCG(seed, 1))))
			if got := all(t, again, 0); len(got) != len(held)+1 {
				t.Errorf("seed %d: %d entries, want %d", seed, len(got), len(held)+1)
			}
		}
	}
}

// TestDiskFull: without space appends are refused, leave nothing behind, and
// succeed again when there is space.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"write", "create"} {
		fsys, log := newMemFS(), &logged{}
		j := openOn(t, fsys, log.config)
		fill(t, j, 0, 3)
		before := fsys.image()
		fsys.inject(only(op, syscall.ENOSPC))
		held := 3
		var err error
		for err == nil && held < 1000 { // a file that is begun needs space too
			if err = j.Append(t.Context(), entries(held, held+1)); err == nil {
				held++
			}
		}
		if !errors.Is(err, ErrFull) || (op == "write") != (held == 3) {
			t.Fatalf("%s: after %d entries: %v", op, held, err)
		}
		if err := j.Append(t.Context(), entries(held, held+1)); !errors.Is(err, ErrFull) {
			t.Fatalf("%s: again: %v", op, err)
		}
		if op == "write" && !slices.Equal(fsys.image()[segmentName(1)], before[segmentName(1)]) {
			t.Error("a refused append left something behind")
		}
		if s := j.Stats(); s.Broken || s.Full != 2 || strings.Count(log.String(), "is full") != 1 {
			t.Errorf("%s: %+v, %s", op, s, log.String())
		}
		fsys.inject(nil)
		fill(t, j, held, held+1)
		for seed := range uint64(10) {
			wantNumbers(t, openOn(t, fsys.crash(rand.New(rand.NewPCG(seed, 2)))), 0, held+1)
		}
	}
}

// TestBreaks: every other failure ends writing, and a restart finds what was
// acknowledged.
func TestBreaks(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(op, name string) error{
		"write":         only("write", syscall.EIO),
		"create":        only("create", syscall.EIO),
		"sync dir":      only("syncdir", syscall.EIO),
		"sync dir full": only("syncdir", syscall.ENOSPC),
		"no way back": func(op, _ string) error {
			return map[string]error{"write": syscall.ENOSPC, "truncate": syscall.EIO}[op]
		},
		"way back not durable": func(op, _ string) error {
			return map[string]error{"write": syscall.ENOSPC, "sync": syscall.EIO}[op]
		},
		"half begun": func(op, name string) error {
			if name == segmentName(1) {
				return nil
			}
			return map[string]error{"write": syscall.ENOSPC, "remove": syscall.EIO}[op]
		},
	} {
		fsys := newMemFS()
		j := openOn(t, fsys)
		fill(t, j, 0, 3)
		fsys.inject(fault)
		held := 3
		for held < 1000 && j.Append(t.Context(), entries(held, held+1)) == nil {
			held++
		}
		fsys.inject(nil)
		if err := j.Append(t.Context(), entries(held, held+1)); !errors.Is(err, ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
		for seed := range uint64(20) {
			again, err := tryOpen(fsys.crash(rand.New(rand.NewPCG(seed, 3))))
			if err != nil {
				t.Fatalf("%s: seed %d: %v", name, seed, err)
			}
			if got := all(t, again, 0); len(got) < held || len(got) > held+1 {
				t.Errorf("%s: seed %d: %d entries, want %d", name, seed, len(got), held)
			}
			_ = again.Close()
		}
	}
}

// TestFull: the bound holds to the byte, refuses until something is removed,
// and a start above it is full and not an error.
func TestFull(t *testing.T) {
	t.Parallel()
	fsys := newMemFS()
	j := openOn(t, fsys, func(c *Config) { c.SegmentBytes = 1 << 20 })
	n := 0
	var err error
	for ; err == nil; n += 500 {
		err = j.Append(t.Context(), entries(n, n+500))
		if s := j.Stats(); s.Bytes > s.BytesMax {
			t.Fatalf("%d bytes of %d", s.Bytes, s.BytesMax)
		}
	}
	n -= 500
	if !errors.Is(err, ErrFull) || j.Stats().Bytes < BytesMin-500*500 {
		t.Fatalf("after %d bytes: %v", j.Stats().Bytes, err)
	}
	wantNumbers(t, j, 0, n)
	if err := j.Remove(Cursor(n) / 2); err != nil {
		t.Fatal(err)
	}
	if err := j.Append(t.Context(), entries(n, n+500)); err != nil {
		t.Errorf("after a removal: %v", err)
	}
	if err := j.Remove(Cursor(n) + 500); err != nil {
		t.Fatal(err)
	}
	if s := j.Stats(); s.Entries != 0 || s.Bytes != headerBytes {
		t.Errorf("stats %+v", s)
	}
}

// TestRemoveTo: for every cursor, what lies behind it stays, also after a
// restart, and files that end before it go.
func TestRemoveTo(t *testing.T) {
	t.Parallel()
	files, names, held := closedImage(t)
	for upTo := range held + 1 {
		fsys := fromImage(files)
		j := openOn(t, fsys)
		if err := j.Remove(Cursor(upTo)); err != nil {
			t.Fatal(err)
		}
		first := held // entry number n has cursor n+1
		for _, name := range names {
			s, err := scan(files[name], func(*frame) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			if int(s.next)-1 > upTo {
				first = int(s.first) - 1
				break
			}
		}
		wantNumbers(t, j, first, held)
		_ = j.Close()
		wantNumbers(t, openOn(t, fsys), first, held)
	}
}

// TestLowerBound: what is held above a lowered bound stays readable.
func TestLowerBound(t *testing.T) {
	t.Parallel()
	fsys := newMemFS()
	j := openOn(t, fsys, func(c *Config) { c.BytesMax, c.SegmentBytes = 2*BytesMin, 1<<20 })
	n := 0
	for ; j.Stats().Bytes <= BytesMin; n += 500 {
		if err := j.Append(t.Context(), entries(n, n+500)); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = openOn(t, fsys)
	if err := j.Append(t.Context(), entries(n, n+1)); !errors.Is(err, ErrFull) {
		t.Errorf("append: %v", err)
	}
	wantNumbers(t, j, 0, n)
}

// TestRemoveDiskFull: without space for a new file the older ones go all the
// same, which makes space.
func TestRemoveDiskFull(t *testing.T) {
	t.Parallel()
	fsys := newMemFS()
	j := openOn(t, fsys)
	fill(t, j, 0, 100)
	fsys.inject(only("create", syscall.ENOSPC))
	if err := j.Remove(100); !errors.Is(err, ErrFull) {
		t.Errorf("remove: %v", err)
	}
	if s := j.Stats(); s.Segments != 1 || s.Broken || s.Entries == 0 {
		t.Errorf("stats %+v", s)
	}
	fsys.inject(only("remove", syscall.EIO))
	if err := j.Remove(100); !errors.Is(err, syscall.EIO) {
		t.Errorf("remove: %v", err)
	}
	fsys.inject(nil)
	if err := j.Remove(100); err != nil || j.Stats().Entries != 0 {
		t.Errorf("remove: %v, %+v", err, j.Stats())
	}
}
