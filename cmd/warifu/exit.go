package main

import (
	"errors"
	"fmt"
	"io"
)

// Exit codes. They are part of the interface: `warifu help exit-codes`.
const (
	exitOK           = 0
	exitFailed       = 1  // the work was tried and failed
	exitUsage        = 2  // a flag, an argument, a variable or the configuration is wrong
	exitUnavailable  = 3  // the server, or its database, cannot be reached or cannot answer; try again
	exitDenied       = 4  // the API key is missing, wrong, or not allowed to do this
	exitNotFound     = 5  // nothing is stored of this key, or there is no such tenant, consumer, key, finding or context
	exitSchema       = 6  // the database's schema is older than this program needs; `warifu migrate up`
	exitConflict     = 7  // it has changed since it was looked at, or exists already; look again
	exitQuota        = 8  // a quota is used up
	exitPrecondition = 9  // the installation, or what it keeps, does not allow this now; the text says what would
	exitDeclined     = 10 // a confirmation was needed and not given; nothing was changed
	exitStore        = 70 // EX_SOFTWARE: a server ended at once because its disk failed

	// Only `once`, where every other code is the command's own.
	exitOnceRefused       = 65  // EX_DATAERR: MISMATCH, IN_DOUBT, TOO_OLD: not run, look at it
	exitOnceUnrecorded    = 74  // EX_IOERR: run, and the outcome is not recorded; deliver again, never take it for not run
	exitOnceLater         = 75  // EX_TEMPFAIL: not run, or the command said so; deliver again later
	exitOnceBroken        = 125 // once itself failed, as env(1) and timeout(1) say it, and has not run the command
	exitOnceNotExecutable = 126 // the command cannot be executed
	exitOnceNotFound      = 127 // there is no such command
	exitSignalled         = 128 // + the signal's number
)

const exitCodesText = `  0    done
  1    the work was tried and failed
  2    a flag, an argument, a variable or the configuration is wrong
  3    the server, or its database, cannot be reached or cannot answer; try again
  4    the API key is missing, wrong, or not allowed to do this
  5    nothing is stored of this event, or there is no such tenant, consumer, key,
       finding or context
  6    the database's schema is older than this program needs: 'warifu migrate up'
       (serve, dev, conformance, keys bootstrap; migrate status)
  7    it has changed since it was looked at, or exists already: look again
  8    a quota is used up
  9    the server does not allow this now; the text says what would have to be
  10   a confirmation was needed and not given: nothing was changed
  70   a server ended at once because its disk failed; the log says how
  128+n ended by signal n, or at once by a second one

warifu once ends with the command's own code, run now or replayed, and with:

  65   not run: MISMATCH, IN_DOUBT or TOO_OLD; somebody has to look at it
  74   the command ran, but its outcome is not recorded: the lease was lost, or the
       server could not be told. The effect may have happened; deliver the event
       again, and the record and the consumer's policy decide
  75   another attempt is at it, the server cannot answer, or the command said
       "later": deliver the event again
  125  once itself failed, for example for a wrong API key; not run
  126  the command cannot be executed
  127  there is no such command
  128+n the command, or once, was ended by signal n, or the command said so of
       what it ran; no answer is stored, except with --answer-exit
`

// exitError is an error that knows its exit code.
type exitError struct {
	code int
	err  error // nil: everything has been said already
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exit(code int, err error) error { return &exitError{code: code, err: err} }

func usageError(format string, args ...any) error {
	return exit(exitUsage, fmt.Errorf(format, args...))
}

// report prints an error the way this program does and returns its exit code.
func report(stderr io.Writer, command string, err error) int {
	if err == nil {
		return exitOK
	}
	code := exitFailed
	if coded, ok := errors.AsType[*exitError](err); ok {
		code = coded.code
		if coded.err == nil {
			return code
		}
	}
	// Nothing is left to be done when stderr itself cannot be written to.
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", command, err)
	if code == exitUsage {
		_, _ = fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", command)
	}
	return code
}
