package sqlstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
)

// TestPlansServeATableOfAnySize: connections keep their plans, so those made for an empty table
// must serve a full one: by key and by range, whatever the statistics say, and
// when there are none yet.
func TestPlansServeATableOfAnySize(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := ownSchema(t)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the test is over
	exec := func(sql string) {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	plans := func(when string) {
		got, err := sqlstore.Plans(ctx, sqlstore.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range got.Plans {
			if p.Err != nil || len(p.FullScans) > 0 || len(p.WideScans) > 0 {
				t.Errorf("%s, %s: full %v, wide %v, %v", when, p.Statement, p.FullScans, p.WideScans, p.Err)
			}
		}
	}
	plans("never analyzed")
	exec("ANALYZE claims")
	exec("ANALYZE claim_results")
	plans("analyzed when empty")
	s := open(t, url, nil, time.Hour, nil)
	for i := range 10 {
		var reqs []claim.Request
		for j := range claim.BatchItemsMax {
			reqs = append(reqs, matrixRequest(claim.Key{Tenant: 1, Consumer: "c", EventID: fmt.Sprintf("%d-%d", i, j)}, 1))
		}
		if _, err := s.InsertOrGet(ctx, reqs); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			exec("ANALYZE claims")
			plans("with a few hundred records")
		}
	}
	plans("grown since it was analyzed")
	exec("ANALYZE claims")
	plans("with thousands of records")
}
