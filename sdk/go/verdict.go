package warifu

// Reject makes the error with which a handler refuses its event for good. The
// completion is stored as REJECTED and replayed to every duplicate. A refusal
// that may change later ("out of stock today") is [Retryable] instead.
//
// Like Retryable it is a verdict on the event of the handler that returns it,
// and spent when that handler's Do has acted on it: see [Client.Do].
func Reject(c Completion) error {
	c.Outcome = Rejected
	return &rejection{&RejectedError{Stored: c.stored()}}
}

// Retryable marks a handler's error as one after which nothing has happened:
// the grant is given back at once, and the next claim is granted. Without the
// mark an error leaves the lease to the consumer's policy, because nobody knows
// how far the handler came. Retryable(nil) is nil.
func Retryable(err error) error {
	if err == nil {
		return nil
	}
	return &retryableError{err}
}

// IsRetryable reports whether err carries the mark of [Retryable]. Of an error
// that Do returned it says whether the handler of that Do set the mark: nothing
// has happened, and the message may come again at once. Marks on errors that
// the handler had from a Do of its own say nothing of this event.
func IsRetryable(err error) bool {
	if _, ok := verdict[*retryableError](err); ok {
		return true
	}
	s, ok := verdict[*settledError](err)
	return ok && s.retryable
}

// rejection is the mark of Reject. A RejectedError alone is none: Do returns it
// for other events too.
type rejection struct{ refused *RejectedError }

func (e *rejection) Error() string { return e.refused.Error() }
func (e *rejection) Unwrap() error { return e.refused }

// retryableError is the mark of Retryable.
type retryableError struct{ error }

func (e *retryableError) Unwrap() error { return e.error }

// settledError is a handler's error as its Do returns it: all that it was for
// errors.Is and errors.As, but no verdict on the event of a handler around it.
type settledError struct {
	error
	retryable bool // the verdict it was
}

func (e *settledError) Unwrap() error { return e.error }

// settled spends the marks of an error that Do is about to return. Errors
// without any stay what they are.
func settled(err error, retryable bool) error {
	if !retryable && !IsRetryable(err) {
		return err
	}
	return &settledError{err, retryable}
}

// verdict finds a mark in an error's tree as errors.As would, but does not look
// into what another Do has settled.
func verdict[T error](err error) (mark T, found bool) {
	if mark, found = err.(T); found { //nolint:errorlint // this is what walks the tree
		return mark, true
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case *settledError:
	case interface{ Unwrap() error }:
		return verdict[T](e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if mark, found = verdict[T](inner); found {
				break
			}
		}
	}
	return mark, found
}
