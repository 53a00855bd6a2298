package pgtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestSeparate: schemas and databases made at the same time have the same
// tables without seeing each other's, and go without a trace.
func TestSeparate(t *testing.T) {
	t.Parallel()
	s := setup(t, Config{})
	admin := dial(t, s.URL())
	for _, c := range []struct {
		name   string
		create func(context.Context) (string, func(context.Context) error, error)
		count  string // of what is there besides PostgreSQL's own
		before string
	}{
		{"schemas", s.Schema, "SELECT count(*)::text FROM pg_namespace WHERE nspname LIKE 'schema%'", "0"},
		{"databases", s.Database, "SELECT count(*)::text FROM pg_database WHERE NOT datistemplate", "2"},
	} {
		const many = 6
		var urls [many]string
		var drops [many]func(context.Context) error
		var group sync.WaitGroup
		for i := range many {
			group.Go(func() {
				var err error
				if urls[i], drops[i], err = c.create(context.Background()); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
			})
		}
		group.Wait()
		if t.Failed() {
			return
		}
		for i, url := range urls {
			run(t, dial(t, url), "CREATE TABLE lonely (n int)", fmt.Sprintf("INSERT INTO lonely VALUES (%d)", i))
		}
		for i, url := range urls {
			if got := value(t, dial(t, url), "SELECT string_agg(n::text, ' ') FROM lonely"); got != fmt.Sprint(i) {
				t.Errorf("%s: number %d holds %s", c.name, i, got)
			}
		}
		if got := value(t, admin, "SELECT (to_regclass('lonely') IS NULL)::text"); got != "true" {
			t.Errorf("%s: a table came into the server's own database", c.name)
		}
		for _, drop := range drops { // the connections are still open
			mustNil(t, drop(t.Context()))
			mustNil(t, drop(t.Context()))
		}
		if got := value(t, admin, c.count); got != c.before {
			t.Errorf("%s: %s are left, want %s", c.name, got, c.before)
		}
	}
}

func TestSearchPath(t *testing.T) {
	t.Parallel()
	s := setup(t, Config{})
	url, _, err := s.Schema(t.Context())
	mustNil(t, err)
	conn := dial(t, url)
	schema, rest, _ := strings.Cut(value(t, conn, "SHOW search_path"), ",")
	if rest != "pg_catalog" || value(t, conn, "SELECT current_schema()::text") != schema {
		t.Errorf("search_path is %s and %s", schema, rest)
	}
	if got := value(t, dial(t, s.URL()), "SHOW search_path"); strings.Contains(got, schema) {
		t.Errorf("the server's own search_path is %s", got)
	}
}
