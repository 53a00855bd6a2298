package peers

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warifu/warifu/loadtest/measure"
)

// PostgresSchema is the table that a team makes for events it has seen.
const PostgresSchema = `CREATE TABLE IF NOT EXISTS events (
  event_key TEXT PRIMARY KEY,
  digest    BYTEA NOT NULL,
  created   TIMESTAMPTZ NOT NULL
)`

// postgresInsert is the usual idiom: who inserts the row does the work.
const postgresInsert = `INSERT INTO events (event_key, digest, created) VALUES ($1, $2, now()) ON CONFLICT DO NOTHING`

// PostgresClaims inserts one event per statement, each committed by itself.
// Every caller has a connection, so that as many commits as there are callers
// share one sync.
func PostgresClaims(ctx context.Context, url string, callers int, event func() (key string, digest []byte)) (measure.Op, func(), error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, fmt.Errorf("postgres: %w", err)
	}
	cfg.MaxConns, cfg.MinConns = int32(callers), int32(callers) //nolint:gosec // a few
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("postgres: %w", err)
	}
	return func(ctx context.Context, _ int) (int, error) {
		key, digest := event()
		tag, err := pool.Exec(ctx, postgresInsert, key, digest)
		if err == nil && tag.RowsAffected() != 1 {
			err = errors.New("postgres: a fresh key was taken")
		}
		return 1, err
	}, pool.Close, nil
}
