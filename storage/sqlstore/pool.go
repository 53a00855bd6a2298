package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// purpose is what a pool is for: traffic never waits behind sweeps.
type purpose int

const (
	poolTraffic purpose = iota
	poolSweeps
)

var poolNames = [...]string{"warifu", "warifu-sweep"}

// pool is a connection pool with its own patience.
type pool struct {
	*pgxpool.Pool
	acquire time.Duration
	connect time.Duration
	call    time.Duration
}

// ErrMismatch says that the database is not what its URL says, or is set up in a way
// that the store does not work with.
var ErrMismatch = errors.New("the database is not as configured")

// newPool makes the pool for a purpose. It connects in the background.
func newPool(ctx context.Context, c Config, why purpose) (*pool, error) {
	dialect, url, err := parseURL(c.URL)
	if err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: read the URL: %w", err)
	}
	mode := cfg.ConnConfig.DefaultQueryExecMode
	if mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeCacheDescribe {
		return nil, fmt.Errorf("sqlstore: %w: default_query_exec_mode is cache_statement, or cache_describe behind a transaction pooler", ErrMismatch)
	}
	cfg.MaxConns = c.Conns
	timeout := c.CallTimeout
	if why == poolSweeps {
		cfg.MaxConns, timeout = c.SweepConns, c.SweepTimeout
	}
	cfg.MinConns = cfg.MaxConns // an idle connection is cheaper than making one under load
	cfg.MaxConnLifetime = c.ConnLifetime
	cfg.MaxConnLifetimeJitter = time.Duration(lifetimeJitter * float64(c.ConnLifetime))
	cfg.MaxConnIdleTime = c.ConnLifetime
	cfg.HealthCheckPeriod = healthCheckPeriod
	cfg.PingTimeout = pingTimeout // 0 would wait for ever on a half-open connection
	cfg.ConnConfig.ConnectTimeout = c.ConnectTimeout
	settings(cfg.ConnConfig.RuntimeParams, dialect, c, why, timeout)
	if v := strings.ToLower(cfg.ConnConfig.RuntimeParams["synchronous_commit"]); dialect == Postgres && slices.Contains(offs, v) {
		return nil, fmt.Errorf("sqlstore: %w: with synchronous_commit=off what was acknowledged can be lost", ErrMismatch)
	}
	if cfg.ConnConfig.ValidateConnect == nil {
		// A standby answers reads with what it has heard of.
		cfg.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	isolation := dialect.isolation(c.Isolation)
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { return checkConn(ctx, conn, dialect, isolation) }
	p, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), cfg)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: make a pool: %w", err)
	}
	return &pool{Pool: p, acquire: c.AcquireTimeout, connect: c.ConnectTimeout, call: timeout}, nil
}

// offs are PostgreSQL's ways to say off.
var offs = []string{"off", "of", "false", "fals", "fal", "fa", "f", "no", "n", "0"}

// settings pins what the store depends on, for the life of each connection. A
// role or a database may have other defaults.
func settings(params map[string]string, d Dialect, c Config, why purpose, timeout time.Duration) {
	set := func(name, value string) {
		if _, ok := params[name]; !ok {
			params[name] = value
		}
	}
	set("application_name", poolNames[why])
	params["default_transaction_isolation"] = string(d.isolation(c.Isolation))
	params["timezone"] = "UTC"
	params["client_encoding"] = "UTF8" // or one event ID is two keys
	// The client gives up first; this ends what it left behind.
	set("statement_timeout", fmt.Sprintf("%dms", (timeout+time.Second).Milliseconds()))
	set("idle_in_transaction_session_timeout", idleInTransactionLimit)
	if d == Cockroach && why == poolSweeps {
		set("default_transaction_quality_of_service", "background")
	}
	if d == Postgres {
		// An answer that can be lost is none. What is stronger may be asked for.
		set("synchronous_commit", "on")
		// A client that vanishes within a pipeline holds its locks until the
		// server notices; no timeout for statements counts that.
		set("tcp_keepalives_idle", "5")
		set("tcp_keepalives_interval", "3")
		set("tcp_keepalives_count", "3")
		set("tcp_user_timeout", "15000")
		// The statements are written for look-ups by key. While a table is new
		// its statistics say that reading all of it is cheaper; at
		// SERIALIZABLE that makes all of it conflict.
		set("enable_seqscan", "off")
		set("enable_hashjoin", "off")
		set("enable_mergejoin", "off")
		set("plan_cache_mode", "force_generic_plan")
		set("jit", "off") // look-ups by key are done before code is compiled
	}
}

// checkConn refuses a connection to another kind of database, and one whose
// isolation something between here and there has changed.
func checkConn(ctx context.Context, conn *pgx.Conn, d Dialect, want Isolation) error {
	if got := announced(conn.PgConn()); got != d {
		return fmt.Errorf("sqlstore: %w: the URL says %s, the server is %s", ErrMismatch, d, got)
	}
	var got string
	if err := conn.QueryRow(ctx, "SHOW transaction_isolation").Scan(&got); err != nil {
		return fmt.Errorf("sqlstore: read the isolation level: %w", err)
	}
	if Isolation(got) != want {
		return fmt.Errorf("sqlstore: %w: transactions are %q and must be %q; does a pooler drop connection parameters?", ErrMismatch, got, want)
	}
	return nil
}

// announced is the dialect that a server says it speaks: only CockroachDB sends
// crdb_version.
func announced(c *pgconn.PgConn) Dialect {
	if c.ParameterStatus("crdb_version") != "" {
		return Cockroach
	}
	return Postgres
}

// take takes a connection. It waits for one in use no longer than the acquire
// timeout; for one that is being made, as long as that may take.
func (p *pool) take(ctx context.Context) (*pgxpool.Conn, error) {
	patience := p.acquire
	if st := p.Stat(); st.TotalConns()-st.ConstructingConns() < st.MaxConns() {
		patience = p.connect
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := p.Acquire(ctx)
	if err != nil {
		return nil, notSentError{err}
	}
	return conn, nil
}

// notSentError marks an error before anything was sent.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }
