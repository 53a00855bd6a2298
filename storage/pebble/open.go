package pebble

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
)

// formatVersion is the engine's on-disk format that this binary writes. It is
// pinned: a newer library does not change stores by being linked. From
// FormatWALSyncChunks on, damage in the middle of the log is told from its end.
const formatVersion = pebble.FormatValueSeparation

// identityName is the file that says that a store was finished and may hold
// acknowledged claims.
const identityName = "STORE"

// identityFormat is the layout of keys, records and tail that this binary knows.
const identityFormat = 1

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
	s := &Store{cfg: cfg, lock: lock, closing: make(chan struct{})}
	s.clock.wall, s.clock.monotonic = cfg.Clock, cfg.Monotonic
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
	tails, err := tailFiles(s.cfg.FS, s.cfg.Dir)
	if err != nil {
		return err
	}
	switch {
	case known && tails < len(tailNames):
		return s.refuse("its tail log is missing: acknowledged claims cannot be vouched for")
	case known:
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
	db, err := s.openDB(false)
	if err != nil {
		return err
	}
	m, err := s.readMeta(db)
	if err = errors.Join(err, db.Close()); err != nil {
		return s.openFailed(err)
	}
	if m.seq > 0 {
		return s.refuse("its identity file is missing but it holds claims")
	}
	tail, err := createTail(s.cfg.FS, s.cfg.Dir)
	if err != nil {
		return err
	}
	if err := tail.close(); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if err := s.writeIdentity(); err != nil {
		return err
	}
	return s.openExisting()
}

// openExisting opens a finished store, puts back what the engine's log lost
// and the tail still has, and begins its life with a batch of its own, so that
// the tail vouches for all that came before.
func (s *Store) openExisting() error {
	records, err := readTail(s.cfg.FS, s.cfg.Dir)
	if err != nil {
		return s.refuse(err.Error())
	}
	db, err := s.openDB(true)
	if err != nil {
		return err
	}
	m, err := s.recover(db, records)
	if err == nil {
		err = s.reopen(&db)
	}
	if err != nil {
		return errors.Join(s.openFailed(err), closeDB(db))
	}
	s.db = db
	s.gate.claims, s.gate.bodies = s.cfg.FreeClaimsMin, s.cfg.FreeBodiesMin
	s.gate.free.Store(s.freeBytes())
	hwm, ceil := highest(records)
	s.clock.raise(max(m.hwm, hwm))
	s.mu.seq = m.seq
	s.mu.floor = max(m.ceil, ceil)
	s.recent = newRecent(s.cfg.RecentMax)
	s.filter.init(s.cfg, m.seq == 0)
	tail, err := s.openTail(records)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	s.syncer.start(s, tail)
	if err := s.beat(); err != nil {
		return errors.Join(err, s.syncer.stop(), db.Close())
	}
	return nil
}

// recover compares the engine's last batch with the tail's and puts back what
// is missing.
func (s *Store) recover(db *pebble.DB, records []tailRecord) (meta, error) {
	m, err := s.readMeta(db)
	if err != nil {
		return meta{}, err
	}
	if len(records) == 0 || records[len(records)-1].seq <= m.seq {
		return m, nil
	}
	last := records[len(records)-1]
	if records[0].seq > m.seq+1 {
		return meta{}, s.refuse(fmt.Sprintf("batches %d to %d are missing", m.seq+1, records[0].seq-1))
	}
	s.cfg.Logger.Warn("the engine's log lost its tail; putting it back from the tail log",
		"from", m.seq+1, "to", last.seq)
	for _, r := range records {
		if r.seq <= m.seq {
			continue
		}
		if err := reapply(db, r.repr); err != nil {
			return meta{}, err
		}
	}
	return last.meta, nil
}

func reapply(db *pebble.DB, repr []byte) error {
	b := db.NewBatch()
	defer b.Close() //nolint:errcheck // a batch that was applied or is given up has nothing left to fail
	if err := b.SetRepr(append([]byte(nil), repr...)); err != nil {
		return fmt.Errorf("put back a batch: %w", err)
	}
	return db.Apply(b, pebble.Sync)
}

// reopen closes and opens the engine once more when its format was just raised
// or its log was begun under an older one: only a log begun under
// formatVersion is protected in its middle.
func (s *Store) reopen(db **pebble.DB) error {
	if err := (*db).Close(); err != nil {
		*db = nil
		return err
	}
	next, err := s.openDB(true)
	*db = next
	return err
}

func closeDB(db *pebble.DB) error {
	if db == nil {
		return nil
	}
	return db.Close()
}

func (s *Store) openFailed(err error) error {
	if errors.Is(err, storage.ErrDamaged) {
		return err
	}
	return s.refuse(err.Error())
}

func (s *Store) openDB(mustExist bool) (*pebble.DB, error) {
	cache := pebble.NewCache(s.cfg.CacheBytes)
	defer cache.Unref()
	opts := &pebble.Options{
		FS: s.cfg.FS, Cache: cache, ErrorIfNotExists: mustExist,
		FormatMajorVersion: formatVersion,
		MemTableSize:       s.cfg.MemTableBytes, MemTableStopWritesThreshold: 4,
		L0CompactionThreshold: 4, L0StopWritesThreshold: 32,
		LBaseMaxBytes: 256 << 20,
		MaxOpenFiles:  4096,
		Logger:        engineLogger{s.cfg.Logger, s.cfg.Fatal},
	}
	// IDs, digests and hashes do not compress: only the last level, where records
	// stay, is worth trying.
	opts.ApplyCompressionSettings(compression)
	opts.EventListener = &pebble.EventListener{
		BackgroundError: func(err error) { s.cfg.Logger.Error("engine: background work failed", "cause", err) },
		// The engine's own answer to damage is to end the process at once. The
		// caller whose read met it is told first, and Run ends with it.
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			_ = s.damaged(fmt.Errorf("%w: %s: %w", storage.ErrDamaged, info.Path, info.Details))
		},
	}
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := pebble.Open(s.cfg.FS.PathJoin(s.cfg.Dir, "db"), opts)
	if err != nil {
		return nil, s.refuse(err.Error())
	}
	return db, nil
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

func (s *Store) readMeta(db *pebble.DB) (meta, error) {
	v, closer, err := db.Get(metaKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return meta{}, nil
	}
	if err != nil {
		return meta{}, err
	}
	m, err := parseMeta(v)
	return m, errors.Join(err, closer.Close())
}

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

// openTail goes on in the file that does not hold the newest batches.
func (s *Store) openTail(records []tailRecord) (*tailLog, error) {
	t := &tailLog{}
	for i, name := range tailNames {
		f, err := s.cfg.FS.OpenReadWrite(s.cfg.FS.PathJoin(s.cfg.Dir, name), vfs.WriteCategoryUnspecified)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open tail log: %w", err), t.close())
		}
		t.files[i] = f
	}
	if len(records) > 0 {
		newest, err := s.newestTail(records[len(records)-1].seq)
		if err != nil {
			return nil, errors.Join(err, t.close())
		}
		t.cur = 1 - newest
	}
	return t, nil
}

// newestTail returns the file whose run ends with seq.
func (s *Store) newestTail(seq uint64) (int, error) {
	data, err := readFile(s.cfg.FS, s.cfg.FS.PathJoin(s.cfg.Dir, tailNames[1]))
	if err != nil {
		return 0, fmt.Errorf("open tail log: %w", err)
	}
	if run := decodeRun(data); len(run) > 0 && run[len(run)-1].seq == seq {
		return 1, nil
	}
	return 0, nil
}

func compression() pebble.DBCompressionSettings {
	settings := pebble.DBCompressionNone
	last := len(settings.Levels) - 1
	settings.Levels[last] = pebble.DBCompressionFastest.Levels[last]
	return settings
}
