//go:build !unix

package journal

import (
	"errors"
	"os"
)

func syncData(f *os.File) error { return f.Sync() }

// lockFile refuses: without a lock two processes would write the same files.
func lockFile(*os.File) error {
	return errors.New("there is no journal of unprotected runs on this operating system")
}
