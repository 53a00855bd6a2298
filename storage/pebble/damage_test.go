package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// damageFlips is how many random bytes of each file are flipped, one at a time.
func damageFlips() int {
	if soak() {
		return 30
	}
	return 5
}

// TestDamage flips bytes of, cuts and deletes every file of a store, one at a
// time, after a clean end and after a crash. The store may refuse, may say that
// it is damaged when it reads, or may have everything that was acknowledged.
// It may not lose anything without a word.
func TestDamage(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, crashed := range []bool{false, true} {
		t.Run(fmt.Sprintf("crashed=%v", crashed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 7))
			fs, acked := damageable(t, rng, crashed)
			tally := map[string]int{}
			for _, file := range listFiles(t, fs, "store") {
				for _, d := range damages(t, fs, file, rng) {
					verdict := d.judge(t, fs, acked)
					tally[class(file)+" "+d.kind+": "+verdict]++
				}
			}
			for what, n := range tally {
				t.Logf("%4d %s", n, what)
			}
		})
	}
}

// damageable returns the disk of a store with flushed tables, a live log and
// large bodies, and what was acknowledged.
func damageable(t *testing.T, rng *rand.Rand, crashed bool) (*vfs.MemFS, map[claim.Key]claim.Record) {
	t.Helper()
	fs, l := vfs.NewCrashableMem(), newLedger()
	clock := storagetest.NewClock(epoch)
	for g := range 3 {
		s := mustOpen(t, Config{FS: fs, Clock: clock.Now})
		turns := make(chan struct{}, 40)
		for range cap(turns) {
			turns <- struct{}{}
		}
		close(turns)
		if err := work(s, []*ledger{l}, rng, fmt.Sprintf("g%d", g), turns); err != nil {
			t.Fatal(err)
		}
		if crashed {
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
		} else if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return fs, l.snapshot()
}

// damage is one thing done to one file.
type damage struct {
	kind string
	what string
	file string
	do   func(data []byte) []byte // nil: delete
}

func damages(t *testing.T, fs vfs.FS, file string, rng *rand.Rand) []damage {
	t.Helper()
	data, err := readFile(fs, file)
	if err != nil {
		t.Fatal(err)
	}
	out := []damage{{kind: "delete", what: "deleted", file: file}}
	for _, n := range []int{0, len(data) / 2, len(data) - 1} {
		if n >= 0 && n < len(data) {
			out = append(out, damage{"cut", fmt.Sprintf("cut to %d of %d", n, len(data)), file, func(b []byte) []byte { return b[:n] }})
		}
	}
	if len(data) == 0 {
		return out
	}
	positions := []int{0, len(data) / 2, len(data) - 1}
	used := len(data)
	if strings.Contains(file, "wal.") {
		for used > 1 && data[used-1] == 0 {
			used--
		}
	}
	for range damageFlips() {
		positions = append(positions, rng.IntN(used))
	}
	for _, p := range positions {
		bit := byte(1) << rng.IntN(8)
		out = append(out, damage{"flip", fmt.Sprintf("bit %#x of byte %d of %d flipped", bit, p, len(data)), file,
			func(b []byte) []byte { b[p] ^= bit; return b }})
	}
	return out
}

// judge opens a damaged copy and returns what the store said.
func (d damage) judge(t *testing.T, base *vfs.MemFS, acked map[claim.Key]claim.Record) string {
	t.Helper()
	fs := base.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	d.apply(t, fs)
	clock := storagetest.NewClock(epoch)
	s, err := Open(small(Config{Dir: "store", FS: fs, Clock: clock.Now, Fatal: func(m string) { panic(m) }}))
	if errors.Is(err, storage.ErrDamaged) {
		return "refused"
	}
	if err != nil {
		t.Errorf("%s %s: refused without saying that it is damaged: %v", d.file, d.what, err)
		return "refused oddly"
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("%s %s: close: %v", d.file, d.what, err)
		}
	}()
	err = verify(s, acked)
	switch {
	case err == nil:
		return "intact"
	case errors.Is(err, storage.ErrDamaged):
		if err := s.Ready(context.Background()); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%s %s: ready after damage was seen: %v", d.file, d.what, err)
		}
		return "said damaged"
	}
	t.Errorf("%s %s: %v", d.file, d.what, err)
	return "LOST"
}

func (d damage) apply(t *testing.T, fs vfs.FS) {
	t.Helper()
	data, err := readFile(fs, d.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.Remove(d.file); err != nil {
		t.Fatal(err)
	}
	if d.do == nil {
		return
	}
	f, err := fs.Create(d.file, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(d.do(data))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func listFiles(t *testing.T, fs vfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, name := range names {
		full := path.Join(dir, name)
		info, err := fs.Stat(full)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			out = append(out, listFiles(t, fs, full)...)
		} else {
			out = append(out, full)
		}
	}
	return out
}

// class names the kind of a file.
func class(file string) string {
	name := path.Base(file)
	switch {
	case strings.HasPrefix(name, "MANIFEST"), strings.HasPrefix(name, "OPTIONS"):
		return name[:strings.IndexByte(name, '-')]
	case strings.HasPrefix(name, "marker."):
		return strings.Join(strings.Split(name, ".")[:2], ".")
	case path.Ext(name) != "" && !strings.HasPrefix(name, "wal."):
		return path.Ext(name)
	}
	return name
}
