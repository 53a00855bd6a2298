package journal

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

// grown returns the only file of a journal, once with the entries before, and
// once with one group more: what a crash may tear.
func grown(t *testing.T) (name string, before, after []byte) {
	t.Helper()
	fsys := newMemFS()
	j := openOn(t, fsys)
	fill(t, j, 0, 3)
	name = segmentName(1)
	before = fsys.image()[name]
	if err := j.Append(t.Context(), entries(3, 5)); err != nil {
		t.Fatal(err)
	}
	return name, before, fsys.image()[name]
}

// TestTornTail: whatever a crash leaves of the last write, what was
// acknowledged before is there, and the journal goes on behind it.
func TestTornTail(t *testing.T) {
	t.Parallel()
	name, before, after := grown(t)
	tail := len(after) - len(before)
	for cut := range tail + 1 {
		at := len(before) + cut
		for shape, torn := range map[string][]byte{
			"short":  after[:at],
			"zeros":  append(slices.Clone(after[:at]), make([]byte, tail-cut)...),
			"hole":   append(append(slices.Clone(before), make([]byte, cut)...), after[at:]...),
			"waste":  append(slices.Clone(after[:at]), bytes.Repeat([]byte{0x66, 0x4a, 0x75, 0x57}, 20)...),
			"a flip": flipped(after, min(at, len(after)-1)),
		} {
			want := 3
			if bytes.HasPrefix(torn, after) {
				want = 5
			}
			fsys := fromImage(map[string][]byte{name: torn})
			j, err := tryOpen(fsys)
			if err != nil {
				t.Fatalf("%s at %d: %v", shape, cut, err)
			}
			wantNumbers(t, j, 0, want)
			fill(t, j, want, want+1)
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			wantNumbers(t, openOn(t, fsys), 0, want+1)
		}
	}
}

func flipped(b []byte, at int) []byte {
	b = slices.Clone(b)
	b[at] ^= 0x10
	return b
}

// TestTornGroup: of several appends in one torn group, those before the tear
// may be kept, and an intact one behind it vouches for nothing.
func TestTornGroup(t *testing.T) {
	t.Parallel()
	fsys := newMemFS()
	j := openOn(t, fsys)
	gather(t, j, fsys, 3) // the first one alone, two together
	after := fsys.image()[segmentName(1)]
	var begins int64
	if _, err := scan(after, func(f *frame) error { begins = f.durable; return nil }); err != nil {
		t.Fatal(err)
	}
	for at := int(begins); at < len(after); at++ {
		again, err := tryOpen(fromImage(map[string][]byte{segmentName(1): flipped(after, at)}))
		if err != nil {
			t.Fatalf("a flip at %d: %v", at, err)
		}
		if got := all(t, again, 0); len(got) < 1 || len(got) > 3 {
			t.Errorf("a flip at %d: %d entries", at, len(got))
		}
		_ = again.Close()
	}
}

// TestTornBegin: a crash while a file is made, its first bytes torn.
func TestTornBegin(t *testing.T) {
	t.Parallel()
	fsys := newMemFS()
	j := openOn(t, fsys)
	for n := 0; j.Stats().Segments < 2; n++ {
		fill(t, j, n, n+1)
	}
	held := int(j.Stats().Entries) - 1 // the last one is in the second file
	image := fsys.image()
	second := segmentName(Cursor(held) + 1)
	for size := range headerBytes + 1 {
		for shape, head := range map[string][]byte{"short": image[second][:size], "zeros": make([]byte, size)} {
			torn := maps.Clone(image)
			torn[second] = head
			again, err := tryOpen(fromImage(torn))
			if err != nil {
				t.Fatalf("%s, %d bytes: %v", shape, size, err)
			}
			fill(t, again, held, held+1)
			wantNumbers(t, again, 0, held+1)
			_ = again.Close()
			again, err = tryOpen(fromImage(map[string][]byte{second: head}))
			if err != nil {
				t.Fatalf("alone: %s, %d bytes: %v", shape, size, err)
			}
			fill(t, again, 0, 1)
			if got := all(t, again, 0); len(got) != 1 || got[0].Cursor != Cursor(held)+1 {
				t.Fatalf("alone: %s, %d bytes: cursors began again: %v", shape, size, got)
			}
			_ = again.Close()
		}
	}
}

// closedImage is a journal of several files that was closed in order.
func closedImage(t *testing.T) (files map[string][]byte, names []string, held int) {
	t.Helper()
	fsys := newMemFS()
	j := openOn(t, fsys)
	for held < 2 || j.Stats().Segments < 3 {
		fill(t, j, held, held+1)
		held++
	}
	fill(t, j, held, held+2)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	files = fsys.image()
	return files, slices.Sorted(maps.Keys(files)), held + 2
}

// TestDamage: any changed byte in what was acknowledged is found at the start,
// and nothing is thrown away.
func TestDamage(t *testing.T) {
	t.Parallel()
	files, names, held := closedImage(t)
	last := names[len(names)-1]
	for _, name := range names {
		for at := range files[name] {
			damaged := maps.Clone(files)
			damaged[name] = flipped(files[name], at)
			fsys := fromImage(damaged)
			j, err := tryOpen(fsys)
			if name == last && at >= len(files[name])-frameBytes { // the frame that vouches
				if err != nil {
					t.Fatalf("%s at %d: %v", name, at, err)
				}
				wantNumbers(t, j, 0, held)
				_ = j.Close()
				continue
			}
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), name) {
				t.Fatalf("%s at %d: %v", name, at, err)
			}
			if !maps.EqualFunc(fsys.image(), damaged, bytes.Equal) {
				t.Fatalf("%s at %d: the damaged files were changed", name, at)
			}
		}
	}
}

// TestDamageShort: files that end early, are missing, or are not ours.
func TestDamageShort(t *testing.T) {
	t.Parallel()
	files, names, _ := closedImage(t)
	for size := range files[names[0]] {
		damaged := maps.Clone(files)
		damaged[names[0]] = files[names[0]][:size]
		if _, err := tryOpen(fromImage(damaged)); !errors.Is(err, ErrDamaged) {
			t.Fatalf("the first file with %d bytes: %v", size, err)
		}
	}
	for name, edit := range map[string]func(map[string][]byte){
		"the middle is gone": func(m map[string][]byte) { delete(m, names[1]) },
		"more in the middle": func(m map[string][]byte) { m[names[0]] = append(slices.Clone(m[names[0]]), 0) },
		"files changed places": func(m map[string][]byte) {
			m[names[0]], m[names[1]] = m[names[1]], m[names[0]]
		},
		"not a number": func(m map[string][]byte) { m["x"+segmentSuffix] = nil },
		"not our name": func(m map[string][]byte) { m["7"+segmentSuffix] = nil },
	} {
		damaged := maps.Clone(files)
		edit(damaged)
		if _, err := tryOpen(fromImage(damaged)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	newer := maps.Clone(files)
	newer[names[0]] = newerVersion(newer[names[0]])
	if _, err := tryOpen(fromImage(newer)); !errors.Is(err, errVersion) || errors.Is(err, ErrDamaged) {
		t.Errorf("a newer version: %v", err)
	}
}

// TestDamageWhileRunning: files that somebody else changes are noticed by
// readers, which give what stands before the damage.
func TestDamageWhileRunning(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(n *inode){
		"changed": func(n *inode) { n.data = flipped(n.data, len(n.data)-1) },
		"short":   func(n *inode) { n.data = n.data[:len(n.data)-1] },
		"cut":     func(n *inode) { n.data = n.data[:headerBytes] },
	} {
		fsys := newMemFS()
		j := openOn(t, fsys)
		fill(t, j, 0, 3)
		fsys.mu.Lock()
		edit(fsys.visible[segmentName(1)])
		fsys.mu.Unlock()
		var last error
		for _, err := range j.All(0) {
			last = err
		}
		if !errors.Is(last, ErrDamaged) {
			t.Errorf("%s: %v", name, last)
		}
	}
}
