package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Bounds of what is run again. The first time it is at once, on another
// connection, and then after a while that doubles.
const (
	triesMax   = 6
	backoffMin = 50 * time.Millisecond
	callMax    = 10 * time.Second // one try of the bookkeeping; statements of files take what they take
)

// retry runs try until it says something that another run would not change.
// Everything here may be run again, whether or not the run before was
// committed: statements of files bear it, the others compare and set.
func retry(ctx context.Context, action string, try func() error) error {
	var err error
	for n := range triesMax {
		if n > 1 {
			if pause(ctx, backoffMin<<(n-2)) != nil {
				break
			}
		}
		if err = try(); err == nil {
			return nil
		}
		if ctx.Err() != nil || !passes(err) {
			break
		}
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%s: %w (%w)", action, cause, err)
	}
	if code(err) == "XXA00" {
		return fmt.Errorf("%s: %w: %w", action, ErrHalfApplied, err)
	}
	return fmt.Errorf("%s: %w", action, err)
}

// pause waits for d, give or take a quarter, so that those who wait together do
// not come back together.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d - d/4 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// passing are the SQLSTATEs after which the same statement may succeed.
var passing = []string{
	"40001", "40003", "40P01", // run again, whatever became of it
	"57P01", "57P02", "57P03", // a server shuts down or starts
	"58C00", "58C01", // CockroachDB: a range or a node is not reached
	"53300",                            // too many connections
	"55P03",                            // lock_timeout: it let the others pass
	"55000",                            // CockroachDB: the object is being added or dropped
	"42P07", "42701", "42710", "42704", // another ran IF [NOT] EXISTS in between
}

// passes says whether err may be gone the next time.
func passes(err error) bool {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		switch {
		case strings.HasPrefix(refused.Code, "08"), slices.Contains(passing, refused.Code):
			return true
		case refused.Code == "23505": // PostgreSQL: two ran CREATE IF NOT EXISTS, and met in the catalog
			return strings.HasPrefix(refused.ConstraintName, "pg_")
		}
		// PostgreSQL: two changed one object, and met in the catalog.
		return refused.Code == "XX000" && strings.HasPrefix(refused.Message, "tuple concurrently ")
	}
	var broken net.Error
	var unconnected *pgconn.ConnectError
	return pgconn.SafeToRetry(err) || errors.As(err, &broken) || errors.As(err, &unconnected) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) // of one try: the caller's was looked at before
}

// code returns the SQLSTATE of err, or nothing.
func code(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}
