package main

import (
	"encoding/pem"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warifu/warifu/server/tenant"
)

// desk is a person's machine: no variables but the place of contexts.
func desk(t *testing.T) (f *fakeAPI, key string) {
	t.Helper()
	f = newFakeAPI(t)
	f.env = []string{"XDG_CONFIG_HOME=" + f.home}
	key, _ = tenant.NewKey("live")
	return f, key
}

func (f *fakeAPI) file() string { return filepath.Join(f.home, "warifu", "contexts.yaml") }

func (f *fakeAPI) keyFile(key string) string {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(key+"\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// pipe runs a command with text on its standard input, which is no terminal.
func (f *fakeAPI) pipe(text string, args ...string) outcome {
	return f.on(strings.NewReader(text), args...)
}

func TestContexts(t *testing.T) {
	t.Parallel()
	f, key := desk(t)
	f.do("context", "show").want(t, exitNotFound, "", "context add")
	f.do("usage").want(t, exitDenied, "", "no API key")
	f.pipe(key+"\n", "context", "add", "prod", "--url", f.url, "--api-key-stdin", "--tenant", "shop").want(t, exitOK, "", "in use")
	f.do("context", "add", "other", "--url", "https://w.example", "--api-key-file", f.keyFile(key)).want(t, exitOK, "", `in use: "prod"`)
	f.do("context", "add", "prod", "--url", f.url, "--api-key-file", f.keyFile(key)).want(t, exitConflict, "", "--replace")
	id, _, _ := tenant.ParseKey(key)
	for _, args := range [][]string{
		{"context", "list"}, {"context", "list", "-o", "json"}, {"context", "list", "-o", "yaml"},
		{"context", "show"}, {"context", "show", "prod", "-o", "json"}, {"context", "show", "-o", "yaml"},
	} {
		got := f.do(args...)
		got.want(t, exitOK, id, "")
		if strings.Contains(got.stdout+got.stderr, key[len("wf_live_")+len(id)+1:]) {
			t.Errorf("%v shows the secret: %s", args, got.stdout)
		}
	}
	info, err := os.Stat(f.file())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	f.do("usage").want(t, exitOK, "retained_keys", "")
	if all := f.got(); all[0].key != key {
		t.Errorf("the key sent is %q", all[0].key)
	}
	f.do("context", "use", "other").want(t, exitOK, "", "")
	f.do("context", "show").want(t, exitOK, "https://w.example", "")
	f.do("context", "remove", "other").want(t, exitOK, "", "")
	f.do("context", "show").want(t, exitNotFound, "", "")
	f.do("context", "use", "other").want(t, exitNotFound, "", "no context")
	left, err := os.ReadDir(filepath.Dir(f.file()))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestContextAddRefuses: what is wrong is found when it is added.
func TestContextAddRefuses(t *testing.T) {
	t.Parallel()
	f, key := desk(t)
	wrong := key[:len(key)-1] + "x"
	for _, c := range []struct {
		says string
		args []string
	}{
		{"--url is missing", []string{"p", "--api-key-stdin"}},
		{"https://HOST", []string{"p", "--url", "w.example:80", "--api-key-stdin"}},
		{"without a user", []string{"p", "--url", "http://ann:geheim@w.example", "--api-key-stdin"}},
		{"no API key", []string{"p", "--url", "http://w.example"}},
		{"name", []string{"p/q", "--url", "http://w.example", "--api-key-stdin"}},
		{"typing error", []string{"p", "--url", "http://w.example", "--api-key-file", f.keyFile(wrong)}},
		{"none of the others can be", []string{"p", "--url", "http://w.example", "--api-key-file", "f", "--api-key-stdin"}},
	} {
		got := f.pipe(key, append([]string{"context", "add"}, c.args...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%v: %+v, want %q", c.args, got, c.says)
		}
		if strings.Contains(got.stderr, "geheim") || strings.Contains(got.stderr, wrong) {
			t.Errorf("%v: a secret is repeated: %q", c.args, got.stderr)
		}
	}
	if _, err := os.Stat(f.file()); !os.IsNotExist(err) {
		t.Errorf("something was kept: %v", err)
	}
	f.pipe(key, "context", "add", "far", "--url", "http://w.example", "--api-key-stdin").want(t, exitOK, "", "readable")
}

// TestContextFileMode: a file that others can read, or change, is not used.
func TestContextFileMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o620, 0o666} {
		f, key := desk(t)
		f.pipe(key, "context", "add", "prod", "--url", f.url, "--api-key-stdin").want(t, exitOK, "", "")
		if err := os.Chmod(f.file(), mode); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"usage"}, {"context", "list"}, {"context", "use", "prod"}, {"usage", "--context", "prod"}} {
			got := f.do(args...)
			got.want(t, exitUsage, "", "chmod 600")
			if strings.Contains(got.stderr, key) {
				t.Errorf("%v shows the key", args)
			}
		}
		if asked := f.methods(); asked != "" {
			t.Errorf("mode %o: %s was asked", mode, asked)
		}
	}
}

// TestContextFileDamaged: neither a misspelt name nor garbage is skipped, and
// what is quoted holds no key.
func TestContextFileDamaged(t *testing.T) {
	t.Parallel()
	f, key := desk(t)
	if err := os.MkdirAll(filepath.Dir(f.file()), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"contexts:\n  prod:\n    url: " + f.url + "\n    apikey: " + key + "\n", "contexts: " + key + "\n", key, "contexts:\n  prod: [" + key + "]\n",
	} {
		if err := os.WriteFile(f.file(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := f.do("usage")
		got.want(t, exitUsage, "", "contexts.yaml")
		if strings.Contains(got.stderr, key[20:]) {
			t.Errorf("the key is shown: %q", got.stderr)
		}
	}
}

// TestPrecedence: flags, variables, context; and a context named by a flag is as
// good as flags.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	f, kept := desk(t)
	flag, _ := tenant.NewKey("flag")
	variable, _ := tenant.NewKey("variable")
	byFile, byVariable := f.keyFile(flag), f.keyFile(variable)
	f.pipe(kept, "context", "add", "prod", "--url", f.url, "--api-key-stdin", "--tenant", "shop").want(t, exitOK, "", "")
	f.pipe(kept, "context", "add", "gone", "--url", "http://127.0.0.1:1", "--api-key-stdin", "--tenant", "paper").want(t, exitOK, "", "")
	at := " WARIFU_URL=" + f.url
	for _, c := range []struct {
		name, args, env string
		key, tenant     string
		code            int
	}{
		{"context", "usage", "", kept, "shop", exitOK},
		{"flag for key", "usage --api-key-file " + byFile, "", flag, "shop", exitOK},
		{"variable for key", "usage", "WARIFU_API_KEY=" + variable + at, variable, "shop", exitOK},
		{"variable for file", "usage", "WARIFU_API_KEY_FILE=" + byVariable + at, variable, "shop", exitOK},
		{"variable for key, flag for URL", "usage --url " + f.url, "WARIFU_API_KEY=" + variable, variable, "shop", exitOK},
		{"a variable's key does not go to the context's server", "usage", "WARIFU_API_KEY=" + variable, "", "", exitDenied},
		{"nor does that in a file", "usage", "WARIFU_API_KEY_FILE=" + byVariable, "", "", exitDenied},
		{"nor with WARIFU_CONTEXT", "usage", "WARIFU_CONTEXT=prod WARIFU_API_KEY=" + variable, "", "", exitDenied},
		{"flag before variable", "usage --api-key-file " + byFile, "WARIFU_API_KEY=" + variable, flag, "shop", exitOK},
		{"tenant flag", "usage --tenant paper", "", kept, "paper", exitOK},
		{"no tenant", "usage --tenant=", "", kept, "", exitOK},
		{"WARIFU_CONTEXT", "usage", "WARIFU_CONTEXT=gone", "", "", exitUnavailable},
		{"--context before WARIFU_CONTEXT", "usage --context prod", "WARIFU_CONTEXT=gone", kept, "shop", exitOK},
		{"--context before variables", "usage --context prod", "WARIFU_URL=http://127.0.0.1:1 WARIFU_API_KEY=" + variable, kept, "shop", exitOK},
		{"URL variable before the context", "usage", "WARIFU_URL=http://127.0.0.1:1 WARIFU_API_KEY=" + variable, "", "", exitUnavailable},
		{"URL flag before --context", "usage --context gone --api-key-file " + byFile + " --url " + f.url, "", flag, "", exitOK},
		{"another server's tenant is not the context's", "usage", "WARIFU_CONTEXT=gone WARIFU_API_KEY=" + variable + at, variable, "", exitOK},
		{"no such context", "usage --context no", "", "", "", exitNotFound},
		{"the key stays with its server", "usage --context gone --url " + f.url, "", "", "", exitDenied},
		{"also by variable", "usage", "WARIFU_CONTEXT=gone WARIFU_URL=" + f.url, "", "", exitDenied},
	} {
		f.env = append([]string{"XDG_CONFIG_HOME=" + f.home}, strings.Fields(c.env)...)
		got := f.do(strings.Fields(c.args)...)
		all := f.got()
		if got.code != c.code {
			t.Errorf("%s: %+v, want code %d", c.name, got, c.code)
		}
		if c.key == "" && len(all) > 0 || c.key != "" && (len(all) != 1 || all[0].key != c.key) {
			t.Errorf("%s: asked with %v", c.name, all)
			continue
		}
		if c.key != "" {
			if m, ok := all[0].message.(interface{ GetTenant() string }); !ok || m.GetTenant() != c.tenant {
				t.Errorf("%s: %v, want tenant %q", c.name, all[0].message, c.tenant)
			}
		}
	}
}

// TestCAFile: whom to trust comes from a flag or the context; a file that cannot
// be used is found before anything is sent.
func TestCAFile(t *testing.T) {
	t.Parallel()
	f, key := desk(t)
	f.do("usage", "--api-key-file", f.keyFile(key), "--ca-file", f.keyFile("text")).want(t, exitUsage, "", "certificate")
	f.do("usage", "--api-key-file", f.keyFile(key), "--ca-file", "none").want(t, exitUsage, "", "none")
	f.do("usage", "--api-key-file", f.keyFile(key), "--client-cert-file", "none").want(t, exitUsage, "", "both")
	server := httptest.NewUnstartedServer(f.mux)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are meant to fail
	server.StartTLS()
	defer server.Close()
	ca := f.keyFile(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	f.do("usage", "--url", server.URL, "--api-key-file", f.keyFile(key)).want(t, exitUnavailable, "", "certificate")
	f.do("usage", "--url", server.URL, "--api-key-file", f.keyFile(key), "--ca-file", ca).want(t, exitOK, "retained_keys", "")
	f.pipe(key, "context", "add", "sealed", "--url", server.URL, "--api-key-stdin", "--ca-file", ca).want(t, exitOK, "", "")
	f.do("usage").want(t, exitOK, "retained_keys", "")
	if asked := f.methods(); asked != "GetUsage GetUsage" {
		t.Error(asked)
	}
}
