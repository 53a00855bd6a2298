package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/ratio"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/sqlstore/migrate"
	"github.com/warifu/warifu/storage/sqlstore/pgtest"
)

// connsMax is room for a pool of 64 beside the server's own.
const connsMax = "200"

// postgres is a PostgreSQL that all sides of an experiment share. Every commit
// reaches its disk before it is answered.
type postgres struct {
	server *pgtest.Server
	url    string
	pid    int
	admin  *pgxpool.Pool
}

// startPostgres starts one, without a schema. It lies beside the folder, not in
// it: its own user has to be able to get there.
func (f *folder) startPostgres(ctx context.Context) (*postgres, error) {
	server, err := pgtest.New(ctx, pgtest.Config{
		Durable: true, Dir: f.opts.dir,
		Settings: map[string]string{"max_connections": connsMax, "synchronous_commit": "on"},
	})
	if err != nil {
		return nil, err
	}
	f.stops = append(f.stops, server.Close)
	p := &postgres{server: server, url: server.URL()}
	if p.admin, err = pgxpool.New(ctx, p.url); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	f.stops = append(f.stops, func() error { p.admin.Close(); return nil })
	err = p.admin.QueryRow(ctx, `SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)::INT8, current_setting('server_version')`).
		Scan(&p.pid, &f.postgres)
	if err != nil {
		return nil, fmt.Errorf("postgres: find its process: %w", err)
	}
	return p, nil
}

// startWarifuOn starts `warifu dev` on a database.
func (f *folder) startWarifuOn(ctx context.Context, p *postgres) (*target, error) {
	if err := migrated(ctx, p.url); err != nil {
		return nil, err
	}
	t, err := f.startDev(ctx, "--store", p.url)
	if err != nil {
		return nil, err
	}
	t.database = p.pid
	return t, nil
}

// job is one without a server of ours between it and the database.
func (p *postgres) job(role, url string, callers int) job {
	return job{Role: role, Callers: callers, Address: url, Database: p.pid}
}

// migrated brings the schema of a database up.
func migrated(ctx context.Context, url string) error {
	files, err := fs.Sub(sqlstore.Migrations, "migrations")
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	steps, err := migrate.Load(files, migrate.Postgres)
	if err != nil {
		return err
	}
	pool, err := sqlstore.NewMaintenancePool(ctx, sqlstore.Config{URL: url})
	if err != nil {
		return err
	}
	defer pool.Close()
	m, err := migrate.New(migrate.Config{DB: pool, Steps: steps})
	if err != nil {
		return err
	}
	_, err = m.Up(ctx)
	return err
}

// rows are what a table has of whole lives.
type rows struct{ claims, completions int64 }

// The tables of the sides.
const (
	ourTable   = `SELECT count(*), count(*) FILTER (WHERE state = 4) FROM claims`
	plainTable = `SELECT count(*), 0 FROM events`
)

func (p *postgres) count(ctx context.Context, table string) (r rows, err error) {
	if err = p.admin.QueryRow(ctx, table).Scan(&r.claims, &r.completions); err != nil {
		return r, fmt.Errorf("postgres: count: %w", err)
	}
	return r, nil
}

// side is a side whose every measurement begins with a checkpoint, so that each
// has as many pages to write to the log in full, and none of another's to write
// to its table. It fails unless the table then has what the job says it made.
func (p *postgres) side(f *folder, name, table string, j job) ratio.Side {
	return ratio.Side{Name: name, Measure: func(ctx context.Context, round int) (measure.Sample, error) {
		before, err := p.count(ctx, table)
		if err != nil {
			return measure.Sample{}, err
		}
		if err := p.checkpoint(ctx); err != nil {
			return measure.Sample{}, err
		}
		began, err := p.writers(ctx)
		if err != nil {
			return measure.Sample{}, err
		}
		s, err := f.measured(ctx, name, round, j)
		if err != nil {
			return s, err
		}
		ended, err := p.writers(ctx)
		if err != nil {
			return s, err
		}
		if made := s.Extra[madeClaims] + s.Extra[madeCompletions]; made > 0 && ended > began {
			s.Extra[writesPerCommit] = made / float64(ended-began)
		}
		after, err := p.count(ctx, table)
		return s, errors.Join(err, checkRows(before, after, s.Extra))
	}}
}

// writesPerCommit is how many claims and completions share a transaction.
const writesPerCommit = "writes_per_commit"

// writers is the number of transactions that ever wrote anything.
func (p *postgres) writers(ctx context.Context) (n int64, err error) {
	if err = p.admin.QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::TEXT::INT8`).Scan(&n); err != nil {
		return n, fmt.Errorf("postgres: count transactions: %w", err)
	}
	return n, nil
}

func (p *postgres) checkpoint(ctx context.Context) error {
	if _, err := p.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("postgres: checkpoint: %w", err)
	}
	return nil
}

// checkRows holds what a table has gained against what a job has made.
func checkRows(before, after rows, made map[string]float64) error {
	got := rows{after.claims - before.claims, after.completions - before.completions}
	want := rows{int64(made[madeClaims]), int64(made[madeCompletions])}
	if got != want {
		return fmt.Errorf("the table has gained %d claims and %d completions; %d and %d were acknowledged",
			got.claims, got.completions, want.claims, want.completions)
	}
	return nil
}

// withConn does something on a connection of its own.
func withConn(ctx context.Context, url string, do func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return errors.Join(do(ctx, conn), conn.Close(ctx))
}
