package main

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// few keeps the connections of a test's servers few.
func few(args ...string) []string {
	return append(args, "--store-conns", "4", "--store-sweep-conns", "1", "--drain-delay", "0s")
}

func TestServeRefusesAnOldSchema(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	key := f.configure()
	url := database(t)
	got := f.warifu(serveArgs(few("--store", url)...)...)
	got.want(t, exitSchema, "", "run `warifu migrate up`; here that is: ")
	got.want(t, exitSchema, "", "warifu migrate up --store 'postgres://warifu:xxxxx@")
	got.wantNoPassword(t)
	f.warifu("dev", "--listen", "127.0.0.1:0", "--store", url).want(t, exitSchema, "", "migrate up --store")
	if n := queryInt(t, url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"); n != 0 {
		t.Fatalf("a server made %d tables", n)
	}
	f.warifu("migrate", "up", "--store", url).want(t, 0, "nothing is missing", "")
	p := f.serveAgain(key, few("--store", url)...)
	if got := p.call("Claim", claimOf("inventory", "e", 1)); got.Decision != "DECISION_GRANTED" {
		t.Errorf("%+v", got)
	}
	if said := p.stderr.String(); !strings.Contains(said, `"store":"postgres://warifu:xxxxx@`) {
		t.Errorf("it does not say which store it has: %s", said)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr)
	}
	outcome{p.stdout.String(), p.stderr.String(), 0}.wantNoPassword(t)
	if _, err := os.Stat(f.path("warifu-data")); err == nil {
		t.Error("it made a folder for an embedded store")
	}
}

// TestServeReplicas: what one server is told, the other answers. Each has a
// filter of its own.
func TestServeReplicas(t *testing.T) {
	t.Parallel()
	for _, filter := range []string{filterOn, filterOff} {
		t.Run(filter, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			key := f.configure()
			f.write("store.url", f.migratedDatabase()+"\n")
			f.write("tokens.key", "a key of all replicas\n")
			f.setenv("WARIFU_STORE_FILE=store.url", "WARIFU_FILTER="+filter, "WARIFU_PAGE_TOKEN_KEY_FILE=tokens.key")
			a, b := f.serveAgain(key, few()...), f.serveAgain(key, few()...)
			ready := "\nwarifu_filter_ready 1\n"
			if filter == filterOn { // guesses with knowledge, not only "maybe"
				a.eventually("its filter is built", func() bool { return strings.Contains(a.metrics("/metrics"), ready) })
				b.eventually("its filter is built", func() bool { return strings.Contains(b.metrics("/metrics"), ready) })
			} else if strings.Contains(a.metrics("/metrics"), ready) {
				t.Error("there is a filter")
			}
			answerAlike(t, a, b)
			a.kill()
			last := claimOf("inventory", "e", 3)
			if got := b.call("Claim", last); got.Decision != "DECISION_DUPLICATE" || string(got.Result.Result) != "reserved 3" {
				t.Errorf("after kill -9 of the other: %+v", got)
			}
		})
	}
}

func answerAlike(t *testing.T, a, b *process) {
	t.Helper()
	granted := a.call("Claim", claimOf("inventory", "e", 1))
	if granted.Decision != "DECISION_GRANTED" {
		t.Fatalf("first claim: %+v", granted)
	}
	if got := b.call("Claim", claimOf("inventory", "e", 2)); got.Decision != "DECISION_IN_PROGRESS" {
		t.Errorf("another attempt on the other server: %+v", got)
	}
	if got := b.call("Claim", claimOf("inventory", "e", 1)); got.Decision != "DECISION_GRANTED" || got.Grant.Fence != granted.Grant.Fence {
		t.Errorf("the same attempt on the other server: %+v, want the grant %+v", got, granted)
	}
	done := claimOf("inventory", "e", 1)
	done["fence"], done["completion"] = granted.Grant.Fence, map[string]any{"outcome": "OUTCOME_SUCCEEDED", "result": "cmVzZXJ2ZWQgMw=="}
	if got := b.call("Complete", done); got.Status != "STATUS_OK" {
		t.Fatalf("complete on the other server: %+v", got)
	}
	for _, p := range []*process{a, b} {
		if got := p.call("Claim", claimOf("inventory", "e", 2)); got.Decision != "DECISION_DUPLICATE" || string(got.Result.Result) != "reserved 3" {
			t.Errorf("a claim after that: %+v", got)
		}
	}
}

// TestREADMEOnReplicas: the README's script, unchanged but for the address, on
// two development servers that share a database.
func TestREADMEOnReplicas(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.setenv("WARIFU_STORE="+f.migratedDatabase(), "WARIFU_STORE_CONNS=4")
	a, b := f.dev(), f.dev()
	if a.key != b.key {
		t.Fatalf("two servers of one folder have keys %q and %q", a.key, b.key)
	}
	if !strings.Contains(a.welcome, "data in  postgres://warifu:xxxxx@") {
		t.Errorf("it does not say where the data is: %s", a.welcome)
	}
	f.setenv("WARIFU_URL="+a.url, "WARIFU_API_KEY_FILE=warifu-data/dev.key")
	f.followREADME(a, b)
}

// TestDevKeyRace: of many processes that make a key at once, all have the same.
func TestDevKeyRace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/new"
	const processes = 16
	keys := make(chan string, processes)
	for range processes {
		go func() {
			key, _, err := devKey(dir, devKeyFile)
			if err != nil {
				key = err.Error()
			}
			keys <- key
		}()
	}
	first := <-keys
	for range processes - 1 {
		if key := <-keys; key != first {
			t.Errorf("keys %q and %q", first, key)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestServeOnPebbleStore: pebble:DIR is what --data DIR is.
func TestServeOnPebbleStore(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	p := f.serve("--store", "pebble:somewhere", "--drain-delay", "0s")
	if got := p.call("Claim", claimOf("inventory", "e", 1)); got.Decision != "DECISION_GRANTED" {
		t.Fatalf("%+v", got)
	}
	p.kill()
	f.warifu("doctor", "--store", "pebble:somewhere").want(t, 0, "free: no server is running", "")
	f.warifu("doctor", "--data", "somewhere").want(t, 0, "free: no server is running", "")
	f.warifu("migrate", "up", "--store", "pebble:somewhere").want(t, exitUsage, "", "has no schema to migrate")
}

// TestServeWithoutDatabase: nobody answers, and it says so soon.
func TestServeWithoutDatabase(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.configure()
	begin := time.Now()
	got := f.warifu(serveArgs("--store", "postgres://warifu:"+escaped+"@127.0.0.1:1/x", "--store-timeout", "1s")...)
	got.want(t, exitUnavailable, "", "open postgres://warifu:xxxxx@127.0.0.1:1/x")
	got.wantNoPassword(t)
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("it took %v", took)
	}
}

// TestServeOnTheWrongDatabase: the scheme is a promise about the server.
func TestServeOnTheWrongDatabase(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.configure()
	got := f.warifu(serveArgs("--store", asScheme("cockroach", database(t)))...)
	got.want(t, got.code, "", "the URL says cockroach, the server is postgres")
	if got.code == 0 {
		t.Error("it served")
	}
	got.wantNoPassword(t)
}
