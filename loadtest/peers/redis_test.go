package peers

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/warifu/warifu/loadtest/process"
)

// The tests of StartRedis are not parallel: PATH is the whole process's.

func TestStartRedis(t *testing.T) {
	fake, dir := newProgram(t, RedisProgram, behaviour{}), t.TempDir()
	t.Setenv("PATH", fake.dir)
	p, address, err := StartRedis(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	port, onLoopback := strings.CutPrefix(address, "127.0.0.1:")
	want := []string{
		"--bind", "127.0.0.1", "--port", port, "--dir", dir, "--daemonize", "no",
		"--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0", "--save", "",
	}
	if s := fake.started(); !slices.Equal(s.Args, want) || s.Dir != dir || !onLoopback {
		t.Errorf("started in %s with %q, at %s", s.Dir, s.Args, address)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	fake.awaitEnd()
}

func TestRedisIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	p, address, err := StartRedis(t.Context(), t.TempDir())
	if !errors.Is(err, exec.ErrNotFound) || p != nil || address != "" {
		t.Fatalf("started %v at %q, %v", p, address, err)
	}
	for _, word := range []string{"redis-server", "install the Debian package", "-only"} { // what to do about it
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func TestRedisDoesNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		behaviour behaviour
		noDir     bool
		ended     bool  // the context is, before
		cause     error // nil: one that is not a sentinel
		want      string
	}{
		"it ends":   {behaviour: behaviour{Fault: "Can't open the append-only file"}, want: "redis ended while it was expected to listen on 127.0.0.1:"},
		"no folder": {noDir: true, cause: fs.ErrNotExist, want: "start redis"},
		"no time":   {ended: true, cause: context.Canceled, want: "start redis"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", newProgram(t, RedisProgram, c.behaviour).dir)
			dir := t.TempDir()
			if c.noDir {
				dir = filepath.Join(dir, "missing")
			}
			p, address, err := StartRedis(within(t, c.ended), dir)
			if err == nil || p != nil || address != "" {
				t.Fatalf("started %v at %q, %v", p, address, err)
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.behaviour.Fault) {
				t.Errorf("%q says neither %q nor what it said", err, c.want)
			}
			if c.cause != nil && !errors.Is(err, c.cause) {
				t.Errorf("%v is not %v", err, c.cause)
			}
		})
	}
}

// TestRedisNeverListens: the wait ends with its context, and so does the server.
func TestRedisNeverListens(t *testing.T) {
	fake := newProgram(t, RedisProgram, behaviour{Mute: true})
	t.Setenv("PATH", fake.dir)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		fake.started()
		cancel()
	}()
	p, address, err := StartRedis(ctx, t.TempDir())
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "wait for redis to listen on 127.0.0.1:") || p != nil || address != "" {
		t.Errorf("started %v at %q, %v", p, address, err)
	}
	<-ctx.Done()
	fake.awaitEnd()
}

// TestNotReady: when the wait alone runs out, the server is ended all the same.
func TestNotReady(t *testing.T) {
	t.Parallel()
	fake := newProgram(t, RedisProgram, behaviour{Mute: true})
	// The address is nobody's, and the process has a context that goes on.
	started, err := process.Start(t.Context(), "redis", t.TempDir(), nil, fake.path, "--port", "0")
	if err != nil {
		t.Fatal(err)
	}
	fake.started()
	p, address, err := ready(within(t, true), started, "127.0.0.1:0")
	if !errors.Is(err, context.Canceled) || p != nil || address != "" {
		t.Errorf("ready: %v at %q, %v", p, address, err)
	}
	fake.awaitEnd()
}

// TestRealRedis: the server does what it is told on its command line.
func TestRealRedis(t *testing.T) {
	if _, err := exec.LookPath(RedisProgram); err != nil {
		t.Skipf("%v: it is in the Debian package of that name, which 'make test' installs; the tests above use a pretended one", err)
	}
	p, address, err := StartRedis(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}()
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close() //nolint:errcheck // it only reads
	for name, want := range map[string]string{
		"appendonly": "yes", "appendfsync": "always", "save": "", "auto-aof-rewrite-percentage": "0", "bind": "127.0.0.1",
	} {
		got, err := client.ConfigGet(t.Context(), name).Result()
		if err != nil || got[name] != want {
			t.Errorf("%s is %q, %v; want %q", name, got[name], err, want)
		}
	}
	checkRedisClaims(t, address)
	if left, err := client.TTL(t.Context(), "event-1").Result(); err != nil || left <= keep/2 || left > keep {
		t.Errorf("a key is remembered for %v, %v; want %v", left, err, keep)
	}
}
