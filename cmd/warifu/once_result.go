package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	warifu "github.com/warifu/warifu/sdk/go"
)

// onceContentType is the type of what `once` stores.
const onceContentType = "application/vnd.warifu.once+json"

// exitCodeName is the metadata entry with the exit code, which is there also
// where the output is not.
const exitCodeName = "exit-code"

// onceResult is the stored output of a command. Bytes are base64 in JSON.
type onceResult struct {
	Stdout    []byte `json:"stdout"`
	Stderr    []byte `json:"stderr"`
	StdoutCut int64  `json:"stdout_bytes_cut,omitempty"`
	StderrCut int64  `json:"stderr_bytes_cut,omitempty"`
}

// noAnswerError is a command that ended without saying anything: killed, or told
// to stop. Nobody knows how far it came, so the lease is left to its policy.
type noAnswerError struct {
	how  string
	code int // 128 + the signal
}

func (e noAnswerError) Error() string { return fmt.Sprintf("the command %s", e.how) }

// laterError is a command that said "not now".
type laterError struct{ code int }

func (e laterError) Error() string {
	return fmt.Sprintf("the command said \"not now\" (exit code %d)", e.code)
}

// notStartedError is a command that could not be executed after all.
type notStartedError struct{ cause error }

func (e notStartedError) Error() string { return e.cause.Error() }
func (e notStartedError) Unwrap() error { return e.cause }

// handle runs the command under its grant, and ends what it left where that would
// go on without an answer or although it was told to stop.
func (o *once) handle(ctx context.Context, g warifu.Grant) (warifu.Completion, error) {
	r, err := o.child.run(ctx, &g)
	switch {
	case err != nil && o.child.hasBegun():
		return warifu.Completion{}, err
	case err != nil:
		return warifu.Completion{}, warifu.Retryable(notStartedError{err}) // nothing has happened
	}
	done, err := o.judge(r)
	if _, silent := errors.AsType[noAnswerError](err); silent || r.told != 0 {
		o.child.endTree()
	}
	return done, err
}

// judge says what the end of the command means.
func (o *once) judge(r *ran) (warifu.Completion, error) {
	code := exitCodeOfProcess(r.state)
	switch {
	case !r.state.Exited():
		return warifu.Completion{}, noAnswerError{"was ended by a signal", code}
	case code != 0 && o.isLater(code):
		return warifu.Completion{}, warifu.Retryable(laterError{code})
	case code != 0 && r.told != 0: // it failed because it was stopped: not its answer
		return warifu.Completion{}, noAnswerError{fmt.Sprintf("was told to stop and ended with exit code %d", code), exitSignalled + int(r.told)}
	case o.isSignal(code):
		return warifu.Completion{}, noAnswerError{fmt.Sprintf("says by exit code %d that %s ended what it ran", code, signalName(code)), code}
	}
	done, err := r.completion(code)
	if err != nil {
		return warifu.Completion{}, err
	}
	if code != 0 {
		return warifu.Completion{}, warifu.Reject(done)
	}
	return done, nil
}

// exitCodeOfProcess is the code a shell would show.
func exitCodeOfProcess(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignalled + int(status.Signal())
	}
	return state.ExitCode()
}

func (o *once) isLater(code int) bool {
	return slices.Contains(o.retryExit, exitAny) || slices.Contains(o.retryExit, strconv.Itoa(code))
}

// signalMax is the largest number of a signal.
const signalMax = 64

// isSignal reports what shells and many wrappers say about a step that a signal
// ended. Stored, an end for want of memory would be replayed for ever.
func (o *once) isSignal(code int) bool {
	return code > exitSignalled && code <= exitSignalled+signalMax &&
		!slices.Contains(o.answerExit, exitAny) && !slices.Contains(o.answerExit, strconv.Itoa(code))
}

func signalName(code int) string {
	n := code - exitSignalled
	return fmt.Sprintf("signal %d (%s)", n, syscall.Signal(n))
}

func validExit(text string, low, high int) bool {
	code, err := strconv.Atoi(text)
	return text == exitAny || (err == nil && code >= low && code <= high)
}

func (r *ran) completion(code int) (warifu.Completion, error) {
	body, err := json.Marshal(onceResult{
		Stdout: r.stdout.kept, StdoutCut: r.stdout.cut, Stderr: r.stderr.kept, StderrCut: r.stderr.cut,
	})
	if err != nil {
		return warifu.Completion{}, fmt.Errorf("store the output: %w", err)
	}
	return warifu.Completion{
		Body: body, ContentType: onceContentType,
		Metadata: map[string]string{exitCodeName: strconv.Itoa(code)},
	}, nil
}

// conclude turns what Do said into this process's output and exit code.
func (o *once) conclude(result warifu.Result, err error) error {
	if rejected, ok := errors.AsType[*warifu.RejectedError](err); ok {
		return o.answer(rejected.Stored, !result.Replayed)
	}
	if err == nil {
		return o.answer(result.Stored, !result.Replayed)
	}
	if e, ok := errors.AsType[noAnswerError](err); ok && !isAny(err, warifu.ErrLeaseLost, warifu.ErrStale) {
		return exit(e.code, fmt.Errorf("%w; no answer is stored, and the lease is left to the consumer's policy", e))
	}
	if e, ok := errors.AsType[laterError](err); ok {
		return e.conclude(err)
	}
	if e, ok := errors.AsType[notStartedError](err); ok {
		return exit(exitOnceNotExecutable, e.cause)
	}
	switch {
	case result.Applied || o.child.hasBegun(): // whatever else is wrong, this must not pass for "not run"
		return exit(exitOnceUnrecorded, fmt.Errorf("the command ran, but its outcome is not recorded: %w", err))
	case isAny(err, warifu.ErrMismatch, warifu.ErrInDoubt, warifu.ErrTooOld):
		return exit(exitOnceRefused, fmt.Errorf("not run: %w", err))
	case isAny(err, warifu.ErrInProgress, warifu.ErrUnavailable, warifu.ErrOverloaded, warifu.ErrQuotaExceeded, warifu.ErrOutcomeUnknown,
		warifu.ErrUnprotected, warifu.ErrStale, warifu.ErrLeaseLost):
		return exit(exitOnceLater, err)
	}
	return exit(exitOnceBroken, err)
}

// conclude leaves it to the command to say why, unless the event was not given
// back.
func (e laterError) conclude(err error) error {
	if failed, ok := errors.AsType[*warifu.Error](err); ok {
		return exit(exitOnceLater, fmt.Errorf("%w; giving the event back failed, so the lease is left to the consumer's policy: %w", e, failed))
	}
	return exit(exitOnceLater, nil)
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

// answer ends with the exit code of the command, whose output is printed when
// it did not run just now.
func (o *once) answer(stored warifu.Stored, ranNow bool) error {
	code, err := strconv.Atoi(stored.Metadata[exitCodeName])
	if err != nil || code < 0 || code > 255 || stored.ContentType != onceContentType {
		return exit(exitOnceRefused, fmt.Errorf("not run: the event was completed by something else than 'warifu once' (%s, content type %s)",
			stored.Outcome, orDash(plain(stored.ContentType))))
	}
	if !ranNow {
		if err := o.replay(stored); err != nil {
			return err
		}
	}
	if code == 0 {
		return nil
	}
	return exit(code, nil)
}

func (o *once) replay(stored warifu.Stored) error {
	if stored.Omitted != warifu.NotOmitted {
		row(o.sys.stderr, fmt.Sprintf("warifu once: the event is done; its output was not kept (%s)", stored.Omitted))
		return nil
	}
	var r onceResult
	if err := json.Unmarshal(stored.Body, &r); err != nil {
		return exit(exitOnceBroken, fmt.Errorf("read the stored output: %w", err))
	}
	_, errOut := o.sys.stdout.Write(r.Stdout)
	_, errErr := o.sys.stderr.Write(r.Stderr)
	if cut := r.StdoutCut + r.StderrCut; cut > 0 {
		row(o.sys.stderr, fmt.Sprintf("warifu once: the event is done; %d bytes of its output were not kept", cut))
	}
	if err := errors.Join(errOut, errErr); err != nil {
		return exit(exitOnceBroken, fmt.Errorf("print the stored output: %w", err))
	}
	return nil
}
