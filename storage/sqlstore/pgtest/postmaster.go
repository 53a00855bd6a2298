package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bounds of a server's start. The long one covers recovery after Kill on a
// machine that is busy with other tests.
const (
	initWait  = 2 * time.Minute
	readyWait = 2 * time.Minute
	readyPoll = 20 * time.Millisecond
	askWait   = 5 * time.Second // for one connection and its query

	portTries = 20
	logLines  = 20 // of the log, in errors
	logBytes  = 8 << 10
)

// Ports are drawn below those that the kernel gives to outgoing connections
// (from 32768 on). Otherwise a client that tries to reconnect while the server
// is down can get the server's port for its own end, and be connected to
// itself.
const (
	portMin = 12000
	portMax = 32000
)

// The default order of text is that of a language, from the ICU library: "a"
// before "B". It is the same on every machine, and as far from the order of
// bytes as an operator's database may be. A schema that needs the order of
// bytes has to say so, and here it shows when it does not. The locales of the
// system would not do: what Debian has without further packages (C.UTF-8)
// orders by bytes, and en_US is often missing.
const (
	systemLocale = "C.UTF-8"
	icuLocale    = "en-US"
)

// errPortTaken: try another.
var errPortTaken = errors.New("the port is taken")

// postmaster is one run of the server: its first process, parent of all others.
type postmaster struct {
	cmd   *exec.Cmd
	log   *os.File
	from  int64         // where this run begins in the log
	ended chan struct{} // closed once cmd.ProcessState says how
}

// create fills the folder, starts the server on a free port, and creates the
// database.
func (s *Server) create(ctx context.Context) error {
	if err := s.initdb(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errPortTaken
	for tries := 0; errors.Is(err, errPortTaken) && tries < portTries; tries++ {
		if s.port, err = s.freePort(ctx); err == nil {
			err = s.start(ctx)
		}
	}
	if err != nil {
		return err
	}
	return s.execIn(ctx, "postgres", "CREATE DATABASE "+role)
}

func (s *Server) initdb(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, initWait)
	defer cancel()
	args := []string{
		"-D", s.dataDir(), "-U", role, "-A", "trust", "-E", "UTF8",
		"--locale=" + systemLocale, "--locale-provider=icu", "--icu-locale=" + icuLocale,
	}
	if !s.cfg.Durable {
		args = append(args, "--no-sync")
	}
	said, err := s.account.command(ctx, s.dataDir(), s.programs.initdb, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w; it said:\n%s", err, lastLines(said))
	}
	return nil
}

// start runs the server and waits until it answers. It holds mu. After an
// error nothing runs.
func (s *Server) start(ctx context.Context) error {
	main, err := s.launch(ctx)
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	s.mu.main, s.mu.paused = main, false
	err = s.awaitReady(ctx, main)
	if err == nil {
		return nil
	}
	if said := main.logTail(); strings.Contains(said, "Address already in use") {
		err = fmt.Errorf("%w: %w", errPortTaken, err)
	}
	select {
	case <-main.ended: // which is what err says
		s.mu.main = nil
		err = errors.Join(err, main.log.Close())
	default:
		err = errors.Join(err, s.end(syscall.SIGQUIT))
	}
	return fmt.Errorf("start the server on port %d: %w", s.port, err)
}

func (s *Server) launch(ctx context.Context) (*postmaster, error) {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	main := &postmaster{log: log, ended: make(chan struct{})}
	if main.from, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	// It outlives the call that starts it.
	main.cmd = s.account.command(context.WithoutCancel(ctx), s.dataDir(), s.programs.postgres, s.args()...)
	main.cmd.Stdout, main.cmd.Stderr = log, log
	if err := main.cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	go func() {
		defer close(main.ended)
		_ = main.cmd.Wait() // its result is in ProcessState too
	}()
	return main, nil
}

// args are the server's. Of a setting that is there twice the last one holds.
func (s *Server) args() []string {
	settings := []string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(s.port),
		// No socket in the file system: its path may have 107 bytes, and
		// temporary folders of tests are longer than that.
		"unix_socket_directories=",
		"max_connections=200",
	}
	if s.cfg.Durable {
		settings = append(settings, "fsync=on", "synchronous_commit=on", "shared_buffers=256MB")
	} else {
		settings = append(settings, "fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=64MB")
	}
	var further []string
	for name, value := range s.cfg.Settings {
		further = append(further, name+"="+value)
	}
	slices.Sort(further)
	args := []string{"-D", s.dataDir()}
	for _, setting := range append(settings, further...) {
		args = append(args, "-c", setting)
	}
	return args
}

// awaitReady asks until the server answers, has ended, or readyWait is over.
func (s *Server) awaitReady(ctx context.Context, main *postmaster) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		err := s.ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-main.ended:
			return fmt.Errorf("it ended: %s", main.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w: %w; its log ends with:\n%s", ctx.Err(), err, main.logTail())
		case <-ticker.C:
		}
	}
}

// ask is an error while the server does not answer. Another server's answer
// on the same port does not count.
func (s *Server) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url("postgres", nil))
	if err != nil {
		return err
	}
	var data string
	err = conn.QueryRow(ctx, "SHOW data_directory").Scan(&data)
	if err == nil && data != s.dataDir() {
		err = fmt.Errorf("the server on this port keeps its data in %s", data)
	}
	return errors.Join(err, conn.Close(ctx))
}

// freePort is a port that was free a moment ago.
func freePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	var err error
	for range portTries {
		port := portMin + rand.IntN(portMax-portMin)
		var l net.Listener
		if l, err = config.Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

// lastWords are how it ended and what it said before; ended is closed.
func (m *postmaster) lastWords() string {
	return fmt.Sprintf("%v; its log ends with:\n%s", m.cmd.ProcessState, m.logTail())
}

// logTail is the end of what the server said since it was started.
func (m *postmaster) logTail() string {
	info, err := m.log.Stat()
	if err != nil {
		return err.Error()
	}
	from := max(m.from, info.Size()-logBytes)
	said := make([]byte, info.Size()-from)
	n, _ := m.log.ReadAt(said, from) // as much as there is
	return lastLines(said[:n])
}

func lastLines(said []byte) string {
	lines := bytes.Split(bytes.TrimSpace(said), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-logLines):], []byte("\n")))
}
