package pgtest

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// endWait bounds a server's end. A fast one writes everything to disk first.
const endWait = time.Minute

// Kill ends the server as a crash does: nothing is written any more, the
// connections break, and the next Start recovers from the log. It works on a
// paused server, which does no more work on the way. It is nil when the server
// does not run, and an error when it had ended by itself before.
func (s *Server) Kill() error { return s.endLocked("kill", syscall.SIGQUIT) }

// Stop ends the server in good order: transactions under way are rolled back,
// the connections are closed, everything is written to disk. A paused server
// goes on first. It is nil when the server does not run. After an error of a
// server that did not end in time, only Kill and Close are of use.
func (s *Server) Stop() error { return s.endLocked("stop", syscall.SIGINT) }

// Start starts the server again after Kill or Stop, on the same port and data,
// and returns once it answers queries. After an error it does not run.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.closed:
		return fmt.Errorf("start: %w", ErrClosed)
	case s.mu.main != nil:
		return errors.New("start: the PostgreSQL server was started already")
	}
	return s.start(context.Background())
}

// Pause stops every process of the server where it is, and returns when none
// moves any more. Connections stay open, new ones are accepted by the kernel,
// and nothing is answered. Pausing a paused server is nil.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	main, err := s.running()
	if err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	s.mu.paused = true
	if err := main.freeze(); err != nil {
		s.mu.paused = false
		return fmt.Errorf("pause: %w", errors.Join(err, main.signalAll(syscall.SIGCONT)))
	}
	return nil
}

// Resume has a paused server go on; it answers what it was asked meanwhile.
// Resuming one that is not paused is nil.
func (s *Server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	main, err := s.running()
	if err == nil {
		err = main.signalAll(syscall.SIGCONT)
	}
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	s.mu.paused = false
	return nil
}

// running is the postmaster, or why there is none. It holds mu.
func (s *Server) running() (*postmaster, error) {
	switch {
	case s.mu.closed:
		return nil, ErrClosed
	case s.mu.main == nil:
		return nil, ErrNotRunning
	}
	return s.mu.main, nil
}

func (s *Server) endLocked(action string, sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return fmt.Errorf("%s: %w", action, ErrClosed)
	}
	if err := s.end(sig); err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}

// end has the postmaster end its children and itself, and waits. It holds mu.
func (s *Server) end(sig syscall.Signal) error {
	main := s.mu.main
	if main == nil {
		return nil
	}
	select {
	case <-main.ended:
		s.mu.main = nil
		return errors.Join(fmt.Errorf("the server had ended by itself: %s", main.lastWords()), main.log.Close())
	default:
	}
	if err := s.signalEnd(main, sig); err != nil {
		return err
	}
	select {
	case <-main.ended:
	case <-time.After(endWait):
		err := fmt.Errorf("the server did not end within %v; its log ends with:\n%s", endWait, main.logTail())
		if sig != syscall.SIGQUIT {
			return err
		}
		// Its children see that it is gone, and go too.
		return errors.Join(err, main.cmd.Process.Kill())
	}
	s.mu.main = nil
	var err error
	if sig == syscall.SIGINT && !main.cmd.ProcessState.Success() {
		err = fmt.Errorf("the server did not end well: %s", main.lastWords())
	}
	return errors.Join(err, main.log.Close())
}

// signalEnd sends the signal, and has a paused server go on to notice.
func (s *Server) signalEnd(main *postmaster, sig syscall.Signal) error {
	if err := main.signal(sig); err != nil {
		return err
	}
	if !s.mu.paused {
		return nil
	}
	s.mu.paused = false
	if sig == syscall.SIGQUIT {
		// What waits for them when they go on is their end: not one more
		// commit comes out of a server that was paused and then crashed.
		if err := main.signalAll(sig); err != nil {
			return err
		}
	}
	return main.signalAll(syscall.SIGCONT)
}
