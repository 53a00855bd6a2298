package pebble

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/storetime"
)

// formatVersion is the engine's on-disk format that this binary writes. It is
// pinned: a newer library does not change stores by being linked.
const formatVersion = pebble.FormatValueSeparation

// engineMemTableBytes is little: nothing is ever written to the engine's
// memtable.
const engineMemTableBytes = 1 << 20

// identityName is the file that says that a store was finished and may hold
// acknowledged claims.
const identityName = "STORE"

// identityFormat is the layout of keys, records and log that this binary knows.
const identityFormat = 2

type identity struct {
	Format  int       `json:"format"`
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Sum     uint32    `json:"sum"` // of the other fields
}

func (id identity) sum() uint32 {
	return crc32.Checksum(fmt.Appendf(nil, "%d %s %d", id.Format, id.ID, id.Created.UnixNano()), castagnoli)
}

// Open opens the store in cfg.Dir, or makes one where there is none. It refuses
// with storage.ErrDamaged where anything acknowledged may be missing.
func Open(cfg Config) (*Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if err := makeDir(cfg.FS, cfg.Dir); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	lock, err := pebble.LockDirectory(cfg.Dir, cfg.FS)
	if err != nil {
		return nil, fmt.Errorf("open store: %s is in use by another process (or its lock cannot be taken): %w", cfg.Dir, err)
	}
	s := &Store{cfg: cfg, lock: lock, closing: make(chan struct{}), seed: maphash.MakeSeed(), wal: newWAL(&cfg)}
	s.room.L = &s.mu
	s.admin = make(chan struct{}, 1)
	s.mu.front.active = newMemtable(s.seed)
	s.flusher.init()
	s.clock = clock{wall: cfg.Clock, Clock: storetime.New(cfg.Monotonic)}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

// makeDir makes dir and whatever above it is missing, and makes the new names
// durable: a store whose directory is lost in a crash is lost whole.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	parent := fs.PathDir(dir)
	if parent != dir {
		if err := makeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(fs, parent)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (s *Store) open() error {
	known, err := s.readIdentity()
	if err != nil {
		return err
	}
	if known {
		return s.openExisting()
	}
	return s.create()
}

func (s *Store) refuse(why string) error {
	return fmt.Errorf("open store: %w: %s: %s; restore it from a backup", storage.ErrDamaged, s.cfg.Dir, why)
}

// create makes a new store. Nothing was acknowledged before the identity file
// is durable, so what an earlier, interrupted creation left is started over;
// anything else without an identity is refused.
func (s *Store) create() error {
	if err := s.openDB(false); err != nil {
		return err
	}
	holds, err := s.holdsClaims()
	if err = errors.Join(err, s.db.Close()); err != nil {
		return s.openFailed(err)
	}
	if holds {
		return s.refuse("its identity file is missing but it holds claims")
	}
	if err := s.wal.begin(firstSegment); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if err := s.wal.close(); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if err := s.writeIdentity(); err != nil {
		return err
	}
	return s.openExisting()
}

// holdsClaims reports whether anything was ever committed to a store. A log
// that cannot be read is what an interrupted creation leaves.
func (s *Store) holdsClaims() (bool, error) {
	m, err := s.readMeta()
	if err != nil || m.seq > 0 {
		return true, err
	}
	holds := false
	err = replay(s.cfg.FS, s.cfg.Dir, m.segment, m.seq, func(uint64, meta, []byte) error {
		holds = true
		return nil
	})
	if errors.Is(err, errLog) {
		err = nil
	}
	return holds, err
}

// openExisting opens a finished store: the engine, what the log has beyond it,
// and a log that goes on in a segment of its own.
func (s *Store) openExisting() error {
	if err := s.openDB(true); err != nil {
		return err
	}
	last, err := s.recover()
	if err != nil {
		return errors.Join(s.openFailed(err), s.db.Close())
	}
	s.gate.claims, s.gate.bodies = s.cfg.FreeClaimsMin, s.cfg.FreeBodiesMin
	s.gate.free.Store(s.freeBytes())
	s.clock.Raise(last.hwm)
	s.mu.last = last
	s.mu.floor = last.ceil
	s.filter.init(s.cfg, last.seq == 0)
	s.syncer.start(s)
	go s.runFlusher()
	if err := s.beat(context.Background()); err != nil {
		return errors.Join(err, s.stop())
	}
	return nil
}

// openFailed tells damage from what may be gone at the next start: a full disk,
// say.
func (s *Store) openFailed(err error) error {
	if errors.Is(err, storage.ErrDamaged) {
		return err
	}
	if errors.Is(err, errLog) || errors.Is(err, errBadKey) || errors.Is(err, errBadRecord) || pebble.IsCorruptionError(err) {
		return s.refuse(err.Error())
	}
	return fmt.Errorf("open store: %s: %w", s.cfg.Dir, err)
}

// openDB opens the engine. It has no log of its own: all that it holds comes in
// tables that are durable before they are part of it.
func (s *Store) openDB(mustExist bool) error {
	cache := pebble.NewCache(s.cfg.CacheBytes)
	defer cache.Unref()
	opts := &pebble.Options{
		FS: s.cfg.FS, Cache: cache, ErrorIfNotExists: mustExist,
		FormatMajorVersion: formatVersion, DisableWAL: true,
		MemTableSize:          engineMemTableBytes,
		L0CompactionThreshold: 4,
		LBaseMaxBytes:         256 << 20,
		MaxOpenFiles:          4096,
		Logger:                engineLogger{s.cfg.Logger, s.cfg.Fatal},
	}
	// IDs, digests and hashes do not compress: only the last level, where records
	// stay, is worth trying.
	opts.ApplyCompressionSettings(compression)
	opts.EventListener = &pebble.EventListener{
		BackgroundError: func(err error) { s.cfg.Logger.Error("engine: background work failed", "cause", err) },
		// The engine's own answer to damage is to end the process at once. The
		// caller whose read met it is told first, and Run ends with it.
		CompactionEnd: func(pebble.CompactionInfo) {
			select {
			case s.flusher.compacted <- struct{}{}:
			default:
			}
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			_ = s.damaged(fmt.Errorf("%w: %s: %w", storage.ErrDamaged, info.Path, info.Details))
		},
	}
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	opts.EnsureDefaults()
	db, err := pebble.Open(s.cfg.FS.PathJoin(s.cfg.Dir, "db"), opts)
	if err != nil {
		return s.refuse(err.Error())
	}
	s.db, s.opts = db, opts
	return nil
}

// engineLogger lets the engine's routine messages go and ends the process
// where the engine says that it cannot go on: after a failed commit its
// pipeline is broken, and an operating system that lost a write may not say so
// twice.
type engineLogger struct {
	log interface {
		Error(msg string, args ...any)
	}
	fatal func(string)
}

func (l engineLogger) Infof(string, ...any) {}

func (l engineLogger) Errorf(format string, args ...any) {
	l.log.Error("engine: " + fmt.Sprintf(format, args...))
}

func (l engineLogger) Fatalf(format string, args ...any) { l.fatal(fmt.Sprintf(format, args...)) }

func (s *Store) readIdentity() (known bool, err error) {
	data, err := readFile(s.cfg.FS, s.cfg.FS.PathJoin(s.cfg.Dir, identityName))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open store: read identity: %w", err)
	}
	var id identity
	if err := json.Unmarshal(data, &id); err != nil || id.Sum != id.sum() {
		return false, s.refuse("its identity file cannot be read")
	}
	if id.Format != identityFormat {
		return false, fmt.Errorf("open store: %s has format %d and this binary knows %d; use the binary that wrote it",
			s.cfg.Dir, id.Format, identityFormat)
	}
	return true, nil
}

// writeIdentity writes the identity file and makes it and its name durable.
func (s *Store) writeIdentity() error {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	id := identity{Format: identityFormat, ID: hex.EncodeToString(raw[:]), Created: s.cfg.Clock().UTC().Truncate(time.Second)}
	id.Sum = id.sum()
	data, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	fs, path := s.cfg.FS, s.cfg.FS.PathJoin(s.cfg.Dir, identityName)
	tmp := path + ".tmp"
	f, err := fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("open store: write identity: %w", err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("open store: write identity: %w", err)
	}
	if err := fs.Rename(tmp, path); err != nil {
		return fmt.Errorf("open store: write identity: %w", err)
	}
	return syncDir(fs, s.cfg.Dir)
}

func compression() pebble.DBCompressionSettings {
	settings := pebble.DBCompressionNone
	last := len(settings.Levels) - 1
	settings.Levels[last] = pebble.DBCompressionFastest.Levels[last]
	return settings
}
