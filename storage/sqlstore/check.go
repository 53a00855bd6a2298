package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warifu/warifu/storage/storetime"
)

// readyTimeout bounds how long Ready waits: whoever asks wants to know now.
const readyTimeout = 2 * time.Second

// ErrVersion says that the database is older than the store supports.
var ErrVersion = errors.New("the database is too old")

// errReadOnly: a connection that was made to a primary, or before somebody made
// the database read-only.
var errReadOnly = errors.New("the database takes no writes")

// ErrEncoding says that texts are not stored as UTF-8.
var ErrEncoding = errors.New("the database's encoding is not UTF8")

// check refuses a database that the store does not work with, and reads its
// clock for the first time.
func (s *Store) check(ctx context.Context) error {
	var announced, encoding string
	err := s.try(ctx, s.traffic, reads, func(_ context.Context, conn *pgxpool.Conn) error {
		pg := conn.Conn().PgConn()
		if announced = pg.ParameterStatus("crdb_version"); announced == "" {
			announced = pg.ParameterStatus("server_version")
		}
		encoding = pg.ParameterStatus("server_encoding")
		return nil
	})
	if err != nil {
		return fmt.Errorf("sqlstore: connect: %w", err)
	}
	oldest := version{PostgresMajorMin, 0}
	if s.dialect == Cockroach {
		oldest = version{CockroachMajorMin, CockroachMinorMin}
	}
	if v := parseVersion(announced); !v.atLeast(oldest) {
		return fmt.Errorf("sqlstore: %w: %q, at least %d.%d is needed", ErrVersion, announced, oldest.major, oldest.minor)
	}
	if s.dialect == Postgres && encoding != "UTF8" {
		return fmt.Errorf("sqlstore: %w: it is %s; create the database with ENCODING 'UTF8'", ErrEncoding, encoding)
	}
	_, err = s.readClock(ctx)
	return err
}

// Ready implements storage.Store.
func (s *Store) Ready(ctx context.Context) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	// Not a connection for traffic: that all of them are in use is no reason
	// to send callers elsewhere.
	return s.trip(ctx, s.sweeps, reads, func(storetime.Bounds) []query {
		return []query{{sql: sqlReady, row: func(r row) error {
			if r.text() != "off" {
				return errReadOnly
			}
			return r.end()
		}}}
	})
}
