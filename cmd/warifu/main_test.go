package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asWarifu makes the test binary behave as the program: what is tested is a
// process of its own, with the race detector where the tests have it. The name
// does not begin with WARIFU_, which the program would refuse.
const asWarifu = "GO_TEST_AS_WARIFU"

func TestMain(m *testing.M) {
	if os.Getenv(asWarifu) != "" {
		main()
	}
	code := m.Run()
	for _, err := range []error{closePostgres(), goleak.Find()} {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// patience bounds waiting for another process on a busy machine.
const patience = time.Minute

// folder is a working folder with this program in it as ./warifu.
type folder struct {
	t   *testing.T
	dir string
	env []string

	patience time.Duration // with a command
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	f := &folder{t: t, dir: t.TempDir(), patience: patience}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(f.dir, "warifu")); err != nil {
		t.Fatal(err)
	}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, envPrefix) && !strings.HasPrefix(entry, "HTTP_PROXY") && !strings.HasPrefix(entry, "http_proxy") {
			f.env = append(f.env, entry)
		}
	}
	f.env = append(f.env, asWarifu+"=1", "NO_COLOR=1")
	return f
}

func (f *folder) setenv(entries ...string) { f.env = append(f.env, entries...) }

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

func (f *folder) write(name, text string) string {
	f.t.Helper()
	if err := os.WriteFile(f.path(name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return name
}

func (f *folder) read(name string) string {
	f.t.Helper()
	b, err := os.ReadFile(f.path(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

func (f *folder) command(name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), f.patience)
	f.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = f.dir, f.env
	return cmd
}

// outcome is what a finished process left.
type outcome struct {
	stdout, stderr string
	code           int
}

// warifu runs the program to its end.
func (f *folder) warifu(args ...string) outcome {
	f.t.Helper()
	return f.finish(f.command("./warifu", args...))
}

// sh runs a script.
func (f *folder) sh(script string) outcome {
	f.t.Helper()
	return f.finish(f.command("sh", "-eu", "-c", script))
}

func (f *folder) finish(cmd *exec.Cmd) outcome {
	f.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		f.t.Fatalf("%s: %v", cmd, err)
	}
	return outcome{stdout.String(), stderr.String(), exitCodeOfProcess(cmd.ProcessState)}
}

func (o outcome) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if o.code != code || !strings.Contains(o.stdout, stdout) || !strings.Contains(o.stderr, stderr) {
		t.Fatalf("got code %d, stdout %q, stderr %q;\nwant code %d, stdout with %q, stderr with %q",
			o.code, o.stdout, o.stderr, code, stdout, stderr)
	}
}

// process is a server that runs beside the test.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr *stream
	ended          chan struct{}

	url, key string
	welcome  string
}

// dev starts `warifu dev` on a free port and waits until it says that it is
// ready.
func (f *folder) dev(args ...string) *process {
	f.t.Helper()
	p := f.start(append([]string{"dev", "--listen", "127.0.0.1:0"}, args...)...)
	p.welcome = p.until(p.stdout, "Stop with Ctrl-C")
	p.url = match(f.t, `listens on (http://\S+)`, p.welcome)
	p.key = match(f.t, `API key  (\S+)`, p.welcome)
	return p
}

func (f *folder) start(args ...string) *process {
	f.t.Helper()
	p := &process{t: f.t, stdout: newStream(), stderr: newStream(), ended: make(chan struct{})}
	p.cmd = exec.Command("./warifu", args...)
	p.cmd.Dir, p.cmd.Env = f.dir, f.env
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the exit code says it
	}()
	f.t.Cleanup(p.kill)
	return p
}

// until returns what the process has said once text is in it.
func (p *process) until(s *stream, text string) string {
	p.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		said, more := s.look()
		if strings.Contains(said, text) {
			return said
		}
		select {
		case <-more:
		case <-p.ended:
			if said, _ := s.look(); strings.Contains(said, text) {
				return said
			}
			p.t.Fatalf("it ended before it said %q\nstdout: %s\nstderr: %s", text, p.stdout, p.stderr)
		case <-timer.C:
			p.t.Fatalf("it has not said %q\nstdout: %s\nstderr: %s", text, p.stdout, p.stderr)
		}
	}
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
}

// wait waits for the process's end and returns its exit code.
func (p *process) wait() int {
	p.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		p.t.Fatalf("it does not end\nstdout: %s\nstderr: %s", p.stdout, p.stderr)
	}
	return exitCodeOfProcess(p.cmd.ProcessState)
}

func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	p.wait()
}

// stream collects what a process says and tells when there is more.
type stream struct {
	mu struct {
		sync.Mutex
		said bytes.Buffer
		more chan struct{}
	}
}

func newStream() *stream {
	s := &stream{}
	s.mu.more = make(chan struct{})
	return s
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.mu.more)
	s.mu.more = make(chan struct{})
	return s.mu.said.Write(p)
}

func (s *stream) look() (said string, more <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.said.String(), s.mu.more
}

func (s *stream) String() string {
	said, _ := s.look()
	return said
}

// answer is the JSON of a reply of the API.
type answer struct {
	Decision string
	Status   string
	Code     string
	Grant    struct {
		Fence   string
		Attempt int
	}
	Result struct {
		Result []byte
	}
}

// call makes one call of the claim service as curl would.
func (p *process) call(method string, message map[string]any) answer {
	p.t.Helper()
	body, err := json.Marshal(message)
	if err != nil {
		p.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, p.url+"/warifu.v1.ClaimService/"+method, bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.key)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // no connection outlives the test
	client := &http.Client{Timeout: patience}
	reply, err := client.Do(req)
	if err != nil {
		p.t.Fatalf("%s: %v\nstderr: %s", method, err, p.stderr)
	}
	defer reply.Body.Close() //nolint:errcheck // it has been read by then
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return parseAnswer(p.t, string(text))
}

func parseAnswer(t *testing.T, text string) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatalf("not JSON: %v: %q", err, text)
	}
	return a
}

// attempt is the n-th of a test's attempt IDs.
func attempt(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func claimOf(consumer, event string, n int) map[string]any {
	return map[string]any{"consumer": consumer, "eventId": event, "attemptId": attempt(n)}
}

func match(t *testing.T, pattern, text string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%q is not in %q", pattern, text)
	}
	return m[len(m)-1]
}
