package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/migrate"
)

// databaseSkewMax is how far the database's clock may be from this machine's
// before the doctor mentions it. Nothing depends on it: time is the database's.
const databaseSkewMax = time.Second

// examineStore looks at the configured store.
func (d *doctor) examineStore(ctx context.Context) ([]finding, error) {
	c, err := loadConfig(d.sys, d.flags, serveDefault)
	if err != nil {
		return nil, err
	}
	if !c.target.sql() {
		return examineData(c.target.dir), nil
	}
	return d.examineDatabase(ctx, c), nil
}

func (d *doctor) examineDatabase(ctx context.Context, c *config) []finding {
	seen, err := sqlstore.Inspect(ctx, c.sqlConfig(nil), d.sys.now)
	if err != nil {
		return []finding{{"connect", statusFail, c.target.failed("connect to", err).Error()}}
	}
	findings := append([]finding{connection(seen)}, kind(seen)...)
	if seen.Dialect != seen.Named {
		return findings // the rest would be asked in the wrong language
	}
	findings = append(findings, settingsOf(seen)...)
	schema, there := d.schema(ctx, c)
	findings = append(findings, schema, clockOf(seen), finding{"database round trip", statusOK,
		seen.RoundTrip.Round(10*time.Microsecond).String() + "; a claim takes one or two"})
	findings = append(findings, room(seen.Connections)...)
	if !there {
		return append(findings, finding{"plans", statusWarn, "not looked at: there is no schema yet"})
	}
	return append(findings, plans(ctx, c)...)
}

func connection(seen sqlstore.Inspection) finding {
	host, _, err := net.SplitHostPort(seen.Address)
	local := err != nil || net.ParseIP(host).IsLoopback() // without a port it is a socket of this machine
	switch {
	case seen.TLS != "":
		return finding{"connect", statusOK, seen.Address + ", " + seen.TLS}
	case local:
		return finding{"connect", statusOK, seen.Address + ", on this machine, without TLS"}
	}
	return finding{"connect", statusWarn, seen.Address + ", without TLS: others on the network can read and change what is sent; add sslmode=verify-full to the URL"}
}

// kind is which database it is.
func kind(seen sqlstore.Inspection) []finding {
	dialect := finding{"dialect", statusOK, string(seen.Dialect)}
	if seen.Dialect != seen.Named {
		dialect = finding{"dialect", statusFail, fmt.Sprintf("the URL begins with %s:// and the server is %s; write %s://…", seen.Named, seen.Dialect, seen.Dialect)}
	}
	version := finding{"version", statusOK, fmt.Sprintf("%s; %s or newer is needed", plain(seen.Version), seen.VersionMin)}
	if seen.TooOld {
		version.Status = statusFail
		version.Detail += ": upgrade the database"
	}
	return []finding{dialect, version}
}

// settingsOf are what the store depends on.
func settingsOf(seen sqlstore.Inspection) []finding {
	isolation := finding{"isolation", statusOK, fmt.Sprintf("%s, as asked for by each connection", seen.Isolation)}
	if seen.Isolation != seen.Wanted {
		isolation = finding{"isolation", statusFail, fmt.Sprintf("transactions are %q and must be %q: does a pooler in between drop connection parameters?", seen.Isolation, seen.Wanted)}
	}
	encoding := finding{"encoding", statusOK, "UTF8"}
	if seen.Dialect == sqlstore.Postgres && seen.Encoding != "UTF8" {
		encoding = finding{"encoding", statusFail, seen.Encoding + ": create the database anew WITH ENCODING 'UTF8'"}
	}
	writable := finding{"writable", statusOK, "yes"}
	if seen.ReadOnly {
		writable = finding{"writable", statusFail, "transactions are read-only: is it a standby? Name the primary, or all hosts and target_session_attrs=read-write"}
	}
	return []finding{isolation, encoding, writable}
}

func clockOf(seen sqlstore.Inspection) finding {
	off := seen.Offset.Round(time.Millisecond)
	if off.Abs() > databaseSkewMax {
		return finding{"database clock", statusWarn, fmt.Sprintf("the database's is %+.3f s from this machine's; leases and expiries follow the database's, event times are compared with the server's", off.Seconds())}
	}
	return finding{"database clock", statusOK, fmt.Sprintf("the database's is %+.3f s from this machine's; it is the one that counts", off.Seconds())}
}

// room is how many servers the database has connections for.
func room(c sqlstore.Connections) []finding {
	if c.Max == 0 {
		return nil
	}
	free := c.Max - c.InUse + 1 // one is the doctor's own
	more := max(free, 0) / c.Server
	f := finding{"connections", statusOK, fmt.Sprintf("a server takes up to %d of %d, %d are in use: room for %d more", c.Server, c.Max, c.InUse, more)}
	switch {
	case c.Server > c.Max:
		f.Status = statusFail
		f.Detail += "; lower store_conns or raise max_connections"
	case more < 1:
		f.Status = statusWarn
		f.Detail += ": if the servers are not running yet, lower store_conns or raise max_connections"
	}
	return []finding{f}
}

// schema says where the schema is, and whether there are tables to plan for.
func (d *doctor) schema(ctx context.Context, c *config) (f finding, there bool) {
	fail := func(err error) (finding, bool) {
		return finding{"schema", statusFail, c.target.failed("look at", err).Error()}, false
	}
	s, err := schemaOf(ctx, d.sys, c)
	if err != nil {
		return fail(err)
	}
	defer s.close()
	now, err := s.migrator.Status(ctx)
	if err != nil && !errors.Is(err, migrate.ErrChanged) {
		return fail(err)
	}
	there = now.Version > 0
	version := fmt.Sprintf("version %d, this program knows %d", now.Version, now.Known)
	switch {
	case err != nil:
		return finding{"schema", statusFail, version + ": " + err.Error()}, there
	case len(now.Pending) > 0 && now.Holder != "":
		return finding{"schema", statusWarn, fmt.Sprintf("%s; %s is migrating", version, plain(now.Holder))}, there
	case len(now.Pending) > 0:
		return finding{"schema", statusFail, fmt.Sprintf("%s, %d steps are missing: run 'warifu migrate up'", version, len(now.Pending))}, there
	case now.Newer:
		return finding{"schema", statusOK, version + "; newer is fine"}, there
	}
	return finding{"schema", statusOK, version}, there
}

// plans says which statements would read a table whole.
func plans(ctx context.Context, c *config) []finding {
	all, err := sqlstore.Plans(ctx, c.sqlConfig(nil))
	if err != nil {
		return []finding{{"plans", statusFail, c.target.failed("ask for plans", err).Error()}}
	}
	return judgePlans(all)
}

// nearlyEmpty is the size of claims up to which the database may well choose
// another way than by the key: everything is near then.
const nearlyEmpty = 1 << 20

// judgePlans has one finding for each bad plan, or one for all.
func judgePlans(all sqlstore.Planned) []finding {
	const remedy = ": compare the indexes with 'warifu migrate print --all' (an invalid one has to be dropped and made again), and run ANALYZE"
	var bad []finding
	var early []string
	for _, p := range all.Plans {
		name := "plan of " + p.Statement
		switch {
		case p.Err != nil:
			bad = append(bad, finding{name, statusFail, plain(p.Err.Error())})
		case len(p.FullScans) > 0:
			bad = append(bad, finding{name, statusFail, "reads all of " + strings.Join(p.FullScans, ", ") + remedy})
		case len(p.WideScans) > 0 && all.ClaimsBytes >= 0 && all.ClaimsBytes < nearlyEmpty:
			early = append(early, p.Statement)
		case len(p.WideScans) > 0:
			bad = append(bad, finding{name, statusFail, "reads much of " + strings.Join(p.WideScans, ", ") + remedy})
		}
	}
	switch {
	case len(bad) > 0:
		return bad
	case len(early) > 0:
		return []finding{{"plans", statusWarn, fmt.Sprintf(
			"claims is nearly empty (%d KiB), and while it is, more than single keys would be read for %s: look again when it has grown",
			all.ClaimsBytes>>10, strings.Join(early, ", "))}}
	}
	return []finding{{"plans", statusOK, fmt.Sprintf("%d statements, none reads more than it is asked for", len(all.Plans))}}
}
