package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func (f *folder) schemaStatus(code int, args ...string) schemaStatus {
	f.t.Helper()
	got := f.warifu(append([]string{"migrate", "status", "-o", "json"}, args...)...)
	got.want(f.t, code, "", "")
	var s schemaStatus
	if err := json.Unmarshal([]byte(got.stdout), &s); err != nil {
		f.t.Fatalf("%v: %+v", err, got)
	}
	return s
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	url := database(t)
	f.setenv("WARIFU_STORE=" + url)
	before := f.schemaStatus(exitSchema)
	if before.Version != 0 || before.Known < 1 || len(before.Pending) == 0 || before.Newer {
		t.Fatalf("%+v", before)
	}
	f.warifu("migrate", "status").want(t, exitSchema, "missing  001.1 (001_claims.postgres.sql)", "")
	first := f.warifu("migrate", "up")
	first.want(t, 0, "nothing is missing", "")
	if n := strings.Count(first.stdout, "applied "); n != len(before.Pending) {
		t.Errorf("%d steps applied, %d were missing: %s", n, len(before.Pending), first.stdout)
	}
	again := f.warifu("migrate", "up")
	again.want(t, 0, "nothing is missing", "")
	if strings.Contains(again.stdout, "applied") {
		t.Errorf("applied twice: %s", again.stdout)
	}
	after := f.schemaStatus(0)
	if after.Version != after.Known || len(after.Pending) != 0 || after.Holder != "" {
		t.Errorf("%+v", after)
	}
	f.warifu("migrate", "print").want(t, 0, "", "nothing is missing")
	execSQL(t, url, "UPDATE warifu_schema SET version = 99")
	if newer := f.schemaStatus(0); !newer.Newer {
		t.Errorf("%+v", newer)
	}
	f.warifu("migrate", "up").want(t, 0, "it is newer than this program", "")
	first.wantNoPassword(t)
}

// TestMigratePrint: the printed SQL, run by somebody else, is a migration.
func TestMigratePrint(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	url := database(t)
	printed := f.warifu("migrate", "print", "--store", url)
	printed.want(t, 0, "CREATE TABLE IF NOT EXISTS claims", "")
	printed.wantNoPassword(t)
	offline := f.warifu("migrate", "print", "--all", "--store", "postgres://nowhere.invalid/x")
	if offline.stdout != printed.stdout {
		t.Errorf("all of it, without a database: %+v", offline)
	}
	f.warifu("migrate", "print", "--all", "--store", "cockroach://nowhere.invalid/x").want(t, 0, "-- Warifu schema, cockroach", "")
	execSQL(t, url, strings.Replace(printed.stdout, `\set ON_ERROR_STOP on`, "", 1))
	if s := f.schemaStatus(0, "--store", url); s.Version != s.Known {
		t.Errorf("%+v", s)
	}
	if n := queryInt(t, url, "SELECT count(*) FROM claims"); n != 0 {
		t.Errorf("%d claims", n)
	}
}

func TestMigrateFaults(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.warifu("migrate").want(t, exitUsage, "", "needs a command")
	f.warifu("migrate", "up").want(t, exitUsage, "", "--store names a database")
	f.warifu("migrate", "up", "--store", "mysql://u:"+escaped+"@h/x").want(t, exitUsage, "", "store: it is pebble:DIR, cockroach://")
	wrong := f.warifu("migrate", "up", "--store", asScheme("cockroach", database(t)))
	wrong.want(t, exitFailed, "", "the URL says cockroach, the server is postgres")
	wrong.wantNoPassword(t)
	gone := f.warifu("migrate", "status", "--store", "postgres://u:"+escaped+"@127.0.0.1:1/x")
	gone.want(t, exitFailed, "", "look at postgres://u:xxxxx@127.0.0.1:1/x")
	gone.wantNoPassword(t)
}
