package storagetest_test

import (
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/storagetest"
)

func openModel(_ storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
	return storagetest.NewModel(clock.Now, grace)
}

func TestModel(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, openModel)
}

func TestTrips(t *testing.T) {
	t.Parallel()
	storagetest.Trips(t, storagetest.PlainCaller)
}
