package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// A pause is complete when freezeQuiet looks in a row found nothing that
// moves: the first of them can have looked at the postmaster too late to see a
// child that it made just before. freezeLooks bounds the wait for a process
// that the kernel does not stop at once, as in a sync of the disk.
const (
	freezeQuiet = 2
	freezeLooks = 5000
	freezePoll  = 2 * time.Millisecond
)

// process is one of the server's.
type process struct {
	pid   int
	state byte // as in proc(5): T is stopped by a signal
}

// freeze stops all processes of the server.
func (m *postmaster) freeze() error {
	ticker := time.NewTicker(freezePoll)
	defer ticker.Stop()
	quiet := 0
	for range freezeLooks {
		moving, err := m.stopMoving()
		if err != nil {
			return err
		}
		if quiet++; moving > 0 {
			quiet = 0
		}
		if quiet == freezeQuiet {
			return nil
		}
		select {
		case <-m.ended:
			return fmt.Errorf("the server ended: %s", m.lastWords())
		case <-ticker.C:
		}
	}
	return fmt.Errorf("processes of the server still move after %v", freezeLooks*freezePoll)
}

// stopMoving has those stop that move, and says how many these were.
func (m *postmaster) stopMoving() (int, error) {
	// First the one that makes others.
	if err := m.signal(syscall.SIGSTOP); err != nil {
		return 0, err
	}
	all, err := m.family()
	if err != nil {
		return 0, err
	}
	moving := 0
	for _, p := range all {
		if p.state != 'T' {
			moving++
			err = errors.Join(err, p.signal(syscall.SIGSTOP))
		}
	}
	return moving, err
}

// signal sends to the postmaster alone.
func (m *postmaster) signal(sig syscall.Signal) error {
	if err := m.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal the server: %w", err)
	}
	return nil
}

// signalAll sends to the postmaster and its children, last to the postmaster:
// until it goes on it starts nothing that replaces a child.
func (m *postmaster) signalAll(sig syscall.Signal) error {
	all, err := m.family()
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.pid != m.cmd.Process.Pid {
			err = errors.Join(err, p.signal(sig))
		}
	}
	return errors.Join(err, m.signal(sig))
}

// signal is nil for a process that ended meanwhile.
func (p process) signal(sig syscall.Signal) error {
	if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d of the server: %w", p.pid, err)
	}
	return nil
}

// family is the postmaster and its children; these have none of their own.
func (m *postmaster) family() ([]process, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, file := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it ended meanwhile
		}
		state, parent, err := parseStat(stat)
		if err != nil {
			return nil, err
		}
		if pid == m.cmd.Process.Pid || parent == m.cmd.Process.Pid {
			if state != 'Z' && state != 'X' { // dead, and not collected yet
				all = append(all, process{pid, state})
			}
		}
	}
	return all, nil
}

// parseStat reads fields 3 and 4. The second is a name in parentheses that may
// hold anything, so counting begins behind its end.
func parseStat(stat []byte) (state byte, parent int, err error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 || len(fields[0]) != 1 {
		return 0, 0, fmt.Errorf("find the server's processes: cannot read %q", stat)
	}
	parent, err = strconv.Atoi(string(fields[1]))
	if err != nil {
		return 0, 0, fmt.Errorf("find the server's processes: cannot read %q", stat)
	}
	return fields[0][0], parent, nil
}
