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

// Bounds of an end that was asked for.
const (
	// killDelay is how long a command that lost its lease has between SIGTERM and
	// SIGKILL, and at least what else it started has after any signal.
	killDelay = 10 * time.Second
	// killWait is how long SIGKILL may take, and treeLook how often is looked.
	killWait = 5 * time.Second
	treeLook = 50 * time.Millisecond
)

// child is the command that `once` runs, at most one time.
type child struct {
	sys  *system
	path string
	argv []string

	mu struct {
		sync.Mutex
		began   bool
		process *os.Process    // while it runs
		tree    tree           // the process and what it started
		told    syscall.Signal // the last that asked it to stop, or 0
		toldAt  time.Time
	}
}

// ran is how the command ended and what it said.
type ran struct {
	state          *os.ProcessState
	told           syscall.Signal // 0: it ended by itself
	stdout, stderr capture
}

// run runs the command to its end. ctx ends when the lease is lost. Whether the
// command began is what hasBegun says, also after an error.
func (c *child) run(ctx context.Context, g *warifu.Grant) (*ran, error) {
	r := &ran{stdout: capture{to: c.sys.stdout}, stderr: capture{to: c.sys.stderr}}
	cmd := exec.CommandContext(ctx, c.path, c.argv[1:]...)
	cmd.Args[0] = c.argv[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.sys.stdin, &r.stdout, &r.stderr
	cmd.Env = append(cmd.Environ(),
		"WARIFU_CONSUMER="+g.Consumer, "WARIFU_EVENT_ID="+g.EventID,
		fmt.Sprintf("WARIFU_ATTEMPT=%d", g.Attempt), "WARIFU_ATTEMPT_ID="+g.AttemptID,
		fmt.Sprintf("WARIFU_FENCE=%d", g.Fence))
	cmd.Cancel = func() error { c.stop(syscall.SIGTERM); return nil }
	cmd.WaitDelay = killDelay
	// The kernel ties the death signal to the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.start(cmd); err != nil {
		return nil, err
	}
	defer c.mu.tree.reap()()
	// What Wait says beyond the state is about pipes that a grandchild still
	// holds; the command's answer stands all the same.
	err := cmd.Wait()
	r.state, r.told = cmd.ProcessState, c.ended()
	if r.state == nil {
		return nil, fmt.Errorf("wait for the command: %w", err)
	}
	return r, nil
}

func (c *child) start(cmd *exec.Cmd) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.tree.prepare(cmd, isTerminal(c.sys.stdin))
	if err := cmd.Start(); err != nil {
		return err
	}
	c.mu.began, c.mu.process = true, cmd.Process
	c.mu.tree.started(cmd)
	return nil
}

func (c *child) hasBegun() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.began
}

// ended says that the command is gone, and returns the signal that had asked
// it to stop.
func (c *child) ended() syscall.Signal {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.process = nil
	return c.mu.told
}

// stop asks the command and all that it started to end, while it runs.
func (c *child) stop(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.process == nil {
		return
	}
	c.mu.told = sig
	if c.mu.toldAt.IsZero() {
		c.mu.toldAt = time.Now()
	}
	if isTerminal(c.sys.stdin) && (sig == syscall.SIGINT || sig == syscall.SIGQUIT) {
		sig = 0 // the terminal has sent it to all of them already
	}
	_, err := c.mu.tree.signal(c.mu.process, sig, false)
	c.complain(sig, err)
}

// endTree returns when nothing is left of what an ended command started: nobody
// who sees this process end without an answer may find that somebody is still at
// the event. Who came after the signal is told as well, and who does not end is
// killed.
func (c *child) endTree() {
	c.mu.Lock()
	if c.mu.told == 0 {
		c.mu.told, c.mu.toldAt = syscall.SIGTERM, time.Now()
	}
	c.mu.Unlock()
	ticker := time.NewTicker(treeLook)
	defer ticker.Stop()
	// One look may miss a process whose parent ends just then.
	for empty := 0; empty < 2; <-ticker.C {
		others, late, err := c.chase()
		if late > killWait {
			row(c.sys.stderr, fmt.Sprintf("warifu once: %d processes that the command started do not end: %v", others, err))
			return
		}
		if empty++; others > 0 {
			empty = 0
		}
	}
}

// chase tells or kills who is left, and returns how many there were and for how
// long they should have been gone.
func (c *child) chase() (others int, late time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	late = time.Since(c.mu.toldAt) - killDelay
	if late < 0 {
		others, err = c.mu.tree.signal(nil, c.mu.told, true)
	} else {
		others, err = c.mu.tree.signal(nil, syscall.SIGKILL, false)
	}
	return others, late, err
}

func (c *child) complain(sig syscall.Signal, err error) {
	if err != nil {
		row(c.sys.stderr, fmt.Sprintf("warifu once: signal the command (%s): %v", sig, err))
	}
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
			c.pass(sig.(syscall.Signal), cancel)
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

// pass passes a signal on. Those that ask to stop are for all that the command
// started, too; what the others mean, the command alone knows.
func (c *child) pass(sig syscall.Signal, cancel context.CancelCauseFunc) {
	if sig != syscall.SIGUSR1 && sig != syscall.SIGUSR2 {
		c.cancelUnlessBegun(sig, cancel)
		c.stop(sig)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.process == nil {
		return
	}
	// The command may have ended a moment ago; then there is nobody to tell.
	if err := c.mu.process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		c.complain(sig, err)
	}
}

func (c *child) cancelUnlessBegun(sig syscall.Signal, cancel context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.began {
		cancel(signalledError{sig})
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
