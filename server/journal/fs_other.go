//go:build unix && !linux

package journal

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

func syncData(f *os.File) error { return f.Sync() }

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
