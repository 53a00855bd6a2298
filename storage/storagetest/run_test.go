package storagetest_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

func TestRunCases(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	dirs := map[string]bool{}
	err := storagetest.RunCases(t.Context(), &out, func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		dir := t.TempDir()
		dirs[dir] = true
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatalf("%v", err)
		}
		return storagetest.NewModel(clock.Now, grace)
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	cases := strings.Count(out.String(), "PASS ")
	if cases < 60 || strings.Contains(out.String(), "FAIL") || len(dirs) != cases {
		t.Errorf("%d cases, %d stores:\n%s", cases, len(dirs), &out)
	}
	for dir := range dirs {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// forgetful loses every second key that is read, and panics where it is listed.
type forgetful struct{ *storagetest.Model }

func (f forgetful) Get(ctx context.Context, keys []claim.Key) ([]storage.Found, error) {
	found, err := f.Model.Get(ctx, keys)
	for i := range found {
		if i%2 == 1 {
			found[i].Record = claim.Record{}
		}
	}
	return found, err
}

func (forgetful) List(context.Context, storage.List) (storage.Page, error) { panic("cannot list") }

func TestRunCasesReportsFailures(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := storagetest.RunCases(t.Context(), &out, func(_ storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		return forgetful{storagetest.NewModel(clock.Now, grace)}
	}, storagetest.Except("scan/empty", "this store cannot be empty"))
	if !errors.Is(err, storagetest.ErrFailed) {
		t.Errorf("error %v, want %v", err, storagetest.ErrFailed)
	}
	for _, want := range []string{
		"PASS insert/fresh\n", "FAIL keys/odd-ones-are-all-different\n",
		"FAIL list/empty\n", "panic: cannot list", "EXCEPT scan/empty: this store cannot be empty\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
}

func TestRunCasesEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	opened := 0
	err := storagetest.RunCases(ctx, &bytes.Buffer{}, func(_ storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		opened++
		cancel()
		return storagetest.NewModel(clock.Now, grace)
	})
	if !errors.Is(err, context.Canceled) || opened != 1 {
		t.Errorf("error %v after %d cases", err, opened)
	}
}

func TestExceptionsMustNameACaseAndAReason(t *testing.T) {
	t.Parallel()
	for _, opt := range []storagetest.Option{
		storagetest.Except("no/such-case", "a reason"), storagetest.Except("scan/empty", ""),
	} {
		err := storagetest.RunCases(t.Context(), &bytes.Buffer{}, openModel, opt)
		if err == nil || errors.Is(err, storagetest.ErrFailed) {
			t.Errorf("error %v, want a refusal", err)
		}
	}
}
