package process

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	line := "4711 (a) name (with) x 1 2) S 1 4711 4711 0 -1 4194560 100 0 0 0 250 75 0 0 20 0 9 0 1234 0 0"
	got, err := parseStat([]byte(line))
	if err != nil || got != 3.25 {
		t.Errorf("CPU time = %v, %v; want 3.25 s", got, err)
	}
	for _, bad := range []string{"", "1 (x) S 1", "1 (x) S 1 2 3 4 5 6 7 8 9 10 eleven 12 13"} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was read as %v s", bad, got)
		}
	}
}

func TestCPUSeconds(t *testing.T) {
	t.Parallel()
	if got, err := CPUSeconds(os.Getpid()); err != nil || got < 0 {
		t.Errorf("own CPU time = %v, %v", got, err)
	}
}

// findLine is the first whole line.
func findLine(text []byte) string {
	line, _, ok := bytes.Cut(text, []byte("\n"))
	if !ok {
		return ""
	}
	return string(line)
}

func TestProcess(t *testing.T) {
	t.Parallel()
	p, err := Start(t.Context(), "shell", t.TempDir(), []string{"WORD=hello"}, "/bin/sh", "-c", "echo $WORD; exec sleep 600")
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.AwaitOutput(t.Context(), "to greet", findLine)
	if err != nil || got != "hello" {
		t.Errorf("it said %q, %v", got, err)
	}
	spent, err := Settle(t.Context(), p.PID())
	if err != nil || spent > 1 {
		t.Errorf("a sleeping process: %v s, %v", spent, err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := CPUSeconds(p.PID()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there after Stop: %v", err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("stopped twice: %v", err)
	}
}

// TestProcessEnds: who waits for a process that ended is told what it said.
func TestProcessEnds(t *testing.T) {
	t.Parallel()
	p, err := Start(t.Context(), "shell", t.TempDir(), nil, "/bin/sh", "-c", "echo no such port >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	err = p.AwaitTCP(t.Context(), "127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "no such port") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error = %v", err)
	}
}

func TestProcessEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Start(ctx, "sleeper", t.TempDir(), nil, "sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-p.ended
	if p.err == nil {
		t.Error("it slept for ten minutes")
	}
}

func TestAwaitTCP(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p, err := Start(t.Context(), "sleeper", t.TempDir(), nil, "sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AwaitTCP(t.Context(), l.Addr().String()); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	var o output
	for range 3 {
		if n, err := o.Write(make([]byte, outputMax/2+1)); n != outputMax/2+1 || err != nil {
			t.Fatalf("write = %d, %v", n, err)
		}
	}
	if len(o.kept) != outputMax {
		t.Errorf("%d bytes are kept, want %d", len(o.kept), outputMax)
	}
}
