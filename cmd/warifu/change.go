package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// changeFlags are what every command has that changes something.
type changeFlags struct {
	sys      *system
	reason   string
	dryRun   bool
	yes      bool
	expected int64
	id       string
	asked    *bufio.Reader // what is typed
}

func (f *changeFlags) bind(sys *system, cmd *cobra.Command) {
	f.bindReason(sys, cmd)
	cmd.Flags().StringVar(&f.id, "change-id", "", "a UUID, to send the same change again after one whose outcome was unknown")
}

// bindVersion is for changes of what has a version.
func (f *changeFlags) bindVersion(cmd *cobra.Command) {
	cmd.Flags().Int64Var(&f.expected, "expected-version", 0, "change this version and no other; default: the one that is there now")
}

// bindReason is for changes without an ID.
func (f *changeFlags) bindReason(sys *system, cmd *cobra.Command) {
	f.sys = sys
	cmd.Flags().StringVar(&f.reason, "reason", "", "why, for the audit log: 1-1024 bytes (asked for at a terminal)")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show what would happen and change nothing")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "ask for no confirmation")
}

// reasonBytesMax is the API's.
const reasonBytesMax = 1024

// prepare has everything ready that a change says about itself. The ID is made
// once: whatever is sent again is the same change.
func (f *changeFlags) prepare() error {
	if f.id == "" {
		f.id = uuid.NewString()
	}
	if id, err := uuid.Parse(f.id); err != nil || id == uuid.Nil {
		return usageError("--change-id %q: it is a UUID", f.id)
	}
	if f.dryRun && f.reason == "" {
		f.reason = "dry run" // it gets into no log
	}
	if f.reason == "" && f.atTerminal() {
		var err error
		if f.reason, err = f.question("Why? This goes into the audit log: "); err != nil {
			return err
		}
	}
	if n := len(f.reason); n == 0 || n > reasonBytesMax {
		return usageError("--reason: it says why, in 1-%d bytes, for the audit log", reasonBytesMax)
	}
	return nil
}

// change is the message. version is that of what was looked at.
func (f *changeFlags) change(version int64, dryRun bool) *warifuv1.Change {
	return &warifuv1.Change{Reason: f.reason, ChangeId: f.id, DryRun: dryRun, ExpectedVersion: version}
}

// version is the one that --expected-version names, else the one that look finds.
func (f *changeFlags) version(look func() (int64, error)) (int64, error) {
	if f.expected < 0 {
		return 0, usageError("--expected-version %d: versions begin with 1", f.expected)
	}
	if f.expected > 0 {
		return f.expected, nil
	}
	return look()
}

// make makes a change, or only shows it: --dry-run. What is dangerous is tried
// first, shown, and confirmed by typing name.
func (f *changeFlags) make(
	ctx context.Context, name string, dangerous bool, send func(ctx context.Context, dryRun bool) (*warifuv1.Consequence, error),
) error {
	if f.dryRun || dangerous {
		what, err := send(ctx, true)
		if err != nil {
			return err
		}
		consequence(f.sys.stderr, what)
	}
	if f.dryRun {
		row(f.sys.stderr, "dry run: nothing was changed")
		return nil
	}
	if dangerous {
		if err := f.confirm(name); err != nil {
			return err
		}
	}
	_, err := send(ctx, false)
	if err != nil && !notApplied(err) && exitCodeOf(err) == exitUnavailable {
		return exit(exitUnavailable, fmt.Errorf("%w\nit may have been made: send it again with --change-id %s", err, f.id))
	}
	return err
}

// consequence shows what a change means for what is stored.
func consequence(w io.Writer, c *warifuv1.Consequence) {
	if c == nil {
		return
	}
	if c.GetCountedAt() != nil {
		row(w, fmt.Sprintf("%d retained keys, %d live leases, %d in doubt, counted at %s",
			c.GetRetainedKeys(), c.GetLiveLeases(), c.GetInDoubt(), instant(c.GetCountedAt())))
	}
	for _, note := range c.GetNotes() {
		row(w, "- "+plain(note))
	}
}

// confirm has a person type the name of what is changed. Where nobody can be
// asked, --yes is needed.
func (f *changeFlags) confirm(name string) error {
	if f.yes {
		return nil
	}
	if !f.atTerminal() {
		return exit(exitDeclined, errors.New("this needs a confirmation and nobody can be asked: look at it with --dry-run, then give --yes; nothing was changed"))
	}
	name = cmp.Or(name, "yes")
	typed, err := f.question(fmt.Sprintf("Type %s to go on: ", plain(name)))
	if err != nil {
		return err
	}
	if typed != name {
		return exit(exitDeclined, errors.New("not confirmed; nothing was changed"))
	}
	return nil
}

// terminal is what a stream can say of itself that is no file.
type terminal interface{ terminal() bool }

// atTerminal reports whether somebody can be asked.
func (f *changeFlags) atTerminal() bool {
	if t, ok := f.sys.stdin.(terminal); ok {
		return t.terminal()
	}
	return isTerminal(f.sys.stdin) && isTerminal(f.sys.stderr)
}

// question asks on stderr: stdout is for what the command prints.
func (f *changeFlags) question(text string) (string, error) {
	if f.asked == nil {
		f.asked = bufio.NewReader(f.sys.stdin)
	}
	if _, err := io.WriteString(f.sys.stderr, text); err != nil {
		return "", fmt.Errorf("ask: %w", err)
	}
	line, err := f.asked.ReadString('\n')
	if err != nil && (!errors.Is(err, io.EOF) || line == "") {
		return "", exit(exitDeclined, errors.New("no answer; nothing was changed"))
	}
	return strings.TrimSpace(line), nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// done is what a table says of a change that leaves nothing to show.
func (f *changeFlags) done(what, name string) string {
	if f.dryRun {
		return "would be " + what + ": " + name
	}
	return what + ": " + name
}
