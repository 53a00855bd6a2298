package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the project's folder, seen from here.
const root = "../.."

// blocks returns the README's code blocks of a language.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		found = append(found, m[1])
	}
	if len(found) == 0 {
		t.Fatalf("the README has no %s blocks", language)
	}
	return found
}

// TestREADMECommands runs what the README says, in its order and in one shell,
// against a server with the README's data folder.
func TestREADMECommands(t *testing.T) {
	t.Parallel()
	f, server := onceFolder(t)
	f.followREADME(server, server)
}

// followREADME runs the README's script: claims and other commands on one
// server, the completion on another, which may be the same.
func (f *folder) followREADME(claims, completion *process) {
	t := f.t
	t.Helper()
	if err := os.Mkdir(f.path("bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path("warifu"), f.path("bin/warifu")); err != nil {
		t.Fatal(err)
	}
	script := strings.Join(blocks(t, "sh"), "\n")
	const address = "http://127.0.0.1:8080"
	if strings.Count(script, address) != 2 {
		t.Fatal("the README no longer uses the address of make run twice: to claim and to complete")
	}
	script = strings.Replace(script, address, claims.url, 1)
	script = strings.Replace(script, address, completion.url, 1)
	// Replies of the API end in no newline.
	script = strings.ReplaceAll(script, "curl -sS", `curl -w '\n' -sS`)
	got := f.sh(script)
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	order := regexp.MustCompile(`(DECISION|STATUS)_[A-Z_]+`).FindAllString(got.stdout, -1)
	want := "DECISION_GRANTED DECISION_IN_PROGRESS STATUS_OK DECISION_DUPLICATE"
	if strings.Join(order, " ") != want {
		t.Errorf("answers are %v, want %s\n%s", order, want, got.stdout)
	}
	lines := strings.Split(got.stdout, "\n")
	for i := range lines { // `date` twice: the second is the first
		if strings.HasPrefix(lines[i], "CONSUMER") {
			if lines[i-1] != lines[i-2] || lines[i-1] == "" {
				t.Errorf("once printed %q, then %q", lines[i-2], lines[i-1])
			}
			return
		}
	}
	t.Errorf("claims list printed nothing: %s", got.stdout)
}

// TestREADMEProgram builds and runs the README's Go program twice.
func TestREADMEProgram(t *testing.T) {
	t.Parallel()
	f, server := onceFolder(t)
	program := blocks(t, "go")[0]
	_, body, _ := strings.Cut(program, "func main() {\n")
	if lines := strings.Count(body, "\n"); lines == 0 || lines > 20 {
		t.Errorf("the program has %d lines; the README promises 20", lines)
	}
	f.write("main.go", program)
	absolute, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		f.write(name, strings.Replace(string(text), "module "+module+"\n", "module example.com/readme\n", 1))
	}
	f.write("go.mod", f.read("go.mod")+"\nrequire "+module+" v0.0.0\nreplace "+module+" => "+absolute+"\n")
	f.finish(f.command("go", "build", "-mod=mod", "-buildvcs=false", "-o", "program", ".")).want(t, 0, "", "")
	f.setenv("WARIFU_API_KEY=" + server.key)
	f.finish(f.command("./program")).want(t, 0, "reserved 3, accepted true, replayed false, error <nil>", "")
	f.finish(f.command("./program")).want(t, 0, "reserved 3, accepted true, replayed true, error <nil>", "")
}

// TestREADMEOperator is the day of an operator as the README has it, in one
// shell, on an embedded store: first key, tenants, consumers, keys, metrics,
// rotation, suspension, audit log.
func TestREADMEOperator(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	if err := os.Mkdir(f.path("bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path("warifu"), f.path("bin/warifu")); err != nil {
		t.Fatal(err)
	}
	script := strings.Join(blocks(t, "bash"), "\n")
	api, metrics := freeAddress(t), freeAddress(t)
	for old, now := range map[string]string{"127.0.0.1:8080": api, "127.0.0.1:9090": metrics} {
		if !strings.Contains(script, old) {
			t.Fatalf("the README no longer uses %s", old)
		}
		script = strings.ReplaceAll(script, old, now)
	}
	script = fmt.Sprintf("set -euo pipefail; export PATH=$PWD/bin:$PATH WARIFU_LISTEN=%s WARIFU_METRICS_LISTEN=%s\n%s\nwait", api, metrics, script)
	got := f.finish(f.command("bash", "-c", script))
	if got.code != 0 {
		t.Fatalf("code %d\n%s\n%s", got.code, got.stdout, got.stderr)
	}
	for _, want := range []string{
		"tenant.create", "consumer.put", "key.create", "key.rotate", "tenant.suspend", "on request",
		`decision="granted"`,
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("without %q:\n%s", want, got.stdout)
		}
	}
	dates := regexp.MustCompile(`(?m)^.*\d\d:\d\d:\d\d .*\d{4}$`).FindAllString(got.stdout, -1)
	if len(dates) != 3 || dates[1] != dates[0] || dates[2] != dates[0] {
		t.Errorf("the command was to run once, and to be replayed under either key: %q", dates)
	}
}

// freeAddress is an address on loopback that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
