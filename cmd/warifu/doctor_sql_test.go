package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
)

// doctor returns what the doctor finds, by check.
func (f *folder) doctor(code int, args ...string) map[string]finding {
	f.t.Helper()
	got := f.warifu(append([]string{"doctor", "-o", "json"}, args...)...)
	got.want(f.t, code, "", "")
	got.wantNoPassword(f.t)
	var all []finding
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil {
		f.t.Fatalf("%v: %+v", err, got)
	}
	found := map[string]finding{}
	for _, one := range all {
		if _, twice := found[one.Check]; twice {
			f.t.Errorf("two findings of %s: %+v", one.Check, all)
		}
		found[one.Check] = one
	}
	return found
}

// wantFinding demands one finding, and that of those that are not ok there are
// no others.
func wantFinding(t *testing.T, found map[string]finding, check, status, detail string) {
	t.Helper()
	if got := found[check]; got.Status != status || !strings.Contains(got.Detail, detail) {
		t.Errorf("%s: %+v, want %s with %q", check, got, status, detail)
	}
	for _, other := range found {
		if other.Check != check && other.Status == statusFail {
			t.Errorf("beside %s: %+v", check, other)
		}
	}
}

func TestDoctorOfAGoodDatabase(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	url := f.migratedDatabase()
	if got := f.doctor(0, "--store", url)["plans"]; got.Status == statusFail {
		t.Errorf("plans for an empty table: %+v", got)
	}
	grow(t, url)
	found := f.doctor(0, "--store", url)
	for check, detail := range map[string]string{
		"connect": "127.0.0.1:", "dialect": "postgres", "version": "15 or newer", "isolation": "read committed",
		"encoding": "UTF8", "writable": "yes", "schema": "this program knows ", "database clock": "it is the one that counts",
		"database round trip": "s; a claim takes one or two", "connections": "up to 18 of ", "plans": " statements, none reads more than it is asked for",
	} {
		if got := found[check]; got.Status != statusOK || !strings.Contains(got.Detail, strings.Replace(detail, "15 or", "15.0 or", 1)) {
			t.Errorf("%s: %+v, want ok with %q", check, got, detail)
		}
	}
	if len(found) != 11 {
		t.Errorf("%d findings: %+v", len(found), found)
	}
	f.write("store.url", url)
	f.write("warifu.yaml", "store_file: store.url\nstore_isolation: serializable\n")
	if got := f.doctor(0, "--config", "warifu.yaml")["isolation"]; !strings.Contains(got.Detail, "serializable") {
		t.Errorf("by its configuration: %+v", got)
	}
	execSQL(t, url, "UPDATE warifu_schema SET version = 99")
	wantFinding(t, f.doctor(0, "--store", url), "schema", statusOK, "newer is fine")
}

func TestDoctorOfBadDatabases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, spoil string // DB is the database's name
		check       string
		detail      string
		scheme      string
		grown       bool
	}{
		{name: "isolation is pinned", spoil: "ALTER DATABASE DB SET default_transaction_isolation = 'serializable'"},
		{name: "a timeout of the role's", spoil: "ALTER DATABASE DB SET statement_timeout = '1ms'"},
		{name: "read-only", spoil: "ALTER DATABASE DB SET default_transaction_read_only = on", check: "writable", detail: "transactions are read-only"},
		{name: "without its key", spoil: "ALTER TABLE claims DROP CONSTRAINT claims_pkey", check: "plan of get", detail: "reads all of claims"},
		{name: "without its index", spoil: "DROP INDEX claims_expiry_idx", check: "plan of sweep_scan", detail: "reads all of claims"},
		{name: "another index in the way", grown: true, spoil: "DROP INDEX claims_expiry_idx; CREATE INDEX claims_wrong ON claims (expires_at)", check: "plan of sweep_scan", detail: "reads much of claims_wrong"},
		{name: "table gone", spoil: "DROP TABLE claim_results", check: "plan of bodies", detail: "claim_results"},
		{name: "history changed", spoil: "UPDATE warifu_schema_steps SET sha256 = sha256('')", check: "schema", detail: "has changed since"},
		{name: "few connections", spoil: "ALTER DATABASE DB CONNECTION LIMIT 17", check: "connections", detail: "lower store_conns"},
		{name: "other scheme", check: "dialect", scheme: "cockroach", detail: "write postgres://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			url := f.migratedDatabase()
			name := match(t, `/(database_\d+)`, url)
			if c.grown {
				grow(t, url)
			}
			if c.spoil != "" {
				execSQL(t, url, strings.ReplaceAll(c.spoil, " DB ", " "+name+" "))
			}
			if c.scheme != "" {
				url = asScheme(c.scheme, url)
			}
			if c.check == "" {
				f.doctor(0, "--store", url)
				return
			}
			found := f.doctor(exitFailed, "--store", url)
			if got := found[c.check]; got.Status != statusFail || !strings.Contains(got.Detail, c.detail) {
				t.Errorf("%s: %+v, want fail with %q; all: %+v", c.check, got, c.detail, found)
			}
			for _, other := range found { // what is wrong is not said of anything else
				if other.Status == statusFail && other.Check != c.check && !(strings.HasPrefix(c.check, "plan") && strings.HasPrefix(other.Check, "plan")) {
					t.Errorf("%+v", other)
				}
			}
		})
	}
}

func TestDoctorOfAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	found := f.doctor(exitFailed, "--store", database(t))
	wantFinding(t, found, "schema", statusFail, "run 'warifu migrate up'")
	if got := found["plans"]; got.Status != statusWarn {
		t.Errorf("plans: %+v", got)
	}
}

func TestDoctorOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	server := postgresServer(t)
	execSQL(t, server.URL(), "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	url := strings.Replace(withPassword(t, server.URL()), "/warifu?", "/latin?", 1)
	f.warifu("migrate", "up", "--store", url).want(t, 0, "", "")
	wantFinding(t, f.doctor(exitFailed, "--store", url), "encoding", statusFail, "LATIN1: create the database anew WITH ENCODING 'UTF8'")
	f.configure()
	f.warifu(serveArgs("--store", url)...).want(t, exitFailed, "", "encoding is not UTF8")
}

func TestDoctorWithoutADatabase(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	wantFinding(t, f.doctor(exitFailed, "--store", "postgres://u:"+escaped+"@127.0.0.1:1/x"), "connect", statusFail, "u:xxxxx@127.0.0.1:1")
	f.warifu("doctor", "--store", "tape").want(t, exitUsage, "", "store: it is pebble:DIR, cockroach://")
	f.warifu("doctor", "--store", "pebble:a", "--data", "b").want(t, exitUsage, "", "give one of them")
}

// TestDoctorOfServerAndStore: with the store in a variable it looks at both.
func TestDoctorOfServerAndStore(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.setenv("WARIFU_STORE="+f.migratedDatabase(), "WARIFU_STORE_CONNS=4")
	server := f.dev()
	f.setenv("WARIFU_URL="+server.url, "WARIFU_API_KEY_FILE=warifu-data/dev.key")
	found := f.doctor(0)
	for _, check := range []string{"server", "ready", "api key", "connect", "schema", "plans"} {
		if found[check].Status == "" {
			t.Errorf("nothing of %s: %+v", check, found)
		}
	}
}

// cockroachProxy announces CockroachDB before a PostgreSQL, and returns its
// URL. It shows that the code for CockroachDB is taken, not what CockroachDB
// would answer.
func cockroachProxy(t *testing.T, url, version string) string {
	t.Helper()
	server := postgresServer(t)
	p, err := mitm.New(mitm.Config{Upstream: server.Addr(), Announce: map[string]string{"crdb_version": version}})
	if err == nil {
		err = p.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return asScheme("cockroach", strings.Replace(url, server.Addr(), p.Addr(), 1))
}

func TestDoctorOnTheCockroachPath(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	made := f.migratedDatabase()
	url := cockroachProxy(t, made, "CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu)")
	found := f.doctor(exitFailed, "--store", url) // PostgreSQL's plans and files are not CockroachDB's
	for check, detail := range map[string]string{
		"dialect": "cockroach", "version": "v25.2.1 (x86_64-pc-linux-gnu); 25.2 or newer", "isolation": "serializable", "encoding": "UTF8",
	} {
		if got := found[check]; got.Status != statusOK || !strings.Contains(got.Detail, detail) {
			t.Errorf("%s: %+v, want %q", check, got, detail)
		}
	}
	if got := found["plan of get"]; got.Status != statusFail || !strings.Contains(got.Detail, "not one of CockroachDB's plans") {
		t.Errorf("plan of get: %+v: a text that is no plan was taken for a good one", got)
	}
	if got, ok := found["connections"]; ok {
		t.Errorf("CockroachDB says nothing of connections: %+v", got)
	}
	wantFinding(t, f.doctor(exitFailed, "--store", asScheme("postgres", url)), "dialect", statusFail, "write cockroach://")
	old := cockroachProxy(t, made, "CockroachDB CCL v24.3.5 (x86_64-pc-linux-gnu)")
	if got := f.doctor(exitFailed, "--store", old)["version"]; got.Status != statusFail {
		t.Errorf("version: %+v", got)
	}
}

// TestDoctorJudgesPlans: what is read too much of while the table is nearly
// empty is worth a warning, a whole table never is only that.
func TestDoctorJudgesPlans(t *testing.T) {
	t.Parallel()
	good, wide := sqlstore.Plan{Statement: "get"}, sqlstore.Plan{Statement: "renew", WideScans: []string{"claims_expiry_idx"}}
	full := sqlstore.Plan{Statement: "list", FullScans: []string{"claims"}}
	for _, c := range []struct {
		name  string
		bytes int64
		plans []sqlstore.Plan
		want  []string // status and check of each
	}{
		{"good", 1 << 30, []sqlstore.Plan{good}, []string{"ok plans"}},
		{"wide and small", nearlyEmpty - 1, []sqlstore.Plan{good, wide}, []string{"warn plans"}},
		{"wide and large", nearlyEmpty, []sqlstore.Plan{good, wide}, []string{"fail plan of renew"}},
		{"wide and nobody knows", -1, []sqlstore.Plan{wide}, []string{"fail plan of renew"}},
		{"full and small", 0, []sqlstore.Plan{full, wide, good}, []string{"fail plan of list"}},
		{"no plan", 0, []sqlstore.Plan{{Statement: "get", Err: context.Canceled}}, []string{"fail plan of get"}},
	} {
		var got []string
		for _, f := range judgePlans(sqlstore.Planned{Plans: c.plans, ClaimsBytes: c.bytes}) {
			got = append(got, f.Status+" "+f.Check)
		}
		if strings.Join(got, ", ") != strings.Join(c.want, ", ") {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestDoctorClockAndRoom(t *testing.T) {
	t.Parallel()
	for off, status := range map[time.Duration]string{
		0: statusOK, time.Second: statusOK, -time.Second: statusOK, 1100 * time.Millisecond: statusWarn, -time.Hour: statusWarn,
	} {
		if got := clockOf(sqlstore.Inspection{Offset: off}); got.Status != status || !strings.Contains(got.Detail, fmt.Sprintf("%+.3f s", off.Seconds())) {
			t.Errorf("%v apart: %+v, want %s", off, got, status)
		}
	}
	for _, c := range []struct {
		c            sqlstore.Connections
		status, says string
	}{
		{sqlstore.Connections{Max: 97, InUse: 1, Server: 18}, statusOK, "room for 5 more"},
		{sqlstore.Connections{Max: 97, InUse: 80, Server: 18}, statusOK, "room for 1 more"},
		{sqlstore.Connections{Max: 97, InUse: 81, Server: 18}, statusWarn, "room for 0 more"},
		{sqlstore.Connections{Max: 17, InUse: 1, Server: 18}, statusFail, "lower store_conns"},
		{sqlstore.Connections{Max: 18, InUse: 1, Server: 18}, statusOK, "room for 1 more"},
		{sqlstore.Connections{Max: 18, InUse: 40, Server: 18}, statusWarn, "room for 0 more"},
	} {
		if got := room(c.c)[0]; got.Status != c.status || !strings.Contains(got.Detail, c.says) {
			t.Errorf("%+v: %+v, want %s with %q", c.c, got, c.status, c.says)
		}
	}
	if got := connection(sqlstore.Inspection{Address: "10.0.0.1:5432"}); got.Status != statusWarn {
		t.Errorf("no TLS on a network: %+v", got)
	}
	if got := connection(sqlstore.Inspection{Address: "10.0.0.1:5432", TLS: "TLS 1.3"}); got.Status != statusOK {
		t.Errorf("TLS: %+v", got)
	}
}
