package journal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warifu/warifu/storage/claim"
)

func onDisk(t *testing.T) func(*Config) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "journal")
	return func(c *Config) { c.Dir, c.FS = dir, nil }
}

// TestLife: on the real file system, what is appended is read, survives a
// restart and is removed, with cursors that are never used again.
func TestLife(t *testing.T) {
	t.Parallel()
	disk := onDisk(t)
	j := openOn(t, nil, disk)
	unstamped := entry(0)
	unstamped.Time = 0
	if err := j.Append(t.Context(), []Entry{unstamped, entry(1)}); err != nil {
		t.Fatal(err)
	}
	unstamped.Time = claim.FromTime(start)
	want := []Record{{unstamped, 1}, {entry(1), 2}}
	if diff := cmp.Diff(want, all(t, j, 0)); diff != "" {
		t.Fatal(diff)
	}
	fill(t, j, 2, 100)
	if s := j.Stats(); s.Segments < 3 || s.Entries != 100 || s.Appended != 100 || s.Oldest != claim.FromTime(start) || s.Broken {
		t.Errorf("stats %+v", s)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = openOn(t, nil, disk)
	wantNumbers(t, j, 0, 100)
	if got := all(t, j, 98); len(got) != 2 || got[0].Cursor != 99 {
		t.Errorf("behind 98: %v", got)
	}
	if err := j.Remove(100); err != nil {
		t.Fatal(err)
	}
	if s := j.Stats(); s.Segments != 1 || s.Entries != 0 || s.Removed != 100 || s.Oldest != claim.Never || s.Bytes != headerBytes {
		t.Errorf("after Remove: %+v", s)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = openOn(t, nil, disk)
	fill(t, j, 100, 101)
	if got := all(t, j, 0); len(got) != 1 || got[0].Cursor != 101 {
		t.Errorf("a cursor was used again: %v", got)
	}
}

// TestPrivate: event IDs are for the owner's eyes only, and not for logs.
func TestPrivate(t *testing.T) {
	t.Parallel()
	disk, log := onDisk(t), &logged{}
	var dir string
	j := openOn(t, nil, disk, log.config, func(c *Config) { dir = c.Dir })
	e := entry(0)
	e.Key.EventID = "CANARY"
	if err := j.Append(t.Context(), []Entry{e}); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if info, err := n.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", n.Name(), info.Mode(), err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, %v", info.Mode(), err)
	}
	e.Key.EventID = strings.Repeat("CANARY", 100)
	if err := j.Append(t.Context(), []Entry{e}); !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "CANARY") {
		t.Errorf("append: %v", err)
	}
	if strings.Contains(log.String(), "CANARY") {
		t.Error(log.String())
	}
}

// TestLock: one process, one directory.
func TestLock(t *testing.T) {
	t.Parallel()
	disk := onDisk(t)
	j := openOn(t, nil, disk)
	if _, err := tryOpen(nil, disk); !errors.Is(err, ErrLocked) {
		t.Errorf("a second one: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	openOn(t, nil, disk)
	if _, err := tryOpen(nil, func(c *Config) { c.Dir, c.FS = filepath.Join(t.TempDir(), "not", "mounted"), nil }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a parent: %v", err)
	}
}

// TestConfig: all faults at once.
func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := New(Config{BytesMax: 1, SegmentBytes: 1})
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{"Dir", "Clock", "BytesMax", "SegmentBytes"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
}

// TestClosed: absent and closed journals make their callers fail closed.
func TestClosed(t *testing.T) {
	t.Parallel()
	closed := openOn(t, newMemFS())
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for name, j := range map[string]*Journal{"absent": nil, "closed": closed} {
		if err := j.Append(t.Context(), entries(0, 1)); !errors.Is(err, ErrBroken) {
			t.Errorf("%s: append: %v", name, err)
		}
		if err := j.Remove(0); !errors.Is(err, ErrBroken) {
			t.Errorf("%s: remove: %v", name, err)
		}
		if !j.Stats().Broken {
			t.Errorf("%s: not broken", name)
		}
		if err := j.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
	for _, err := range closed.All(0) {
		if !errors.Is(err, ErrBroken) {
			t.Errorf("closed: read: %v", err)
		}
	}
}

// TestInvalid: what could not be read back is not written. The largest entry
// there is, is.
func TestInvalid(t *testing.T) {
	t.Parallel()
	j := openOn(t, newMemFS())
	for name, edit := range map[string]func(*Entry){
		"no consumer":   func(e *Entry) { e.Key.Consumer = "" },
		"long consumer": func(e *Entry) { e.Key.Consumer = strings.Repeat("x", claim.ConsumerCharsMax+1) },
		"no event":      func(e *Entry) { e.Key.EventID = "" },
		"long event":    func(e *Entry) { e.Key.EventID = strings.Repeat("x", claim.EventIDBytesMax+1) },
		"no attempt":    func(e *Entry) { e.Attempt = claim.AttemptID{} },
		"digests":       func(e *Entry) { e.Digests = make([]claim.Digest, claim.DigestsMax+1) },
		"scheme":        func(e *Entry) { e.Digests[0].Scheme = strings.Repeat("x", schemeBytesMax+1) },
		"digest":        func(e *Entry) { e.Digests[0].Value = make([]byte, claim.DigestBytesMax+1) },
		"key ID":        func(e *Entry) { e.KeyID = strings.Repeat("x", KeyIDBytesMax+1) },
		"request ID":    func(e *Entry) { e.RequestID = strings.Repeat("x", RequestIDBytesMax+1) },
	} {
		e := entry(0)
		edit(&e)
		if err := j.Append(t.Context(), []Entry{entry(1), e}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := j.Append(t.Context(), entries(0, EntriesMax+1)); !errors.Is(err, ErrInvalid) {
		t.Errorf("too many: %v", err)
	}
	if err := j.Remove(1); !errors.Is(err, ErrInvalid) {
		t.Errorf("remove what is not there: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Append(ended, entries(0, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	if got := all(t, j, 0); len(got) > 0 {
		t.Errorf("refused, and written: %v", got)
	}
	largest := make([]Entry, EntriesMax)
	for i := range largest {
		largest[i] = largestEntry()
	}
	if err := j.Append(t.Context(), largest); err != nil {
		t.Fatal(err)
	}
	for i, r := range all(t, j, 0) {
		if !reflect.DeepEqual(largest[i], r.Entry) {
			t.Fatal(cmp.Diff(largest[i], r.Entry))
		}
	}
}

func largestEntry() Entry {
	e := entry(1)
	e.Time, e.Key.Tenant = claim.Never, claim.TenantID(-1<<63)
	e.Key.Consumer = strings.Repeat("c", claim.ConsumerCharsMax)
	e.Key.EventID = strings.Repeat("e", claim.EventIDBytesMax)
	e.KeyID, e.RequestID = strings.Repeat("k", KeyIDBytesMax), strings.Repeat("r", RequestIDBytesMax)
	e.Digests = make([]claim.Digest, claim.DigestsMax)
	for i := range e.Digests {
		e.Digests[i] = claim.Digest{Scheme: strings.Repeat("\U0001F512", claim.SchemeCharsMax), Value: make([]byte, claim.DigestBytesMax)}
	}
	return e
}
