package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	warifu "github.com/warifu/warifu/sdk/go"
)

// onceVariables are what the command of `once` finds in its environment.
var onceVariables = []string{
	"WARIFU_CONSUMER", "WARIFU_EVENT_ID", "WARIFU_ATTEMPT", "WARIFU_ATTEMPT_ID", "WARIFU_FENCE",
}

// exitAny stands for every exit code that a flag could name.
const exitAny = "any"

func newOnce(sys *system) *cobra.Command {
	var o once
	cmd := &cobra.Command{
		Use: "once --consumer C --event-id E [flags] -- COMMAND [ARGS...]", GroupID: groupClient,
		Short: "Run a command once per event and replay its output to every duplicate",
		Long: `Claims the event, runs the command, and stores its output and exit code. Every
later call for the same event prints and returns what is stored and runs
nothing.

  exit code 0        stored as SUCCEEDED
  exit code 75       "not now" (EX_TEMPFAIL): the event is given back and the next
                     call runs the command again; --retry-exit names others, and
                     --retry-exit any makes it every code but 0
  129-192            no answer: shells and other wrappers say 128+n when signal n
                     ended a step, such as 137 after the kernel ran out of memory;
                     --answer-exit names those that are an answer all the same
  any other          stored as REJECTED: it is the command's answer, and the
                     command is not run again
  ended by a signal, told to stop and then not 0, or warifu itself is killed:
                     no answer

Without an answer nothing is stored and the lease is left to the consumer's
policy: with REGRANT the event is granted again once the lease is over, with HOLD
it is in doubt. A call that ran the command but could not record its outcome ends
with exit code 74: the effect may have happened. Deliver the event again, and the
policy decides likewise.

A lease cannot stop a command that is paused and goes on later. The command
finds WARIFU_FENCE in its environment: pass it to what you change, and let that
refuse a smaller one. WARIFU_CONSUMER, WARIFU_EVENT_ID, WARIFU_ATTEMPT and
WARIFU_ATTEMPT_ID are there, too.

The lease is extended while the command runs. When it is lost, the command and
all that it started get SIGTERM, and SIGKILL 10 s later. SIGTERM, SIGINT, SIGQUIT
and SIGHUP sent to warifu go on to all of them, too, SIGUSR1 and SIGUSR2 to the
command alone. When the command has ended after one of the former, or without an
answer, warifu tells what is left of it to stop, waits for that, and kills what
still runs 10 s after the signal. What a command with an answer leaves running is
not touched.

SIGKILL to warifu itself kills the command, but not what the command started;
that goes on while another attempt may begin. On other systems than Linux the
command goes on, too; there a process that leaves the command's process group is
not found, and at a terminal only the terminal's own signals reach more than the
command.

Output is shown as it comes; up to 90 KiB of each stream are stored. Exit codes
are listed by 'warifu exit-codes'.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exit(exitOnceBroken, errors.New("no command to run; it stands after --"))
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit(exitOnceBroken, err) })
	o.sys = sys
	o.client.bind(sys, cmd)
	cmd.Flags().SetInterspersed(false) // the command's flags are the command's
	cmd.Flags().StringVar(&o.event.Consumer, "consumer", "", "the logical handler of the event (required)")
	cmd.Flags().StringVar(&o.event.ID, "event-id", "", "the event's own ID, the same on every redelivery (required)")
	cmd.Flags().DurationVar(&o.lease, "lease", 0, "how long before others may take over; default: the consumer's")
	cmd.Flags().DurationVar(&o.wait, "wait", 0, "how long to wait for another attempt to end, at most 30s")
	cmd.Flags().StringArrayVar(&o.digests, "digest", nil, "SCHEME:HEX, a fingerprint of the content; repeatable")
	cmd.Flags().StringVar(&o.eventTime, "event-time", "", "when the event was made, such as 2027-01-31T12:00:00Z")
	cmd.Flags().StringSliceVar(&o.retryExit, "retry-exit", []string{"75"}, "exit codes that mean \"not now\"; any: all but 0")
	cmd.Flags().StringSliceVar(&o.answerExit, "answer-exit", nil, "exit codes within 129-192 that are an answer; any: all of them")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		o.argv = args
		return o.brokenUnlessCoded(o.run(cmd.Context()))
	}
	return cmd
}

// once is one call of `warifu once`.
type once struct {
	sys       *system
	client    clientFlags
	event     warifu.Event
	lease     time.Duration
	wait      time.Duration
	digests   []string
	eventTime string
	retryExit []string
	// answerExit are exit codes that look like a signal's and are an answer.
	answerExit []string
	argv       []string

	child child
}

func (o *once) run(ctx context.Context) error {
	if err := o.prepare(); err != nil {
		return exit(exitOnceBroken, err)
	}
	path, err := lookPath(o.argv[0])
	if err != nil {
		return err
	}
	client, err := o.client.client()
	if err != nil {
		return exit(exitOnceBroken, err)
	}
	o.child.sys, o.child.path, o.child.argv = o.sys, path, o.argv
	ctx, forget := o.child.forwardSignals(ctx)
	defer forget()
	result, err := client.Do(ctx, o.event, o.handle, o.options()...)
	if sig, ok := errors.AsType[signalledError](context.Cause(ctx)); ok {
		err = exit(exitSignalled+int(sig.signal), fmt.Errorf("not run: %w", sig))
	} else {
		err = o.conclude(result, err)
	}
	if closeErr := client.Close(); closeErr != nil { // what was concluded stands
		row(o.sys.stderr, fmt.Sprintf("warifu once: %v", closeErr))
	}
	return err
}

// prepare reads the flags that need reading; all faults are told together.
func (o *once) prepare() error {
	var faults []error
	if o.event.Consumer == "" {
		faults = append(faults, errors.New("--consumer is missing"))
	}
	if o.event.ID == "" {
		faults = append(faults, errors.New("--event-id is missing"))
	}
	for _, text := range o.digests {
		scheme, value, ok := cutLast(text, ":")
		sum, err := hex.DecodeString(value)
		if !ok || scheme == "" || err != nil || len(sum) == 0 {
			faults = append(faults, fmt.Errorf("--digest %q: it is SCHEME:HEX", text))
			continue
		}
		o.event.Digests = append(o.event.Digests, warifu.Digest{Scheme: scheme, Value: sum})
	}
	if o.eventTime != "" {
		t, err := time.Parse(time.RFC3339Nano, o.eventTime)
		if err != nil {
			faults = append(faults, fmt.Errorf("--event-time %q: it is such as 2027-01-31T12:00:00Z", o.eventTime))
		}
		o.event.Time = t
	}
	for _, code := range o.retryExit {
		if !validExit(code, 1, 255) {
			faults = append(faults, fmt.Errorf("--retry-exit %q: it is 1-255 or %q", code, exitAny))
		}
	}
	for _, code := range o.answerExit {
		if !validExit(code, exitSignalled+1, exitSignalled+signalMax) {
			faults = append(faults, fmt.Errorf("--answer-exit %q: it is 129-192 or %q", code, exitAny))
		}
	}
	return errors.Join(faults...)
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// lookPath finds the command before anything is claimed for it.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound):
		return "", exit(exitOnceNotFound, err)
	default:
		return "", exit(exitOnceNotExecutable, err)
	}
}

// brokenUnlessCoded is for what went wrong in once itself: the command's own
// codes begin at 0 and 1, so those of other commands would be mistaken for them.
func (o *once) brokenUnlessCoded(err error) error {
	if _, coded := errors.AsType[*exitError](err); err == nil || coded {
		return err
	}
	return exit(exitOnceBroken, err)
}

func (o *once) options() []warifu.ClaimOption {
	var opts []warifu.ClaimOption
	if o.lease != 0 {
		opts = append(opts, warifu.WithLease(o.lease))
	}
	if o.wait != 0 {
		opts = append(opts, warifu.WithWait(o.wait))
	}
	return opts
}
