package storagetest_test

import (
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/storagetest"
)

// TestHistories runs the model against itself, restarted, so that scripts,
// comparison and invariants are exercised where no driver is.
func TestHistories(t *testing.T) {
	t.Parallel()
	storagetest.Histories(t, map[string]storagetest.Backend{
		"another model": {Open: openModel, Reopen: reopenModel},
	})
}

func reopenModel(_ storagetest.T, s storage.Store, _ *storagetest.Clock, _ time.Duration) storage.Store {
	return s.(*storagetest.Model).Reopen()
}
