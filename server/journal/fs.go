package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// FS is what a journal asks of a file system. It is an interface for tests that
// crash it.
type FS interface {
	// Lock makes the directory in an existing one, readable by its owner only,
	// and holds it for this process until unlock; ErrLocked when somebody else
	// has it.
	Lock(dir string) (unlock func() error, err error)
	// List returns the names in dir.
	List(dir string) ([]string, error)
	ReadFile(path string) ([]byte, error)
	// Create makes a file that is not there yet, readable by its owner only.
	Create(path string) (File, error)
	// Open opens a file for writing.
	Open(path string) (File, error)
	// Remove unlinks a file; the error for one that is not there is fs.ErrNotExist.
	Remove(path string) error
	// SyncDir makes durable what was created and removed in dir.
	SyncDir(dir string) error
}

// File is one that is written.
type File interface {
	WriteAt(b []byte, at int64) (int, error)
	Truncate(size int64) error
	// Sync returns when content and size are on disk.
	Sync() error
	Close() error
}

var errNotExist = fs.ErrNotExist

const (
	lockName = "LOCK"
	fileMode = 0o600 // event IDs are personal data
	dirMode  = 0o700
)

// osFS is the operating system's.
type osFS struct{}

func (osFS) Lock(dir string) (func() error, error) {
	// One level: where a volume is not mounted, no folder is made in its place.
	if err := os.Mkdir(dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the directory: %w", err)
	}
	// Perhaps it was made just now. Where we may not read the parent we did not
	// make it.
	if err := syncDir(filepath.Dir(filepath.Clean(dir))); err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil // the lock goes with its file
}

func (osFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (osFS) ReadFile(path string) ([]byte, error) {
	return os.ReadFile(path)
}

func (osFS) Create(path string) (File, error) {
	return open(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
}

func (osFS) Open(path string) (File, error) { return open(path, os.O_WRONLY) }

func open(path string, flags int) (File, error) {
	f, err := os.OpenFile(path, flags, fileMode)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Remove(path string) error { return os.Remove(path) }

func (osFS) SyncDir(dir string) error { return syncDir(dir) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync the directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync the directory: %w", err)
	}
	return nil
}

// osFile syncs what is needed to read the file again, and no more.
type osFile struct{ *os.File }

func (f osFile) Sync() error { return syncData(f.File) }
