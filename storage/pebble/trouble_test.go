package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
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

// trouble fails or holds file operations that match.
type trouble struct {
	mu    sync.Mutex
	match func(errorfs.Op) bool // nil: none
	gate  chan struct{}
	met   chan struct{} // one token for an operation that was met
	err   error
}

func (v *trouble) String() string { return "trouble" }

func (v *trouble) MaybeError(op errorfs.Op) error {
	v.mu.Lock()
	met := v.match != nil && v.match(op)
	gate, err := v.gate, v.err
	v.mu.Unlock()
	if !met {
		return nil
	}
	select {
	case v.met <- struct{}{}:
	default:
	}
	if gate != nil {
		<-gate
	}
	return err
}

// fail makes matching operations fail, hold makes them wait for the gate.
func (v *trouble) fail(match func(errorfs.Op) bool) {
	v.set(match, nil, errors.New("no space left on device"))
}
func (v *trouble) hold(match func(errorfs.Op) bool) (gate chan struct{}) {
	gate = make(chan struct{})
	v.set(match, gate, nil)
	return gate
}
func (v *trouble) end() { v.set(nil, nil, nil) }

func (v *trouble) set(match func(errorfs.Op) bool, gate chan struct{}, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.match, v.gate, v.err = match, gate, err
}

func newTrouble() *trouble { return &trouble{met: make(chan struct{}, 1)} }

func makesLog(op errorfs.Op) bool {
	return op.Kind == errorfs.OpCreate && strings.Contains(op.Path, walPrefix)
}

func makesFlush(op errorfs.Op) bool {
	return op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, flushName)
}

func makesTable(op errorfs.Op) bool {
	return op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") && !makesFlush(op)
}

func syncsLog(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileSyncData && strings.Contains(op.Path, walPrefix)
}

// fillSegment claims until the next frame has to go into another segment.
func fillSegment(t *testing.T, s *Store) {
	t.Helper()
	for n := 0; s.wal.mu.cur.off+2*blockBytes+sealBytes <= s.wal.mu.cur.size; n++ {
		insertMany(t, s, fmt.Sprintf("fill%d", n), 1)
	}
}

// TestFlushAheadOfARotation: the segment that a flush names as the one a start
// begins with stays, also when it is sealed while the flush is under way.
func TestFlushAheadOfARotation(t *testing.T) {
	t.Parallel()
	log, table := newTrouble(), newTrouble()
	fs, clock := vfs.NewMem(), storagetest.NewClock(epoch)
	s := mustOpen(t, Config{FS: errorfs.Wrap(errorfs.Wrap(fs, log), table), Clock: clock.Now, MemTableBytes: 1 << 20})
	fillSegment(t, s)
	logGate, tableGate := log.hold(syncsLog), table.hold(makesFlush)
	claimed := make(chan error, 1)
	go func() {
		_, err := s.InsertOrGet(context.Background(), []claim.Request{testRequest("last", claim.AttemptID{1})})
		claimed <- err
	}()
	<-log.met // the seal is under way, and the claim in memory only
	s.mu.Lock()
	s.freeze()
	s.mu.Unlock()
	<-table.met // the flush knows its segment
	log.end()
	close(logGate)
	if err := <-claimed; err != nil {
		t.Fatal(err)
	}
	m := s.oldestFrozen()
	table.end()
	close(tableGate)
	<-m.flushed
	for n := 0; s.wal.mu.cur.off <= s.wal.mu.cur.size/2; n++ { // a segment that was let go would be used again
		insertMany(t, s, fmt.Sprintf("after%d", n), 1)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := mustOpen(t, Config{FS: fs, Clock: clock.Now})
	again.mustGet(t, "last")
	again.mustGet(t, "after0-0")
}

// TestEnlargedSegmentIsDurable: a frame that does not fit into the prepared
// segment goes into a larger one, whose name survives a power cut.
func TestEnlargedSegmentIsDurable(t *testing.T) {
	t.Parallel()
	v := newTrouble()
	fs, clock := vfs.NewCrashableMem(), storagetest.NewClock(epoch)
	s := mustOpen(t, Config{FS: errorfs.Wrap(fs, v), Clock: clock.Now, MemTableBytes: 1 << 20})
	for n := 0; s.wal.mu.cur.off <= s.wal.mu.cur.size/2; n++ {
		insertMany(t, s, fmt.Sprintf("fill%d", n), 1)
	}
	after := segmentName(s.wal.mu.cur.number + 2)
	gate := v.hold(func(op errorfs.Op) bool { return makesLog(op) && strings.HasSuffix(op.Path, after) })
	defer close(gate)
	rec := claimOne(t, s, "big", testRng())
	big := claim.Completion{Outcome: claim.Succeeded, Body: make([]byte, 100<<10)}.Summed()
	transition(t, s, claim.Complete, rec, &big)
	fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: testRng()})
	again := mustOpen(t, Config{FS: fs, Clock: clock.Now})
	if got := again.mustGet(t, "big"); got.State != claim.Completed {
		t.Fatalf("acknowledged, and now %v", got.State)
	}
}

// TestNothingThatCallersWriteIsAFrame: a result in the shape of a frame is not
// replayed where a power cut took the frame that it is in.
func TestNothingThatCallersWriteIsAFrame(t *testing.T) {
	t.Parallel()
	fs, clock := vfs.NewMem(), storagetest.NewClock(epoch)
	s := mustOpen(t, Config{FS: fs, Clock: clock.Now, MemTableBytes: 1 << 20})
	victim, evil := claimOne(t, s, "victim", testRng()), claimOne(t, s, "evil", testRng())
	seq := s.mu.last.seq + 1
	ops := beginOp(nil, opDelete, 0, appendRecordKey(nil, &victim.Key))
	b := meta{seq: seq, hwm: 1, ceil: 1}.append(make([]byte, frameHeader))
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(ops))), ops...)
	forged := finishFrame(b, s.wal.mu.cur.number, seq, false)[:blockBytes]
	lead := padding(frameHeader + metaLen + 4 + opHeaderLen + len(appendRecordKey(nil, &evil.Key)))
	c := claim.Completion{Outcome: claim.Succeeded, Body: append(append(make([]byte, lead), forged...), make([]byte, 100)...)}.Summed()
	segment, from := s.wal.mu.cur.number, s.wal.mu.cur.off
	transition(t, s, claim.Complete, evil, &c)
	half := (s.wal.mu.cur.off - from) / 2
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := fs.OpenReadWrite(fs.PathJoin("store", segmentName(segment)), vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{from, from + half, from + half + blockBytes, from + half + 2*blockBytes} {
		if _, err := f.WriteAt(zeroBlock[:], at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, Config{FS: fs, Clock: clock.Now}).mustGet(t, "victim")
}

// TestNoncesDiffer: no two segments share a nonce, also not one and the one that
// took its file.
func TestNoncesDiffer(t *testing.T) {
	t.Parallel()
	l := newTestLog(t)
	seen := map[uint64]uint64{}
	for range 60 {
		l.write(1, 100)
		cur := l.wal.mu.cur.header
		if number, known := seen[cur.nonce]; known && number != cur.number || cur.nonce == 0 {
			t.Fatalf("segments %d and %d have nonce %d", number, cur.number, cur.nonce)
		}
		seen[cur.nonce] = cur.number
		if err := l.wal.flushed(cur.number); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) < 10 {
		t.Fatalf("only %d segments", len(seen))
	}
}

// TestFullDiskIsNotDamage: a start that finds no room says so, leaves nothing
// behind, and has lost nothing: there is nothing to restore.
func TestFullDiskIsNotDamage(t *testing.T) {
	t.Parallel()
	for name, match := range map[string]func(errorfs.Op) bool{"log": makesLog, "table": makesFlush} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, fs := newTrouble(), vfs.NewMem()
			cfg := small(Config{Dir: "store", FS: errorfs.Wrap(fs, v), Clock: storagetest.NewClock(epoch).Now})
			refused := func(when string) {
				t.Helper()
				if _, err := Open(cfg); err == nil || errors.Is(err, storage.ErrDamaged) {
					t.Errorf("%s: %v, want an error that is not damage", when, err)
				}
			}
			v.fail(match)
			refused("a new store")
			v.end()
			s := mustOpen(t, cfg)
			insertMany(t, s, "a", 5)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			v.fail(match)
			for range 3 {
				refused("a store with claims")
			}
			v.end()
			if left, err := segments(fs, "store"); err != nil || len(left) > 2 {
				t.Errorf("starts that failed left segments %v: %v", left, err)
			}
			mustOpen(t, cfg).mustGet(t, "a-4")
		})
	}
}

// TestSweepOfAnEntryThatBecomesDue: an entry of which a step saw a part before
// all of it was due is not used up by the next step.
func TestSweepOfAnEntryThatBecomesDue(t *testing.T) {
	t.Parallel()
	clock := storagetest.NewClock(epoch)
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: clock.Now, MemTableBytes: 1 << 20})
	clock.Advance(500 * time.Millisecond)
	insertMany(t, s, "k", 10)
	flushAll(t, s)
	clock.Advance(claim.DefaultPolicy().Retention + s.cfg.SweepGrace - 400*time.Millisecond)
	out, err := s.Sweep(context.Background(), storage.Sweep{Limit: 3})
	if err != nil || out.Deleted != 0 || out.Cursor == nil {
		t.Fatalf("%+v, %v", out, err)
	}
	clock.Advance(time.Second)
	if _, err := s.Sweep(context.Background(), storage.Sweep{Limit: 100, Cursor: out.Cursor}); err != nil {
		t.Fatal(err)
	}
	flushAll(t, s) // what is used up is gone now
	sweepAll(t, s, 100)
	if records, entries := listAll(t, s, 100), countKeys(t, s, indexPrefix); len(records) != 0 || entries != 0 {
		t.Fatalf("%d records and %d index entries are left", len(records), entries)
	}
}

// TestFullFilterIsRebuiltAfterAFailure: one failure does not leave it full.
func TestFullFilterIsRebuiltAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: time.Now, MemTableBytes: 1 << 20, FilterKeysMin: 100})
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- s.runFilter(ctx) }()
		synctest.Wait()
		insertMany(t, s, "a", 50)
		s.gate.stalled.Store(true)
		s.mu.Lock()
		s.filter.count.Store(s.filter.full - 1)
		s.filter.added()
		s.mu.Unlock()
		synctest.Wait()
		s.gate.stalled.Store(false)
		time.Sleep(rebuildRetry)
		synctest.Wait()
		if st := filterStats(t, s); st.Rebuilds == 0 {
			t.Errorf("never rebuilt: %+v", st)
		}
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}

// TestCloseBehindAFailingFlush: a sweep that waits for a flush, and writers that
// wait for room, do not hold up Close.
func TestCloseBehindAFailingFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, clock := newTrouble(), storagetest.NewClock(epoch)
		s := mustOpen(t, Config{FS: errorfs.Wrap(vfs.NewMem(), v), Clock: clock.Now})
		insertMany(t, s, "a", 10)
		clock.Advance(1000 * time.Hour)
		gate := v.hold(makesFlush)
		ended := make(chan error, 3)
		go func() {
			_, err := s.Sweep(context.Background(), storage.Sweep{Limit: 10})
			ended <- err
		}()
		synctest.Wait()
		go func() {
			var err error
			for n := 0; err == nil; n++ {
				_, err = s.InsertOrGet(context.Background(), []claim.Request{testRequest(fmt.Sprint(n), claim.AttemptID{1})})
			}
			ended <- err
		}()
		synctest.Wait()
		go func() { ended <- s.beat(context.Background()) }()
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		for range cap(ended) {
			if err := <-ended; !errors.Is(err, storage.ErrClosed) {
				t.Errorf("ended with %v, want ErrClosed", err)
			}
		}
		v.end()
		close(gate)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// TestNextSegmentIsTriedAgain: a segment that could not be prepared for want of
// room does not end the process when there is room again.
func TestNextSegmentIsTriedAgain(t *testing.T) {
	t.Parallel()
	v := newTrouble()
	s := mustOpen(t, Config{FS: errorfs.Wrap(vfs.NewMem(), v), Clock: storagetest.NewClock(epoch).Now, MemTableBytes: 1 << 20})
	v.fail(makesLog)
	for n := 0; s.wal.mu.cur.off <= s.wal.mu.cur.size/2; n++ {
		insertMany(t, s, fmt.Sprintf("fill%d", n), 1)
	}
	<-v.met
	v.end()
	insertMany(t, s, "after", 20*claim.BatchItemsMax)
}

// TestCompactionsThatFailed: once they can go on, writers can.
func TestCompactionsThatFailed(t *testing.T) {
	t.Parallel()
	v := newTrouble()
	s := mustOpen(t, Config{FS: errorfs.Wrap(vfs.NewMem(), v), Clock: storagetest.NewClock(epoch).Now})
	v.fail(makesTable)
	insert := func(name string, longest time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), longest)
		defer cancel()
		_, err := s.InsertOrGet(ctx, []claim.Request{testRequest(name, claim.AttemptID{1})})
		return err
	}
	for n := 0; s.db.Metrics().Levels[0].Sublevels < sublevelsMax; n++ {
		if err := insert(fmt.Sprint(n), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	v.end()
	for n := range 200 { // more than memory holds
		if err := insert(fmt.Sprintf("late-%d", n), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBodyOfAnotherLife: a reader that has the record of one life does not get
// the body of the next.
func TestBodyOfAnotherLife(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now, MemTableBytes: 1 << 20})
	result := func(fill string) *claim.Completion {
		c := claim.Completion{Outcome: claim.Succeeded, Body: []byte(strings.Repeat(fill, inlineBodyMax+1))}.Summed()
		return &c
	}
	done := transition(t, s, claim.Complete, claimOne(t, s, "a", testRng()), result("1"))
	encoded := appendRecordKey(nil, &done.Key)
	var read claim.Record
	s.mu.Lock()
	aside, err := s.readLocked(maphash.Bytes(s.seed, encoded), encoded, done.Key, &read)
	s.mu.Unlock()
	if err != nil || !aside {
		t.Fatalf("aside %v, %v", aside, err)
	}
	swap(t, s, claim.NewSwap(claim.Forget, &done, nil))
	gone, anew := s.mustGet(t, "a"), testRequest("a", claim.AttemptID{9})
	swap(t, s, claim.NewSwap(claim.BeginAnew, &gone, &anew))
	transition(t, s, claim.Complete, s.mustGet(t, "a"), result("2"))
	if err := s.readBody(encoded, &read); err != nil {
		t.Fatal(err)
	}
	if read.AttemptID != anew.Attempt || read.Completion.Body[0] != '2' || !read.Completion.Same(result("2")) {
		t.Fatalf("attempt %v has a body that begins with %q", read.AttemptID, read.Completion.Body[0])
	}
}

func TestLogSegmentsHaveRoom(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]bool{blockBytes: false, 3 * blockBytes: false, logSegmentBytesMin + 1: false, logSegmentBytesMin: true} {
		s, err := Open(Config{Dir: "store", FS: vfs.NewMem(), Clock: time.Now, LogSegmentBytes: size})
		if (err == nil) != want {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
