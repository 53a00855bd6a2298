package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"syscall"
	"testing"
)

// TestSealedStoreWantsItsKey: a server without the key that results are sealed
// with, or with another one under its name, does not start.
func TestSealedStoreWantsItsKey(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for name, key := range map[string][]byte{"kek": {1, 2, 3}, "other": {4, 5, 6}} {
		sum := sha256.Sum256(key)
		if err := os.WriteFile(f.path(name), []byte(hex.EncodeToString(sum[:])), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := f.dev("--seal-key-files", "k1=kek")
	f.setenv("WARIFU_URL="+p.url, "WARIFU_API_KEY_FILE=warifu-data/dev.key")
	f.warifu("once", "--consumer", "c", "--event-id", "e", "--", "echo", "a secret").want(t, 0, "a secret", "")
	p.signal(syscall.SIGTERM)
	p.wait()
	f.warifu("dev", "--listen", "127.0.0.1:0").want(t, exitUsage, "", "does not name")
	f.warifu("dev", "--listen", "127.0.0.1:0", "--seal-key-files", "k1=other").want(t, exitUsage, "", "does not open")
	f.warifu("dev", "--listen", "127.0.0.1:0", "--seal-key-files", "k2=other").want(t, exitUsage, "", "does not name")
	p = f.dev("--seal-key-files", "k2=other,k1=kek")
	f.setenv("WARIFU_URL="+p.url, "WARIFU_API_KEY_FILE=warifu-data/dev.key")
	f.warifu("once", "--consumer", "c", "--event-id", "e", "--", "echo", "another").want(t, 0, "a secret", "")
	p.signal(syscall.SIGTERM)
	p.wait()
}
