package pgtest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// The test binary runs itself as a process that dies with a server.
const (
	childStage = "WARIFU_PGTEST_CHILD"
	childDir   = "WARIFU_PGTEST_DIR"
)

// child starts a server, tells its processes in one line, and waits for its
// end.
func child(stage, dir string) {
	s, err := New(context.Background(), Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	all, err := s.mu.main.family()
	told := []int{s.keeper.cmd.Process.Pid}
	for _, p := range all {
		told = append(told, p.pid)
	}
	if err == nil && stage == "paused" {
		err = s.Pause()
	}
	if err == nil && stage == "stopped" {
		err = s.Stop()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(told)
	if stage == "exits" {
		os.Exit(0)
	}
	select {}
}

// TestDeath: a server does not survive the process that started it, however
// that one died and whatever the server was doing.
func TestDeath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stage string
		group bool // the whole process group is killed, as a runner of tests does
	}{
		{stage: "running"}, {stage: "running", group: true}, {stage: "paused"}, {stage: "stopped"},
		{stage: "initdb"}, {stage: "exits"},
	} {
		t.Run(fmt.Sprintf("%s,group=%v", c.stage, c.group), func(t *testing.T) {
			t.Parallel()
			dir := openDir(t)
			cmd, ids := startChild(t, c.stage, dir)
			if len(ids) == 0 {
				t.Fatalf("the server had the processes %v", ids)
			}
			if c.stage != "exits" {
				target := cmd.Process.Pid
				if c.group {
					target = -target
				}
				signalled(t, target, syscall.SIGKILL)
			}
			_ = cmd.Wait() // it was killed
			eventually(t, "everything is gone", func() string { return leftovers(t, ids, dir) })
		})
	}
}

// startChild starts a process with a server, and returns the server's
// processes once it has come to the stage.
func startChild(t *testing.T, stage, dir string) (*exec.Cmd, []int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childStage+"="+stage, childDir+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	mustNil(t, err)
	mustNil(t, cmd.Start())
	if stage == "initdb" {
		return cmd, stopInitdb(t, dir)
	}
	var ids []int
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &ids) != nil {
		t.Fatalf("the child said %q: %v", line, err)
	}
	return cmd, ids
}

// stopInitdb waits until an initdb is at work and stops it: then it notices
// nothing by itself.
func stopInitdb(t *testing.T, dir string) []int {
	t.Helper()
	var stopped []int
	eventually(t, "initdb begins", func() string {
		for _, pid := range workingIn(t, dir) {
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
			if err == nil && filepath.Base(exe) == "initdb" {
				signalled(t, pid, syscall.SIGSTOP)
				stopped = append(stopped, pid)
			}
		}
		if len(stopped) == 0 {
			return "no process of it"
		}
		return ""
	})
	return stopped
}

// workingIn are the processes that work below dir, of an initdb too. Where
// root may not look at those of others it finds none.
func workingIn(t *testing.T, dir string) []int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	mustNil(t, err)
	var ids []int
	for _, link := range links {
		to, err := os.Readlink(link)
		if err != nil {
			continue // it ended meanwhile
		}
		if inside, err := filepath.Match(filepath.Join(dir, "*", "data*"), to); err == nil && inside {
			var pid int
			if _, err := fmt.Sscanf(link, "/proc/%d/cwd", &pid); err == nil {
				ids = append(ids, pid)
			}
		}
	}
	return ids
}

// TestCloseLeavesNothing, whatever the server was doing.
func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(*testing.T, *Server){
		"running": func(*testing.T, *Server) {},
		"busy": func(t *testing.T, s *Server) {
			t.Helper()
			run(t, dial(t, s.URL()), "BEGIN", "CREATE TABLE half (n int)")
		},
		"paused":  func(t *testing.T, s *Server) { t.Helper(); mustNil(t, s.Pause()) },
		"stopped": func(t *testing.T, s *Server) { t.Helper(); mustNil(t, s.Stop()) },
		"its keeper was killed": func(t *testing.T, s *Server) {
			t.Helper()
			signalled(t, s.keeper.cmd.Process.Pid, syscall.SIGKILL)
			<-s.keeper.ended
		},
		"frozen in its end": func(t *testing.T, s *Server) {
			t.Helper()
			// A transaction under way, and a backend that does not notice.
			run(t, dial(t, s.URL()), "BEGIN")
			all, err := s.mu.main.family()
			mustNil(t, err)
			signalled(t, all[len(all)-1].pid, syscall.SIGSTOP)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := openDir(t)
			s := setup(t, Config{Dir: dir})
			ids := pids(t, s)
			before(t, s)
			mustNil(t, s.Close())
			if left := leftovers(t, ids, dir); left != "" {
				t.Errorf("left: %s", left)
			}
			mustNil(t, s.Close())
		})
	}
}
