package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// maintenanceName is the application name of what is not a store.
	maintenanceName = "warifu-maintenance"
	// maintenanceConns is what package migrate needs: a statement and, beside
	// it, the renewal of the lease.
	maintenanceConns = 2
	// lockTimeout is how long a migration waits for a lock, on PostgreSQL,
	// where everybody else waits behind it.
	lockTimeout = "5s"
	// pings is how often the clock is read: the shortest round trip counts.
	pings = 5
)

// Inspection is what a connection shows of a database, right or wrong: Open
// would refuse most of what is wrong here, and says less about it.
type Inspection struct {
	Address    string // host:port that answered
	TLS        string // its version; empty: the connection is not encrypted
	Dialect    Dialect
	Named      Dialect // what the URL says it is
	Version    string  // as the server says it
	VersionMin string
	TooOld     bool
	// Isolation is what the store's connections get, and Wanted what they ask
	// for.
	Isolation, Wanted Isolation
	Encoding          string // empty on CockroachDB, which has only UTF-8
	ReadOnly          bool   // a standby, or set so: nothing can be stored

	// Offset is how far the database's clock is ahead of the caller's, give or
	// take half of RoundTrip, the shortest of a few.
	Offset, RoundTrip time.Duration

	Connections Connections
}

// Connections are how many there may be. They are zero on CockroachDB, which
// says nothing of them to ordinary users.
type Connections struct {
	Max    int64 // for this role and this database
	InUse  int64 // of all roles and databases, now
	Server int64 // what one server takes with this configuration; known always
}

// Inspect connects as a store would, without refusing anything, and looks. now
// is the caller's clock. An error means that there was nothing to look at: the
// URL cannot be used, or nobody answers.
func Inspect(ctx context.Context, c Config, now func() time.Time) (Inspection, error) {
	c, err := c.withDefaults()
	if err != nil {
		return Inspection{}, fmt.Errorf("sqlstore: %w", err)
	}
	var out Inspection
	err = onConn(ctx, c, func(ctx context.Context, conn *pgx.Conn) error {
		out = announcement(c, conn)
		if err := out.read(ctx, conn); err != nil {
			return err
		}
		return out.measure(ctx, conn, now)
	})
	return out, err
}

// announcement is what is known of a connection without asking.
func announcement(c Config, conn *pgx.Conn) Inspection {
	pg := conn.PgConn()
	named, _, _ := parseURL(c.URL) // the connection was made with it
	out := Inspection{
		Address: pg.Conn().RemoteAddr().String(), TLS: tlsVersion(pg.Conn()),
		Dialect: announced(pg), Named: named,
		Version: pg.ParameterStatus("server_version"), Wanted: named.isolation(c.Isolation),
		Connections: Connections{Server: int64(c.Conns) + int64(c.SweepConns)},
	}
	oldest := version{PostgresMajorMin, 0}
	if out.Dialect == Cockroach {
		out.Version = pg.ParameterStatus("crdb_version")
		oldest = version{CockroachMajorMin, CockroachMinorMin}
	} else {
		out.Encoding = pg.ParameterStatus("server_encoding")
	}
	out.VersionMin = fmt.Sprintf("%d.%d", oldest.major, oldest.minor)
	out.TooOld = !parseVersion(out.Version).atLeast(oldest)
	return out
}

// postgresConnections are the limit and what is in use. Reserved connections
// are for superusers; -1 is no limit.
const postgresConnections = `
SELECT
  least(
    current_setting('max_connections')::INT8 - current_setting('superuser_reserved_connections')::INT8,
    (SELECT CASE WHEN datconnlimit < 0 THEN NULL ELSE datconnlimit END FROM pg_database WHERE datname = current_database()),
    (SELECT CASE WHEN rolconnlimit < 0 THEN NULL ELSE rolconnlimit END FROM pg_roles WHERE rolname = current_user)
  )::INT8,
  (SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL AND usename IS NOT NULL)`

func (i *Inspection) read(ctx context.Context, conn *pgx.Conn) error {
	var isolation, readOnly string
	if err := conn.QueryRow(ctx, "SHOW transaction_isolation").Scan(&isolation); err != nil {
		return fmt.Errorf("sqlstore: read the isolation level: %w", err)
	}
	if err := conn.QueryRow(ctx, "SHOW transaction_read_only").Scan(&readOnly); err != nil {
		return fmt.Errorf("sqlstore: read whether it is read-only: %w", err)
	}
	i.Isolation, i.ReadOnly = Isolation(isolation), readOnly == "on"
	if i.Dialect != Postgres {
		return nil
	}
	if err := conn.QueryRow(ctx, postgresConnections).Scan(&i.Connections.Max, &i.Connections.InUse); err != nil {
		return fmt.Errorf("sqlstore: read the limit of connections: %w", err)
	}
	return nil
}

// measure compares the clocks. The database reads its own somewhere within the
// round trip: half way is off by at most half of it.
func (i *Inspection) measure(ctx context.Context, conn *pgx.Conn, now func() time.Time) error {
	for n := range pings {
		var theirs time.Time
		before := now()
		if err := conn.QueryRow(ctx, sqlClock.of(announced(conn.PgConn()))).Scan(&theirs); err != nil {
			return fmt.Errorf("sqlstore: read the clock: %w", err)
		}
		if took := now().Sub(before); n == 0 || took < i.RoundTrip {
			i.RoundTrip, i.Offset = took, theirs.Sub(before.Add(took/2))
		}
	}
	return nil
}

// onConn does something on a connection that is set up like a store's.
func onConn(ctx context.Context, c Config, do func(context.Context, *pgx.Conn) error) (err error) {
	dialect, url, err := parseURL(c.URL)
	if err != nil {
		return err
	}
	cfg, err := pgxpool.ParseConfig(url) // also for one connection: the URL may have a pool's settings
	if err != nil {
		return fmt.Errorf("sqlstore: read the URL: %w", err)
	}
	cfg.ConnConfig.ConnectTimeout = c.ConnectTimeout
	settings(cfg.ConnConfig.RuntimeParams, dialect, c, poolTraffic, c.CallTimeout)
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // whatever the database's is
	ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout+c.SweepTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return fmt.Errorf("sqlstore: connect: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return do(ctx, conn)
}

// NewMaintenancePool returns a pool for package migrate and for whoever looks
// after a database: nothing ends a statement that takes its time, and on
// PostgreSQL one that waits for a lock gives up soon. It connects when it is
// first used, and refuses the other dialect then with ErrMismatch. The caller
// closes it.
func NewMaintenancePool(ctx context.Context, c Config) (*pgxpool.Pool, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	dialect, url, err := parseURL(c.URL)
	if err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: read the URL: %w", err)
	}
	cfg.MinConns, cfg.MaxConns, cfg.PingTimeout = 0, maintenanceConns, pingTimeout
	cfg.ConnConfig.ConnectTimeout = c.ConnectTimeout
	params := cfg.ConnConfig.RuntimeParams
	params["application_name"], params["timezone"], params["statement_timeout"] = maintenanceName, "UTC", "0"
	if dialect == Postgres {
		params["lock_timeout"] = lockTimeout
	}
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		if got := announced(conn.PgConn()); got != dialect {
			return fmt.Errorf("sqlstore: %w: the URL says %s, the server is %s", ErrMismatch, dialect, got)
		}
		return nil
	}
	p, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), cfg)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: make a pool: %w", err)
	}
	return p, nil
}

// DialectOf returns the dialect that a URL names.
func DialectOf(url string) (Dialect, error) {
	dialect, _, err := parseURL(url)
	return dialect, err
}
