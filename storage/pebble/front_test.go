package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// TestEveryPlaceOfARecord: a record is found, changed, listed and scanned
// wherever it is: in memory, on its way, or in the engine.
func TestEveryPlaceOfARecord(t *testing.T) {
	t.Parallel()
	v := newTrouble()
	s := mustOpen(t, Config{FS: errorfs.Wrap(vfs.NewMem(), v), Clock: storagetest.NewClock(epoch).Now, MemTableBytes: 1 << 20})
	big := claim.Completion{Outcome: claim.Succeeded, Body: make([]byte, inlineBodyMax+1)}.Summed()
	insertMany(t, s, "a", 40)
	flushAll(t, s) // engine
	gate := v.hold(makesFlush)
	changed := map[string]claim.Record{}
	step := func(n int) {
		for i := n; i < 40; i += 3 {
			rec := s.mustGet(t, fmt.Sprintf("a-%d", i))
			rec = transition(t, s, []claim.TransitionKind{claim.Complete, claim.Release}[i%2], rec, []*claim.Completion{&big, nil}[i%2])
			changed[rec.Key.EventID] = rec
		}
		insertMany(t, s, fmt.Sprintf("n%d", n), 10)
	}
	freeze := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.freeze()
	}
	step(0)
	freeze()
	step(1)
	freeze()
	step(2)
	check := func(where string) {
		t.Helper()
		for event, want := range changed {
			if got := s.mustGet(t, event); !storagetest.SameRecord(want, got) {
				t.Errorf("%s: %s is %+v, want %+v", where, event, got, want)
			}
		}
		var scanned []string
		if err := s.Scan(context.Background(), func(k claim.Key) error { scanned = append(scanned, k.EventID); return nil }); err != nil {
			t.Fatal(err)
		}
		listed := listAll(t, s, 7)
		if len(scanned) != 70 || !slices.Equal(scanned, listed) || !slices.IsSorted(listed) {
			t.Errorf("%s: %d scanned, %d listed, want 70 in order", where, len(scanned), len(listed))
		}
	}
	check("in memory")
	v.end()
	close(gate)
	flushAll(t, s)
	check("in the engine")
}

func (s *Store) mustGet(t *testing.T, event string) claim.Record {
	t.Helper()
	found, err := s.Get(context.Background(), []claim.Key{testRequest(event, claim.AttemptID{}).Key})
	if err != nil || found[0].Record.State == claim.Absent {
		t.Fatalf("%s: %+v, %v", event, found, err)
	}
	return found[0].Record
}

func listAll(t *testing.T, s *Store, limit int) (events []string) {
	t.Helper()
	l := storage.List{Tenant: 1, Limit: limit}
	for {
		page, err := s.List(context.Background(), l)
		if err != nil {
			t.Fatal(err)
		}
		for i := range page.Records {
			events = append(events, page.Records[i].Key.EventID)
		}
		if l.Cursor = page.Cursor; l.Cursor == nil {
			return events
		}
	}
}

// TestSweptInMemory: what was deleted is neither found nor listed, before its
// deletion is written out and after.
func TestSweptInMemory(t *testing.T) {
	t.Parallel()
	clock := storagetest.NewClock(epoch)
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: clock.Now})
	insertMany(t, s, "a", 30)
	clock.Advance(claim.DefaultPolicy().Retention + s.cfg.SweepGrace + time.Hour)
	insertMany(t, s, "b", 5)
	if n := sweepAll(t, s, 7); n != 30 {
		t.Fatalf("%d deleted, want 30", n)
	}
	for range 2 {
		if got := listAll(t, s, 100); len(got) != 5 {
			t.Fatalf("%d records are left, want 5", len(got))
		}
		flushAll(t, s)
	}
	if n := countKeys(t, s, indexPrefix); n != 1 {
		t.Fatalf("%d index entries are left, want that of the 5", n)
	}
}

// TestFlushFails: while memory cannot be written out, writers are refused once
// it is full, and nothing is lost; afterwards it goes on.
func TestFlushFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newTrouble()
		s := mustOpen(t, Config{FS: errorfs.Wrap(vfs.NewMem(), v), Clock: time.Now})
		v.fail(makesFlush)
		taken := 0
		var err error
		for taken < 10_000 && err == nil {
			_, err = s.InsertOrGet(context.Background(), []claim.Request{testRequest(fmt.Sprintf("k-%d", taken), claim.AttemptID{1})})
			if err == nil {
				taken++
			}
		}
		if !errors.Is(err, storage.ErrUnavailable) {
			t.Fatalf("after %d claims: %v, want ErrUnavailable", taken, err)
		}
		if least := frozenMax * int(s.cfg.MemTableBytes) / 300; taken < least {
			t.Errorf("only %d claims were taken, want %d", taken, least)
		}
		if rec := s.mustGet(t, "k-0"); rec.AttemptID != (claim.AttemptID{1}) {
			t.Errorf("%+v", rec)
		}
		v.end()
		time.Sleep(flushRetry)
		synctest.Wait()
		insertMany(t, s, "after", 10)
		for i := range taken {
			s.mustGet(t, fmt.Sprintf("k-%d", i))
		}
	})
}

// TestWritersWaitForFlushes: writers that find memory full wait, and go on when
// there is room.
func TestWritersWaitForFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newTrouble()
		s := mustOpen(t, Config{FS: errorfs.Wrap(vfs.NewMem(), v), Clock: time.Now})
		gate := v.hold(makesFlush)
		done := make(chan struct{})
		go func() {
			defer close(done)
			insertMany(t, s, "a", 2000)
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("nobody waited")
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.InsertOrGet(ctx, []claim.Request{testRequest("impatient", claim.AttemptID{1})})
		if !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("a caller whose time is up while memory is full: %v, want ErrUnavailable", err)
		}
		v.end()
		close(gate)
		<-done
		for i := 0; i < 2000; i += 97 {
			s.mustGet(t, fmt.Sprintf("a-%d", i))
		}
	})
}

// letThrough lets n tables be begun and then fails the others.
type letThrough struct {
	mu sync.Mutex
	n  int
}

func (v *letThrough) String() string { return "let through" }

func (v *letThrough) MaybeError(op errorfs.Op) error {
	if !makesFlush(op) {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.n--; v.n < 0 {
		return errors.New("no more tables")
	}
	return nil
}

func (v *letThrough) set(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.n = n
}

// TestRestartWithFullMemory: a start replays more than one memtable and more
// than one segment, whichever of them were flushed before, and may itself be
// interrupted between any two tables.
func TestRestartWithFullMemory(t *testing.T) {
	t.Parallel()
	for flushed := range frozenMax {
		synctest.Test(t, func(t *testing.T) {
			v := &letThrough{n: 1} // opening takes one
			fs := vfs.NewCrashableMem()
			s := mustOpen(t, Config{FS: errorfs.Wrap(fs, v), Clock: time.Now})
			v.set(0)
			n := fillMemory(t, s)
			v.set(flushed)
			time.Sleep(flushRetry)
			synctest.Wait()
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: testRng()})
			for tables := 0; ; tables++ {
				v.set(tables)
				s, err := Open(small(Config{Dir: "store", FS: errorfs.Wrap(fs, v), Clock: time.Now}))
				if err != nil {
					if tables > frozenMax+2 || !strings.Contains(err.Error(), "no more tables") {
						t.Fatalf("%d flushed, %d tables: %v", flushed, tables, err)
					}
					continue
				}
				if got := listAll(t, s, 500); len(got) != n {
					t.Errorf("%d flushed, %d tables: %d records, want %d", flushed, tables, len(got), n)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				break
			}
		})
	}
}

// fillMemory claims until no memtable may be frozen any more, and returns how
// many claims that took.
func fillMemory(t *testing.T, s *Store) (n int) {
	t.Helper()
	for {
		s.mu.Lock()
		full := len(s.mu.front.frozen) == frozenMax
		s.mu.Unlock()
		if full {
			return n
		}
		insertMany(t, s, fmt.Sprintf("k%d", n), 20)
		n += 20
	}
}

// TestStartRemovesOldLog: a start leaves no segment of the log before it, which
// a later start could take for the newest.
func TestStartRemovesOldLog(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	for n := range uint64(3) {
		s := mustOpen(t, Config{FS: fs, Clock: storagetest.NewClock(epoch).Now})
		insertMany(t, s, fmt.Sprint(n), 20)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := mustOpen(t, Config{FS: fs, Clock: storagetest.NewClock(epoch).Now})
	got, err := segments(fs, "store")
	if err != nil || len(got) != 1 || got[0] != s.wal.mu.cur.number {
		t.Fatalf("segments %v are left, %d is current: %v", got, s.wal.mu.cur.number, err)
	}
}

// TestViewUnderWrites: a scan that runs beside writes and flushes sees every key
// that was there when it began, once and in order.
func TestViewUnderWrites(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now})
	insertMany(t, s, "old", 200)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 1))
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			insertMany(t, s, fmt.Sprintf("new%d", i), 20)
			rec := s.mustGet(t, fmt.Sprintf("old-%d", rng.IntN(200)))
			if rec.State == claim.InProgress {
				transition(t, s, claim.Release, rec, nil)
			}
		}
	})
	for range 40 {
		var keys []string
		if err := s.Scan(context.Background(), func(k claim.Key) error { keys = append(keys, k.EventID); return nil }); err != nil {
			t.Fatal(err)
		}
		old := 0
		for i, k := range keys {
			if strings.HasPrefix(k, "old-") {
				old++
			}
			if i > 0 && keys[i-1] >= k {
				t.Fatalf("%s comes after %s", k, keys[i-1])
			}
		}
		if old != 200 {
			t.Fatalf("%d of 200 old keys were seen", old)
		}
	}
	close(stop)
	wg.Wait()
}
