package sqlstore_test

import (
	"testing"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/storagetest"
)

// TestPoolStats: the pools say how large they are and what came of calls.
func TestPoolStats(t *testing.T) {
	t.Parallel()
	s := open(t, ownSchema(t), storagetest.NewClock(storagetest.Start), claim.SweepGrace, func(c *sqlstore.Config) { c.Conns, c.SweepConns = 3, 2 })
	const calls = 5
	for range calls {
		if _, err := s.Get(t.Context(), []claim.Key{{Tenant: 1, Consumer: "c", EventID: "e"}}); err != nil {
			t.Fatal(err)
		}
	}
	stats := s.PoolStats()
	if len(stats) != 2 || stats[0].Name != "traffic" || stats[0].Max != 3 || stats[1].Name != "sweeps" || stats[1].Max != 2 {
		t.Fatalf("pools %+v", stats)
	}
	if p := stats[0]; p.Acquired < calls || p.Made < 1 || p.Used != 0 || p.Idle+p.Making < 1 || p.Left != 0 {
		t.Errorf("after %d calls: %+v", calls, p)
	}
}
