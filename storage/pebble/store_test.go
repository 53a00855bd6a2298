package pebble

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/storagetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(failedSyncEnv) != "" {
		failedSync()
		return
	}
	if !soak() { // the command line still has the last word
		if err := flag.Set("rapid.checks", "40"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// soak is whether tests that have a long form run that.
func soak() bool { return os.Getenv("WARIFU_SOAK") != "" }

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// mustOpen opens a store and closes it with the test.
func mustOpen(t storagetest.T, cfg Config) *Store {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = "store"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg = small(cfg)
	if cfg.Fatal == nil {
		cfg.Fatal = func(message string) { panic(message) }
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, storage.ErrClosed) {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// small makes a store cheap to open: tests open thousands.
func small(cfg Config) Config {
	cfg.CacheBytes, cfg.LogSegmentBytes = 1<<20, 64<<10
	if cfg.MemTableBytes == 0 {
		cfg.MemTableBytes = 16 << 10
	}
	if cfg.FilterKeysMin == 0 {
		cfg.FilterKeysMin = 1 << 10
	}
	return cfg
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]storagetest.Opener{
		"Memory": func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
			return mustOpen(t, Config{FS: vfs.NewCrashableMem(), Clock: clock.Now, SweepGrace: grace})
		},
		"Disk": func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
			return mustOpen(t, Config{Dir: t.TempDir(), Clock: clock.Now, SweepGrace: grace})
		},
		"NoFilter": func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
			return mustOpen(t, Config{FS: vfs.NewCrashableMem(), Clock: clock.Now, SweepGrace: grace, NoFilter: true})
		},
		"TinyFilter": func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
			return mustOpen(t, Config{FS: vfs.NewCrashableMem(), Clock: clock.Now, SweepGrace: grace, FilterKeysMin: 4, FilterBytesMax: 8})
		},
	} {
		if (name == "Memory" || name == "NoFilter") && !soak() {
			continue // histories run without a filter, and everything else runs in memory
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storagetest.Run(t, open)
		})
	}
}

func TestFormatIsNewest(t *testing.T) {
	t.Parallel()
	if formatVersion != pebble.FormatNewest {
		t.Fatalf("the engine knows format %v and new stores are pinned to %v: decide, then raise the pin", pebble.FormatNewest, formatVersion)
	}
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: time.Now})
	if got := s.db.FormatMajorVersion(); got != formatVersion {
		t.Fatalf("store has format %v, want %v", got, formatVersion)
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mustOpen(t, Config{Dir: dir, Clock: time.Now})
	_, err := Open(Config{Dir: dir, Clock: time.Now})
	if err == nil {
		t.Fatal("a second store was opened on one directory")
	}
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := Open(Config{SweepGrace: -1})
	for _, want := range []string{"Dir is required", "Clock is required", "SweepGrace is negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func TestReadyAfterClose(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: time.Now})
	if err := s.Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(context.Background()); !errors.Is(err, storage.ErrClosed) {
		t.Fatalf("got %v, want ErrClosed", err)
	}
}

// TestHistories runs random scripts on the model and on this driver, closed and
// opened again in between, and demands the same answers.
func TestHistories(t *testing.T) {
	t.Parallel()
	backend := func(noFilter bool) storagetest.Backend {
		disks := map[storage.Store]vfs.FS{}
		open := func(t storagetest.T, fs vfs.FS, clock *storagetest.Clock, grace time.Duration) storage.Store {
			s := mustOpen(t, Config{FS: fs, Clock: clock.Now, SweepGrace: grace, NoFilter: noFilter})
			disks[s] = fs
			return s
		}
		return storagetest.Backend{
			FencesFloat: true, // a store that comes back begins above the reserved ceiling
			Open: func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
				return open(t, vfs.NewMem(), clock, grace)
			},
			Reopen: func(t storagetest.T, old storage.Store, clock *storagetest.Clock, grace time.Duration) storage.Store {
				if err := old.Close(); err != nil {
					t.Fatalf("close: %v", err)
				}
				return open(t, disks[old], clock, grace)
			},
		}
	}
	storagetest.Histories(t, map[string]storagetest.Backend{"filter": backend(false), "no filter": backend(true)})
}
