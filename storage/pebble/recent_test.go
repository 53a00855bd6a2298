package pebble

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// TestRecentForgetsWhatWasNotWritten: a batch that fails after some of its
// records were built leaves none of them in memory.
func TestRecentForgetsWhatWasNotWritten(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{FS: vfs.NewMem(), Clock: storagetest.NewClock(epoch).Now})
	insertMany(t, s, "b", 1)
	s.mu.Lock()
	s.filter.current = s.filter.newGeneration(1 << 10) // it lost everything: the audit of b-0 fails the batch
	s.filter.skipped.Store(auditEvery - 2)
	s.mu.Unlock()
	fresh := testRequest("a", claim.AttemptID{7})
	batch := []claim.Request{fresh, testRequest("b-0", claim.AttemptID{7})}
	if _, err := s.InsertOrGet(context.Background(), batch); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatalf("the batch was answered: %v", err)
	}
	var rec claim.Record
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.readLocked(appendRecordKey(nil, &fresh.Key), fresh.Key, &rec); err != nil || rec.State != claim.Absent {
		t.Fatalf("a record that was never written is read: %+v, %v", rec, err)
	}
}
