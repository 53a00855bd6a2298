package sqlstore_test

import (
	"testing"

	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/storagetest"
)

func registryOpener(change func(*sqlstore.Config)) storagetest.RegistryOpener {
	return func(t storagetest.T, clock *storagetest.Clock) storagetest.RegistryHandle {
		url := cleanSchema(t)
		s := open(t, url, clock, 0, change)
		return storagetest.RegistryHandle{Registry: s.Registry(), Reopen: func(t storagetest.T) registry.Registry {
			if err := s.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
			s = open(t, url, clock, 0, change)
			return s.Registry()
		}}
	}
}

func TestRegistryConformance(t *testing.T) {
	t.Parallel()
	t.Run("read committed", func(t *testing.T) {
		t.Parallel()
		storagetest.RunRegistry(t, registryOpener(nil))
	})
	t.Run("serializable", func(t *testing.T) {
		t.Parallel()
		storagetest.RunRegistry(t, registryOpener(serializable))
	})
}
