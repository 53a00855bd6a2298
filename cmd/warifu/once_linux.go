package main

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the command when once is killed: nobody
// would extend its lease any more, and another attempt may begin.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
