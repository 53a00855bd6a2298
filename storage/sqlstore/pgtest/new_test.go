package pgtest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		cfg  Config
		want map[string]string
	}{
		{"fast", Config{}, map[string]string{
			"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "shared_buffers": "64MB",
			"max_connections": "200", "listen_addresses": "127.0.0.1", "TimeZone": "UTC", "server_encoding": "UTF8",
		}},
		{"durable, and further ones", Config{Durable: true, Settings: map[string]string{"max_connections": "20", "work_mem": "7MB"}},
			map[string]string{
				"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "256MB",
				"max_connections": "20", "work_mem": "7MB",
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, c.cfg)
			conn := dial(t, s.URL())
			for name, want := range c.want {
				if got := value(t, conn, "SHOW "+name); got != want {
					t.Errorf("%s is %s, want %s", name, got, want)
				}
			}
			for query, want := range map[string]string{
				"SELECT current_user || ' ' || current_database()": "warifu warifu",
				// The order of a language, unless bytes are asked for.
				"SELECT (('a' < 'B') AND NOT ('a' COLLATE \"C\" < 'B' COLLATE \"C\"))::text": "true",
			} {
				if got := value(t, conn, query); got != want {
					t.Errorf("%s: %s, want %s", query, got, want)
				}
			}
			environ, err := os.ReadFile(filepath.Join("/proc", value(t, conn, "SELECT pg_backend_pid()::text"), "environ"))
			if err != nil {
				t.Logf("the environment is not to be seen here: %v", err) // as in a container
			} else if strings.Contains(string(environ), "HOME=") {
				t.Errorf("the server's environment is %q", environ)
			}
		})
	}
}

// TestTwoServers: made at the same time, they share nothing.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	var servers [2]*Server
	for i := range servers {
		group.Go(func() {
			s, err := New(context.Background(), Config{})
			if err != nil {
				t.Error(err)
				return
			}
			servers[i] = s
		})
	}
	group.Wait()
	for _, s := range servers {
		if s == nil {
			continue
		}
		t.Cleanup(func() { mustNil(t, s.Close()) })
	}
	if t.Failed() {
		return
	}
	a, b := servers[0], servers[1]
	run(t, dial(t, a.URL()), "CREATE TABLE here (n int)")
	run(t, dial(t, b.URL()), "CREATE TABLE here (n int)")
	mustNil(t, a.Pause())
	run(t, dial(t, b.URL()), "SELECT * FROM here")
	mustNil(t, a.Close())
	run(t, dial(t, b.URL()), "SELECT * FROM here")
}

// TestPortTaken: New looks for another, be it that a server like ours has it.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	other := setup(t, Config{})
	s, err := prepare(t.Context(), Config{})
	mustNil(t, err)
	t.Cleanup(func() { mustNil(t, s.Close()) })
	draws := 0
	s.freePort = func(ctx context.Context) (int, error) {
		if draws++; draws < 3 {
			return other.port, nil
		}
		return freePort(ctx)
	}
	mustNil(t, s.create(t.Context()))
	if draws != 3 || s.Addr() == other.Addr() {
		t.Errorf("%d ports were drawn, %s and %s", draws, s.Addr(), other.Addr())
	}

	// Start has no choice, and says what is wrong.
	mustNil(t, s.Stop())
	l, err := net.Listen("tcp4", s.Addr())
	mustNil(t, err)
	if err := s.Start(); !errors.Is(err, errPortTaken) {
		t.Errorf("Start on a taken port: %v", err)
	}
	mustNil(t, l.Close())
	mustNil(t, s.Start())
	run(t, dial(t, s.URL()), "SELECT 1")
}

func TestNewFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		settings map[string]string
		wait     time.Duration // 0: as long as it takes
		want     string
	}{
		{"unknown setting", map[string]string{"nonsense": "1"}, 0, `unrecognized configuration parameter "nonsense"`},
		{"bad value", map[string]string{"work_mem": "much"}, 0, `invalid value for parameter "work_mem"`},
		{"ours", map[string]string{"port": "1"}, 0, "port is chosen by New"},
		{"ours in other letters", map[string]string{"Listen-Addresses": "*"}, 0, "Listen-Addresses is chosen by New"},
		{"no name", map[string]string{"": "1"}, 0, "not the name of a setting"},
		{"value in the name", map[string]string{"port=1 ": "1"}, 0, "not the name of a setting"},
		{"out of time in initdb", nil, 300 * time.Millisecond, "initdb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if c.wait > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.wait)
				defer cancel()
			}
			dir := openDir(t)
			s, err := New(ctx, Config{Dir: dir, Settings: c.settings})
			if err == nil {
				mustNil(t, s.Close())
				t.Fatal("there is a server")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			if left := leftovers(t, nil, dir); left != "" {
				t.Errorf("left: %s", left)
			}
		})
	}
}

func TestNewBadDir(t *testing.T) {
	t.Parallel()
	if _, err := New(t.Context(), Config{Dir: filepath.Join(t.TempDir(), "missing")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing Dir: %v", err)
	}
	if os.Geteuid() != 0 {
		return // who may make a folder may enter it
	}
	dir := t.TempDir()
	_, err := New(t.Context(), Config{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "cannot enter") || !strings.Contains(err.Error(), "Config.Dir") {
		t.Errorf("a Dir of root alone: %v", err)
	}
	if left := leftovers(t, nil, dir); left != "" {
		t.Errorf("left: %s", left)
	}
}
