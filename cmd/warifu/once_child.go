package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	warifu "github.com/warifu/warifu/sdk/go"
)

// killDelay is how long a command that lost its lease has between SIGTERM and
// SIGKILL.
const killDelay = 10 * time.Second

// child is the command that `once` runs, at most one time.
type child struct {
	sys  *system
	path string
	argv []string

	mu struct {
		sync.Mutex
		began   bool
		process *os.Process // while it runs
		told    os.Signal   // the last signal that asked it to stop
	}
}

// ran is how the command ended and what it said.
type ran struct {
	state          *os.ProcessState
	told           os.Signal
	stdout, stderr capture
}

// run runs the command to its end. ctx ends when the lease is lost. The error
// says that the command never began.
func (c *child) run(ctx context.Context, g *warifu.Grant) (*ran, error) {
	r := &ran{stdout: capture{to: c.sys.stdout}, stderr: capture{to: c.sys.stderr}}
	cmd := exec.CommandContext(ctx, c.path, c.argv[1:]...)
	cmd.Args[0] = c.argv[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.sys.stdin, &r.stdout, &r.stderr
	cmd.Env = append(cmd.Environ(),
		"WARIFU_CONSUMER="+g.Consumer, "WARIFU_EVENT_ID="+g.EventID,
		fmt.Sprintf("WARIFU_ATTEMPT=%d", g.Attempt), "WARIFU_ATTEMPT_ID="+g.AttemptID,
		fmt.Sprintf("WARIFU_FENCE=%d", g.Fence))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killDelay
	dieWithParent(cmd)
	// The kernel ties the death signal to the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.start(cmd); err != nil {
		return nil, err
	}
	// What Wait says beyond the state is about pipes that a grandchild still
	// holds; the command's answer stands all the same.
	err := cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.process, r.state, r.told = nil, cmd.ProcessState, c.mu.told
	if r.state == nil {
		return nil, fmt.Errorf("wait for the command: %w", err)
	}
	return r, nil
}

func (c *child) start(cmd *exec.Cmd) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	c.mu.began, c.mu.process = true, cmd.Process
	return nil
}

// forwarded are the signals that mean the command when they are sent to once.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
}

// signalledError is the cause of a context that ended by a signal before the
// command ran.
type signalledError struct{ signal syscall.Signal }

func (e signalledError) Error() string { return "ended by signal " + e.signal.String() }

// forwardSignals passes signals on to the command. Before it runs they end the
// returned context; after it has run nothing may keep its answer from being
// stored. forget stops that.
func (c *child) forwardSignals(ctx context.Context) (running context.Context, forget func()) {
	running, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, len(forwarded))
	signal.Notify(signals, forwarded...)
	// A reader of our output that went away is no reason to abandon the command.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sig := range signals {
			c.pass(sig, cancel)
		}
	}()
	return running, func() {
		signal.Stop(signals)
		signal.Stop(broken)
		close(signals)
		<-done
		cancel(nil)
	}
}

func (c *child) pass(sig os.Signal, cancel context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stops := sig != syscall.SIGUSR1 && sig != syscall.SIGUSR2
	if stops && !c.mu.began {
		cancel(signalledError{sig.(syscall.Signal)})
	}
	if c.mu.process == nil {
		return
	}
	if stops {
		c.mu.told = sig
	}
	if isTerminal(c.sys.stdin) && (sig == syscall.SIGINT || sig == syscall.SIGQUIT) {
		return // the terminal has sent it to the command already
	}
	// The command may have ended a moment ago; then there is nobody to tell.
	if err := c.mu.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		row(c.sys.stderr, fmt.Sprintf("warifu once: pass on %s: %v", sig, err))
	}
}

// captureBytesMax is what is kept of one stream: two of them, in base64, fit
// into a result of 256 KiB.
const captureBytesMax = 90 << 10

// capture shows a stream as it comes and keeps its beginning.
type capture struct {
	to   io.Writer
	kept []byte
	cut  int64 // bytes that were not kept
}

// Write never fails: that nobody looks any more does not change the answer.
func (c *capture) Write(p []byte) (int, error) {
	_, _ = c.to.Write(p)
	n := min(len(p), captureBytesMax-len(c.kept))
	c.kept = append(c.kept, p[:n]...)
	c.cut += int64(len(p) - n)
	return len(p), nil
}
