package journal

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// syncData leaves out times and the like; size and content are on disk.
func syncData(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

// lockFile holds f for this open file alone; the kernel lets go with it.
func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	if err != nil {
		return fmt.Errorf("flock: %w", err)
	}
	return nil
}
