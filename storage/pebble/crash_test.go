package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// crashClones is how many crashes the sweep simulates, at random points of a
// running store; crashGenerations is how often it goes on from what a crash
// left.
const (
	crashClones      = 520
	crashGenerations = 26
	crashLineage     = 4 // generations that go on from each other, then a new disk
	crashWriters     = 4
	crashTurns       = 2 // rounds of work between two crashes
)

// ledger is what was acknowledged to clients: the truth that a crash must not
// take back.
type ledger struct {
	mu      sync.Mutex
	records map[claim.Key]claim.Record
}

func newLedger() *ledger {
	return &ledger{records: map[claim.Key]claim.Record{}}
}

func (l *ledger) ack(rec claim.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.records[rec.Key]; old.Version < rec.Version || old.Fence < rec.Fence {
		l.records[rec.Key] = rec
	}
}

func (l *ledger) snapshot() map[claim.Key]claim.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[claim.Key]claim.Record, len(l.records))
	for k, r := range l.records {
		out[k] = r
	}
	return out
}

func testAttempt(rng *rand.Rand) (a claim.AttemptID) {
	binary.BigEndian.PutUint64(a[:], rng.Uint64()|1)
	binary.BigEndian.PutUint64(a[8:], rng.Uint64())
	return a
}

func testRequest(event string, attempt claim.AttemptID) claim.Request {
	return claim.Request{
		Key: claim.Key{Tenant: 1, Consumer: "c", EventID: event}, Attempt: attempt,
		Digests:      []claim.Digest{{Scheme: "s", Value: []byte{1, 2, 3}}},
		InsertBefore: claim.Never, Lease: claim.LeaseDefault, Policy: claim.DefaultPolicy(),
	}
}

func body(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// work claims, completes and releases keys, a round for every turn until there
// are no more, and notes what was acknowledged.
func work(s *Store, ledgers []*ledger, rng *rand.Rand, name string, turns <-chan struct{}) error {
	ack := func(rec claim.Record) {
		for _, l := range ledgers {
			l.ack(rec)
		}
	}
	i := 0
	for range turns {
		i++
		reqs := make([]claim.Request, 1+rng.IntN(8))
		for j := range reqs {
			reqs[j] = testRequest(fmt.Sprintf("%s-%d-%d", name, i, j), testAttempt(rng))
		}
		found, err := s.InsertOrGet(context.Background(), reqs)
		if err != nil {
			return err
		}
		var ts []claim.Transition
		for _, f := range found {
			ack(f.Record)
			t := claim.Transition{Kind: claim.Complete, Key: f.Record.Key, Attempt: f.Record.AttemptID, Fence: f.Record.Fence}
			switch rng.IntN(3) {
			case 0:
				continue
			case 1:
				t.Kind = claim.Release
			default:
				size := []int{0, 20, 20, 20, 20, 20, inlineBodyMax, inlineBodyMax + 1}[rng.IntN(8)]
				c := claim.Completion{Outcome: claim.Succeeded, Body: body(rng, size)}.Summed()
				t.Completion = &c
			}
			ts = append(ts, t)
		}
		found, err = s.Transition(context.Background(), ts)
		if err != nil {
			return err
		}
		for _, f := range found {
			ack(f.Record)
		}
	}
	return nil
}

// verify checks that a store holds at least what was acknowledged, and that
// what it holds is newer only in ways that a client could have asked for.
func verify(s *Store, acked map[claim.Key]claim.Record) error {
	var keys []claim.Key
	for k := range acked {
		keys = append(keys, k)
	}
	for len(keys) > 0 {
		n := min(len(keys), claim.BatchItemsMax)
		found, err := s.Get(context.Background(), keys[:n])
		if err != nil {
			return err
		}
		for i, f := range found {
			if err := newer(acked[keys[i]], f.Record); err != nil {
				return err
			}
		}
		keys = keys[n:]
	}
	return s.Scan(context.Background(), func(claim.Key) error { return nil })
}

var errLost = errors.New("acknowledged and lost")

func newer(want, got claim.Record) error {
	switch {
	case got.State == claim.Absent:
		return fmt.Errorf("%w: %v (version %d)", errLost, want.Key, want.Version)
	case got.Fence < want.Fence || got.Version < want.Version:
		return fmt.Errorf("%w: %v went back from version %d to %d", errLost, want.Key, want.Version, got.Version)
	case got.Version == want.Version && !storagetest.SameRecord(want, got):
		return fmt.Errorf("%w: %v differs at version %d", errLost, want.Key, want.Version)
	case want.State == claim.Completed && !got.Completion.Same(want.Completion):
		return fmt.Errorf("%w: the result of %v", errLost, want.Key)
	}
	return nil
}

// TestCrashClones crashes a store under load at random points, with none, some
// or all of what was not synced surviving, and opens what is left. Nothing
// acknowledged may be missing, and no fence may come twice.
func TestCrashClones(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	clock := storagetest.NewClock(epoch)
	var fs *vfs.MemFS
	var l *ledger
	for g := range crashGenerations {
		if g%crashLineage == 0 {
			fs, l = vfs.NewCrashableMem(), newLedger()
		}
		fs = crashGeneration(t, fs, clock, l, rng, g)
	}
}

// crashGeneration runs a store, crashes it many times and returns the disk of
// one crash to go on from.
func crashGeneration(t *testing.T, fs *vfs.MemFS, clock *storagetest.Clock, l *ledger, rng *rand.Rand, g int) *vfs.MemFS {
	t.Helper()
	s := mustOpen(t, Config{FS: fs, Clock: clock.Now})
	if err := verify(s, l.snapshot()); err != nil {
		t.Fatalf("generation %d: %v", g, err)
	}
	fresh := claimOne(t, s, fmt.Sprintf("first-of-%d", g), rng)
	for _, r := range l.snapshot() {
		if r.Fence >= fresh.Fence {
			t.Fatalf("generation %d: fence %d was given out again or went back behind %d", g, fresh.Fence, r.Fence)
		}
	}
	l.ack(fresh)
	turns, young := make(chan struct{}), newLedger()
	var wg sync.WaitGroup
	halt := sync.OnceFunc(func() { close(turns); wg.Wait() })
	defer halt()
	for w := range crashWriters {
		wrng := rand.New(rand.NewPCG(rng.Uint64(), uint64(w)))
		wg.Go(func() {
			if err := work(s, []*ledger{l, young}, wrng, fmt.Sprintf("g%d-w%d", g, w), turns); err != nil {
				t.Errorf("worker: %v", err)
			}
		})
	}
	for range crashClones / crashGenerations {
		for range crashTurns {
			turns <- struct{}{}
		}
		acked := young.snapshot()
		left := fs.CrashClone(vfs.CrashCloneCfg{
			UnsyncedDataPercent: []int{0, 50, 100}[rng.IntN(3)],
			RNG:                 rand.New(rand.NewPCG(rng.Uint64(), 3)),
		})
		checkClone(t, left, clock, acked)
	}
	halt()
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(rng.Uint64(), 4))})
}

func claimOne(t *testing.T, s *Store, event string, rng *rand.Rand) claim.Record {
	t.Helper()
	found, err := s.InsertOrGet(context.Background(), []claim.Request{testRequest(event, testAttempt(rng))})
	if err != nil {
		t.Fatal(err)
	}
	return found[0].Record
}

// checkClone opens a copy of a crashed disk, so that the copy that the next
// generation goes on from is untouched.
func checkClone(t *testing.T, fs *vfs.MemFS, clock *storagetest.Clock, acked map[claim.Key]claim.Record) {
	t.Helper()
	s, err := Open(small(Config{Dir: "store", FS: fs, Clock: clock.Now}))
	if err != nil {
		t.Fatalf("open after crash: %v", err)
	}
	if err := errors.Join(verify(s, acked), s.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestCrashOfACrash: opening after a crash and crashing again before anything
// was written loses nothing either.
func TestCrashOfACrash(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	fs := vfs.NewCrashableMem()
	clock := storagetest.NewClock(epoch)
	s := mustOpen(t, Config{FS: fs, Clock: clock.Now})
	l := newLedger()
	l.ack(claimOne(t, s, "a", rng))
	for i := range 8 {
		fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng})
		s = mustOpen(t, Config{FS: fs, Clock: clock.Now})
		if err := verify(s, l.snapshot()); err != nil {
			t.Fatalf("crash %d: %v", i, err)
		}
	}
}

func testRng() *rand.Rand { return rand.New(rand.NewPCG(1, 1)) }
