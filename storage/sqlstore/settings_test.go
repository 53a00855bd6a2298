package sqlstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
)

// with adds a parameter to a URL.
func with(url, parameter string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameter
	}
	return url + "?" + parameter
}

// ownDatabase returns the URL of a database that is the test's alone: what is
// set for it is set for nobody else.
func ownDatabase(t *testing.T) string {
	t.Helper()
	url, drop, err := server.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := migrated(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	return url
}

// byDefault sets what sessions begin with from now on: for a whole database, or
// for a role in it.
func byDefault(t *testing.T, url, who, setting string) {
	t.Helper()
	s := newSession(t, url)
	database := pgx.Identifier{s.Config().Database}.Sanitize()
	sql := "ALTER DATABASE " + database + " SET " + setting
	if who == "role" {
		sql = "ALTER ROLE " + pgx.Identifier{s.Config().User}.Sanitize() + " IN DATABASE " + database + " SET " + setting
	}
	s.run(sql)
}

// plain is as short a configuration as the store takes.
func plain(url string) sqlstore.Config {
	return sqlstore.Config{URL: url, Conns: 1, SweepConns: 1, AcquireTimeout: time.Minute}
}

// mustRefuse demands that a configuration is not opened, for a reason.
func mustRefuse(t *testing.T, c sqlstore.Config, reason error) {
	t.Helper()
	s, err := sqlstore.Open(t.Context(), c)
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, reason) {
		t.Errorf("opening says %v, want %v", err, reason)
	}
}

// TestSettingsInForce: what the store depends on is so on its connections,
// whatever a role or a database says.
func TestSettingsInForce(t *testing.T) {
	t.Parallel()
	pinned := map[string]string{
		"synchronous_commit": "on", "client_encoding": "UTF8", "TimeZone": "UTC",
		// They end a client that has vanished, which no timeout of statements does.
		"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "3", "tcp_keepalives_count": "3", "tcp_user_timeout": "15000",
	}
	for _, who := range []string{"nobody", "database", "role"} {
		t.Run("default of "+who, func(t *testing.T) {
			t.Parallel()
			url := ownDatabase(t)
			if who != "nobody" {
				for _, setting := range []string{
					"synchronous_commit = off", "client_encoding = 'LATIN1'", "timezone = 'Asia/Tokyo'",
					"tcp_keepalives_idle = 7200", "tcp_user_timeout = 0",
				} {
					byDefault(t, url, who, setting)
				}
				probe := newSession(t, url)
				if probe.number("SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'off'") != 1 {
					t.Fatal("the default does not reach sessions")
				}
			}
			s := open(t, url, nil, time.Hour, nil)
			for name, want := range pinned {
				traffic, sweeps, err := s.Setting(t.Context(), name)
				if err != nil || traffic != want || sweeps != want {
					t.Errorf("%s is %q for traffic and %q for sweeps, want %q (%v)", name, traffic, sweeps, want, err)
				}
			}
		})
	}
}

// TestCommitsThatCanBeLost: a store that is told not to wait for its commits is
// none. What waits for more than is asked may be asked for.
func TestCommitsThatCanBeLost(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	for _, off := range []string{"off", "OFF", "Off", "false", "no", "0"} {
		mustRefuse(t, plain(with(url, "synchronous_commit="+off)), sqlstore.ErrMismatch)
	}
	s := open(t, with(url, "synchronous_commit=remote_apply"), nil, time.Hour, nil)
	if traffic, sweeps, err := s.Setting(t.Context(), "synchronous_commit"); err != nil || traffic != "remote_apply" || sweeps != traffic {
		t.Errorf("%s and %s (%v)", traffic, sweeps, err)
	}
}

// TestOneEncoding: an event ID is the same bytes to every store, whatever
// encoding a role, a database or a URL asks for.
func TestOneEncoding(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	stores := []storage.Store{open(t, url, nil, time.Hour, nil)}
	byDefault(t, url, "role", "client_encoding = 'LATIN1'")
	stores = append(stores, open(t, url, nil, time.Hour, nil), open(t, with(url, "client_encoding=LATIN1"), nil, time.Hour, nil))
	k := claim.Key{Tenant: 1, Consumer: "c", EventID: "é"}
	for i, s := range stores {
		found, err := s.InsertOrGet(t.Context(), []claim.Request{matrixRequest(k, byte(i+1))})
		if err != nil || found[0].Err != nil || found[0].Record.AttemptID != attemptID(1) {
			t.Errorf("store %d has attempt %d (%v)", i, found[0].Record.AttemptID[15], err)
		}
	}
	watch := newSession(t, url)
	if n := watch.number("SELECT count(*) FROM claims"); n != 1 {
		t.Errorf("one event is %d keys", n)
	}
	if n := watch.number("SELECT max(octet_length(event_id)) FROM claims"); n != int64(len(k.EventID)) {
		t.Errorf("it is stored in %d bytes", n)
	}
}

// TestReadOnlyDatabase is opened by nobody, and a store that was opened before
// is not ready any more, on connections from before and on new ones.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	const readOnly = "default_transaction_read_only = on"
	url := ownDatabase(t)
	atOnce := func(c *sqlstore.Config) { c.Rand = func() float64 { return 0 } }
	old, cut := open(t, url, nil, time.Hour, atOnce), open(t, url, nil, time.Hour, atOnce)
	for _, s := range []storage.Store{old, cut} {
		if err := s.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	byDefault(t, url, "database", readOnly)
	mustRefuse(t, plain(url), storage.ErrUnavailable)

	if err := old.OnSweeps(t.Context(), "SET "+readOnly); err != nil {
		t.Fatal(err)
	}
	watch := newSession(t, url)
	if err := old.Ready(t.Context()); err == nil {
		t.Error("ready on a connection from before")
	}
	watch.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'warifu%'")
	if err := cut.Ready(t.Context()); err == nil {
		t.Error("ready on a new connection")
	}
}

// TestAnotherKindOfDatabase: a server that is not what the URL says is a
// mistake of whoever set it up, and not one that passes.
func TestAnotherKindOfDatabase(t *testing.T) {
	t.Parallel()
	c := plain("cockroach" + strings.TrimPrefix(cleanSchema(t), "postgres"))
	mustRefuse(t, c, sqlstore.ErrMismatch)
}

// TestGraceOutlivesCalls: a record is kept until every statement that may be
// late for it has ended.
func TestGraceOutlivesCalls(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	for grace, refused := range map[time.Duration]bool{
		time.Millisecond: true, 5*time.Second - 1: true, 5 * time.Second: true, 5*time.Second + 1: false, time.Hour: false,
	} {
		c := plain(url)
		c.CallTimeout, c.SweepTimeout, c.SweepGrace = 2*time.Second, 3*time.Second, grace
		s, err := sqlstore.Open(t.Context(), c)
		if err == nil {
			err = s.Close()
		}
		if refused && (err == nil || !strings.Contains(err.Error(), "SweepGrace")) || !refused && err != nil {
			t.Errorf("a grace of %v: %v", grace, err)
		}
	}
}
