package process

import (
	"os/exec"
	"syscall"
)

// DieTogether has the kernel kill a child whose parent was killed.
func DieTogether(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
