package pgtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestFindPrograms with programs that only say their version.
func TestFindPrograms(t *testing.T) {
	t.Parallel()
	const nowhere = ""
	for _, c := range []struct {
		name      string
		installed map[string]string // folder: what postgres --version says
		inPath    string            // folder
		noInitdb  string            // folder
		want      string            // folder; nowhere: an error that says what to install
	}{
		{name: "none", want: nowhere},
		{name: "too old", installed: map[string]string{"14": "postgres (PostgreSQL) 14.12"}, want: nowhere},
		{name: "very old", installed: map[string]string{"9.6": "postgres (PostgreSQL) 9.6.24"}, want: nowhere},
		{name: "oldest", installed: map[string]string{"15": "postgres (PostgreSQL) 15.0"}, want: "15"},
		{name: "newest of several", want: "17", installed: map[string]string{
			"9.6": "postgres (PostgreSQL) 9.6.24", "15": "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)",
			"17": "postgres (PostgreSQL) 17beta1", "16": "postgres (PostgreSQL) 16.1",
		}},
		{name: "newer in PATH", want: "own", inPath: "own", installed: map[string]string{
			"15": "postgres (PostgreSQL) 15.18", "own": "postgres (PostgreSQL) 100.1",
		}},
		{name: "only in PATH", want: "own", inPath: "own", installed: map[string]string{"own": "postgres (PostgreSQL) 16.1"}},
		{name: "no initdb", want: "15", noInitdb: "16", installed: map[string]string{
			"15": "postgres (PostgreSQL) 15.18", "16": "postgres (PostgreSQL) 16.1",
		}},
		{name: "something else", installed: map[string]string{"15": "hello"}, want: nowhere},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for folder, says := range c.installed {
				where := filepath.Join(root, "lib", folder)
				if folder == c.inPath {
					where = filepath.Join(root, folder)
				}
				fakeProgram(t, filepath.Join(where, "postgres"), says)
				if folder != c.noInitdb {
					fakeProgram(t, filepath.Join(where, "initdb"), "")
				}
			}
			lookPath := func(name string) (string, error) {
				if c.inPath == "" {
					return "", exec.ErrNotFound
				}
				link := filepath.Join(root, "link-"+name)
				return link, os.Symlink(filepath.Join(root, c.inPath, name), link)
			}
			got, err := findPrograms(t.Context(), filepath.Join(root, "lib", "*"), lookPath)
			if c.want == nowhere {
				if !errors.Is(err, errMissing) {
					t.Errorf("found %+v, %v", got, err)
				}
				return
			}
			mustNil(t, err)
			if folder := filepath.Base(filepath.Dir(got.postgres)); folder != c.want || filepath.Dir(got.initdb) != filepath.Dir(got.postgres) {
				t.Errorf("found %+v, want the one in %s", got, c.want)
			}
		})
	}
}

func fakeProgram(t *testing.T, path, says string) {
	t.Helper()
	mustNil(t, os.MkdirAll(filepath.Dir(path), 0o755))
	mustNil(t, os.WriteFile(path, []byte("#!/bin/sh\necho '"+says+"'\n"), 0o755))
}

func TestServerAccount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		euid  int
		names []string
		want  string
		fails bool
	}{
		{name: "not root", euid: 1000, names: []string{"nobody"}},
		{name: "first that is there", names: []string{"no-such-user", "nobody"}, want: "nobody"},
		{name: "none there", names: []string{"no-such-user"}, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := serverAccount(c.euid, c.names)
			if (err != nil) != c.fails || got.name != c.want || (got.credential != nil) != (c.want != "") {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	for stat, want := range map[string]struct {
		state  byte
		parent int
	}{
		"12 (postgres) S 11 12 12 0 -1":    {'S', 11},
		"12 (a b) R 1) T 11 12 12 0 -1":    {'T', 11},
		"12 (tmux: server) Z 1 12 12 0 -1": {'Z', 1},
	} {
		state, parent, err := parseStat([]byte(stat))
		if err != nil || state != want.state || parent != want.parent {
			t.Errorf("%s: %c %d %v", stat, state, parent, err)
		}
	}
	for _, stat := range []string{"", "12", "12 (x)", "12 (x) S", "12 (x) S y", "12 (x) SS 1"} {
		if _, _, err := parseStat([]byte(stat)); err == nil {
			t.Errorf("%q is accepted", stat)
		}
	}
}
