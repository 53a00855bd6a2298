package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/pprof"
	"time"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/process"
)

// job is one measurement, done by a process of its own: no side inherits the
// heap, the connections or the warm caches of another.
type job struct {
	Role    string
	Callers int
	Seconds float64
	// Address is the server's; Key its API key; PID its process. Database is
	// the process of a database behind it.
	Address  string
	Key      string
	PID      int
	Database int
	// Dir is a folder of the job's own.
	Dir string
	// Seed names the events of jobs that must know each other's; Keys is how
	// many there are.
	Seed uint64
	Keys int
	// NoFilter turns the store's filter off. Sorted sorts batches.
	NoFilter bool
	Sorted   bool
	// Duplicates is the share of keys in a batch that are stored, in percent.
	Duplicates int
	// Mixed: events are completed in other batches than they were claimed in.
	Mixed bool
	// Profile is the file of a CPU profile; empty: none.
	Profile string
}

func (j *job) plan() measure.Plan {
	window := time.Duration(j.Seconds * float64(time.Second))
	return measure.Plan{Callers: j.Callers, Warm: min(warmMax, window), Window: window, ServerPID: j.PID, DatabasePID: j.Database}
}

// warmMax is how long a measurement runs before it counts.
const warmMax = 400 * time.Millisecond

// roles are what a job may be.
var roles = map[string]func(context.Context, *job) (measure.Sample, error){
	"sdk-claim":   sdkClaim,
	"sdk-replay":  sdkReplay,
	"sdk-life":    sdkLife,
	"sdk-prepare": sdkPrepare,
	"unary":       unary,
	"redis":       redisClaim,
	"nats":        natsClaim,
	"driver":      driverClaim,
	"raw":         rawWrite,
	"fill":        fill,
	"retained":    retained,
	"allocations": allocations,
	"sql-rows":    sqlRows,
	"sql-fill":    sqlFill,
	"sql-mix":     sqlMix,
	"sql-growth":  sqlGrowth,
	"sql-updates": sqlUpdates,
}

// childArgument makes this program one of its own children.
const childArgument = "child"

// child does the job that it reads from in and writes the sample to out. It
// ends when in does: its parent is gone then.
func child(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	var j job
	if err := json.Unmarshal(line, &j); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with the process: a read cannot be interrupted
		_, err := io.Copy(io.Discard, lines)
		cancel(fmt.Errorf("the parent is gone: %w", errors.Join(err, io.EOF)))
	}()
	if j.Role == roleEmpty {
		return serveEmpty(ctx, out)
	}
	s, err := j.do(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(s)
}

func (j *job) do(ctx context.Context) (s measure.Sample, err error) {
	role := roles[j.Role]
	if role == nil {
		return s, fmt.Errorf("unknown role %q", j.Role)
	}
	if j.Profile != "" {
		f, err := os.Create(j.Profile)
		if err != nil {
			return s, fmt.Errorf("profile: %w", err)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return s, errors.Join(fmt.Errorf("profile: %w", err), f.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, f.Close())
		}()
	}
	return role(ctx, j)
}

// run does the job in a child process.
func (j *job) run(ctx context.Context) (measure.Sample, error) {
	c, err := startChild(ctx, j)
	if err != nil {
		return measure.Sample{}, err
	}
	var s measure.Sample
	decodeErr := json.NewDecoder(c.out).Decode(&s)
	if err := errors.Join(c.end(), decodeErr); err != nil {
		return s, fmt.Errorf("%s: %w", j.Role, err)
	}
	return s, nil
}

// childProcess is a child that was given its job.
type childProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser // open as long as the child may live
	out io.Reader
	err bytes.Buffer
}

func startChild(ctx context.Context, j *job) (*childProcess, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start child: %w", err)
	}
	c := &childProcess{cmd: exec.CommandContext(ctx, program, childArgument)}
	c.cmd.Stderr, c.cmd.WaitDelay = &c.err, time.Second
	process.DieTogether(c.cmd)
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start child: %w", err)
	}
	if c.out, err = c.cmd.StdoutPipe(); err != nil {
		return nil, fmt.Errorf("start child: %w", err)
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start child: %w", err)
	}
	line, err := json.Marshal(j)
	if err == nil {
		_, err = c.in.Write(append(line, '\n'))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start child: %w", err), c.end())
	}
	return c, nil
}

// end lets the child go and waits for it.
func (c *childProcess) end() error {
	closeErr := c.in.Close()
	_, _ = io.Copy(io.Discard, c.out) // what it still says; its status tells the rest
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, c.err.String())
	}
	return closeErr
}
