package process

import (
	"os"
	"testing"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	line := "4711 (a) name (with) x 1 2) S 1 4711 4711 0 -1 4194560 100 0 0 0 250 75 100 25 20 0 9 0 1234 0 0"
	got, err := parseStat([]byte(line))
	if want := (stat{parent: 1, own: 3.25, children: 1.25}); err != nil || got != want {
		t.Errorf("stat = %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "1 (x) S 1", "1 (x) S 1 2 3 4 5 6 7 8 9 10 eleven 12 13 14 15"} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was read as %+v", bad, got)
		}
	}
}

func TestCPUSeconds(t *testing.T) {
	t.Parallel()
	if got, err := CPUSeconds(os.Getpid()); err != nil || got < 0 {
		t.Errorf("own CPU time = %v, %v", got, err)
	}
}

// TestFamily: children count while they live and when they have ended.
func TestFamily(t *testing.T) {
	t.Parallel()
	const work = `i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done`
	for name, script := range map[string]string{
		"Ended":  "(" + work + "); echo done; exec sleep 600",
		"Living": "trap 'kill $child; exit' TERM; (" + work + "; echo done; exec sleep 600) & child=$!; wait",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Start(t.Context(), "shell", t.TempDir(), nil, "/bin/sh", "-c", script)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.AwaitOutput(t.Context(), "to work", findLine); err != nil {
				t.Fatal(err)
			}
			own, err := CPUSeconds(p.PID())
			if err != nil {
				t.Fatal(err)
			}
			family, err := FamilyCPUSeconds(p.PID())
			if err != nil || family < own+0.05 {
				t.Errorf("the family used %v s, %v; the parent alone %v s", family, err, own)
			}
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := FamilyCPUSeconds(1 << 30); err == nil {
		t.Error("nobody's CPU time was read")
	}
}
