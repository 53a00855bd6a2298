package pebble

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storagetest"
)

func TestRegistryConformance(t *testing.T) {
	t.Parallel()
	t.Run("memory, crashed", func(t *testing.T) {
		t.Parallel()
		storagetest.RunRegistry(t, func(t storagetest.T, clock *storagetest.Clock) storagetest.RegistryHandle {
			fs := vfs.NewCrashableMem()
			s := mustOpen(t, Config{FS: fs, Clock: clock.Now})
			return storagetest.RegistryHandle{Registry: s.Registry(), Reopen: func(t storagetest.T) registry.Registry {
				fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: testRng()})
				return mustOpen(t, Config{FS: fs, Clock: clock.Now}).Registry()
			}}
		})
	})
	t.Run("disk, closed", func(t *testing.T) {
		t.Parallel()
		storagetest.RunRegistry(t, func(t storagetest.T, clock *storagetest.Clock) storagetest.RegistryHandle {
			cfg := Config{Dir: t.TempDir(), Clock: clock.Now}
			s := mustOpen(t, cfg)
			return storagetest.RegistryHandle{Registry: s.Registry(), Reopen: func(t storagetest.T) registry.Registry {
				if err := s.Close(); err != nil {
					t.Fatalf("close: %v", err)
				}
				s = mustOpen(t, cfg)
				return s.Registry()
			}}
		})
	})
}
