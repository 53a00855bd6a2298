// Command bench measures the performance budgets as ratios of what is measured
// within the same minutes on the same machine, and writes the table to
// loadtest/RESULTS.md. Run it from the root of the module:
//
//	go run ./loadtest/bench
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/warifu/warifu/loadtest/ratio"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	var err error
	if len(os.Args) == 2 && os.Args[1] == childArgument {
		err = child(ctx, os.Stdin, os.Stdout)
	} else {
		err = bench(ctx, os.Args[1:], os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	only      string
	pairs     int
	seconds   float64
	retained  int
	completed int
	growth    int
	updated   int
	quick     bool
	profile   string
	dir       string
	tools     string
	out       string
}

func parseOptions(args []string, out io.Writer) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.only, "only", "", "budgets to measure, such as P1,P4; all when empty. RESULTS.md is written when all are")
	flags.IntVar(&o.pairs, "pairs", 5, "rounds that count, after one that does not")
	flags.Float64Var(&o.seconds, "seconds", 3, "length of one measurement")
	flags.IntVar(&o.retained, "retained", 2_000_000, "keys in the store of P6")
	flags.IntVar(&o.completed, "completed", 50_000, "completed events that P8 replays, and that P6-sql meets again")
	flags.IntVar(&o.growth, "growth", 1_000_000, "rows of the largest table of growth, a power of ten; 10000000 takes many minutes and some 10 GB")
	flags.IntVar(&o.updated, "updated", 100_000, "events that a measurement of updates claims and completes")
	flags.BoolVar(&o.quick, "quick", false, "one short round over few keys: to see that it works. Writes no RESULTS.md")
	flags.StringVar(&o.profile, "profile", "", "folder for CPU profiles of servers and clients")
	flags.StringVar(&o.dir, "dir", os.TempDir(), "where stores are made: a folder on a real disk")
	flags.StringVar(&o.tools, "tools", ".tools/bin", "where the NATS server is kept once built")
	flags.StringVar(&o.out, "out", "loadtest", "folder of RESULTS.md, NOTES.md and results/")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if o.quick {
		o.pairs, o.seconds, o.retained, o.completed = 1, 0.5, 100_000, 5_000
		o.growth, o.updated = 100_000, 10_000
	}
	return o, o.validate()
}

func (o *options) validate() error {
	var errs []error
	fault := func(bad bool, text string) {
		if bad {
			errs = append(errs, errors.New(text))
		}
	}
	fault(o.pairs < 1 || o.pairs > 99, "-pairs must be 1-99")
	fault(o.seconds <= 0 || o.seconds > 60, "-seconds must be above 0 and at most 60")
	fault(o.retained < batchLen, "-retained must be at least one batch")
	fault(o.completed < sqlBatch, fmt.Sprintf("-completed must be at least %d", sqlBatch))
	fault(o.growth < growthLeast || o.growth > growthMost, fmt.Sprintf("-growth must be %d-%d", growthLeast, growthMost))
	fault(o.updated < sqlBatch, fmt.Sprintf("-updated must be at least %d", sqlBatch))
	for name := range strings.SplitSeq(o.only, ",") {
		known := slices.ContainsFunc(all, func(e experiment) bool { return e.name == name })
		fault(o.only != "" && !known, fmt.Sprintf("-only: %q is unknown", name))
	}
	return errors.Join(errs...)
}

func (o *options) wants(name string) bool {
	return o.only == "" || slices.Contains(strings.Split(o.only, ","), name)
}

// totalMax ends a run that hangs. The default one takes some 20 minutes.
const totalMax = time.Hour

// bench runs what was asked for and reports it.
func bench(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parseOptions(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, totalMax)
	defer cancel()
	dir, err := os.MkdirTemp(o.dir, "warifu-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	about := describe(ctx, dir)
	if err := about.usable(); err != nil {
		return err
	}
	if o.profile != "" {
		if err := os.MkdirAll(o.profile, 0o750); err != nil {
			return err
		}
	}
	results, err := measureAll(ctx, o, about, dir, out)
	if err != nil {
		return err
	}
	about.finish()
	return o.publish(about, results, out)
}

func measureAll(ctx context.Context, o *options, about *run, dir string, out io.Writer) ([]*ratio.Result, error) {
	program, err := buildWarifu(ctx, dir)
	if err != nil {
		return nil, err
	}
	say := func(line string) { _, _ = fmt.Fprintln(out, line) } // progress: nobody may be watching
	var results []*ratio.Result
	for _, e := range all {
		if !o.wants(e.name) {
			continue
		}
		began := time.Now()
		f := &folder{name: e.name, dir: filepath.Join(dir, e.name), opts: o, program: program, profiled: map[int]string{}}
		r, err := f.run(ctx, e, say)
		if err = errors.Join(err, f.close()); err != nil {
			return nil, err
		}
		if f.postgres != "" {
			about.Postgres = f.postgres
		}
		say(fmt.Sprintf("%s took %s", e.name, time.Since(began).Round(time.Second)))
		results = append(results, r)
	}
	return results, nil
}

func (f *folder) run(ctx context.Context, e experiment, note func(string)) (*ratio.Result, error) {
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		return nil, err
	}
	x, err := e.build(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.name, err)
	}
	return x.Run(ctx, f.opts.pairs, note)
}
