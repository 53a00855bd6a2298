package sqlstore

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PostgresTx is one transaction of the runner for PostgreSQL, for tests.
func PostgresTx(ctx context.Context, conn *pgxpool.Conn, fn func(context.Context, pgx.Tx) error) error {
	return postgresTx{}.run(ctx, conn, fn)
}

// Transact is a call of several statements, for tests.
func (s *Store) Transact(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	return s.transact(ctx, s.traffic, fn)
}
