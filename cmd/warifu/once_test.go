package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// onceFolder is a folder with a server and the variables to use it.
func onceFolder(t *testing.T) (*folder, *process) {
	t.Helper()
	f := newFolder(t)
	server := f.dev()
	f.setenv("WARIFU_URL="+server.url, "WARIFU_API_KEY_FILE=warifu-data/dev.key")
	return f, server
}

// once runs a shell script for an event, which counts its runs in ./ran.
func (f *folder) once(event string, flags []string, script string) outcome {
	f.t.Helper()
	args := append([]string{"once", "--consumer", "c", "--event-id", event}, flags...)
	return f.warifu(append(args, "--", "sh", "-c", "echo ran >> ran; "+script)...)
}

func (f *folder) runs() int {
	f.t.Helper()
	b, err := os.ReadFile(f.path("ran"))
	if os.IsNotExist(err) {
		return 0
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.Count(string(b), "ran")
}

func (f *folder) wantRuns(n int) {
	f.t.Helper()
	if got := f.runs(); got != n {
		f.t.Fatalf("the command ran %d times, want %d", got, n)
	}
}

func TestOnceReplays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script, stdout, stderr string
		code                         int
		outcome                      string
	}{
		{"Success", "echo out; echo err >&2", "out\n", "err\n", 0, "SUCCEEDED"},
		{"Failure", "echo out; echo err >&2; exit 3", "out\n", "err\n", 3, "REJECTED"},
		{"Silence", "exit 0", "", "", 0, "SUCCEEDED"},
		{"NoNewline", "printf out", "out", "", 0, "SUCCEEDED"},
		{"Bytes", `printf '\377\000\033[2J'`, "\xff\x00\x1b[2J", "", 0, "SUCCEEDED"},
		{"Code255", "exit 255", "", "", 255, "REJECTED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, _ := onceFolder(t)
			for range 3 {
				got := f.once("e", nil, c.script)
				if got.stdout != c.stdout || got.stderr != c.stderr || got.code != c.code {
					t.Fatalf("got %+v, want %+v", got, c)
				}
			}
			f.wantRuns(1)
			f.warifu("claims", "get", "c", "e").want(t, 0, c.outcome, "")
		})
	}
}

// TestOnceStoresPartOfMuch: what does not fit is not stored, and that is said.
func TestOnceStoresPartOfMuch(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	const bytes = 300_000
	script := "head -c " + strconv.Itoa(bytes) + " /dev/zero; exit 4"
	if first := f.once("e", nil, script); first.code != 4 || len(first.stdout) != bytes || first.stderr != "" {
		t.Fatalf("first: code %d, %d bytes, stderr %q", first.code, len(first.stdout), first.stderr)
	}
	again := f.once("e", nil, script)
	again.want(t, 4, "", strconv.Itoa(bytes-captureBytesMax)+" bytes of its output were not kept")
	if len(again.stdout) != captureBytesMax {
		t.Fatalf("replayed %d bytes, want %d", len(again.stdout), captureBytesMax)
	}
	f.wantRuns(1)
}

// TestOnceLater: a command that says "not now" runs again.
func TestOnceLater(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	f.once("e", nil, "exit 75").want(t, exitOnceLater, "", "")
	f.once("e", []string{"--retry-exit", "9,10"}, "exit 10").want(t, exitOnceLater, "", "")
	f.once("e", []string{"--retry-exit", "any"}, "exit 1").want(t, exitOnceLater, "", "")
	f.wantRuns(3)
	f.once("e", []string{"--retry-exit", "9,10"}, "exit 75").want(t, 75, "", "")
	f.once("e", nil, "echo never").want(t, 75, "", "")
	f.wantRuns(4)
}

// TestOnceWithoutAnAnswer: a command that was ended by a signal has none, nor
// has one whose step was, and the event is left to the lease.
func TestOnceWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	for i, c := range []struct {
		script string
		code   int
		says   string
	}{
		{"kill -9 $$", 137, "the command was ended by a signal"},
		{"sh -c 'kill -9 $$'; exit", 137, "exit code 137 that signal 9 (killed) ended what it ran"},
		{"exit 129", 129, "signal 1 (hangup)"},
		{"exit 192", 192, "signal 64"},
	} {
		event := strconv.Itoa(i)
		f.once(event, nil, c.script).want(t, c.code, "", c.says)
		f.warifu("claims", "get", "c", event).want(t, 0, "IN_PROGRESS", "")
		f.once(event, nil, "echo never").want(t, exitOnceLater, "", "another attempt is in progress")
		f.wantRuns(i + 1)
	}
}

// TestOnceAnswersAll: codes beside those of signals are answers, and those that
// the caller names.
func TestOnceAnswersAll(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	for i, c := range []struct {
		flags  []string
		script string
		code   int
		state  string
	}{
		{nil, "exit 128", 128, "REJECTED"},
		{nil, "exit 193", 193, "REJECTED"},
		{[]string{"--answer-exit", "130,137"}, "exit 137", 137, "REJECTED"},
		{[]string{"--answer-exit", "any"}, "exit 192", 192, "REJECTED"},
		{[]string{"--answer-exit", "130"}, "exit 137", 137, "IN_PROGRESS"},
		{[]string{"--answer-exit", "any"}, "kill -9 $$", 137, "IN_PROGRESS"},
		{[]string{"--retry-exit", "137"}, "exit 137", exitOnceLater, "RELEASED"},
	} {
		event := strconv.Itoa(i)
		f.once(event, c.flags, c.script).want(t, c.code, "", "")
		f.warifu("claims", "get", "c", event).want(t, 0, c.state, "")
	}
}

// TestOncePassesSignalsOn: a command that is told to stop and then fails has
// given no answer; one that then succeeds has.
func TestOncePassesSignalsOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, trap string
		code       int
		state      string
	}{
		{"Fails", "exit 7", exitSignalled + int(syscall.SIGTERM), "IN_PROGRESS"},
		{"Succeeds", "exit 0", 0, "COMPLETED"},
		{"SaysLater", "exit 75", exitOnceLater, "RELEASED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, _ := onceFolder(t)
			p := f.start("once", "--consumer", "c", "--event-id", "e", "--",
				"sh", "-c", "trap '"+c.trap+"' TERM; echo up; while :; do read line; done")
			p.until(p.stdout, "up")
			p.signal(syscall.SIGTERM)
			if code := p.wait(); code != c.code {
				t.Fatalf("exit code %d, want %d: %s", code, c.code, p.stderr)
			}
			f.warifu("claims", "get", "c", "e").want(t, 0, c.state, "")
		})
	}
}

// TestOnceKeepsItsLease: a command that takes longer than its lease is the only
// one all the same.
func TestOnceKeepsItsLease(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	p := f.start("once", "--consumer", "c", "--event-id", "e", "--lease", "1s", "--", "sh", "-c", "echo up; exec sleep 1000")
	p.until(p.stdout, "up")
	f.once("e", []string{"--wait", "3s"}, "echo never").want(t, exitOnceLater, "", "in progress")
	f.wantRuns(0)
}

func TestOnceTellsTheCommand(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	got := f.once("e 1", nil, `echo "$WARIFU_CONSUMER|$WARIFU_EVENT_ID|$WARIFU_ATTEMPT|$WARIFU_ATTEMPT_ID|$WARIFU_FENCE"`)
	match(t, `^c\|e 1\|1\|[0-9a-f-]{36}\|[1-9][0-9]{15,}\n$`, got.stdout)
}

func TestOnceRefuses(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	f.once("e", []string{"--digest", "sha256/v1:00ff"}, "echo done").want(t, 0, "done\n", "")
	f.once("e", []string{"--digest", "sha256/v1:00fe"}, "echo never").want(t, exitOnceRefused, "", "other content")
	f.once("old", []string{"--event-time", "2001-01-01T00:00:00Z"}, "echo never").want(t, exitOnceRefused, "", "older than what is remembered")
	f.wantRuns(1)
}

// TestOnceOfAnotherKind: a result that another program stored is not an output.
func TestOnceOfAnotherKind(t *testing.T) {
	t.Parallel()
	f, server := onceFolder(t)
	for event, record := range map[string]map[string]any{
		"type": {"contentType": "text/plain", "metadata": map[string]string{exitCodeName: "0"}},
		"code": {"contentType": onceContentType},
		"many": {"contentType": onceContentType, "metadata": map[string]string{exitCodeName: "256"}},
	} {
		record["outcome"] = "OUTCOME_SUCCEEDED"
		recorded := claimOf("c", event, 1)
		recorded["record"] = record
		if got := server.call("Claim", recorded); got.Decision != "DECISION_GRANTED" {
			t.Fatalf("record: %+v", got)
		}
		f.once(event, nil, "echo never").want(t, exitOnceRefused, "", "completed by something else")
	}
	f.wantRuns(0)
}

func TestOnceItselfFails(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	f.write("plain", "text")
	f.write("wrong.key", f.wrongKey())
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--event-id", "e", "--", "true"}, exitOnceBroken, "--consumer is missing"},
		{[]string{"--consumer", "c", "--", "true"}, exitOnceBroken, "--event-id is missing"},
		{[]string{"--consumer", "c", "--event-id", "e"}, exitOnceBroken, "no command"},
		{[]string{"--consumers", "c", "--", "true"}, exitOnceBroken, "unknown flag"},
		{[]string{"--consumer", "c", "--event-id", "e", "--digest", "x", "--", "true"}, exitOnceBroken, "SCHEME:HEX"},
		{[]string{"--consumer", "c", "--event-id", "e", "--retry-exit", "256", "--", "true"}, exitOnceBroken, "1-255"},
		{[]string{"--consumer", "c", "--event-id", "e", "--answer-exit", "128", "--", "true"}, exitOnceBroken, "129-192"},
		{[]string{"--consumer", "c", "--event-id", "e", "--answer-exit", "193", "--", "true"}, exitOnceBroken, "129-192"},
		{[]string{"--consumer", "c d", "--event-id", "e", "--", "true"}, exitOnceBroken, "consumer"},
		{[]string{"--consumer", "c", "--event-id", "e", "--api-key-file", "wrong.key", "--", "true"}, exitOnceBroken, "API key"},
		{[]string{"--consumer", "c", "--event-id", "e", "--url", "http://127.0.0.1:1", "--", "true"}, exitOnceLater, ""},
		{[]string{"--consumer", "c", "--event-id", "e", "--", "no-such-command"}, exitOnceNotFound, "no-such-command"},
		{[]string{"--consumer", "c", "--event-id", "e", "--", "./plain"}, exitOnceNotExecutable, "permission denied"},
	} {
		f.warifu(append([]string{"once"}, c.args...)...).want(t, c.code, "", c.says)
	}
	// Nothing was claimed for any of them.
	f.warifu("claims", "get", "c", "e").want(t, exitNotFound, "", "nothing is stored")
}

// TestOnceCannotStart: a file that cannot be executed after all has done
// nothing, and the event is given back.
func TestOnceCannotStart(t *testing.T) {
	t.Parallel()
	f, _ := onceFolder(t)
	f.write("garbage", "\x7fELF and nothing")
	if err := os.Chmod(f.path("garbage"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.warifu("once", "--consumer", "c", "--event-id", "e", "--", "./garbage").want(t, exitOnceNotExecutable, "", "exec format error")
	f.warifu("claims", "get", "c", "e").want(t, 0, "RELEASED", "")
}

// wrongKey is well formed and nobody's.
func (f *folder) wrongKey() string {
	key, _, _ := f.keyLines()
	return key
}
