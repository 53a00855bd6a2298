package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain makes the test binary behave as a peer where it is called by the
// name of one: what is started is a process of its own.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); name == RedisProgram || name == natsName {
		if err := pretend(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitPretended)
		}
		os.Exit(0)
	}
	// After a server that could not be dialled the client looks once a second
	// whether it was closed, which is longer than goleak waits.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

const (
	natsName      = "nats-server"
	exitPretended = 3

	// patience bounds waiting for another process on a busy machine.
	patience = time.Minute
)

// behaviour is what a pretended server does; it lies beside its program.
type behaviour struct {
	Report string // the address that is told of every start
	Fault  string // the server prints it and ends
	Mute   bool   // the server never listens
}

const behaviourFile = "behaviour.json"

// start is what a pretended server was started with.
type start struct {
	Args   []string
	Dir    string
	Config string // the file that -c names
}

// pretend is a server as far as its starter can tell: it listens where it was
// told to and accepts connections, until it is ended.
func pretend(args []string) error {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(os.Args[0]), behaviourFile))
	if err != nil {
		return err
	}
	var b behaviour
	if err := json.Unmarshal(text, &b); err != nil {
		return err
	}
	s := start{Args: args}
	if s.Dir, err = os.Getwd(); err != nil {
		return err
	}
	address := "127.0.0.1:" + after(args, "--port")
	if file := after(args, "-c"); file != "" {
		config, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		s.Config = string(config)
		_, rest, _ := strings.Cut(s.Config, "listen: ")
		address, _, _ = strings.Cut(rest, "\n")
	}
	return b.serve(address, s)
}

// after is the argument that follows flag.
func after(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

func (b *behaviour) serve(address string, s start) error {
	report, err := net.Dial("tcp", b.Report)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(report).Encode(s); err != nil {
		return err
	}
	if b.Fault != "" {
		return fmt.Errorf("%s", b.Fault)
	}
	if !b.Mute {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() {
			for {
				if _, err := l.Accept(); err != nil {
					return
				}
			}
		}()
	}
	_, err = io.Copy(io.Discard, report) // until this process is ended, or the test is
	return err
}

// program is a pretended server that can be started once.
type program struct {
	t        *testing.T
	dir      string // a folder for PATH
	path     string
	listener net.Listener
	report   net.Conn
}

func newProgram(t *testing.T, name string, b behaviour) *program {
	t.Helper()
	p := &program{t: t, dir: t.TempDir(), listener: listen(t)}
	p.path, b.Report = filepath.Join(p.dir, name), p.listener.Addr().String()
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(p.dir, behaviourFile), string(text))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, p.path); err != nil {
		t.Fatal(err)
	}
	return p
}

// started waits for the start of the program. It may be called from another
// goroutine than the test's.
func (p *program) started() (s start) {
	var err error
	if p.report, err = p.listener.Accept(); err != nil {
		p.t.Errorf("it was not started: %v", err)
		return s
	}
	p.t.Cleanup(func() { _ = p.report.Close() }) // ends a server that the test left running
	if err := json.NewDecoder(p.report).Decode(&s); err != nil {
		p.t.Errorf("it did not say how it was started: %v", err)
	}
	return s
}

// awaitEnd returns when the program has ended: the kernel closes what it leaves.
func (p *program) awaitEnd() {
	p.t.Helper()
	if err := p.report.SetReadDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, p.report); os.IsTimeout(err) {
		p.t.Error("it runs on")
	}
}

// listen is a listener that ends with the test, and whose Accept is bounded.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return l
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

// within is the test's context, or one that has ended.
func within(t *testing.T, ended bool) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	if t.Cleanup(cancel); ended {
		cancel()
	}
	return ctx
}
