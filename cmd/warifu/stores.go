package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/bloom"
	"github.com/warifu/warifu/storage/pebble"
	"github.com/warifu/warifu/storage/registry"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/migrate"
)

// target is the place where claims are kept. It prints without its password.
type target struct {
	dir string // of the embedded store; empty: a database
	url string
}

func (t target) sql() bool { return t.url != "" }

func (t target) String() string {
	if t.sql() {
		return maskURL(t.url)
	}
	return "pebble:" + t.dir
}

const targetForms = "pebble:DIR, cockroach://… or postgres://…"

// parseTarget reads how a store is named. Its errors do not repeat the name,
// which may be a URL with a password that was spoilt by a typo.
func parseTarget(name string) (target, error) {
	if dir, ok := strings.CutPrefix(name, "pebble:"); ok {
		if dir == "" {
			return target{}, errors.New("pebble: names no folder; it is pebble:DIR")
		}
		return target{dir: dir}, nil
	}
	if !sqlstore.Supported(name) {
		return target{}, fmt.Errorf("it is %s", targetForms)
	}
	for _, s := range passwordsIn(name) {
		if strings.ContainsAny(name[s.from:s.to], "@/?#") {
			return target{}, errors.New("the password in the URL has characters that mean something else there: write @ as %40, / as %2F, ? as %3F, # as %23")
		}
	}
	return target{url: name}, nil
}

// opened is a store with what it does meanwhile.
type opened struct {
	storage.Store
	registry registry.Registry           // in the same place
	run      func(context.Context) error // until its context ends
	arbiter  arbiter.Config              // what suits it
	pools    func() []sqlstore.PoolStats // nil: it has no connections
}

// openStore opens whatever is configured. It is the one place that picks a
// driver.
func (d *daemon) openStore(ctx context.Context) (*opened, error) {
	started := d.sys.now()
	monotonic := func() time.Duration { return d.sys.now().Sub(started) }
	if d.config.target.sql() {
		return d.openSQL(ctx, monotonic)
	}
	store, err := pebble.Open(pebble.Config{
		Dir: d.config.Data, Clock: d.sys.now, Logger: d.log, Monotonic: monotonic,
		Fatal: func(cause string) {
			d.log.Error("the store cannot go on after a disk error; the process ends: look at the disk, then start again", "cause", cause)
			os.Exit(exitStore)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", d.config.Data, err)
	}
	return &opened{Store: store, registry: store.Registry(), run: store.Run}, nil
}

// A database answers a batch after one or two round trips of the network: more
// batches under way than with a disk on the same machine keep it busy.
const (
	sqlSenders     = 8
	sqlSendersFull = 16
	// sqlFalsePositives: each costs the whole batch that it is in a trip.
	sqlFalsePositives = 0.001
)

func (d *daemon) openSQL(ctx context.Context, monotonic func() time.Duration) (*opened, error) {
	c := d.config.sqlConfig(d.log)
	c.Monotonic = monotonic
	store, err := sqlstore.Open(ctx, c)
	if err != nil {
		return nil, d.config.target.failed("open", err)
	}
	if err := checkSchema(ctx, c); err != nil {
		return nil, errors.Join(d.config.target.failed("open", err), store.Close())
	}
	out := &opened{
		Store: store, registry: store.Registry(), run: untilDone, pools: store.PoolStats,
		arbiter: arbiter.Config{Senders: sqlSenders, SendersFull: sqlSendersFull, StoreTimeout: d.config.StoreTimeout},
	}
	if d.config.Filter == filterOff {
		return out, nil
	}
	filter, err := bloom.New(bloom.Config{Store: store, FalsePositives: sqlFalsePositives, MemoryMaxBytes: int64(d.config.FilterMemory), Logger: d.log})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the filter: %w", err), store.Close())
	}
	out.Store, out.run = filtered{filter}, filter.Run
	return out, nil
}

func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// filtered is a store behind the filter, whose state is that of the filter in
// front.
type filtered struct{ *bloom.Store }

func (f filtered) Stats(ctx context.Context) (storage.Stats, error) {
	out, err := f.Store.Stats(ctx)
	out.Filter = f.FilterStats()
	return out, err
}

// sqlConfig is what is configured of a SQL store.
func (c *config) sqlConfig(log *slog.Logger) sqlstore.Config {
	return sqlstore.Config{
		URL: c.target.url, Isolation: sqlstore.Isolation(c.Isolation), Conns: int32(c.Conns), SweepConns: int32(c.SweepConns),
		CallTimeout: c.StoreTimeout, ConnectTimeout: c.ConnectTimeout, AcquireTimeout: c.AcquireTimeout, Logger: log,
	}
}

// checkSchema refuses a schema that lacks what this program needs.
func checkSchema(ctx context.Context, c sqlstore.Config) error {
	steps, err := schemaSteps(c.URL)
	if err != nil {
		return err
	}
	pool, err := sqlstore.NewMaintenancePool(ctx, c)
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrate.Check(ctx, pool, steps[len(steps)-1].Version)
}

// schemaSteps are all that this program knows of the schema of a database.
func schemaSteps(url string) ([]migrate.Step, error) {
	dialect, err := sqlstore.DialectOf(url)
	if err != nil {
		return nil, err
	}
	files, err := fs.Sub(sqlstore.Migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	return migrate.Load(files, migrate.Dialect(dialect))
}

// failed says what happened to a database, with the code to end with, and
// without the password.
func (t target) failed(action string, err error) error {
	err = hidden{err, secretsOf(t.url)}
	switch {
	case errors.Is(err, migrate.ErrOld):
		return exit(exitSchema, fmt.Errorf("%s %s: %w; here that is: %s migrate up --store %s", action, t, err, shellWord(program()), shellWord(t.String())))
	case errors.Is(err, storage.ErrUnavailable) && !errors.Is(err, sqlstore.ErrMismatch):
		return exit(exitUnavailable, fmt.Errorf("%s %s: %w", action, t, err))
	}
	return fmt.Errorf("%s %s: %w", action, t, err)
}

// hidden is an error in whose text secrets are masked.
type hidden struct {
	cause   error
	secrets []string
}

func (h hidden) Error() string {
	text := h.cause.Error()
	for _, s := range h.secrets {
		text = strings.ReplaceAll(text, s, maskedPassword)
	}
	return text
}

func (h hidden) Unwrap() error { return h.cause }

// maskedPassword stands in a URL, where asterisks would be taken for a pattern
// by a shell.
const maskedPassword = "xxxxx"

// secretMin is the shortest password that is looked for in other texts: masking
// "a" everywhere would leave nothing to read.
const secretMin = 4

// maskURL is a database's URL without its passwords.
func maskURL(raw string) string {
	for _, s := range passwordsIn(raw) {
		raw = raw[:s.from] + maskedPassword + raw[s.to:]
	}
	return raw
}

// secretsOf are the passwords of a URL, as they are written in it and as they
// are.
func secretsOf(raw string) []string {
	var out []string
	for _, s := range passwordsIn(raw) {
		text := raw[s.from:s.to]
		plain, err := url.PathUnescape(text)
		if err != nil {
			plain = text
		}
		for _, secret := range []string{text, plain} {
			if len(secret) >= secretMin {
				out = append(out, secret)
			}
		}
	}
	return out
}

type span struct{ from, to int }

// passwordsIn finds passwords, from the last to the first. It reads more
// generously than drivers do: what a typo or an unescaped character has turned
// into a host or a path is still taken for a part of the password.
func passwordsIn(raw string) []span {
	var found []span
	begin := strings.Index(raw, "://") + len("://")
	if begin < len("://") {
		return nil
	}
	query := len(raw)
	if i := strings.IndexByte(raw[begin:], '?'); i >= 0 && !strings.Contains(raw[begin+i:], "@") || i >= 0 && strings.Contains(raw[begin:begin+i], "/") {
		query = begin + i
	}
	for from := query; from < len(raw); {
		to := len(raw)
		if i := strings.IndexByte(raw[from+1:], '&'); i >= 0 {
			to = from + 1 + i
		}
		name, _, ok := strings.Cut(raw[from+1:to], "=")
		if plain, err := url.QueryUnescape(name); ok && err == nil && (plain == "password" || plain == "sslpassword") {
			found = append([]span{{from + len("?") + len(name) + len("="), to}}, found...)
		}
		from = to
	}
	at := strings.LastIndexByte(raw[begin:query], '@')
	if at < 0 {
		return found
	}
	if colon := strings.IndexByte(raw[begin:begin+at], ':'); colon >= 0 {
		found = append(found, span{begin + colon + 1, begin + at})
	}
	return found
}
