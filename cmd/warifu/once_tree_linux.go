package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

// tree is the command and all that it started, also indirectly. Process groups
// would not do: a group of its own is stopped by a terminal when it reads from
// it, and timeout(1) and shells with job control leave the group they are in.
// Instead once is the subreaper of the command: who loses their parent becomes
// a child of once, so everybody stays below it and is found there.
type tree struct {
	first member // the command itself
	err   error  // why nobody but the command can be found
	told  map[identity]bool
}

// identity names a process for good, where a PID alone may be used again.
type identity struct {
	pid   int
	began uint64 // in ticks since boot
}

type member struct {
	identity
	parent int
	zombie bool // it has ended, and its parent has not looked yet
}

// prSetChildSubreaper is PR_SET_CHILD_SUBREAPER of prctl(2).
const prSetChildSubreaper = 36

// prepare is called before the command starts. The kernel kills the command
// when once is killed: nobody would extend its lease any more, and another
// attempt may begin. It does so to the command alone.
func (t *tree) prepare(cmd *exec.Cmd, _ bool) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// A sandbox may refuse; then orphans are not found, and all others are.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
}

// started is called once the command runs, and before anybody waits for it.
func (t *tree) started(cmd *exec.Cmd) {
	t.told = map[identity]bool{}
	t.first, t.err = readMember(strconv.Itoa(cmd.Process.Pid))
	if t.err == nil && t.first.parent != os.Getpid() {
		t.err = errors.New("find what the command started: /proc shows the processes of another PID namespace")
	}
}

// reap buries the orphans that once adopts, while the command runs.
func (t *tree) reap() (stop func()) {
	ended, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		defer close(done)
		for range ended {
			members, _ := t.look() // what is not seen now is seen at the next end
			for _, m := range members {
				if m.zombie && m.parent == os.Getpid() {
					_, _ = syscall.Wait4(m.pid, nil, syscall.WNOHANG, nil) // nobody asks how it ended
				}
			}
		}
	}()
	return func() {
		signal.Stop(ended)
		close(ended)
		<-done
	}
}

// signal signals the command, while it runs, and those below it, parents first:
// a shell that was told after its step would begin the next one. With onlyNew
// those who have been signalled before are spared. It returns how many there
// are besides the command.
func (t *tree) signal(command *os.Process, sig syscall.Signal, onlyNew bool) (others int, err error) {
	members, err := t.look()
	faults := []error{err}
	if command != nil && !onlyNew {
		if err := command.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
			faults = append(faults, err)
		}
	}
	for _, m := range members {
		if m.zombie {
			continue
		}
		others++
		if onlyNew && t.told[m.identity] {
			continue
		}
		t.told[m.identity] = true
		if err := syscall.Kill(m.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			faults = append(faults, fmt.Errorf("process %d: %w", m.pid, err))
		}
	}
	return others, errors.Join(faults...)
}

// look finds everybody below once but the command, parents first. A process
// whose parent ends during the look may be missed.
func (t *tree) look() ([]member, error) {
	if t.err != nil {
		return nil, t.err
	}
	below, err := readMembers()
	if err != nil {
		return nil, err
	}
	var found []member
	for parents := []int{os.Getpid()}; len(parents) > 0; parents = parents[1:] {
		for _, m := range below[parents[0]] {
			if m.began < t.first.began {
				continue // of whoever became once by exec
			}
			parents = append(parents, m.pid)
			if m.identity != t.first.identity {
				found = append(found, m)
			}
		}
	}
	return found, nil
}

// readMembers reads all processes that can be seen, by their parents.
func readMembers() (map[int][]member, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("find what the command started: %w", err)
	}
	defer proc.Close() //nolint:errcheck // only read
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("find what the command started: %w", err)
	}
	below := map[int][]member{}
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		if m, err := readMember(name); err == nil { // else it has ended
			below[m.parent] = append(below[m.parent], m)
		}
	}
	return below, nil
}

// readMember reads fields 3, 4 and 22 of a process's stat. The second is a name
// in parentheses that may hold anything, so counting begins behind its end.
func readMember(pid string) (m member, err error) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return m, fmt.Errorf("find what the command started: %w", err)
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return m, fmt.Errorf("find what the command started: cannot read %q", stat)
	}
	m.zombie = fields[0][0] == 'Z' || fields[0][0] == 'X'
	var errs [3]error
	m.pid, errs[0] = strconv.Atoi(pid)
	m.parent, errs[1] = strconv.Atoi(string(fields[1]))
	m.began, errs[2] = strconv.ParseUint(string(fields[19]), 10, 64)
	return m, errors.Join(errs[:]...)
}
