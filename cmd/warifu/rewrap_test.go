package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/warifu/warifu/storage/registry"
)

// rewrap runs the command on this folder, as it is: without the program's root.
func (f *folder) rewrap(args ...string) outcome {
	f.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := newDataKeysRewrap(&system{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, now: time.Now})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	code := report(&stderr, cmd.Name(), cmd.ExecuteContext(f.t.Context()))
	return outcome{stdout.String(), stderr.String(), code}
}

// kekFlag names keys of the folder, the first for new results.
func (f *folder) kekFlag(ids ...string) []string {
	var all []string
	for _, id := range ids {
		all = append(all, id+"="+f.path(id+".key"))
	}
	return []string{"--seal-key-files", strings.Join(all, ",")}
}

// wantRewrapped runs it and checks how many keys it has wrapped.
func (f *folder) wantRewrapped(place []string, keys int) {
	f.t.Helper()
	args := append(f.kekFlag("new", "old"), "--reason", "the old one was seen", "-o", "json")
	got := f.rewrap(append(args, place...)...)
	got.want(f.t, exitOK, "", "")
	got.wantNoPassword(f.t)
	var done rewrapped
	if err := json.Unmarshal([]byte(got.stdout), &done); err != nil {
		f.t.Fatal(err)
	}
	if done.KEK != "new" || done.Keys != keys || done.Rows != keys || done.Store == "" {
		f.t.Errorf("%+v, want %d keys", done, keys)
	}
}

// sealOne has a server complete an event, whose result is sealed.
func (p *process) sealOne() {
	p.t.Helper()
	granted := p.call("Claim", claimOf("inventory", "e", 1))
	done := claimOf("inventory", "e", 1)
	done["fence"], done["completion"] = granted.Grant.Fence, map[string]any{"outcome": "OUTCOME_SUCCEEDED", "result": "cmVzZXJ2ZWQgMw=="}
	if got := p.call("Complete", done); got.Status != "STATUS_OK" {
		p.t.Fatalf("complete: %+v", got)
	}
}

func (p *process) wantReplay(n int) {
	p.t.Helper()
	if got := p.call("Claim", claimOf("inventory", "e", n)); got.Decision != "DECISION_DUPLICATE" || string(got.Result.Result) != "reserved 3" {
		p.t.Errorf("the sealed result: %+v", got)
	}
}

func rewrapFolder(t *testing.T) *folder {
	t.Helper()
	f := newFolder(t)
	for seed, id := range []string{"old", "new"} {
		f.write(id+".key", kekText(byte(seed+1)))
	}
	return f
}

// TestRewrapEmbedded is how a key-encryption key is changed.
func TestRewrapEmbedded(t *testing.T) {
	t.Parallel()
	f := rewrapFolder(t)
	place := []string{"--data", f.path("warifu-data")}
	p := f.dev(f.kekFlag("old")...)
	p.sealOne()
	busy := f.rewrap(append(f.kekFlag("new", "old"), append(place, "--reason", "r")...)...)
	busy.want(t, exitPrecondition, "", "stop it, run this again")
	p.kill()
	// A key that is missing: nothing is wrapped, and that is said.
	f.rewrap(append(f.kekFlag("new"), append(place, "--reason", "r")...)...).want(t, exitUsage, "data keys                 0", `seal_key_files has to name "old", too`)
	f.wantRewrapped(place, 1)
	f.wantRewrapped(place, 0)
	f.dev(f.kekFlag("new")...).wantReplay(2)
}

// TestRewrapRows: all rows have the new key, and the log says why.
func TestRewrapRows(t *testing.T) {
	t.Parallel()
	f := rewrapFolder(t)
	p := f.dev(f.kekFlag("old")...)
	p.sealOne()
	p.kill()
	f.wantRewrapped([]string{"--store", "pebble:" + f.path("warifu-data")}, 1)
	store := f.openEmbedded("warifu-data")
	defer store.Close() //nolint:errcheck // it was only read
	all, err := store.Registry().Load(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	dev := all.Tenants[0]
	if len(dev.DataKeys) != 1 || dev.DataKeys[0].KEK != "new" {
		t.Errorf("%+v", dev.DataKeys)
	}
	log, err := store.Registry().Audit(t.Context(), registry.AuditQuery{Scope: registry.Of(dev.ID), Limit: 1})
	if err != nil || len(log.Entries) != 1 {
		t.Fatal(err, log)
	}
	if e := log.Entries[0]; e.Actor != rewrapActor || e.Action != "data_key.rewrap" || e.Reason != "the old one was seen" {
		t.Errorf("%+v", e)
	}
}

// TestRewrapOnDatabase: also beside a server that has both keys.
func TestRewrapOnDatabase(t *testing.T) {
	t.Parallel()
	f := rewrapFolder(t)
	url := f.migratedDatabase()
	place := []string{"--store", url}
	both := f.dev(append(f.kekFlag("old", "new"), append(place, "--store-conns", "4")...)...)
	both.sealOne()
	f.wantRewrapped(place, 1)
	both.wantReplay(2)
	both.kill()
	f.wantRewrapped(place, 0)
	f.dev(append(f.kekFlag("new"), append(place, "--store-conns", "4")...)...).wantReplay(3)
}

func TestRewrapRefuses(t *testing.T) {
	t.Parallel()
	f := rewrapFolder(t)
	keys, place := f.kekFlag("new", "old"), []string{"--data", f.path("none")}
	for says, c := range map[string]struct {
		code int
		args []string
	}{
		"--reason":                {exitUsage, keys},
		"1-1024 bytes":            {exitUsage, append([]string{"--reason", strings.Repeat("x", 1025)}, keys...)},
		"seal_key_files is empty": {exitUsage, []string{"--reason", "r"}},
		"two keys have the ID":    {exitUsage, append([]string{"--reason", "r"}, f.kekFlag("new", "new")...)},
		"table, json, yaml":       {exitUsage, append([]string{"--reason", "r", "-o", "xml"}, keys...)},
		"there is no store in":    {exitPrecondition, append([]string{"--reason", "r"}, keys...)},
	} {
		f.rewrap(append(c.args, place...)...).want(t, c.code, "", says)
	}
	if _, err := os.Stat(f.path("none")); err == nil {
		t.Error("a store was made")
	}
	f.rewrap(append(keys, "--reason", "r", "--store", database(t))...).want(t, exitSchema, "", "migrate up")
}
