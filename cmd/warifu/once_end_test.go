package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// pulse is the reading end of a pipe that the processes of a command hold by
// their file descriptor 3, having opened ./alive.
type pulse struct {
	t    *testing.T
	file *os.File
}

func (f *folder) pulse() *pulse {
	f.t.Helper()
	if err := syscall.Mkfifo(f.path("alive"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	file, err := os.OpenFile(f.path("alive"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = file.Close() })
	return &pulse{f.t, file}
}

// awaitEnd returns when nobody holds the pipe.
func (p *pulse) awaitEnd() {
	p.t.Helper()
	if err := p.file.SetReadDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	if _, err := io.ReadAll(p.file); err != nil {
		p.t.Fatalf("the command goes on: %v", err)
	}
}

// beats reports whether somebody holds the pipe now.
func (p *pulse) beats() (held bool) {
	p.t.Helper()
	raw, err := p.file.SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		_, readErr = syscall.Read(int(fd), make([]byte, 1))
		return true
	})
	if err != nil || (readErr != nil && !errors.Is(readErr, syscall.EAGAIN)) {
		p.t.Fatal(err, readErr)
	}
	return readErr != nil
}

// lives holds ./alive and says so.
const lives = "exec 3> alive; echo up; exec sleep 1000"

func (f *folder) startOnce(flags []string, script string) *process {
	f.t.Helper()
	args := append([]string{"once", "--consumer", "c", "--event-id", "e"}, flags...)
	return f.start(append(args, "--", "sh", "-c", script)...)
}

// TestOnceStopsAll: when once has ended by a signal, nobody is at the event any
// more, wherever the command has put them.
func TestOnceStopsAll(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"Step":         "sh -c '" + lives + "'; echo next step",
		"Group":        "timeout 1000 sh -c '" + lives + "'; exit 1",
		"Session":      "setsid -w sh -c '" + lives + "'; exit 1",
		"Orphan":       "(sh -c '" + lives + "' &); exec sleep 1000",
		"BegunTooLate": "exec 3> alive; trap 'sleep 1000 & exit 7' TERM; echo up; while :; do read line; done",
		"IgnoresIt":    "sh -c 'trap \"\" TERM; " + lives + "'; exit 1", // takes killDelay
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := onceFolder(t)
			alive := f.pulse()
			p := f.startOnce(nil, script)
			p.until(p.stdout, "up")
			p.signal(syscall.SIGTERM)
			if code := p.wait(); code != exitSignalled+int(syscall.SIGTERM) {
				t.Errorf("exit code %d: %s", code, p.stderr)
			}
			if alive.beats() {
				t.Error("once has ended, and what the command started has not")
			}
			if said := p.stdout.String(); said != "up\n" {
				t.Errorf("it went on and said %q", said)
			}
			f.warifu("claims", "get", "c", "e").want(t, 0, "IN_PROGRESS", "")
		})
	}
}

// TestOnceLeaves: what a command with an answer leaves running is its business;
// without an answer others may be granted the event, so it is ended.
func TestOnceLeaves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end    string
		code   int
		leaves bool
	}{
		"Success":       {"exit 0", 0, true},
		"Failure":       {"exit 3", 3, true},
		"Killed":        {"kill -9 $$", 137, false},
		"SaysItsKilled": {"exit 137", 137, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := onceFolder(t)
			alive := f.pulse()
			got := f.once("e", nil, "exec 3> alive; sleep 1000 > /dev/null 2>&1 & echo $!; "+c.end)
			t.Cleanup(func() {
				if pid, err := strconv.Atoi(strings.TrimSpace(got.stdout)); err == nil && alive.beats() {
					_ = syscall.Kill(pid, syscall.SIGKILL)
					alive.awaitEnd()
				}
			})
			if got.code != c.code || alive.beats() != c.leaves {
				t.Errorf("%+v; is somebody left: %v, want %v", got, alive.beats(), c.leaves)
			}
		})
	}
}

// TestOnceBuriesOrphans: they are adopted by once, and do not stay as zombies
// while the command runs. kill finds zombies, too.
func TestOnceBuriesOrphans(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	f.once("e", nil, `mkfifo go; orphan=$(sh -c '(exec > /dev/null; read line < go) & echo $!'); echo > go; while kill -0 $orphan; do :; done; echo buried`).
		want(t, 0, "buried\n", "No such process")
}

// TestOnceKilled: the command does not outlive the one who keeps its lease, and
// when the lease is over another attempt takes over.
func TestOnceKilled(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	alive := f.pulse()
	p := f.startOnce([]string{"--lease", "1s"}, lives)
	p.until(p.stdout, "up")
	p.kill()
	alive.awaitEnd()
	f.once("e", []string{"--wait", "30s"}, "echo $WARIFU_ATTEMPT").want(t, 0, "2\n", "")
}

// TestOnceLosesItsLease: when nobody can be asked to extend it, the command and
// its steps are ended before somebody else may begin.
func TestOnceLosesItsLease(t *testing.T) {
	t.Parallel()
	f, server := onceFolder(t)
	alive := f.pulse()
	p := f.startOnce([]string{"--lease", "2s", "--timeout", "200ms"}, "sh -c '"+lives+"'; echo next step")
	p.until(p.stdout, "up")
	begin := time.Now()
	server.kill()
	if code := p.wait(); code != exitOnceUnrecorded {
		t.Fatalf("exit code %d, want %d: %s", code, exitOnceUnrecorded, p.stderr)
	}
	if took := time.Since(begin); took > killDelay {
		t.Errorf("it took %v", took)
	}
	if said := p.stderr.String(); !strings.Contains(said, "the lease is lost") {
		t.Errorf("it said %q", said)
	}
	if alive.beats() || p.stdout.String() != "up\n" {
		t.Errorf("its step goes on; it said %q", p.stdout)
	}
}

// TestOnceIsRefusedAfterTheEffect: a command that ran is never reported as one
// that did not, whatever became of its outcome.
func TestOnceIsRefusedAfterTheEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		exit, code int
		says       string
	}{
		"KeyIsRevoked":  {0, exitOnceUnrecorded, unrecorded},
		"SaysLaterThen": {75, exitOnceLater, "giving the event back failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, server := onceFolder(t)
			wrong := "Bearer " + f.wrongKey()
			var revoked atomic.Bool
			f.setenv("WARIFU_URL=" + between(t, server.url, func(r *http.Request) {
				if revoked.Load() {
					r.Header.Set("Authorization", wrong)
				}
			}))
			got := f.interrupted(c.exit, func(string) { revoked.Store(true) })
			got.want(t, c.code, "effect", c.says)
			got.want(t, c.code, "effect", "API key")
			f.warifu("claims", "get", "c", "e", "--url", server.url).want(t, 0, "IN_PROGRESS", "")
		})
	}
	t.Run("AnotherResultIsStored", func(t *testing.T) {
		t.Parallel()
		f, server := onceFolder(t)
		got := f.interrupted(0, func(said string) {
			words := strings.Fields(said)
			done := map[string]any{
				"consumer": "c", "eventId": "e", "attemptId": words[1], "fence": words[2],
				"completion": map[string]any{"outcome": "OUTCOME_SUCCEEDED"},
			}
			if got := server.call("Complete", done); got.Status != "STATUS_OK" {
				t.Errorf("complete: %+v", got)
			}
		})
		got.want(t, exitOnceUnrecorded, "effect", unrecorded)
		got.want(t, exitOnceUnrecorded, "effect", "another result")
	})
}

const unrecorded = "the command ran, but its outcome is not recorded"

// interrupted runs a command that tells its attempt ID and fence, and waits for
// what happens meanwhile.
func (f *folder) interrupted(code int, meanwhile func(said string)) outcome {
	f.t.Helper()
	if err := syscall.Mkfifo(f.path("go"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	p := f.startOnce(nil, "echo effect $WARIFU_ATTEMPT_ID $WARIFU_FENCE; read line < go; exit "+strconv.Itoa(code))
	meanwhile(p.until(p.stdout, "\n"))
	f.sh("echo > go")
	ended := p.wait()
	return outcome{p.stdout.String(), p.stderr.String(), ended}
}

// between is a proxy before a server, that may change requests.
func between(t *testing.T, to string, change func(*http.Request)) string {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		change(r.Out)
	}})
	t.Cleanup(proxy.Close)
	return proxy.URL
}
