package storagetest_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/storagetest"
)

func openRegistryModel(_ storagetest.T, clock *storagetest.Clock) storagetest.RegistryHandle {
	m := storagetest.NewRegistryModel(clock.Now)
	return storagetest.RegistryHandle{Registry: m, Reopen: func(storagetest.T) registry.Registry { return m }}
}

func TestRegistryModel(t *testing.T) {
	t.Parallel()
	storagetest.RunRegistry(t, openRegistryModel)
}

// unsure forgets that it has applied a change.
type unsure struct{ registry.Registry }

func (u unsure) Apply(ctx context.Context, c registry.Change) (registry.Applied, error) {
	a, err := u.Registry.Apply(ctx, c)
	a.Revision++
	return a, err
}

func TestRunRegistryCases(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := storagetest.RunRegistryCases(t.Context(), &out, openRegistryModel); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if n := strings.Count(out.String(), "PASS registry/"); n < 35 || strings.Contains(out.String(), "FAIL") {
		t.Errorf("%d cases:\n%s", n, &out)
	}
	out.Reset()
	err := storagetest.RunRegistryCases(t.Context(), &out, func(t storagetest.T, clock *storagetest.Clock) storagetest.RegistryHandle {
		h := openRegistryModel(t, clock)
		h.Registry = unsure{h.Registry}
		return h
	})
	if !errors.Is(err, storagetest.ErrFailed) || !strings.Contains(out.String(), "FAIL registry/apply/rows-come-back-whole\n") {
		t.Errorf("error %v, want %v\n%s", err, storagetest.ErrFailed, &out)
	}
}
