package sqlstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage/claim"
)

// Words is a statement of the store in a dialect's words; "" where it has none.
func Words(name string, d Dialect) string { return statement(name).of(d) }

// ShardOf is where a key is written: statements take keys in the order of shards.
func ShardOf(k claim.Key) int16 { return shardOf(&k) }

// Setting is what is in force on a connection of the store's for traffic, and
// on one for sweeps.
func (s *Store) Setting(ctx context.Context, name string) (traffic, sweeps string, err error) {
	const sql = "SELECT setting FROM pg_settings WHERE name = $1"
	if err := s.traffic.QueryRow(ctx, sql, name).Scan(&traffic); err != nil {
		return "", "", err
	}
	err = s.sweeps.QueryRow(ctx, sql, name).Scan(&sweeps)
	return traffic, sweeps, err
}

// OnSweeps runs a statement on every connection for sweeps that is idle, as an
// administrator's change of a setting reaches those that are open.
func (s *Store) OnSweeps(ctx context.Context, sql string) error {
	for _, conn := range s.sweeps.AcquireAllIdle(ctx) {
		_, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
		conn.Release()
		if err != nil {
			return err
		}
	}
	return nil
}
