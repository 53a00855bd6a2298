package warifu

import (
	"os/exec"
	"strings"
	"testing"
)

// Whoever uses the SDK must not link a server, a store or a database driver.
func TestDependenciesAreFew(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if len(deps) == 0 {
		t.Fatal("no dependencies at all")
	}
	const module = "github.com/warifu/warifu/"
	for _, dep := range deps {
		ours, isOurs := strings.CutPrefix(dep, module)
		if isOurs && ours != "sdk/go" && !strings.HasPrefix(ours, "api/gen/") {
			t.Errorf("depends on %s", dep)
		}
		for _, bad := range []string{"pebble", "pgx", "prometheus", "storagetest"} {
			if strings.Contains(dep, bad) {
				t.Errorf("depends on %s", dep)
			}
		}
	}
}
