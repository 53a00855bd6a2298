package main

import (
	"path/filepath"
	"testing"
)

// TestSmokePlatform runs the rows about tenants for a moment.
func TestSmokePlatform(t *testing.T) {
	t.Parallel()
	for _, e := range []experiment{{"P3-platform", p3Platform}, {"neighbours", neighbours}} {
		f := &folder{name: e.name, dir: filepath.Join(t.TempDir(), e.name), opts: &options{pairs: 1, seconds: 0.3}}
		r, err := f.run(t.Context(), e, func(line string) { t.Log(line) })
		if err != nil {
			t.Fatal(err)
		}
		for _, side := range r.Order {
			if len(r.Samples[side]) != 1 || r.Samples[side][0].Ops == 0 {
				t.Errorf("%s: %s: %+v", e.name, side, r.Samples[side])
			}
		}
		if err := f.close(); err != nil {
			t.Error(err)
		}
	}
}
