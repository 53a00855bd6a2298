package pebble

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
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

// valve lets syncs through, or holds or fails them.
type valve struct {
	mu   sync.Mutex
	gate chan struct{} // nil: open
	err  error
}

func (v *valve) String() string { return "valve" }

func (v *valve) MaybeError(op errorfs.Op) error {
	if op.Kind != errorfs.OpFileSyncData && op.Kind != errorfs.OpFileSync {
		return nil
	}
	v.mu.Lock()
	gate, err := v.gate, v.err
	v.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return err
}

func (v *valve) set(gate chan struct{}, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gate, v.err = gate, err
}

// TestStalledDisk: two seconds after the disk stops answering, claims are
// refused at the door; they are taken again when it answers.
func TestStalledDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &valve{}
		s := mustOpen(t, Config{FS: errorfs.Wrap(vfs.NewMem(), v), Clock: time.Now})
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- s.Run(ctx) }()
		insertMany(t, s, "before", 1)

		gate := make(chan struct{})
		v.set(gate, nil)
		inside := make(chan error, 1)
		callerCtx, leave := context.WithTimeout(ctx, time.Second)
		defer leave()
		go func() {
			_, err := s.InsertOrGet(callerCtx, []claim.Request{testRequest("inside", claim.AttemptID{1})})
			inside <- err
		}()
		if err := <-inside; !errors.Is(err, storage.ErrUnknown) {
			t.Errorf("a caller that left while the disk was stalled: %v, want ErrUnknown", err)
		}
		time.Sleep(beatEvery + StallMaxDefault)
		synctest.Wait()
		if err := s.Ready(ctx); !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("ready on a stalled disk: %v", err)
		}
		_, err := s.InsertOrGet(ctx, []claim.Request{testRequest("outside", claim.AttemptID{1})})
		if !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("claim on a stalled disk: %v", err)
		}
		v.set(nil, nil)
		close(gate)
		synctest.Wait()
		if err := s.Ready(ctx); err != nil {
			t.Errorf("ready after the disk came back: %v", err)
		}
		insertMany(t, s, "after", 1)
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// TestFailedSyncIsFatal: an operating system that lost a write may not say so
// twice; the process ends, and nobody is told that the write is durable. It
// runs in a process of its own.
func TestFailedSyncIsFatal(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), failedSyncEnv+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("the process ended with %v\n%s", err, out)
	}
	if strings.Contains(string(out), "acknowledged") || !strings.Contains(string(out), "the store cannot go on") {
		t.Fatalf("the process said: %s", out)
	}
}

// failedSyncEnv makes the test binary run failedSync instead of the tests.
const failedSyncEnv = "WARIFU_PEBBLE_FAILED_SYNC"

func failedSync() {
	v := &valve{}
	s, err := Open(Config{
		Dir: "store", FS: errorfs.Wrap(vfs.NewMem(), v), Clock: time.Now,
	})
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	v.set(nil, errors.New("input/output error"))
	_, err = s.InsertOrGet(context.Background(), []claim.Request{testRequest("a", claim.AttemptID{1})})
	fmt.Println("acknowledged:", err)
}

// spaceFS says how much space is left.
type spaceFS struct {
	vfs.FS
	mu   sync.Mutex
	free uint64
}

func (f *spaceFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return vfs.DiskUsage{AvailBytes: f.free}, nil
}

// TestFreeSpace: claims are refused first; under the second limit bodies go,
// completions never.
func TestFreeSpace(t *testing.T) {
	t.Parallel()
	fs := &spaceFS{FS: vfs.NewMem(), free: math.MaxUint64}
	s := mustOpen(t, Config{FS: fs, Clock: storagetest.NewClock(epoch).Now, FreeClaimsMin: 1000, FreeBodiesMin: 100})
	ctx := context.Background()
	claimed := func(event string) storage.Found {
		found, err := s.InsertOrGet(ctx, []claim.Request{testRequest(event, claim.AttemptID{1})})
		if err != nil {
			t.Fatal(err)
		}
		return found[0]
	}
	left := func(n uint64) {
		fs.mu.Lock()
		fs.free = n
		fs.mu.Unlock()
		s.measureSpace()
	}
	first, second := claimed("a").Record, claimed("b").Record
	done := func(rec claim.Record) storage.Found {
		c := claim.Completion{Outcome: claim.Succeeded, Body: []byte("result")}.Summed()
		found, err := s.Transition(ctx, []claim.Transition{{
			Kind: claim.Complete, Key: rec.Key, Attempt: rec.AttemptID, Fence: rec.Fence, Completion: &c,
		}})
		if err != nil {
			t.Fatal(err)
		}
		return found[0]
	}
	left(999)
	if f := claimed("c"); !errors.Is(f.Err, storage.ErrFull) {
		t.Errorf("a new claim with little space: %+v", f)
	}
	if f := claimed("a"); f.Err != nil || f.Record.AttemptID != first.AttemptID {
		t.Errorf("a known key with little space: %+v", f)
	}
	if err := s.Ready(ctx); !errors.Is(err, storage.ErrFull) {
		t.Errorf("ready with little space: %v", err)
	}
	if f := done(first); f.Record.State != claim.Completed || string(f.Record.Completion.Body) != "result" {
		t.Errorf("completion with little space: %+v", f)
	}
	left(99)
	if f := done(second); f.Record.State != claim.Completed || f.Record.Completion.Body != nil || f.Record.Completion.Omitted != claim.StoreFull {
		t.Errorf("completion with hardly any space: %+v", f.Record.Completion)
	}
	left(1000)
	if f := claimed("c"); f.Err != nil {
		t.Errorf("a new claim after space came back: %+v", f)
	}
}
