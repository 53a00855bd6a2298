package peers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// builds is a world in which NATS is built: no program but a pretended go, and
// a folder of its own for what is temporary. Its tests are not parallel: both
// are the whole process's.
type builds struct {
	t          *testing.T
	path, temp string
}

func newBuilds(t *testing.T) *builds {
	t.Helper()
	b := &builds{t: t, path: t.TempDir(), temp: t.TempDir()}
	t.Setenv("PATH", b.path)
	t.Setenv("TMPDIR", b.temp)
	t.Setenv("GOFLAGS", "-mod=vendor") // of whoever runs the benchmarks
	return b
}

// goDoes writes the pretended go command.
func (b *builds) goDoes(script string) {
	b.t.Helper()
	writeFile(b.t, filepath.Join(b.path, "go"), "#!/bin/sh\n"+script+"\n")
}

// checkClean: whatever became of a build, it leaves nothing behind.
func (b *builds) checkClean() {
	b.t.Helper()
	if left, err := os.ReadDir(b.temp); err != nil || len(left) != 0 {
		b.t.Errorf("the build left %v, %v", left, err)
	}
}

// checkBuilt: the program says how it was built. That was outside this module,
// whose requirements would decide otherwise.
func (b *builds) checkBuilt(program string) {
	b.t.Helper()
	text, err := os.ReadFile(program)
	if err != nil {
		b.t.Fatal(err)
	}
	temp, err := filepath.EvalSymlinks(b.temp)
	if err != nil {
		b.t.Fatal(err)
	}
	said := strings.TrimSpace(string(text))
	if !strings.HasPrefix(said, "install github.com/nats-io/nats-server/v2@"+NATSVersion+" in "+temp+"/") || !strings.HasSuffix(said, ", GOFLAGS=") {
		b.t.Errorf("it was built by: go %s", said)
	}
	if info, err := os.Stat(program); err != nil || info.Mode().Perm() != 0o700 {
		b.t.Errorf("it is %v, %v", info, err)
	}
}

func TestNATSIsBuiltOnce(t *testing.T) {
	b := newBuilds(t)
	b.goDoes(`echo "$@ in $(pwd -P), GOFLAGS=$GOFLAGS" > "$GOBIN/nats-server"`)
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	program, err := NATSProgram(t.Context(), dir)
	if err != nil || program != filepath.Join(dir, "nats-server-"+NATSVersion) {
		t.Fatalf("program %q, %v", program, err)
	}
	b.checkBuilt(program)
	b.checkClean()
	b.goDoes("exit 1")
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(wd, dir)
	if err != nil {
		t.Fatal(err)
	}
	// Programs are started in other folders than this one.
	for _, dir := range []string{dir, relative} {
		if again, err := NATSProgram(t.Context(), dir); err != nil || again != program {
			t.Errorf("the second time, in %s: %q, %v", dir, again, err)
		}
	}
}

// TestNATSIsBuiltByTwo: whoever finishes later does not write into the program
// that the other one runs already.
func TestNATSIsBuiltByTwo(t *testing.T) {
	b, dir := newBuilds(t), t.TempDir()
	running := filepath.Join(dir, "running")
	writeFile(t, running, "theirs")
	name := "nats-server-" + NATSVersion
	b.goDoes(fmt.Sprintf(`echo ours > "$GOBIN/nats-server"; /bin/ln '%s' '%s'`, running, filepath.Join(dir, name)))
	program, err := NATSProgram(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{running: "theirs", program: "ours\n"} {
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s is %q, %v; want %q", filepath.Base(path), text, err, want)
		}
	}
	checkHolds(t, dir, name, "running")
}

// checkHolds: a folder holds these entries and no others.
func checkHolds(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if !slices.Equal(got, names) {
		t.Errorf("the folder holds %q, want %q", got, names)
	}
}

// TestNATSIsNotInstalled: what cannot be put in its place is not left beside it.
func TestNATSIsNotInstalled(t *testing.T) {
	b, dir := newBuilds(t), t.TempDir()
	name := "nats-server-" + NATSVersion
	b.goDoes(fmt.Sprintf(`echo ours > "$GOBIN/nats-server"; /bin/mkdir '%s'`, filepath.Join(dir, name)))
	program, err := NATSProgram(t.Context(), dir)
	if err == nil || program != "" || !strings.Contains(err.Error(), "nats: rename ") {
		t.Errorf("program %q, %v", program, err)
	}
	checkHolds(t, dir, name)
}

func TestNATSIsNotBuilt(t *testing.T) {
	for name, c := range map[string]struct {
		script   string // "": there is no go
		inTheWay bool   // a file is where the folder should be
		ended    bool   // the context is, before
		cause    error  // nil: one that is not a sentinel
		want     string
	}{
		"no go":        {cause: exec.ErrNotFound, want: "build github.com/nats-io/nats-server/v2@" + NATSVersion},
		"no network":   {script: "echo lookup proxy >&2; exit 1", want: "@" + NATSVersion + ": exit status 1\nlookup proxy"},
		"no program":   {script: "exit 0", cause: fs.ErrNotExist, want: "nats: open "},
		"no folder":    {script: `echo built > "$GOBIN/nats-server"`, inTheWay: true, cause: syscall.ENOTDIR, want: "nats: mkdir "},
		"no more time": {script: "exit 0", ended: true, cause: context.Canceled, want: "build "},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBuilds(t)
			if c.script != "" {
				b.goDoes(c.script)
			}
			dir := filepath.Join(t.TempDir(), "tools")
			if c.inTheWay {
				writeFile(t, dir, "")
			}
			program, err := NATSProgram(within(t, c.ended), dir)
			if err == nil || program != "" || (c.cause != nil && !errors.Is(err, c.cause)) {
				t.Fatalf("program %q, %v", program, err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q does not say %q", err, c.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "nats-server-"+NATSVersion)); err == nil {
				t.Error("the next run would take what was not built for the program")
			}
			b.checkClean()
		})
	}
}

func TestStartNATS(t *testing.T) {
	t.Parallel()
	fake, dir := newProgram(t, natsName, behaviour{}), t.TempDir()
	p, address, err := StartNATS(t.Context(), fake.path, dir)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "nats.conf")
	want := fmt.Sprintf("listen: %s\njetstream {\n  store_dir: \"%s\"\n  sync_interval: always\n}\n", address, dir)
	if s := fake.started(); !slices.Equal(s.Args, []string{"-c", config}) || s.Dir != dir || s.Config != want {
		t.Errorf("started in %s with %q and\n%s", s.Dir, s.Args, s.Config)
	}
	if !strings.HasPrefix(address, "127.0.0.1:") {
		t.Errorf("it listens at %s", address)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	fake.awaitEnd()
}

func TestNATSDoesNotStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		behaviour        behaviour
		noDir, noProgram bool
		ended            bool // the context is, before
		cause            error
		want             string
	}{
		"it ends":    {behaviour: behaviour{Fault: "nats.conf:4: unknown field"}, want: "nats ended while it was expected to listen on 127.0.0.1:"},
		"no folder":  {noDir: true, cause: fs.ErrNotExist, want: "nats: open "},
		"no program": {noProgram: true, cause: fs.ErrNotExist, want: "start nats: "},
		"no time":    {ended: true, cause: context.Canceled, want: "start nats: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program, dir := newProgram(t, natsName, c.behaviour).path, t.TempDir()
			if c.noProgram {
				program += "-of-tomorrow"
			}
			if c.noDir {
				dir = filepath.Join(dir, "missing")
			}
			p, address, err := StartNATS(within(t, c.ended), program, dir)
			if err == nil || p != nil || address != "" || (c.cause != nil && !errors.Is(err, c.cause)) {
				t.Fatalf("started %v at %q, %v", p, address, err)
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.behaviour.Fault) {
				t.Errorf("%q says neither %q nor what it said", err, c.want)
			}
		})
	}
}

// TestNATSNeverListens: the wait ends with its context, and so does the server.
func TestNATSNeverListens(t *testing.T) {
	t.Parallel()
	fake := newProgram(t, natsName, behaviour{Mute: true})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		fake.started()
		cancel()
	}()
	p, address, err := StartNATS(ctx, fake.path, t.TempDir())
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "wait for nats to listen on 127.0.0.1:") || p != nil || address != "" {
		t.Errorf("started %v at %q, %v", p, address, err)
	}
	<-ctx.Done()
	fake.awaitEnd()
}

// TestRealNATS: the server takes our configuration, and its answers are
// understood.
func TestRealNATS(t *testing.T) {
	t.Parallel()
	// Where the benchmarks keep it: .tools/bin of the module.
	program, err := filepath.Abs(filepath.Join("..", "..", ".tools", "bin", "nats-server-"+NATSVersion))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skipf("%v: the benchmark of P1 builds it, with a network; this module does not depend on it, and the tests here use a pretended one", err)
	}
	p, address, err := StartNATS(t.Context(), program, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}()
	checkNATSClaims(t, address)
}
