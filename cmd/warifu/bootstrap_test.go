package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/pebble"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sqlstore"
)

// bootstrap makes a key and returns it.
func (f *folder) bootstrap(args ...string) bootstrapKey {
	f.t.Helper()
	got := f.warifu(append([]string{"keys", "bootstrap", "-o", "json"}, args...)...)
	got.want(f.t, exitOK, "", "")
	got.wantNoPassword(f.t)
	var made bootstrapKey
	if err := json.Unmarshal([]byte(got.stdout), &made); err != nil {
		f.t.Fatalf("%v: %+v", err, got)
	}
	if strings.Contains(got.stderr, made.Key) {
		f.t.Errorf("the key is said twice: %q", got.stderr)
	}
	return made
}

// wantBootstrapped checks what a registry has: n keys of the platform, with
// their audit entries, and that made is one of them.
func wantBootstrapped(t *testing.T, rows registry.Registry, n int, made bootstrapKey, reason string) {
	t.Helper()
	all, err := rows.Load(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	log, err := rows.Audit(t.Context(), registry.AuditQuery{Scope: registry.Platform(), Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Keys) != n || len(log.Entries) != n {
		t.Fatalf("%d keys, %d entries, want %d", len(all.Keys), len(log.Entries), n)
	}
	id, secret, ok := tenant.ParseKey(made.Key)
	at := slices.IndexFunc(all.Keys, func(k registry.Key) bool { return k.ID == id })
	if !ok || at < 0 || id != made.ID {
		t.Fatalf("%+v is not stored", made)
	}
	k := all.Keys[at]
	if k.Tenant != 0 || k.Secret != registry.Hash(sha256.Sum256([]byte(secret))) || !slices.Equal(k.Scopes, made.Scopes) {
		t.Errorf("stored: %+v", k)
	}
	e := log.Entries[0] // the newest
	if e.Actor != "bootstrap" || e.Action != "key.create" || e.Target != id || e.Reason != reason || e.Tenant != 0 {
		t.Errorf("audit: %+v", e)
	}
	if strings.Contains(string(e.After), secret) || !strings.Contains(string(e.After), "admin:platform") {
		t.Errorf("audit: %s", e.After)
	}
}

// TestBootstrapEmbedded: one key, unless forced; and not under a server.
func TestBootstrapEmbedded(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	made := f.bootstrap("--data", "data", "--reason", "the beginning")
	if strings.Join(made.Scopes, " ") != "admin:platform admin:tenant" || !strings.HasPrefix(made.Key, "wf_live_") {
		t.Errorf("%+v", made)
	}
	f.warifu("keys", "bootstrap", "--data", "data").want(t, exitConflict, "", made.ID)
	forced := f.bootstrap("--store", "pebble:data", "--force", "--scope", "read", "--scope", "resolve", "--env", "test")
	if strings.Join(forced.Scopes, " ") != "admin:platform admin:tenant read resolve" || !strings.HasPrefix(forced.Key, "wf_test_") {
		t.Errorf("%+v", forced)
	}
	server := f.dev("--data", "data")
	got := f.warifu("keys", "bootstrap", "--data", "data", "--force")
	got.want(t, exitPrecondition, "", "stop it, run this again")
	server.kill()
	store := f.openEmbedded("data")
	defer store.Close() //nolint:errcheck // it was only read
	all, err := store.Registry().Load(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	platform := 0
	for i := range all.Keys {
		if all.Keys[i].Tenant == 0 && slices.Contains(all.Keys[i].Scopes, "admin:platform") && strings.Contains(all.Keys[i].Note, "bootstrap") {
			platform++
		}
	}
	if platform != 2 {
		t.Errorf("%d keys of bootstraps, want 2", platform)
	}
}

// TestBootstrapOnDatabase: also beside servers.
func TestBootstrapOnDatabase(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.warifu("keys", "bootstrap", "--store", database(t)).want(t, exitSchema, "", "migrate up")
	url := f.migratedDatabase()
	made := f.bootstrap("--store", url)
	f.warifu("keys", "bootstrap", "--store", url).want(t, exitConflict, "", made.ID)
	store, err := sqlstore.Open(t.Context(), sqlstore.Config{URL: url, Conns: 1, SweepConns: 1, CallTimeout: patience, ConnectTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // it was only read
	wantBootstrapped(t, store.Registry(), 1, made, "the first key of the platform")
}

func TestBootstrapRefuses(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for says, args := range map[string][]string{
		"read or resolve":   {"--scope", "claim"},
		"1-16":              {"--env", "Live"},
		"--reason":          {"--reason", ""},
		"table, json, yaml": {"-o", "xml"},
		"pebble:DIR":        {"--store", "tape"},
		"give one of them":  {"--store", "pebble:a", "--data", "b"},
	} {
		f.warifu(append([]string{"keys", "bootstrap"}, args...)...).want(t, exitUsage, "", says)
	}
}

// shaky is a registry whose first changes are made, and answered with doubt.
type shaky struct {
	registry.Registry
	doubts int
	sent   []registry.ID
}

func (s *shaky) Apply(ctx context.Context, c registry.Change) (registry.Applied, error) {
	s.sent = append(s.sent, c.ID)
	done, err := s.Registry.Apply(ctx, c)
	if err == nil && len(s.sent) <= s.doubts {
		return registry.Applied{}, storage.ErrUnknown
	}
	return done, err
}

// embedded is a registry in a fresh folder.
func embedded(t *testing.T) registry.Registry {
	t.Helper()
	store := openEmbedded(t, t.TempDir())
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store.Registry()
}

// openEmbedded opens the store in a folder that no server has. The caller closes it.
func openEmbedded(t *testing.T, dir string) *pebble.Store {
	t.Helper()
	started := time.Now()
	store, err := pebble.Open(pebble.Config{
		Dir: dir, Clock: time.Now, Monotonic: func() time.Duration { return time.Since(started) }, Fatal: func(cause string) { t.Error(cause) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func (f *folder) openEmbedded(name string) *pebble.Store {
	f.t.Helper()
	return openEmbedded(f.t, f.path(name))
}

func newBootstrapping() *bootstrapping {
	return &bootstrapping{sys: &system{now: time.Now, stderr: io.Discard}, env: "live", reason: "r"}
}

// clinging is a registry that gives no lease back.
type clinging struct{ registry.Registry }

func (clinging) Unlease(context.Context, string, claim.Fence) error { return storage.ErrUnavailable }

// TestBootstrapTellsTheKey: also when what comes after it fails.
func TestBootstrapTellsTheKey(t *testing.T) {
	t.Parallel()
	b := newBootstrapping()
	var stderr bytes.Buffer
	b.sys.stderr = &stderr
	rows := clinging{embedded(t)}
	text, made, err := b.make(t.Context(), rows)
	if err != nil || !strings.Contains(stderr.String(), "warning: another bootstrap has to wait for up to 1m0s") {
		t.Fatalf("%v, %q", err, stderr.String())
	}
	wantBootstrapped(t, rows, 1, bootstrapKey{Key: text, ID: made.ID, Scopes: made.Scopes}, "r")
}

// TestBootstrapInDoubt: one key, however often the change is sent.
func TestBootstrapInDoubt(t *testing.T) {
	t.Parallel()
	rows := &shaky{Registry: embedded(t), doubts: 2}
	text, made, err := newBootstrapping().make(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows.sent) != 3 || rows.sent[0] != rows.sent[2] || rows.sent[0] == (registry.ID{}) {
		t.Errorf("sent: %v", rows.sent)
	}
	wantBootstrapped(t, rows, 1, bootstrapKey{Key: text, ID: made.ID, Scopes: made.Scopes}, "r")
	never := &shaky{Registry: embedded(t), doubts: bootstrapTriesMax}
	if _, _, err := newBootstrapping().make(t.Context(), never); !errors.Is(err, storage.ErrUnknown) || len(never.sent) != bootstrapTriesMax {
		t.Errorf("%v after %d", err, len(never.sent))
	}
}

// TestBootstrapOneAtATime: the lease keeps others out, and is given back.
func TestBootstrapOneAtATime(t *testing.T) {
	t.Parallel()
	rows := embedded(t)
	other, held, err := rows.Lease(t.Context(), bootstrapLease, "other", bootstrapTime)
	if err != nil || !held {
		t.Fatal(held, err)
	}
	if _, _, err := newBootstrapping().make(t.Context(), rows); exitCodeOf(err) != exitConflict {
		t.Errorf("beside another: %v", err)
	}
	if err := rows.Unlease(t.Context(), bootstrapLease, other.Fence); err != nil {
		t.Fatal(err)
	}
	for n, want := range []int{exitOK, exitConflict} {
		_, _, err := newBootstrapping().make(t.Context(), rows)
		if err == nil && want != exitOK || err != nil && exitCodeOf(err) != want {
			t.Errorf("try %d: %v", n, err)
		}
	}
}

// TestBootstrapCountsActiveKeys: one that works is in the way, and no other.
func TestBootstrapCountsActiveKeys(t *testing.T) {
	t.Parallel()
	admin := []string{"admin:tenant", "admin:platform"}
	for name, c := range map[string]struct {
		key  registry.Key
		want bool
	}{
		"works":        {registry.Key{ID: "k", Scopes: admin}, true},
		"expires":      {registry.Key{ID: "k", Scopes: admin, Expires: 11}, true},
		"expired":      {registry.Key{ID: "k", Scopes: admin, Expires: 10}, false},
		"revoked":      {registry.Key{ID: "k", Scopes: admin, Revoked: 1}, false},
		"deleted":      {registry.Key{ID: "k", Scopes: admin, Head: registry.Head{Deleted: true}}, false},
		"of a tenant":  {registry.Key{ID: "k", Scopes: admin, Tenant: 1}, false},
		"reads only":   {registry.Key{ID: "k", Scopes: []string{"read"}}, false},
		"has no scope": {registry.Key{ID: "k"}, false},
	} {
		if got := platformKey([]registry.Key{c.key}, 10) != nil; got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
