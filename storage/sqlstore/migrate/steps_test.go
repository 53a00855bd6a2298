package migrate

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

func TestLoad(t *testing.T) {
	t.Parallel()
	for dialect, want := range map[Dialect][]string{
		Postgres: {
			"001.1 001_things.sql false", "001.2 001_things.sql true", "002.1 002_owners.postgres.sql true", "003.1 003_zones.cockroach.sql true",
			"004.1 004_more.sql false", "004.2 004_more.sql false", "004.3 004_more.sql true", "005.1 005_rows.sql false", "005.2 005_rows.sql true",
		},
		Cockroach: {
			"001.1 001_things.sql false", "001.2 001_things.sql true", "002.1 002_owners.cockroach.sql true", "003.1 003_zones.cockroach.sql true",
			"004.1 004_more.sql false", "004.2 004_more.sql false", "004.3 004_more.sql true", "005.1 005_rows.sql false", "005.2 005_rows.sql true",
		},
	} {
		steps := load(t, dialect, nil)
		var got []string
		for _, s := range steps {
			got = append(got, fmt.Sprintln(s.ID(), s.File, s.last))
		}
		if strings.Join(got, "") != strings.Join(want, "\n")+"\n" {
			t.Errorf("%s: %v", dialect, got)
		}
		if want := "CREATE TABLE IF NOT EXISTS things (\n  id   INT8 NOT NULL PRIMARY KEY,\n  name TEXT NOT NULL DEFAULT 'none',\n  CHECK (name <> '')\n)"; steps[0].SQL != want {
			t.Errorf("%s: %q", dialect, steps[0].SQL)
		}
		if empty := steps[3].SQL == ""; empty != (dialect == Postgres) {
			t.Errorf("%s: 003 is %q", dialect, steps[3].SQL)
		}
		// New takes what Load returns, whatever the position.
		newMigrator(t, Config{DB: &hooked{}, Steps: steps})
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	const ok = "DROP TABLE IF EXISTS t;\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing":            {map[string]string{}, "no files"},
		"zero":               {map[string]string{"000_a.sql": ok}, "000_a.sql: numbers begin at 001"},
		"begins later":       {map[string]string{"002_a.sql": ok}, "002_a.sql: expected number 001"},
		"gap":                {map[string]string{"001_a.sql": ok, "003_b.sql": ok}, "003_b.sql: expected number 002"},
		"duplicate":          {map[string]string{"001_a.sql": ok, "001_b.sql": ok}, "001_a.sql and 001_b.sql: two migrations have one number"},
		"both kinds":         {map[string]string{"001_a.sql": ok, "001_a.postgres.sql": ok}, "have one number"},
		"twins of two names": {map[string]string{"001_a.cockroach.sql": ok, "001_b.postgres.sql": ok}, "have one number"},
		"three":              {map[string]string{"001_a.cockroach.sql": ok, "001_a.postgres.sql": ok, "001_a.sql": ok}, "have one number"},
		"no twin":            {map[string]string{"001_a.postgres.sql": ok}, "001_a.postgres.sql: no twin for the other dialect"},
		"only why":           {map[string]string{"001_a.postgres.sql": "-- only: \n" + ok}, "no twin for the other dialect"},
		"only of two":        {map[string]string{"001_a.postgres.sql": "-- only: so\n" + ok, "001_a.cockroach.sql": ok}, "in one of two twins"},
		"only for all":       {map[string]string{"001_a.sql": "-- only: so\n" + ok}, "`-- only:` in a file for every dialect"},
		"name":               {map[string]string{"001_a.sql": ok, "README.md": ""}, "README.md: not NNN_name.sql"},
		"no digits":          {map[string]string{"1_a.sql": ok}, "1_a.sql: not NNN_name.sql"},
		"dialect":            {map[string]string{"001_a.mysql.sql": ok}, "001_a.mysql.sql: not NNN_name.sql"},
		"folder":             {map[string]string{"001_a.sql/x": ok}, "001_a.sql: not NNN_name.sql"},
		"the other's fault":  {map[string]string{"001_a.postgres.sql": ok, "001_a.cockroach.sql": "DROP TABLE t;\n"}, "001_a.cockroach.sql: DROP TABLE T"},
		"all faults": {
			map[string]string{"001_a.sql": "DROP TABLE t;\n", "002_b.sql": "", "003_c.postgres.sql": ok},
			"001_a.sql: DROP TABLE T…: a step is CREATE TABLE/INDEX IF NOT EXISTS, DROP TABLE/INDEX IF EXISTS, ALTER TABLE, INSERT … ON CONFLICT … DO NOTHING or UPDATE … WHERE\n002_b.sql: no statement\n003_c.postgres.sql: no twin",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fsys := fstest.MapFS{".": &fstest.MapFile{Mode: fs.ModeDir}}
			for name, text := range c.files {
				fsys[name] = &fstest.MapFile{Data: []byte(text)}
			}
			steps, err := Load(fsys, Postgres)
			if err == nil || !strings.Contains(err.Error(), c.want) || steps != nil {
				t.Errorf("got %v, %v\nwant %s", steps, err, c.want)
			}
		})
	}
	if _, err := Load(asFS(nil), "mysql"); err == nil {
		t.Error("a dialect that does not exist was taken")
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{ // empty: it is good
		"create table if not exists t (a INT8);":                                   "",
		"CREATE UNIQUE INDEX\n  IF NOT EXISTS i ON t (a);":                         "",
		"CREATE INDEX IF NOT EXISTS i ON t (a) WHERE b <> 'x--y';":                 "",
		"CREATE INDEX IF NOT EXISTS i ON t (a) WHERE b = 'it''s $5';":              "",
		"ALTER TABLE t ADD COLUMN IF NOT EXISTS a INT8; -- why; and more":          "",
		"ALTER TABLE t DROP COLUMN IF EXISTS a, ADD COLUMN IF NOT EXISTS b INT8;":  "",
		"ALTER TABLE t ALTER COLUMN a DROP NOT NULL, ALTER COLUMN b DROP DEFAULT;": "",
		"ALTER TABLE t ADD CONSTRAINT IF NOT EXISTS c CHECK (a > 0);":              "",
		"ALTER TABLE t SET (fillfactor = 80);":                                     "",
		"UPDATE t SET a = 1 WHERE a IS NULL;":                                      "",
		"INSERT INTO t (a) VALUES (1)\nON CONFLICT (a) DO NOTHING;":                "",

		"CREATE TABLE t (a INT8);":                                          "a step is",
		"CREATE INDEX i ON t (a);":                                          "a step is",
		"CREATE INDEX CONCURRENTLY IF NOT EXISTS i ON t (a);":               "CONCURRENTLY leaves",
		"DROP INDEX CONCURRENTLY IF EXISTS i;":                              "CONCURRENTLY leaves",
		"DROP TABLE t;":                                                     "a step is",
		"ALTER TABLE t ADD COLUMN a INT8;":                                  "run twice",
		"ALTER TABLE t ADD a INT8;":                                         "run twice",
		"ALTER TABLE t ADD COLUMN IF NOT EXISTS a INT8, ADD COLUMN b INT8;": "run twice",
		"ALTER TABLE t DROP COLUMN a;":                                      "run twice",
		"ALTER TABLE t\n  RENAME\n  TO u;":                                  "run twice",
		"ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0);":                     "run twice",
		"UPDATE t SET a = 1;":                                               "a step is",
		"INSERT INTO t (a) VALUES (1);":                                     "a step is",
		"INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2;": "a step is",
		"DELETE FROM t WHERE a = 1;":                                        "a step is",
		"BEGIN;\nDROP TABLE IF EXISTS t;\nCOMMIT;":                          "a step is",
		"SELECT pg_advisory_lock(1);":                                       "a step is",
		"DROP TABLE IF EXISTS t;\nUPDATE u SET a = 1 WHERE a = 2;":          "make two files",
		"DROP TABLE IF EXISTS t":                                            "does not end with a semicolon",
		"DROP TABLE IF EXISTS t;\nDROP TABLE IF EXISTS u\n-- the end;":      "does not end with a semicolon",
		"DROP TABLE IF EXISTS t; DROP TABLE IF EXISTS u;":                   "line 1: a semicolon that does not end the line",
		"DROP TABLE IF EXISTS t;;":                                          "line 1: a semicolon that does not end the line",
		"DROP TABLE IF EXISTS t;\n;":                                        "line 2: an empty statement",
		"UPDATE t SET a = 'x;y' WHERE a = 'z';":                             "line 1: a semicolon between quotes",
		"UPDATE t SET a = 'x;\n' WHERE a = 'z';":                            "line 1: a semicolon between quotes",
		"UPDATE t SET a = 'x\ny' WHERE a = 'z';":                            "line 1: a quote is open",
		"CREATE TABLE IF NOT EXISTS \"t\n\" (a INT8);":                      "line 1: a quote is open",
		"UPDATE t SET a = $$x$$ WHERE a = 'z';":                             "line 1: a dollar",
		"UPDATE t SET a = $1 WHERE a = 'z';":                                "line 1: a dollar",
		"UPDATE t SET a = E'\\'' WHERE a = 'z';":                            "line 1: a backslash",
		"\n/* DROP TABLE IF EXISTS t; */\n":                                 "line 2: a /* comment",
		"-- nothing but a comment\n\n":                                      "no statement",
	} {
		_, err := parse(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\ngot %v\nwant %s", text, err, want)
		}
	}
}

// TestQueries holds our own statements to what both databases take.
func TestQueries(t *testing.T) {
	t.Parallel()
	pool, _ := setup(t)
	mustExec(t, pool, createSteps)
	mustExec(t, pool, createSchema)
	for _, sql := range []string{createSteps, createSchema, insertRow, readRowSQL, readStepsSQL, takeLease, renewLease, releaseLease, recordStep, printFence, printRecord} {
		if !strings.HasPrefix(sql, "-- ") {
			t.Errorf("no reason before\n%s", sql)
		}
		for i := range sql {
			if sql[i] == '$' && !strings.HasPrefix(strings.TrimLeft(sql[i+1:], "0123456789"), "::") {
				t.Errorf("a placeholder without a type in\n%s", sql)
			}
		}
		statements, err := split(inline(sql, "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"))
		if err != nil || len(statements) != 1 {
			t.Errorf("%d statements, %v, in\n%s", len(statements), err, sql)
		}
	}
}
