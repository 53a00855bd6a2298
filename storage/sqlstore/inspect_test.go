package sqlstore_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/mitm"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	const ahead = 3 * time.Hour // the caller's clock is behind by so much
	seen, err := sqlstore.Inspect(t.Context(), sqlstore.Config{URL: url, Conns: 5, SweepConns: 3, Isolation: sqlstore.Serializable},
		func() time.Time { return time.Now().Add(-ahead) })
	if err != nil {
		t.Fatal(err)
	}
	if off := seen.Offset - ahead; off.Abs() > seen.RoundTrip+time.Second {
		t.Errorf("offset %v, want %v", seen.Offset, ahead)
	}
	if seen.RoundTrip <= 0 || seen.RoundTrip > time.Minute {
		t.Errorf("round trip %v", seen.RoundTrip)
	}
	if seen.Connections.Server != 8 || seen.Connections.Max < 10 || seen.Connections.InUse < 1 {
		t.Errorf("connections %+v", seen.Connections)
	}
	seen.Offset, seen.RoundTrip, seen.Connections = 0, 0, sqlstore.Connections{}
	if !strings.HasPrefix(seen.Version, "1") {
		t.Errorf("version %q", seen.Version)
	}
	want := sqlstore.Inspection{
		Address: server.Addr(), Dialect: sqlstore.Postgres, Named: sqlstore.Postgres, Version: seen.Version, VersionMin: "15.0",
		Isolation: sqlstore.Serializable, Wanted: sqlstore.Serializable, Encoding: "UTF8",
	}
	if seen != want {
		t.Errorf("got  %+v\nwant %+v", seen, want)
	}
}

// TestInspectRefusesNothing: what Open refuses is what there is to see.
func TestInspectRefusesNothing(t *testing.T) {
	t.Parallel()
	url := strings.Replace(cleanSchema(t), "postgres://", "cockroach://", 1)
	seen, err := sqlstore.Inspect(t.Context(), sqlstore.Config{URL: url}, time.Now)
	if err != nil || seen.Named != sqlstore.Cockroach || seen.Dialect != sqlstore.Postgres {
		t.Errorf("%+v, %v", seen, err)
	}
	for name, url := range map[string]string{
		"no URL": "", "another scheme": "mysql://h/x", "no number": "postgres://h/x?pool_max_conns=many", "nobody": "postgres://127.0.0.1:1/x",
	} {
		if seen, err := sqlstore.Inspect(t.Context(), sqlstore.Config{URL: url}, time.Now); err == nil {
			t.Errorf("%s: %+v", name, seen)
		}
		if plans, err := sqlstore.Plans(t.Context(), sqlstore.Config{URL: url}); err == nil {
			t.Errorf("%s: %+v", name, plans)
		}
	}
}

// TestPlans: on a new table PostgreSQL reads no more than it is asked for, and
// what an index is missing for is found.
func TestPlans(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	check := func() (bad map[string][]string) {
		t.Helper()
		got, err := sqlstore.Plans(t.Context(), sqlstore.Config{URL: url})
		if err != nil || len(got.Plans) < 20 || got.ClaimsBytes < 0 {
			t.Fatalf("%+v, %v", got, err)
		}
		bad = map[string][]string{}
		for _, p := range got.Plans {
			if p.Err != nil {
				t.Errorf("%s: %v", p.Statement, p.Err)
			}
			if all := slices.Concat(p.FullScans, p.WideScans); len(all) > 0 {
				bad[p.Statement] = all
			}
		}
		return bad
	}
	if bad := check(); len(bad) > 0 {
		t.Errorf("on a new table: %v", bad)
	}
	pool, err := sqlstore.NewMaintenancePool(t.Context(), sqlstore.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), "DROP INDEX claims_expiry_idx"); err != nil {
		t.Fatal(err)
	}
	if bad := check(); len(bad) != 2 || bad["sweep_scan"] == nil || bad["sweep_oldest"] == nil {
		t.Errorf("without the index of expiries: %v", bad)
	}
	if _, err := pool.Exec(t.Context(), "CREATE INDEX claims_expiry_idx ON claims (expiry_shard, expires_at)"); err != nil {
		t.Fatal(err)
	}
}

// TestMaintenancePool: a migration is not ended by a timeout of the role's, and
// does not make others wait for long.
func TestMaintenancePool(t *testing.T) {
	t.Parallel()
	url := cleanSchema(t)
	pool, err := sqlstore.NewMaintenancePool(t.Context(), sqlstore.Config{URL: url + "&statement_timeout=5"})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for name, want := range map[string]string{"statement_timeout": "0", "lock_timeout": "5s", "timezone": "UTC"} {
		var got string
		if err := pool.QueryRow(t.Context(), "SHOW "+name).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	wrong, err := sqlstore.NewMaintenancePool(t.Context(), sqlstore.Config{URL: strings.Replace(url, "postgres://", "cockroach://", 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	if err := wrong.Ping(t.Context()); !errors.Is(err, sqlstore.ErrMismatch) {
		t.Errorf("the other dialect: %v", err)
	}
}

// TestExamplesAreSQL: the statements with example values, which are explained
// on CockroachDB, are at least statements to PostgreSQL, which is announced as
// a CockroachDB here. Its plans are not CockroachDB's, and are not read.
func TestExamplesAreSQL(t *testing.T) {
	t.Parallel()
	p, err := mitm.New(mitm.Config{Upstream: server.Addr(), Announce: map[string]string{"crdb_version": "CockroachDB CCL v25.2.1"}})
	if err == nil {
		err = p.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // the server is looked at, not the proxy
	url := strings.NewReplacer("postgres://", "cockroach://", server.Addr(), p.Addr()).Replace(cleanSchema(t))
	got, err := sqlstore.Plans(t.Context(), sqlstore.Config{URL: url})
	if err != nil || len(got.Plans) < 20 || got.ClaimsBytes != -1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, p := range got.Plans {
		if p.Err == nil || !strings.Contains(p.Err.Error(), "not one of CockroachDB's plans") {
			t.Errorf("%s: %v", p.Statement, p.Err)
		}
	}
	seen, err := sqlstore.Inspect(t.Context(), sqlstore.Config{URL: url}, time.Now)
	if err != nil || seen.Dialect != sqlstore.Cockroach || seen.VersionMin != "25.2" || seen.Isolation != sqlstore.Serializable {
		t.Errorf("%+v, %v", seen, err)
	}
}
