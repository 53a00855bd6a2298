//go:build !linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// tree is the command's process group. At a terminal the command stays in the
// group of once, which the terminal signals as a whole: a group of its own
// would be stopped when it reads from there. Then only the command itself is
// signalled from here. Only Linux can find who leaves a group, and tie the
// command's life to that of once.
type tree struct {
	group int // 0: none of its own
}

func (t *tree) prepare(cmd *exec.Cmd, terminal bool) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !terminal}
}

// started is called once the command runs.
func (t *tree) started(cmd *exec.Cmd) {
	if cmd.SysProcAttr.Setpgid {
		t.group = cmd.Process.Pid
	}
}

// reap has nothing to do: orphans are init's.
func (t *tree) reap() (stop func()) { return func() {} }

// signal signals all of the group, or the command alone where there is none.
// With onlyNew nobody is: a group is told as one. It returns 1 while there is
// somebody besides a command that has ended.
func (t *tree) signal(command *os.Process, sig syscall.Signal, onlyNew bool) (others int, err error) {
	if onlyNew {
		sig = 0
	}
	if t.group != 0 {
		err = syscall.Kill(-t.group, sig)
	} else if command != nil {
		err = command.Signal(sig)
	}
	switch {
	case errors.Is(err, syscall.ESRCH), errors.Is(err, os.ErrProcessDone):
		return 0, nil
	case err != nil || t.group == 0:
		return 0, err
	}
	return 1, nil
}
