// Package pgtest runs PostgreSQL servers for tests and benchmarks: fresh, on a
// port of 127.0.0.1, in a temporary folder, and gone afterwards, even when the
// process that started them was killed. It can crash, stop, restart and freeze
// them. It needs Linux and the programs of PostgreSQL 15 or newer, and it does
// not import testing, so that programs can use it too.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// role is the superuser of every server and the name of its database. It logs
// in without a password: the server listens on the loopback interface only.
const role = "warifu"

// ErrClosed is what a server answers after Close.
var ErrClosed = errors.New("the PostgreSQL server was closed")

// ErrNotRunning is the answer to Pause and Resume between Stop or Kill and
// Start.
var ErrNotRunning = errors.New("the PostgreSQL server is not running")

// Config is what a server is like. The zero value is a fast one that may lose
// everything when the machine fails.
type Config struct {
	// Durable has every commit reach the disk before it is answered: fsync and
	// synchronous_commit are on, and shared_buffers is 256MB. Otherwise both
	// are off, as is full_page_writes, and shared_buffers is 64MB: then Kill
	// loses the commits of the last moments, as a crash of such a server does.
	Durable bool

	// Settings are further settings of the server, as in postgresql.conf. They
	// win over those that Durable stands for. Those that say where the server
	// is (see ownSettings) are an error.
	Settings map[string]string

	// Dir is where the temporary folder is made; "" is the system's place for
	// those. Root runs the server as the user postgres (or nobody), who has to
	// be able to enter Dir: testing's T.TempDir is not such a place for root.
	Dir string
}

// ownSettings are chosen by New: two servers may not share them, and the
// server would not be found when they were others.
var ownSettings = []string{"config_file", "data_directory", "listen_addresses", "port", "unix_socket_directories"}

// Server is a running server, or one between Stop or Kill and Start. Its
// methods may be called concurrently; those that change whether it runs wait
// for each other.
type Server struct {
	cfg      Config
	programs programs
	account  account
	folder   string // of data, the log, and nothing else
	port     int
	freePort func(context.Context) (int, error) // tests give taken ones
	keeper   *keeper
	names    atomic.Int64 // schemas and databases created so far

	mu struct {
		sync.Mutex
		main   *postmaster // nil: it does not run
		paused bool
		closed bool
		err    error // what Close returned
	}
}

// New creates a server and starts it; it answers queries when New returns. ctx
// bounds New and nothing after it. The error names what to install when there
// is no PostgreSQL, and has the last lines of the server's log when it was the
// server that failed.
func New(ctx context.Context, cfg Config) (*Server, error) {
	s, err := prepare(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("new PostgreSQL server: %w", err)
	}
	if err := s.create(ctx); err != nil {
		return nil, fmt.Errorf("new PostgreSQL server: %w", errors.Join(err, s.Close()))
	}
	return s, nil
}

// URL is how to connect to the database as its superuser. It stays the same
// over restarts.
func (s *Server) URL() string { return s.url(role, nil) }

// Addr is the host and port that the server listens on, for a proxy in
// between. It stays the same over restarts.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Close ends the server, whatever it is doing, and removes its folder. Further
// calls return what the first did. A server that had ended by itself is an
// error, with the last lines of its log.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return s.mu.err
	}
	s.mu.closed = true
	ended := s.end(syscall.SIGQUIT)
	released := s.keeper.release()
	// The keeper has no right to remove the folder itself from a Dir that
	// belongs to root, and nobody's hand is on it any more.
	s.mu.err = errors.Join(ended, released, os.RemoveAll(s.folder))
	if s.mu.err != nil {
		s.mu.err = fmt.Errorf("close PostgreSQL server: %w", s.mu.err)
	}
	return s.mu.err
}

// prepare makes the folder, and the keeper before there is anything to keep.
func prepare(ctx context.Context, cfg Config) (*Server, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("processes are found through /proc, which %s does not have", runtime.GOOS)
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	found, err := findPrograms(ctx, installed, exec.LookPath)
	if err != nil {
		return nil, err
	}
	who, err := serverAccount(os.Geteuid(), accounts)
	if err != nil {
		return nil, err
	}
	folder, err := makeFolder(cfg.Dir, who)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, programs: found, account: who, folder: folder, freePort: freePort}
	if s.keeper, err = startKeeper(ctx, s.dataDir(), found, who); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return s, nil
}

func (c Config) validate() error {
	var errs []error
	for name := range c.Settings {
		if slices.Contains(ownSettings, strings.ReplaceAll(strings.ToLower(name), "-", "_")) {
			errs = append(errs, fmt.Errorf("setting %s is chosen by New: leave it out", name))
		}
		if name == "" || strings.ContainsRune(name, '=') {
			errs = append(errs, fmt.Errorf("%q is not the name of a setting", name))
		}
	}
	return errors.Join(errs...)
}

// makeFolder makes the folder and the one for the data in it, both the
// account's.
func makeFolder(parent string, who account) (folder string, err error) {
	folder, err = os.MkdirTemp(parent, "pgtest-")
	if err != nil {
		return "", fmt.Errorf("make a folder: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("make a folder: %w", errors.Join(err, os.RemoveAll(folder)))
		}
	}()
	if folder, err = filepath.Abs(folder); err != nil {
		return "", err
	}
	data := filepath.Join(folder, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return "", err
	}
	if err := errors.Join(who.own(data), who.own(folder)); err != nil {
		return "", err
	}
	return folder, nil
}

func (s *Server) dataDir() string { return filepath.Join(s.folder, "data") }

func (s *Server) logFile() string { return filepath.Join(s.folder, "log") }

// url names a database, with runtime parameters for its connections.
func (s *Server) url(database string, parameters url.Values) string {
	query := url.Values{"sslmode": {"disable"}}
	for name, values := range parameters {
		query[name] = values
	}
	u := url.URL{
		Scheme: "postgres", User: url.User(role), Host: s.Addr(),
		Path: "/" + database, RawQuery: query.Encode(),
	}
	return u.String()
}
