package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warifu/warifu/storage/claim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func clock() time.Time { return start }

// tryOpen opens a journal with small files on fsys.
func tryOpen(fsys FS, edit ...func(*Config)) (*Journal, error) {
	cfg := Config{Dir: "journal", BytesMax: BytesMin, SegmentBytes: segmentBytesMin, Clock: clock, FS: fsys}
	for _, e := range edit {
		e(&cfg)
	}
	return New(cfg)
}

// open closes the journal when the test ends; again is no harm.
func openOn(t testing.TB, fsys FS, edit ...func(*Config)) *Journal {
	t.Helper()
	j, err := tryOpen(fsys, edit...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// entry is the n-th one: its attempt says which it is.
func entry(n int) Entry {
	e := Entry{
		Time: claim.FromTime(start.Add(time.Duration(n) * time.Second)), Key: claim.Key{Tenant: 7, Consumer: "inventory", EventID: "order-" + string(rune('a'+n%26))},
		Digests: []claim.Digest{{Scheme: "raw-sha256", Value: bytes.Repeat([]byte{byte(n)}, 32)}},
		KeyID:   "k1", RequestID: "r1",
	}
	binary.BigEndian.PutUint64(e.Attempt[:], uint64(n)+1)
	return e
}

func entries(from, to int) (out []Entry) {
	for n := from; n < to; n++ {
		out = append(out, entry(n))
	}
	return out
}

func number(e *Entry) int { return int(binary.BigEndian.Uint64(e.Attempt[:])) - 1 }

// fill appends entries one by one.
func fill(t testing.TB, j *Journal, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if err := j.Append(context.Background(), []Entry{entry(n)}); err != nil {
			t.Fatalf("append %d: %v", n, err)
		}
	}
}

// all returns what the journal holds behind after.
func all(t testing.TB, j *Journal, after Cursor) (out []Record) {
	t.Helper()
	for r, err := range j.All(after) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// wantNumbers checks that the journal holds exactly entries from..to-1.
func wantNumbers(t testing.TB, j *Journal, from, to int) {
	t.Helper()
	got := all(t, j, 0)
	if len(got) != to-from {
		t.Fatalf("%d entries, want %d", len(got), to-from)
	}
	for i := range got {
		if number(&got[i].Entry) != from+i {
			t.Fatalf("entry %d is number %d, want %d", i, number(&got[i].Entry), from+i)
		}
	}
}

// logged collects lines.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logged) config(c *Config) { c.Logger = slog.New(slog.NewTextHandler(l, nil)) }
