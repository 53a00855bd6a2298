package dialect

import (
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestSQL applies the rules to all SQL of storage/sqlstore, wherever it is kept.
func TestSQL(t *testing.T) {
	t.Parallel()
	files := mustLoad(t, os.DirFS(".."))
	for _, f := range lint(files) {
		t.Error(f)
	}
	for _, folder := range []string{"queries/", "migrations/"} {
		count := 0
		for _, f := range files {
			if strings.HasPrefix(f.path, folder) && f.dialect != "postgres" {
				count += len(f.statements)
			}
		}
		t.Logf("%s: %d statements", folder, count)
		if count == 0 {
			t.Errorf("no statement in storage/sqlstore/%s: it moved, or nothing is checked", folder)
		}
	}
}

// TestRules shows of every rule that it sees what it is for, and nothing else.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, f := range allFixtures() {
		t.Run(f.rule, func(t *testing.T) {
			t.Parallel()
			bad := findings(t, f.bad)
			if len(bad) == 0 {
				t.Errorf("nothing found in %s", slices.Collect(maps.Values(f.bad)))
			}
			for _, found := range bad {
				if found.rule != f.rule {
					t.Errorf("%q also breaks another rule: %v", f.bad, found)
				}
			}
			for _, found := range findings(t, f.good) {
				t.Errorf("%q is good: %v", f.good, found)
			}
		})
	}
}

// TestEveryRuleHasAFixture, and every fixture has a rule.
func TestEveryRuleHasAFixture(t *testing.T) {
	t.Parallel()
	missing := map[string]bool{}
	for _, r := range rules {
		missing[r.name] = true
	}
	for _, r := range fileRules {
		missing[r.name] = true
	}
	if len(missing) != len(rules)+len(fileRules) {
		t.Error("two rules have one name")
	}
	for _, f := range allFixtures() {
		if _, ok := missing[f.rule]; !ok {
			t.Errorf("no rule is called %q", f.rule)
		}
		missing[f.rule] = false
	}
	for name, is := range missing {
		if is {
			t.Errorf("rule %q has no fixture", name)
		}
	}
}

// TestAllowedFunctionsSayWhy keeps the list from growing without thought.
func TestAllowedFunctionsSayWhy(t *testing.T) {
	t.Parallel()
	for name, why := range allowedFunctions {
		if why == "" || name != strings.ToLower(name) {
			t.Errorf("%q needs a reason and small letters", name)
		}
	}
}

// TestLoad looks into all folders but those of tests.
func TestLoad(t *testing.T) {
	t.Parallel()
	files := mustLoad(t, fstest.MapFS{
		"a/b/q.sql":        {Data: []byte("SELECT 1")},
		"a/b/q.go":         {Data: []byte("package b")},
		"testdata/x.sql":   {Data: []byte("nonsense")},
		"a/testdata/y.sql": {Data: []byte("nonsense")},
	})
	if len(files) != 1 || files[0].path != "a/b/q.sql" {
		t.Errorf("loaded %d files, wanted a/b/q.sql alone", len(files))
	}
}

func allFixtures() []fixture {
	return slices.Concat(fileFixtures, ddlFixtures, writeFixtures, keyedFixtures, readFixtures)
}

// findings of files, beside the schema of the fixtures.
func findings(t *testing.T, texts map[string]string) []finding {
	t.Helper()
	files := fstest.MapFS{"migrations/001_base.sql": {Data: []byte(base)}}
	for name, text := range texts {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return lint(mustLoad(t, files))
}

func mustLoad(t *testing.T, files fs.FS) []*sqlFile {
	t.Helper()
	loaded, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}
