package migrate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
)

// leaseLong is long enough not to lapse in a test that does not make it.
const leaseLong = time.Minute

// files make a set of every kind of step: several in a file, one of a dialect,
// one the dialect has nothing for, one that changes rows.
var files = map[string]string{
	"001_things.sql": `-- Things.
CREATE TABLE IF NOT EXISTS things (
  id   INT8 NOT NULL PRIMARY KEY,
  name TEXT NOT NULL DEFAULT 'none', -- of the thing
  CHECK (name <> '')
);
CREATE INDEX IF NOT EXISTS things_name_idx ON things (name);
`,
	"002_owners.postgres.sql":  "CREATE TABLE IF NOT EXISTS owners (id INT8 NOT NULL PRIMARY KEY);\n",
	"002_owners.cockroach.sql": "CREATE TABLE IF NOT EXISTS owners (id INT8 NOT NULL PRIMARY KEY, region TEXT);\n",
	"003_zones.cockroach.sql":  "-- only: PostgreSQL has no zones\nALTER TABLE things SET (ttl = 'off');\n",
	"004_more.sql": `ALTER TABLE things ADD COLUMN IF NOT EXISTS owner INT8;
CREATE UNIQUE INDEX IF NOT EXISTS things_owner_idx ON things (owner, name);
ALTER TABLE things ALTER COLUMN owner SET DEFAULT 1;
`,
	"005_rows.sql": `INSERT INTO owners (id) VALUES (1), (2) ON CONFLICT (id) DO NOTHING;
UPDATE owners SET id = 3 WHERE id = 2;
`,
}

func load(t *testing.T, dialect Dialect, change map[string]string) []Step {
	t.Helper()
	steps, err := Load(asFS(change), dialect)
	if err != nil {
		t.Fatal(err)
	}
	return steps
}

// asFS returns files with some of them changed, or removed where empty.
func asFS(change map[string]string) fstest.MapFS {
	all := maps.Clone(files)
	maps.Copy(all, change)
	out := fstest.MapFS{}
	for name, text := range all {
		if text != "" {
			out[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return out
}

func newMigrator(t *testing.T, c Config) *Migrator {
	t.Helper()
	c.Lease = cmp.Or(c.Lease, leaseLong)
	if c.Steps == nil {
		c.Steps = load(t, Postgres, nil)
	}
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// mustUp migrates, and fails unless exactly the steps of these IDs were applied.
func mustUp(t *testing.T, m *Migrator, want ...string) {
	t.Helper()
	applied, err := m.Up(t.Context())
	if err != nil {
		t.Fatalf("up: %v", err)
	}
	if got := ids(applied); !slices.Equal(got, want) {
		t.Fatalf("applied %v, want %v", got, want)
	}
}

func ids(steps []Step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, s.ID())
	}
	return out
}

var allIDs = []string{"001.1", "001.2", "002.1", "003.1", "004.1", "004.2", "004.3", "005.1", "005.2"}

// dump returns everything that migrations leave behind in the pool's schema,
// except times and, unless asked for, who held the lease last.
func dump(t *testing.T, db DB, lease bool) string {
	t.Helper()
	var b strings.Builder
	for _, q := range []string{
		`SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
		 WHERE table_schema = current_schema() ORDER BY table_name, ordinal_position`,
		`SELECT indexname, replace(indexdef, current_schema(), '') FROM pg_indexes WHERE schemaname = current_schema() ORDER BY indexname`,
		`SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = current_schema()::regnamespace ORDER BY conrelid::regclass::text, conname`,
	} {
		b.WriteString(query(t, db, q))
	}
	if !strings.Contains(b.String(), "warifu_schema_steps") {
		return b.String() + "nothing yet\n"
	}
	row := `SELECT id, version, statement FROM warifu_schema`
	if lease {
		row = `SELECT id, version, statement, lease_owner, lease_fence FROM warifu_schema`
	}
	b.WriteString(query(t, db, row))
	b.WriteString(query(t, db, `SELECT version, statement, name, encode(sha256, 'hex') FROM warifu_schema_steps ORDER BY version, statement`))
	if strings.Contains(b.String(), "owners") {
		b.WriteString(query(t, db, `SELECT id FROM owners ORDER BY id`))
	}
	return b.String()
}

func query(t *testing.T, db DB, sql string, args ...any) string {
	t.Helper()
	rows, err := db.Query(context.WithoutCancel(t.Context()), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (string, error) {
		values, err := r.Values()
		return fmt.Sprintln(values...), err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, sql)
	}
	return strings.Join(lines, "")
}

func mustExec(t *testing.T, db DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%v: %s", err, sql)
	}
}

// lapse makes the lease end now, as if its length had passed.
func lapse(t *testing.T, db DB) {
	t.Helper()
	mustExec(t, db, `UPDATE warifu_schema SET lease_until = now()`)
}

// until polls ok.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !ok() {
		if pause(ctx, 5*time.Millisecond) != nil {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
