package sealed

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/codec"
	"github.com/warifu/warifu/storage/storagetest"
)

// mode is whether new results are sealed.
type mode bool

const (
	sealing mode = false
	plainly mode = true
)

// measured counts bytes as the suites expect them, which see plain records: a
// Tally of sealed ones says what is stored, and that is another number. All else
// is the store's own.
type measured struct{ *Store }

func (m measured) Tally(ctx context.Context, step storage.TenantStep) (storage.Tallied, error) {
	out, err := m.Store.Tally(ctx, step)
	if err != nil {
		return out, err
	}
	for consumer, c := range out.Counts {
		c.Bytes = 0
		out.Counts[consumer] = c
	}
	if out.Cursor != nil {
		return out, nil // all of it comes with the last step
	}
	err = m.Scan(ctx, func(k claim.Key) error {
		found, err := m.Get(ctx, []claim.Key{k})
		if err != nil || k.Tenant != step.Tenant || found[0].Record.State == claim.Absent {
			return err
		}
		rec, body := &found[0].Record, int64(0)
		if rec.Completion != nil {
			body = int64(len(rec.Completion.Body))
		}
		if out.Counts == nil {
			out.Counts = map[string]storage.Counts{}
		}
		out.Counts[k.Consumer] = out.Counts[k.Consumer].Plus(storage.Counts{Bytes: codec.RecordBytes(rec, body)})
		return nil
	})
	return out, err
}

func over(t storagetest.T, inner storage.Store, m mode) storage.Store {
	t.Helper()
	s, err := New(Config{Store: inner, Keys: anyKeys{}, WritePlain: bool(m)})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return measured{s}
}

func overPebble(m mode) storagetest.Opener {
	return func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		t.Helper()
		return over(t, openPebble(t, vfs.NewMem(), clock.Now, grace), m)
	}
}

func overModel(m mode) storagetest.Opener {
	return func(t storagetest.T, clock *storagetest.Clock, grace time.Duration) storage.Store {
		t.Helper()
		return over(t, storagetest.NewModel(clock.Now, grace), m)
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]storagetest.Opener{
		"pebble": overPebble(sealing), "pebble, plain": overPebble(plainly), "model": overModel(sealing),
	} {
		if name == "pebble, plain" && os.Getenv("WARIFU_SOAK") == "" {
			continue // histories have it
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storagetest.Run(t, open)
		})
	}
}

// TestHistories: sealed, plain, and with sealing turned on and off by restarts,
// the same answers.
func TestHistories(t *testing.T) {
	t.Parallel()
	storagetest.Histories(t, map[string]storagetest.Backend{
		"pebble":  {Open: overPebble(sealing), FencesFloat: true},
		"model":   {Open: overModel(sealing), Reopen: switched(func(mode) mode { return sealing })},
		"on, off": {Open: overModel(plainly), Reopen: switched(func(m mode) mode { return !m })},
	})
}

func switched(next func(mode) mode) func(storagetest.T, storage.Store, *storagetest.Clock, time.Duration) storage.Store {
	return func(t storagetest.T, s storage.Store, _ *storagetest.Clock, _ time.Duration) storage.Store {
		t.Helper()
		old := s.(measured)
		return over(t, old.Store.Store.(*storagetest.Model).Reopen(), next(mode(old.plain)))
	}
}

// TestTallyCountsWhatIsStored: a quota of bytes is one of stored bytes.
func TestTallyCountsWhatIsStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := result(fmt.Sprintf("%0100d", 7))
	b.completed(b.Store, key(1, "own", "e"), c)
	tally, err := b.Tally(t.Context(), storage.TenantStep{Tenant: 1, Limit: 10})
	raw := b.get(b.inner, key(1, "own", "e")).Record
	if want := codec.RecordBytes(&raw, int64(len(raw.Completion.Body))); err != nil || tally.Counts["own"].Bytes != want || len(raw.Completion.Body) != 100+Overhead {
		t.Errorf("%v, %+v, want %d bytes", err, tally.Counts, want)
	}
}
