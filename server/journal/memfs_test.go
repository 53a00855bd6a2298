package journal

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
)

// memFS is a file system that can fail and crash. It forgets in a crash what a
// disk may forget: names whose directory was not synced, and any sector that
// was written since the last sync of its file.
type memFS struct {
	mu sync.Mutex
	// fault is asked before every operation, with its name and the file's; an
	// error is returned from it, and a write brings only its first half.
	fault   func(op, name string) error
	visible map[string]*inode
	durable map[string]*inode
	locked  bool
}

type inode struct {
	data   []byte // what readers see
	dirty  []bool // not written to disk since it changed
	synced []byte // what is on disk
}

const sectorBytes = 16 // small, so that small frames tear

func newMemFS() *memFS { return &memFS{visible: map[string]*inode{}, durable: map[string]*inode{}} }

func (m *memFS) ask(op, path string) error {
	if m.fault == nil {
		return nil
	}
	return m.fault(op, filepath.Base(path))
}

func (m *memFS) Lock(string) (func() error, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locked {
		return nil, ErrLocked
	}
	m.locked = true
	return func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.locked = false
		return nil
	}, nil
}

func (m *memFS) List(string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ask("list", ""); err != nil {
		return nil, err
	}
	return slices.Collect(maps.Keys(m.visible)), nil
}

func (m *memFS) ReadFile(path string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ask("read", path); err != nil {
		return nil, err
	}
	n := m.visible[filepath.Base(path)]
	if n == nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	return slices.Clone(n.data), nil
}

func (m *memFS) Create(path string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ask("create", path); err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	if m.visible[name] != nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	m.visible[name] = &inode{}
	return &memFile{m, name, m.visible[name]}, nil
}

func (m *memFS) Open(path string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ask("open", path); err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	if m.visible[name] == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return &memFile{m, name, m.visible[name]}, nil
}

func (m *memFS) Remove(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ask("remove", path); err != nil {
		return err
	}
	if m.visible[filepath.Base(path)] == nil {
		return &fs.PathError{Op: "remove", Path: path, Err: fs.ErrNotExist}
	}
	delete(m.visible, filepath.Base(path))
	return nil
}

func (m *memFS) SyncDir(string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ask("syncdir", ""); err != nil {
		return err
	}
	m.durable = maps.Clone(m.visible)
	return nil
}

// image is what is visible now, as if all of it were on disk.
func (m *memFS) image() map[string][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]byte{}
	for name, n := range m.visible {
		out[name] = slices.Clone(n.data)
	}
	return out
}

// fromImage is a file system with those files on its disk.
func fromImage(files map[string][]byte) *memFS {
	m := newMemFS()
	for name, b := range files {
		n := &inode{data: slices.Clone(b), synced: slices.Clone(b), dirty: make([]bool, len(b))}
		m.visible[name], m.durable[name] = n, n
	}
	return m
}

// crash returns what the disk may hold after power was lost.
func (m *memFS) crash(rng *rand.Rand) *memFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	files := map[string][]byte{}
	names := append(slices.Collect(maps.Keys(m.visible)), slices.Collect(maps.Keys(m.durable))...)
	slices.Sort(names) // a seed says it all
	for _, name := range slices.Compact(names) {
		n := m.durable[name]
		if rng.IntN(2) == 0 {
			n = m.visible[name]
		}
		if n != nil {
			files[name] = n.tear(rng)
		}
	}
	return fromImage(files)
}

// tear returns any mixture of what is on disk and what would have come there.
func (n *inode) tear(rng *rand.Rand) []byte {
	least, most := len(n.synced), len(n.data)
	if least > most {
		least, most = most, least
	}
	size := least + rng.IntN(most-least+1)
	if rng.IntN(3) == 0 {
		size = most
	}
	out := make([]byte, size)
	copy(out, n.synced)
	for at := 0; at < size; at += sectorBytes {
		arrived := rng.IntN(2) == 0
		for i := at; arrived && i < min(at+sectorBytes, size, len(n.data)); i++ {
			if n.dirty[i] {
				out[i] = n.data[i]
			}
		}
	}
	return out
}

type memFile struct {
	fs   *memFS
	name string
	node *inode
}

func (f *memFile) WriteAt(b []byte, at int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	err := f.fs.ask("write", f.name)
	if err != nil {
		b = b[:len(b)/2]
	}
	n := f.node
	if grow := int(at) + len(b) - len(n.data); grow > 0 {
		n.data, n.dirty = append(n.data, make([]byte, grow)...), append(n.dirty, make([]bool, grow)...)
	}
	for i := range b {
		n.data[int(at)+i], n.dirty[int(at)+i] = b[i], true
	}
	return len(b), err
}

func (f *memFile) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.ask("truncate", f.name); err != nil {
		return err
	}
	if int(size) > len(f.node.data) {
		return fmt.Errorf("truncate: %d is more than %d", size, len(f.node.data))
	}
	f.node.data, f.node.dirty = f.node.data[:size], f.node.dirty[:size]
	return nil
}

// Sync that fails forgets what was to be written, as Linux does: the next one
// succeeds and brings nothing.
func (f *memFile) Sync() error {
	err := f.fs.fault1("sync", f.name) // without the lock: tests block here
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	n := f.node
	synced := make([]byte, len(n.data))
	copy(synced, n.synced)
	for i := range n.data {
		if n.dirty[i] && err == nil {
			synced[i] = n.data[i]
		}
		n.dirty[i] = false
	}
	n.synced = synced
	return err
}

func (m *memFS) fault1(op, name string) error {
	m.mu.Lock()
	fault := m.fault
	m.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(op, name)
}

// inject sets fault while the file system is in use.
func (m *memFS) inject(fault func(op, name string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

func (f *memFile) Close() error { return nil }
