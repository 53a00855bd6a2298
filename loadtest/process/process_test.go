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
	spent, err := Settle(t.Context(), func() (float64, error) { return CPUSeconds(p.PID()) })
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
