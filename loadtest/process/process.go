// Package process starts the programs that are measured, tells what they cost
// in CPU time, and ends them. Nothing that it starts outlives this process.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Bounds of a program's start and end.
const (
	ReadyWait = 20 * time.Second
	readyPoll = 10 * time.Millisecond
	stopWait  = 10 * time.Second // then it is killed
	outputMax = 64 << 10         // of what it printed, kept for errors
)

// Process is a program that was started. It ends with the context that it was
// started with, or with Stop.
type Process struct {
	name   string
	cmd    *exec.Cmd
	output output
	ended  chan struct{}
	err    error // set before ended is closed
}

// Start starts a program in a process of its own, in folder dir; a nil env is
// this process's. What it prints is kept.
func Start(ctx context.Context, name, dir string, env []string, program string, args ...string) (*Process, error) {
	p := &Process{name: name, ended: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, program, args...)
	p.cmd.Dir, p.cmd.Env = dir, env
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopWait
	DieTogether(p.cmd)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// PID is the process's.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop ends the process and waits for it. That it died of the signal is no
// error.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	kill := time.AfterFunc(stopWait, func() { _ = p.cmd.Process.Kill() }) // it may have ended meanwhile
	defer kill.Stop()
	<-p.ended
	return nil
}

// AwaitTCP returns once the process accepts connections at address.
func (p *Process) AwaitTCP(ctx context.Context, address string) error {
	return p.await(ctx, "to listen on "+address, func() bool {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", address)
		return err == nil && conn.Close() == nil
	})
}

// await polls until done says so, the process ends, or ReadyWait passes.
func (p *Process) await(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, ReadyWait)
	defer cancel()
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for !done() {
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended while it was expected %s: %w; it said:\n%s", p.name, what, p.err, p.Output())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s %s: %w; it said:\n%s", p.name, what, ctx.Err(), p.Output())
		case <-ticker.C:
		}
	}
	return nil
}

// AwaitOutput returns the first match of find in what the process prints.
func (p *Process) AwaitOutput(ctx context.Context, what string, find func([]byte) string) (string, error) {
	var found string
	err := p.await(ctx, what, func() bool {
		found = find(p.Output())
		return found != ""
	})
	return found, err
}

// Output is the beginning of what the process printed so far.
func (p *Process) Output() []byte {
	p.output.Lock()
	defer p.output.Unlock()
	return bytes.Clone(p.output.kept)
}

// output keeps the beginning of what is written to it.
type output struct {
	sync.Mutex
	kept []byte
}

func (o *output) Write(b []byte) (int, error) {
	o.Lock()
	defer o.Unlock()
	o.kept = append(o.kept, b[:min(len(b), outputMax-len(o.kept))]...)
	return len(b), nil
}

// FreePort is a loopback port that was free a moment ago.
func FreePort(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}
