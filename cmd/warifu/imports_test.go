package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/warifu/warifu"

// rule says what the packages that match may link, of this module and of
// others. It is the import table of the architecture; depguard says the same
// about import lines, this about everything that comes with them.
type rule struct {
	packages []string // path.Match patterns below the module
	ours     []string // patterns below the module that may be linked
	std      bool     // nothing from outside the standard library
	never    []string // prefixes that may not be linked, of any module or the standard library
}

var drivers = []string{"storage/pebble", "storage/sqlstore", "storage/bloom", "storage/observe"}

var rules = []rule{
	// os, net and the clock come with time and crypto; import lines are depguard's.
	{packages: []string{"storage/claim"}, std: true, never: []string{"context", "net", "database/sql"}},
	{packages: []string{"storage"}, ours: []string{"storage/claim"}, std: true},
	{packages: drivers, ours: []string{"storage", "storage/claim", "storage/codec", "storage/registry", "storage/storetime"}},
	{packages: []string{"storage/codec", "storage/registry", "storage/storetime"}, ours: []string{"storage/claim"}, std: true},
	{
		packages: []string{"storage/sqlstore/migrate"},
		never:    []string{"testing"},
	},
	{packages: []string{"retention"}, ours: []string{"storage", "storage/claim"}},
	{packages: []string{"server/arbiter"}, ours: []string{"storage", "storage/claim"}, std: true},
	{
		packages: []string{"server", "server/*"},
		ours:     []string{"api/gen/*/*", "api/gen/*/*/*", "storage", "storage/claim", "storage/codec", "storage/registry", "storage/sealed", "retention", "server/*"},
		never:    []string{"github.com/cockroachdb/pebble", "github.com/jackc/pgx", "testing"},
	},
	{
		packages: []string{"sdk/go", "sdk/go/*"},
		ours:     []string{"api/gen/*/*", "api/gen/*/*/*", "sdk/go", "sdk/go/*"},
		never:    []string{"github.com/cockroachdb/", "github.com/jackc/pgx", "github.com/prometheus/", "testing"},
	},
}

// excused packages are for tests: they may bring a whole server.
var excused = []string{"sdk/go/warifutest", "storage/storagetest"}

type listed struct {
	ImportPath string
	Standard   bool
	Deps       []string
}

func TestImports(t *testing.T) {
	t.Parallel()
	all := listPackages(t)
	standard := map[string]bool{}
	for _, p := range all {
		standard[p.ImportPath] = p.Standard
	}
	used := make([]bool, len(rules))
	for _, p := range all {
		name, ours := strings.CutPrefix(p.ImportPath, module+"/")
		if !ours || slices.Contains(excused, name) {
			continue
		}
		// The first rule that matches holds: server/arbiter has one of its own.
		for i := range rules {
			if matches(rules[i].packages, name) {
				used[i] = true
				for _, fault := range rules[i].faults(name, p.Deps, standard) {
					t.Error(fault)
				}
				break
			}
		}
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, module+"/cmd/") {
				t.Errorf("%s links %s: nobody imports cmd", name, dep)
			}
		}
	}
	for i, rule := range rules {
		if !used[i] && !slices.Equal(rule.packages, []string{"retention"}) { // built later
			t.Errorf("no package matches %v: is the rule out of date?", rule.packages)
		}
	}
}

func (r *rule) faults(name string, deps []string, standard map[string]bool) []string {
	var faults []string
	for _, dep := range deps {
		inside, ours := strings.CutPrefix(dep, module+"/")
		switch {
		case ours && inside != name && !matches(r.ours, inside):
			faults = append(faults, fmt.Sprintf("%s links %s; it may link %v of this module", name, inside, r.ours))
		case !ours && r.std && !standard[dep]:
			faults = append(faults, fmt.Sprintf("%s links %s; it may link the standard library only", name, dep))
		}
		for _, never := range r.never {
			if dep == strings.TrimSuffix(never, "/") || strings.HasPrefix(dep, strings.TrimSuffix(never, "/")+"/") {
				faults = append(faults, fmt.Sprintf("%s links %s, which it may not", name, dep))
			}
		}
	}
	return faults
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return err == nil && ok
	})
}

// TestImportRuleNotices: the rules find what they are there for.
func TestImportRuleNotices(t *testing.T) {
	t.Parallel()
	standard := map[string]bool{"fmt": true, "context": true}
	for _, c := range []struct{ name, dep string }{
		{"storage/claim", module + "/storage"},
		{"storage/claim", "context"},
		{"storage/claim", "github.com/google/uuid"},
		{"storage/pebble", module + "/storage/bloom"},
		{"server/arbiter", "connectrpc.com/connect/v2"},
		{"server", module + "/storage/pebble"},
		{"server/tenant", module + "/sdk/go"},
		{"sdk/go", module + "/storage/claim"},
		{"sdk/go", "github.com/cockroachdb/pebble/v2"},
	} {
		i := slices.IndexFunc(rules, func(r rule) bool { return matches(r.packages, c.name) })
		if got := rules[i].faults(c.name, []string{"fmt", c.dep}, standard); len(got) == 0 {
			t.Errorf("%s may link %s", c.name, c.dep)
		}
	}
}

func listPackages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-buildvcs=false", "-deps", "-json=ImportPath,Standard,Deps", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}
