package pebble

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"
)

func putOp(dst []byte, kind byte, bucket int64, key, value string) []byte {
	start := len(dst)
	dst = append(beginOp(dst, kind, bucket, []byte(key)), value...)
	endOp(dst, start)
	return dst
}

func TestOpsAreReadAsWritten(t *testing.T) {
	t.Parallel()
	var b []byte
	want := []op{
		{kind: opBody, key: []byte("bk"), value: []byte("body")},
		{kind: opRecord, bucket: -3, key: []byte("rk"), value: []byte("v")},
		{kind: opRecordDue, bucket: 1 << 60, key: []byte("rk2"), value: bytes.Repeat([]byte("v"), 70_000)},
		{kind: opDelete, key: []byte("rk")},
		{kind: opDeleteRange, key: []byte("x1"), value: []byte("x2")},
	}
	for _, o := range want {
		b = putOp(b, o.kind, o.bucket, string(o.key), string(o.value))
	}
	whole := b
	for _, o := range want {
		got, ok := parseOp(b)
		if !ok || got.kind != o.kind || got.bucket != o.bucket || !bytes.Equal(got.key, o.key) || !bytes.Equal(got.value, o.value) {
			t.Fatalf("%+v was read as %+v", o, got)
		}
		for n := range min(got.size, 100) {
			if _, ok := parseOp(b[:n]); ok {
				t.Fatalf("the first %d of %d bytes are an operation", n, got.size)
			}
		}
		b = b[got.size:]
	}
	if !newMemtable(maphash.MakeSeed()).add(whole) {
		t.Fatal("the operations were not taken")
	}
	if newMemtable(maphash.MakeSeed()).add(whole[:len(whole)-1]) {
		t.Fatal("an operation that is cut short was taken")
	}
}

// TestMemtable compares a memtable with a map under random operations.
func TestMemtable(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	m := newMemtable(maphash.MakeSeed())
	want := map[string]op{}
	due := map[string]bool{}
	for range 20_000 {
		key := fmt.Sprintf("r%05d", rng.IntN(6000))
		kind := []byte{opRecord, opRecordDue, opDelete}[rng.IntN(3)]
		value := ""
		if kind != opDelete {
			value = string(body(rng, rng.IntN(200)))
		}
		if !m.add(putOp(nil, kind, 5, key, value)) {
			t.Fatal("not taken")
		}
		due[key] = kind == opRecordDue || kind == opRecord && due[key]
		want[key] = op{kind: kind, value: []byte(value)}
	}
	for key, w := range want {
		got, ok := m.get(maphash.String(m.seed, key), []byte(key))
		if !ok || (got.kind == opDelete) != (w.kind == opDelete) || !bytes.Equal(got.value, w.value) {
			t.Fatalf("%s is %+v, want %+v", key, got, w)
		}
	}
	if _, ok := m.get(maphash.String(m.seed, "r"), []byte("r")); ok {
		t.Fatal("a key that was never written is there")
	}
	seen := 0
	m.newest(func(_ ref, o op) {
		seen++
		if (o.kind == opRecordDue) != due[string(o.key)] {
			t.Errorf("%s is to be indexed: %v, want %v", o.key, o.kind == opRecordDue, due[string(o.key)])
		}
		if w := want[string(o.key)]; !bytes.Equal(o.value, w.value) {
			t.Errorf("%s: an older operation is left", o.key)
		}
	})
	if seen != len(want) {
		t.Errorf("%d newest operations of %d keys", seen, len(want))
	}
}

// TestSort sorts keys that share much, little, and end inside each other.
func TestSort(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	alphabets := map[string]func() string{
		"random":    func() string { return "r" + string(body(rng, 16)) },
		"zeros":     func() string { return "r" + string(make([]byte, rng.IntN(300))) },
		"few bytes": func() string { return "r" + fmt.Sprintf("%0*b", 1+rng.IntN(40), rng.IntN(4)) },
		"consumers": func() string { return fmt.Sprintf("r00000000consumer-%d\x00event-%d", rng.IntN(3), rng.IntN(1e6)) },
	}
	for name, key := range alphabets {
		m := newMemtable(maphash.MakeSeed())
		var want []string
		for range 3000 {
			k := key()
			m.add(putOp(nil, opRecord, 0, k, ""))
			want = append(want, k)
		}
		slices.Sort(want)
		want = slices.Compact(want)
		var items []sortItem
		m.newest(func(r ref, o op) { items = append(items, sortItem{eightBytes(o.key[len(m.shared):]), r}) })
		m.sort(items, len(m.shared))
		if len(items) != len(want) {
			t.Fatalf("%s: %d items of %d keys", name, len(items), len(want))
		}
		for i := range items {
			if got := string(m.at(items[i].r).key); got != want[i] {
				t.Fatalf("%s: %q stands at %d, want %q", name, got, i, want[i])
			}
		}
	}
}
