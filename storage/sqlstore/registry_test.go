package sqlstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/storagetest"
)

// registrySchema returns the URL of a schema without a row of the registry,
// until the test ends.
func registrySchema(t storagetest.T) string {
	t.Helper()
	url := cleanSchema(t)
	t.Cleanup(func() { // before the schema goes to another
		if err := emptiedRegistry(context.Background(), url); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return url
}

// emptiedRegistry removes what a case has stored.
func emptiedRegistry(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	for _, table := range []string{"registry_meta", "registry_rows", "registry_audit", "registry_seen", "registry_leases"} {
		if _, err := conn.Exec(ctx, "DELETE FROM "+table); err != nil {
			return errors.Join(err, conn.Close(ctx))
		}
	}
	return conn.Close(ctx)
}

func registryOpener(change func(*sqlstore.Config)) storagetest.RegistryOpener {
	return func(t storagetest.T, clock *storagetest.Clock) storagetest.RegistryHandle {
		url := registrySchema(t)
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
