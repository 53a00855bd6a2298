package sqlstore_test

import (
	"testing"
	"time"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// TestNewerSchema: a binary works on the schema of the release after it, which
// only adds: columns that may be empty or have a default, indexes, tables. Its
// connections may have prepared their statements before.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := ownSchema(t)
	s := open(t, url, nil, time.Hour, nil)
	life := func(k claim.Key) {
		t.Helper()
		req := matrixRequest(k, 1)
		answers, err := storagetest.Claim(ctx, s, []claim.Request{req})
		if err != nil || answers[0].Decision != claim.Granted {
			t.Fatalf("%+v, %v", answers, err)
		}
		replies, err := storagetest.Move(ctx, s, []claim.Transition{{
			Kind: claim.Complete, Key: k, Attempt: req.Attempt, Fence: answers[0].Fence, Completion: large(),
		}})
		if err != nil || replies[0].Status != claim.OK {
			t.Fatalf("%+v, %v", replies, err)
		}
		req = matrixRequest(k, 2)
		if answers, err = storagetest.Claim(ctx, s, []claim.Request{req}); err != nil || answers[0].Decision != claim.Duplicate {
			t.Fatalf("%+v, %v", answers, err)
		}
	}
	life(matrixKeys[0])
	for _, ddl := range []string{
		"ALTER TABLE claims ADD COLUMN priority INT2",
		"ALTER TABLE claims ADD COLUMN region TEXT NOT NULL DEFAULT 'here'",
		"ALTER TABLE claim_results ADD COLUMN encoding TEXT",
		"CREATE INDEX claims_region_idx ON claims (region, claimed_at)",
		"CREATE TABLE claim_notes (id INT8 PRIMARY KEY)",
	} {
		if err := execute(ctx, url, ddl); err != nil {
			t.Fatalf("%s: %v", ddl, err)
		}
	}
	life(matrixKeys[1])
	life(matrixKeys[2])
}
