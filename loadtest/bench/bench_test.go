package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/ratio"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/pebble"
)

// TestMain makes the test binary a child, as the command is one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childArgument {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEvents(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	a, b := &events{seed: seed}, &events{seed: seed + 1}
	seen := map[string]bool{}
	for n := range uint64(20_000) {
		for _, e := range []*events{a, b} {
			id := e.id(n)
			if len(id) != eventIDLen || seen[id] {
				t.Fatalf("seed %d: event %d is %q: repeated, or of another length", seed, n, id)
			}
			seen[id] = true
		}
	}
	if a.id(7) != (&events{seed: seed}).id(7) {
		t.Error("the same event has two IDs")
	}
	if d := a.appendDigest(nil, 7); len(d) != digestLen || bytes.Equal(d, a.appendDigest(nil, 8)) {
		t.Errorf("digest %x", d)
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	e := newEvents()
	first, second := e.requests(3), e.requests(3)
	seen := map[string]bool{}
	for i, r := range append(first, second...) {
		if r.Key.EventID != e.id(uint64(i)) || seen[string(r.Attempt[:])] || r.Attempt.IsZero() {
			t.Errorf("request %d: %+v", i, r)
		}
		if !bytes.Equal(r.Digests[0].Value, e.appendDigest(nil, uint64(i))) {
			t.Errorf("request %d has another event's digest", i)
		}
		seen[string(r.Attempt[:])] = true
	}
}

// TestRawWritesWhatTheDriverWrites: the driver reads the claims that the raw
// side has written.
func TestRawWritesWhatTheDriverWrites(t *testing.T) {
	t.Parallel()
	ev := newEvents()
	j := &job{Dir: t.TempDir()}
	tmpl, opts, err := learn(t.Context(), j, ev)
	if err != nil {
		t.Fatal(err)
	}
	if opts.MemTableSize != pebble.MemTableBytesDefault || opts.Levels[0].FilterPolicy.Name() == engine.NoFilterPolicy.Name() {
		t.Errorf("the engine's options were not taken over: %d, %s", opts.MemTableSize, opts.Levels[0].FilterPolicy.Name())
	}
	reqs := ev.requests(batchLen)
	db, err := engine.Open(filepath.Join(j.Dir, "db"), opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := tmpl.write(db, reqs); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	keys := make([]claim.Key, len(reqs))
	for i := range reqs {
		keys[i] = reqs[i].Key
	}
	err = withStore(t.Context(), j, func(ctx context.Context, s *pebble.Store) error {
		found, err := s.Get(ctx, keys)
		for i := range found {
			want := claim.Fresh(&reqs[i], found[i].Record.ClaimedAt, 0)
			if d := cmp.Diff(want, found[i].Record); d != "" {
				t.Errorf("record %d (-want +got):\n%s", i, d)
				break
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTemplateNoticesAnotherLayout(t *testing.T) {
	t.Parallel()
	r := &newEvents().requests(1)[0]
	record := append(append(make([]byte, attemptAt), r.Attempt[:]...), r.Digests[0].Value...)
	good := template{record: record}
	if err := good.check(r); err != nil {
		t.Fatalf("the known layout: %v", err)
	}
	for name, spoil := range map[string]func(*template){
		"AttemptElsewhere": func(t *template) { t.record = append([]byte{0}, record...) },
		"DigestNotLast":    func(t *template) { t.record = append(bytes.Clone(record), 0) },
		"TooShort":         func(t *template) { t.record = record[:8] },
	} {
		other := good
		if spoil(&other); other.check(r) == nil {
			t.Errorf("%s: went unnoticed", name)
		}
	}
}

// TestSmoke runs P4 and P6 for a moment, each side in a child as always.
func TestSmoke(t *testing.T) {
	t.Parallel()
	o := &options{pairs: 1, seconds: 1, retained: 2000}
	for _, e := range []experiment{{"P4", p4}, {"P6", p6}} {
		f := &folder{name: e.name, dir: filepath.Join(t.TempDir(), e.name), opts: o}
		r, err := f.run(t.Context(), e, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		for _, side := range r.Order {
			if len(r.Samples[side]) != 1 || r.Samples[side][0].Ops == 0 {
				t.Errorf("%s: %s: %+v", e.name, side, r.Samples[side])
			}
		}
		if e.name == "P6" {
			with := r.Samples[r.Order[0]][0].Extra
			if with[skippedShare] < 90 || with["filter_keys"] < 2000 {
				t.Errorf("with the filter: %v", with)
			}
			if _, used := r.Samples[r.Order[1]][0].Extra[skippedShare]; used {
				t.Error("the filter was used where it was to be off")
			}
		}
		if err := f.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSmokeServers: the other roles against a server in this process.
func TestSmokeServers(t *testing.T) {
	t.Parallel()
	f := &folder{dir: t.TempDir(), opts: &options{}}
	empty, err := f.startEmpty(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	j := empty.job("unary", 4)
	j.Seconds = 0.1
	if s, err := j.run(t.Context()); err != nil || s.Ops == 0 {
		t.Errorf("unary claims: %+v, %v", s, err)
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
	count := &job{Role: "allocations", Dir: t.TempDir(), Keys: 4 * allocationBatch}
	if s, err := count.run(t.Context()); err != nil || s.Extra[allocsPerClaim] <= 0 {
		t.Errorf("allocations: %+v, %v", s, err)
	}
}

func TestChild(t *testing.T) {
	t.Parallel()
	if _, err := (&job{Role: "nonsense"}).run(t.Context()); err == nil || !strings.Contains(err.Error(), `unknown role "nonsense"`) {
		t.Errorf("error = %v, want the child's", err)
	}
	if err := child(t.Context(), strings.NewReader("no job\n"), &bytes.Buffer{}); err == nil {
		t.Error("a job that cannot be read was done")
	}
}

// TestChildEndsWithItsParent: an end of input is the end of the parent.
func TestChildEndsWithItsParent(t *testing.T) {
	t.Parallel()
	line, err := json.Marshal(&job{Role: "driver", Callers: 1, Seconds: 3600, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	err = child(t.Context(), bytes.NewReader(append(line, '\n')), &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "the parent is gone") {
		t.Errorf("error = %v", err)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	o, err := parseOptions([]string{"-only", "P1,P4"}, &bytes.Buffer{})
	if err != nil || !o.wants("P1") || !o.wants("P4") || o.wants("P3") {
		t.Errorf("options = %+v, %v", o, err)
	}
	if o, err := parseOptions(nil, &bytes.Buffer{}); err != nil || !o.wants("P9") || o.pairs != 5 {
		t.Errorf("options = %+v, %v", o, err)
	}
	_, err = parseOptions([]string{"-only", "P1,P99", "-pairs", "0", "-seconds", "61", "-retained", "1", "-completed", "0", "-growth", "1", "-updated", "1"}, &bytes.Buffer{})
	for _, fault := range []string{`"P99" is unknown`, "-pairs", "-seconds", "-retained", "-completed", "-growth", "-updated"} {
		if err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("error lacks %s: %v", fault, err)
		}
	}
}

func TestLinkTree(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	if err := os.Mkdir(filepath.Join(from, "db"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"db/1.sst": "table", "db/2.log": "log"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := linkTree(from, to); err != nil {
		t.Fatal(err)
	}
	same := func(name string) bool {
		a, errA := os.Stat(filepath.Join(from, name))
		b, errB := os.Stat(filepath.Join(to, name))
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		return os.SameFile(a, b)
	}
	if !same("db/1.sst") || same("db/2.log") {
		t.Error("tables are to be shared, and only they")
	}
	if text, err := os.ReadFile(filepath.Join(to, "db/2.log")); err != nil || string(text) != "log" {
		t.Errorf("the copy says %q, %v", text, err)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	if got := redisVersion("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc"); got != "7.0.15" {
		t.Errorf("Redis %q", got)
	}
	if err := (&run{FileSystem: "tmpfs"}).usable(); err == nil {
		t.Error("syncs were to be measured in memory")
	}
	if err := (&run{FileSystem: "ext4"}).usable(); err != nil {
		t.Error(err)
	}
}

// TestPublish: the table is written when all was measured, the notes behind it.
func TestPublish(t *testing.T) {
	t.Parallel()
	o := &options{out: t.TempDir(), pairs: 1, seconds: 1}
	if err := os.WriteFile(filepath.Join(o.out, "NOTES.md"), []byte("## What binds\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	about := &run{Commit: "abc", Changed: true, Began: time.Unix(0, 0).UTC()}
	one := &ratio.Result{
		Name: "P0", Order: []string{"a"}, Samples: map[string][]measure.Sample{"a": {{Ops: 10, Seconds: 1}}},
		Comparisons: []ratio.Comparison{{ID: "P0", Unit: "claims", Ours: "a", Against: "a", Budget: 1}},
	}
	var printed bytes.Buffer
	if err := o.publish(about, []*ratio.Result{one}, &printed); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(o.out, "RESULTS.md")); err == nil {
		t.Error("results of a part were written")
	}
	results := make([]*ratio.Result, len(all))
	for i := range results {
		results[i] = one
	}
	if err := o.publish(about, results, &printed); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(o.out, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Commit abc with uncommitted changes", "| P0 | a, claims | a |", "## What binds"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("RESULTS.md lacks %q:\n%s", want, text)
		}
	}
}
