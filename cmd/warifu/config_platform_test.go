package main

import (
	"encoding/hex"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// kekText is a key-encryption key.
func kekText(seed byte) string {
	return hex.EncodeToString([]byte(strings.Repeat(string([]byte{seed, 7}), 16)))
}

// servers are the commands that serve, on a free port.
func servers() [][]string {
	return [][]string{{"serve", "--listen", "127.0.0.1:0", "--metrics-listen", ""}, {"dev", "--listen", "127.0.0.1:0"}}
}

// TestServersRefuseEarly: what cannot be served with is a fault of the
// configuration, found before there is a store.
func TestServersRefuseEarly(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("a.key", kekText(1))
	f.write("b.key", kekText(2))
	f.write("bad.key", "not a key")
	f.write("text.pem", "text")
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"open to the network", []string{"--listen", "0.0.0.0:0"}, "--insecure-listen"},
		{"no certificate", []string{"--tls-cert-file", "none.pem", "--tls-key-file", "text.pem"}, "none.pem"},
		{"not a certificate", []string{"--tls-cert-file", "text.pem", "--tls-key-file", "text.pem"}, "text.pem"},
		{"no sealing key", []string{"--seal-key-files", "a=none.key"}, "none.key"},
		{"a bad sealing key", []string{"--seal-key-files", "a=a.key,b=bad.key"}, "bad.key"},
		{"two of one ID", []string{"--seal-key-files", "a=a.key, a=b.key"}, `two keys have the ID "a"`},
	} {
		for _, command := range servers() {
			got := f.warifu(append(command, c.args...)...)
			if got.code != exitUsage || !strings.Contains(got.stderr, c.says) || !strings.Contains(got.stderr, "configuration: ") {
				t.Errorf("%s, %s: %+v, want %q", command[0], c.name, got, c.says)
			}
			if _, err := os.Stat(f.path("warifu-data")); err == nil {
				t.Fatalf("%s, %s: a store was made", command[0], c.name)
			}
		}
	}
}

// TestOthersDoNotServe: commands that look after a store run with a server's
// configuration where that could not listen.
func TestOthersDoNotServe(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("warifu.yaml", "listen: 0.0.0.0:8080\n")
	f.setenv("WARIFU_CONFIG=warifu.yaml")
	f.warifu("migrate", "print", "--all", "--store", "postgres://nowhere.invalid/x").want(t, exitOK, "CREATE TABLE", "")
	f.warifu("keys", "bootstrap", "--data", "data").want(t, exitOK, "WARIFU_API_KEY=", "")
	f.write("warifu.yaml", "listen: 0.0.0.0:8080\ntls_cert_file: none.pem\ntls_key_file: none.pem\n")
	f.warifu("keys", "bootstrap", "--data", "data", "--force").want(t, exitOK, "WARIFU_API_KEY=", "")
}

// TestKEKFileMode: a sealing key that others can read, or change, is not used.
func TestKEKFileMode(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("a.key", kekText(1))
	for _, mode := range []fs.FileMode{0o604, 0o620, 0o644, 0o660} {
		if err := os.Chmod(f.path("a.key"), mode); err != nil {
			t.Fatal(err)
		}
		for _, command := range servers() {
			got := f.warifu(append(command, "--seal-key-files", "a=a.key")...)
			if got.code != exitUsage || !strings.Contains(got.stderr, "chmod 600 "+f.path("a.key")) || strings.Contains(got.stderr, kekText(1)) {
				t.Errorf("%s, mode %o: %+v", command[0], mode, got)
			}
		}
	}
	if err := os.Chmod(f.path("a.key"), 0o400); err != nil {
		t.Fatal(err)
	}
	f.dev("--seal-key-files", "a=a.key")
}

// TestOpenDataFolder: one that others can look into is used, and told of, once.
func TestOpenDataFolder(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev().kill() // makes it
	for _, c := range []struct {
		mode fs.FileMode
		want int
	}{{0o700, 0}, {0o750, 1}, {0o701, 1}} {
		if err := os.Chmod(f.path("warifu-data"), c.mode); err != nil {
			t.Fatal(err)
		}
		said := `"run":"chmod 700 ` + f.path("warifu-data") + `"`
		p := f.dev()
		p.kill()
		if n := strings.Count(p.stderr.String(), said); n != c.want {
			t.Errorf("dev, mode %o: told %d times, want %d: %s", c.mode, n, c.want, p.stderr)
		}
		p = f.start("serve", "--listen", "127.0.0.1:0", "--metrics-listen", "", "--log-format", "json")
		p.until(p.stderr, `"msg":"ready"`)
		p.kill()
		if n := strings.Count(p.stderr.String(), said); n != c.want {
			t.Errorf("serve, mode %o: told %d times, want %d: %s", c.mode, n, c.want, p.stderr)
		}
	}
}
