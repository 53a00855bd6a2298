package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/warifu/warifu/loadtest/peers"
	"github.com/warifu/warifu/loadtest/ratio"
)

// run describes where and when results were made. What cannot be found out is
// empty.
type run struct {
	Commit     string    `json:"commit"`
	Changed    bool      `json:"changed"` // there were uncommitted changes
	Began      time.Time `json:"began"`
	Ended      time.Time `json:"ended"`
	CPU        string    `json:"cpu"`
	Cores      int       `json:"cores"`
	Memory     string    `json:"memory"`
	Kernel     string    `json:"kernel"`
	FileSystem string    `json:"file_system"`
	Go         string    `json:"go"`
	Redis      string    `json:"redis"`
	NATS       string    `json:"nats"`
	Postgres   string    `json:"postgres"`
	LoadBefore string    `json:"load_before"`
	LoadAfter  string    `json:"load_after"`
}

func describe(ctx context.Context, dir string) *run {
	status, _ := command(ctx, "git", "status", "--porcelain") // not a checkout: unknown
	commit, _ := command(ctx, "git", "rev-parse", "--short=12", "HEAD")
	redis, _ := command(ctx, peers.RedisProgram, "--version")
	return &run{
		Commit: commit, Changed: status != "", Began: time.Now().UTC().Truncate(time.Second),
		CPU: procLine("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Memory: procLine("/proc/meminfo", "MemTotal"),
		Kernel: firstLine("/proc/sys/kernel/osrelease"), FileSystem: fileSystem(dir), Go: runtime.Version(),
		Redis: redisVersion(redis), NATS: peers.NATSVersion, LoadBefore: loadAverage(),
	}
}

func (r *run) finish() {
	r.Ended, r.LoadAfter = time.Now().UTC().Truncate(time.Second), loadAverage()
}

// usable refuses to measure syncs where there are none.
func (r *run) usable() error {
	if r.FileSystem == "tmpfs" || r.FileSystem == "ramfs" {
		return fmt.Errorf("the folder for stores is in memory (%s): syncs would cost nothing; name one on a disk with -dir", r.FileSystem)
	}
	return nil
}

func command(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	return strings.TrimSpace(string(out)), err
}

// redisVersion takes "7.0.15" out of "Redis server v=7.0.15 sha=…".
func redisVersion(text string) string {
	_, after, _ := strings.Cut(text, "v=")
	version, _, _ := strings.Cut(after, " ")
	return version
}

func firstLine(file string) string {
	text, _ := os.ReadFile(file)
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// loadAverage is that of the last 1, 5 and 15 minutes.
func loadAverage() string {
	fields := strings.Fields(firstLine("/proc/loadavg"))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// procLine is the value of the first "name : value" line.
func procLine(file, name string) string {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// fileSystem is the type of the file system that holds dir.
func fileSystem(dir string) string {
	dir, _ = filepath.EvalSymlinks(dir)
	text, _ := os.ReadFile("/proc/mounts")
	var longest, kind string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 3 || len(f[1]) < len(longest) {
			continue
		}
		if rel, err := filepath.Rel(f[1], dir); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			longest, kind = f[1], f[2]
		}
	}
	return kind
}

// publish writes the raw numbers, prints the tables, and writes RESULTS.md
// when all budgets were measured.
func (o *options) publish(about *run, results []*ratio.Result, out io.Writer) error {
	raw := filepath.Join(o.out, "results")
	if err := os.MkdirAll(raw, 0o750); err != nil {
		return err
	}
	data, err := json.MarshalIndent(struct {
		Run     *run            `json:"run"`
		Results []*ratio.Result `json:"results"`
	}{about, results}, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(raw, about.Began.Format("20060102-150405")+".json")
	if err := os.WriteFile(file, data, 0o644); err != nil { //nolint:gosec // for everybody to read
		return err
	}
	if _, err := fmt.Fprintf(out, "\n%s\n%s\nraw numbers: %s\n", ratio.Table(results), ratio.Costs(results), file); err != nil {
		return err
	}
	if o.quick || len(results) < len(all) {
		_, err := fmt.Fprintln(out, "RESULTS.md is left as it is: not everything was measured")
		return err
	}
	notes, err := os.ReadFile(filepath.Join(o.out, "NOTES.md"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := o.document(about, results) + "\n" + string(notes)
	return os.WriteFile(filepath.Join(o.out, "RESULTS.md"), []byte(text), 0o644) //nolint:gosec // for everybody to read
}

func (o *options) document(about *run, results []*ratio.Result) string {
	var b strings.Builder
	changed := ""
	if about.Changed {
		changed = " with uncommitted changes"
	}
	fmt.Fprintf(&b, "# Results\n\nWritten by `go run ./loadtest/bench`; README.md says how to read it. Do not edit: remarks belong in NOTES.md.\n\n")
	fmt.Fprintf(&b, "- Commit %s%s, %s to %s\n", about.Commit, changed, about.Began.Format(time.DateTime), about.Ended.Format("15:04:05 MST"))
	fmt.Fprintf(&b, "- %s, %d cores, %s, Linux %s, %s, %s\n", about.CPU, about.Cores, about.Memory, about.Kernel, about.FileSystem, about.Go)
	fmt.Fprintf(&b, "- Redis %s, NATS %s, PostgreSQL %s; load average %s before, %s after\n", about.Redis, about.NATS, about.Postgres, about.LoadBefore, about.LoadAfter)
	fmt.Fprintf(&b, "- %d rounds of %g s per side, sides by turns, after one round that does not count; medians (least–greatest)\n\n", o.pairs, o.seconds)
	b.WriteString("## Budgets\n\n" + ratio.Table(results))
	b.WriteString("\n## Costs\n\n" + ratio.Costs(results))
	return b.String()
}
