package sqlstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/bloom"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// decorated puts the decorator before s, with its own filter or another.
func decorated(t storagetest.T, s storage.Store, f bloom.Filter) *bloom.Store {
	t.Helper()
	d, err := bloom.New(bloom.Config{Store: s, Capacity: 64, Filter: f})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return d
}

// filterOn is built, and so small that it is built again all the time.
func filterOn(t storagetest.T, s storage.Store) storage.Store {
	t.Helper()
	d := decorated(t, s, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("run the filter: %v", err)
		}
	})
	return d
}

// filterStale knows only what it was told before it last looked.
func filterStale(t storagetest.T, s storage.Store) storage.Store {
	t.Helper()
	return decorated(t, s, &late{known: map[claim.Key]bool{}})
}

// filterLies guesses.
func filterLies(t storagetest.T, s storage.Store) storage.Store {
	t.Helper()
	return decorated(t, s, liar{})
}

type liar struct{}

func (liar) MaybeHas(claim.Key) bool { return rand.IntN(2) == 0 }
func (liar) Add(claim.Key)           {}

// late learns of a key when the next but one is added.
type late struct {
	mu      sync.Mutex
	known   map[claim.Key]bool
	waiting []claim.Key
}

func (l *late) MaybeHas(k claim.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known[k]
}

func (l *late) Add(k claim.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, k)
	if len(l.waiting) > 2 {
		l.known[l.waiting[0]], l.waiting = true, l.waiting[1:]
	}
}
