package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/warifu/warifu/loadtest/process"
)

// folder is where one experiment keeps its data, and what it has started.
type folder struct {
	name     string
	dir      string
	opts     *options
	program  string         // the warifu binary
	profiled map[int]string // by process: where its profiles are served
	postgres string         // its version, once one was started
	stops    []func() error // in the order of the starts
}

// sub makes a folder inside. Its error shows when it is used.
func (f *folder) sub(name string) string {
	dir := filepath.Join(f.dir, name)
	_ = os.MkdirAll(dir, 0o700)
	return dir
}

// close ends what was started and deletes all data.
func (f *folder) close() error {
	var errs []error
	for _, stop := range slices.Backward(f.stops) {
		errs = append(errs, stop())
	}
	return errors.Join(append(errs, os.RemoveAll(f.dir))...)
}

// target is a server that jobs talk to.
type target struct {
	url, key string
	pid      int
	database int // the process of the one behind it, if there is one
}

func (t *target) job(role string, callers int) job {
	return job{Role: role, Callers: callers, Address: t.url, Key: t.key, PID: t.pid, Database: t.database}
}

var (
	welcome = regexp.MustCompile(`listens on (http://\S+)`)
	apiKey  = regexp.MustCompile(`API key\s+(\S+)`)
)

func matchOf(re *regexp.Regexp) func([]byte) string {
	return func(text []byte) string {
		if m := re.FindSubmatch(text); m != nil {
			return string(m[1])
		}
		return ""
	}
}

// startWarifu starts `warifu dev`: the product as a user gets it.
func (f *folder) startWarifu(ctx context.Context) (*target, error) {
	return f.startDev(ctx, "--data", f.sub("warifu"))
}

// startDev starts `warifu dev` with a store. It keeps its key in the folder.
func (f *folder) startDev(ctx context.Context, store ...string) (*target, error) {
	args := append([]string{"dev", "--listen", "127.0.0.1:0"}, store...)
	var profiles string
	if f.opts.profile != "" {
		port, err := process.FreePort(ctx)
		if err != nil {
			return nil, err
		}
		profiles = "127.0.0.1:" + port
		args = append(args, "--metrics-listen", profiles)
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WARIFU_") })
	p, err := process.Start(ctx, "warifu", f.dir, env, f.program, args...)
	if err != nil {
		return nil, err
	}
	f.stops = append(f.stops, p.Stop)
	t := &target{pid: p.PID()}
	if t.url, err = p.AwaitOutput(ctx, "to say where it listens", matchOf(welcome)); err != nil {
		return nil, err
	}
	if t.key, err = p.AwaitOutput(ctx, "to print its API key", matchOf(apiKey)); err != nil {
		return nil, err
	}
	if profiles != "" {
		f.profiled[t.pid] = profiles
	}
	return t, nil
}

// startEmpty starts the server that decides nothing.
func (f *folder) startEmpty(ctx context.Context) (*target, error) {
	c, err := startChild(ctx, &job{Role: roleEmpty})
	if err != nil {
		return nil, err
	}
	f.stops = append(f.stops, c.end)
	line, err := bufio.NewReader(c.out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("empty server: %w", err)
	}
	return &target{url: strings.TrimSpace(line), pid: c.cmd.Process.Pid}, nil
}

// buildWarifu builds the binary that is measured.
func buildWarifu(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "warifu")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", program, "github.com/warifu/warifu/cmd/warifu")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build warifu: %w\n%s", err, out)
	}
	return program, nil
}

// fetchProfile keeps a CPU profile of a server. It begins when the warm-up
// ends, or nearly so.
func fetchProfile(ctx context.Context, address string, seconds float64, file string) (err error) {
	timer := time.NewTimer(warmMax)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", address, max(1, int(seconds)))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was read to its end
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, answer.Body)
	return err
}

// linkTree copies a store. Table files never change once written, so a copy
// shares them with its template.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(target, 0o700)
		case filepath.Ext(path) == ".sst":
			return os.Link(path, target) //nolint:gosec // both are folders of this run
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
