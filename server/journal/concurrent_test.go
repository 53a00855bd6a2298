package journal

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

func yieldNow() { runtime.Gosched() }

// TestConcurrent: appends, readers and removals at once, then a crash: every
// acknowledged entry was read before it was removed, or is there.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	const callers, each = 8, 150
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	fsys := newMemFS()
	j := openOn(t, fsys)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	seen, reader := map[int]bool{}, sync.WaitGroup{}
	drain := func() {
		var last Cursor
		for r, err := range j.All(0) {
			if err != nil {
				t.Error(err)
				return
			}
			last, seen[number(&r.Entry)] = r.Cursor, true
		}
		if err := j.Remove(last); err != nil {
			t.Error(err)
		}
	}
	reader.Go(func() {
		for ctx.Err() == nil {
			drain()
		}
	})
	var writers sync.WaitGroup
	for c := range callers {
		writers.Go(func() {
			for i := range each {
				if err := j.Append(t.Context(), []Entry{entry(c*each + i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	stop()
	reader.Wait()
	after := openOn(t, fsys.crash(rand.New(rand.NewPCG(seed, 4))))
	for _, r := range all(t, after, 0) {
		seen[number(&r.Entry)] = true
	}
	if len(seen) != callers*each {
		t.Errorf("%d entries seen, want %d", len(seen), callers*each)
	}
}

// TestImpatient: a caller whose time is over does not wait for the disk, and
// what had not begun is not written.
func TestImpatient(t *testing.T) {
	t.Parallel()
	fsys := newMemFS()
	j := openOn(t, fsys)
	syncing, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fsys.inject(func(op, _ string) error {
		if op == "sync" {
			once.Do(func() { close(syncing); <-proceed })
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	impatient := func(n int) {
		callers.Go(func() {
			if err := j.Append(ctx, []Entry{entry(n)}); !errors.Is(err, context.Canceled) {
				t.Errorf("append %d: %v", n, err)
			}
		})
	}
	impatient(0)
	<-syncing
	impatient(1)
	awaitQueue(j, 1)
	j.Stats() // does not wait either
	cancel()
	callers.Wait()
	close(proceed)
	fill(t, j, 2, 3)
	got := all(t, j, 0)
	if len(got) != 2 || number(&got[0].Entry) != 0 || number(&got[1].Entry) != 2 {
		t.Errorf("entries %v", got)
	}
}

// TestQueueBound: a disk that hangs does not gather memory, and Close answers
// what had been taken.
func TestQueueBound(t *testing.T) {
	t.Parallel()
	fsys := newMemFS()
	j := openOn(t, fsys, func(c *Config) { c.BytesMax = 64 << 20 })
	syncing, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fsys.inject(func(op, _ string) error {
		if op == "sync" {
			once.Do(func() { close(syncing); <-proceed })
		}
		return nil
	})
	var callers sync.WaitGroup
	var taken, refused int
	var mu sync.Mutex
	big := make([]Entry, EntriesMax)
	for i := range big {
		big[i] = largestEntry()
	}
	call := func() {
		err := j.Append(context.Background(), big)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			taken++
		case errors.Is(err, ErrFull):
			refused++
		default:
			t.Error(err)
		}
	}
	callers.Go(call)
	<-syncing
	for range 5 {
		callers.Go(call)
	}
	const fit = queueBytesMax / bodyBytesMax
	for {
		mu.Lock()
		n := refused
		mu.Unlock()
		if n == 5-fit {
			break
		}
		yieldNow()
	}
	closed := make(chan error)
	go func() { closed <- j.Close() }()
	close(proceed)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	callers.Wait()
	if taken != 1+fit {
		t.Errorf("%d taken, want %d", taken, 1+fit)
	}
}
