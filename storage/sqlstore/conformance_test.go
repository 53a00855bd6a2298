package sqlstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/storagetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	t.Run("read committed", func(t *testing.T) {
		t.Parallel()
		storagetest.Run(t, opener(nil))
	})
	t.Run("serializable", func(t *testing.T) {
		t.Parallel()
		storagetest.Run(t, opener(serializable))
	})
	for name, filter := range map[string]func(storagetest.T, storage.Store) storage.Store{
		"filter on": filterOn, "filter stale": filterStale, "filter lies": filterLies,
	} {
		if !soak() {
			continue // random histories run all of them, and so does package bloom
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := opener(nil)
			storagetest.Run(t, func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
				return filter(t, open(t, clock, grace))
			})
		})
	}
}

// TestHistories runs the same random scripts on both isolation levels, with the
// decorator that chooses which trip is made first off, on, stale and lying.
func TestHistories(t *testing.T) {
	t.Parallel()
	storagetest.Histories(t, map[string]storagetest.Backend{
		"read committed":        backend(nil, nil),
		"serializable":          backend(serializable, nil),
		"filter on":             backend(nil, filterOn),
		"filter stale":          backend(nil, filterStale),
		"filter lies":           backend(nil, filterLies),
		"serializable, stale":   backend(serializable, filterStale),
		"serializable, it lies": backend(serializable, filterLies),
	})
}

// backend is a store that a restart opens again on the same schema.
func backend(change func(*sqlstore.Config), filter func(t storagetest.T, s storage.Store) storage.Store) storagetest.Backend {
	var mu sync.Mutex
	urls := map[storage.Store]string{}
	open := func(t storagetest.T, url string, clock *storagetest.Clock, grace time.Duration) storage.Store {
		s := storage.Store(open(t, url, clock, grace, change))
		if filter != nil {
			s = filter(t, s)
		}
		mu.Lock()
		defer mu.Unlock()
		urls[s] = url
		return s
	}
	return storagetest.Backend{
		Open: func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
			return open(t, cleanSchema(t), clock, grace)
		},
		Reopen: func(t storagetest.T, old storage.Store, clock *storagetest.Clock, grace time.Duration) storage.Store {
			mu.Lock()
			url := urls[old]
			delete(urls, old)
			mu.Unlock()
			if err := old.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
			return open(t, url, clock, grace)
		},
	}
}
