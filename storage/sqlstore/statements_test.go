package sqlstore_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
)

// TestPrepare: PostgreSQL takes every statement in both dialects' words, but for
// what only CockroachDB can say. Package dialect asks CockroachDB's grammar.
func TestPrepare(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, cleanSchema(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the test is over
	for _, name := range slices.Concat(statementNames(t), registryStatementNames(t)) {
		for _, d := range dialects {
			sql := sqlstore.Words(name, d)
			if d == sqlstore.Cockroach {
				sql = mitm.WithoutSystemTime(sql)
			}
			if _, err := conn.Prepare(ctx, name+" "+string(d), sql); err != nil {
				t.Errorf("%s for %s: %v", name, d, err)
			}
		}
	}
}

// TestStatementsAreUsed: no file is left over.
func TestStatementsAreUsed(t *testing.T) {
	t.Parallel()
	code, err := os.ReadFile("statements.go")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, m := range regexp.MustCompile(`statement\("([^"]+)"\)`).FindAllSubmatch(code, -1) {
		used[string(m[1])] = true
	}
	for _, name := range slices.Concat(statementNames(t), registryStatementNames(t)) {
		if !used[name] {
			t.Errorf("statement %s is not used", name)
		}
	}
}
