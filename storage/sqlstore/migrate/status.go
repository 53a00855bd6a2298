package migrate

import (
	"context"
	_ "embed" // the statements
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

//go:embed queries/read_row.sql
var readRowSQL string

//go:embed queries/read_steps.sql
var readStepsSQL string

// undefinedTable is the SQLSTATE for a table that does not exist.
const undefinedTable = "42P01"

// Status is where a schema is.
type Status struct {
	Version   int64     // the newest file that is wholly applied; 0: none
	Known     int64     // the newest file of this binary
	Pending   []Step    // of this binary's, not applied
	Newer     bool      // files are applied, wholly or in part, that this binary does not know
	Holder    string    // who migrates now; empty: nobody
	HeldUntil time.Time // unless the holder renews it
}

// Status reads where the schema is, and changes nothing. ErrChanged comes with
// a Status.
func (m *Migrator) Status(ctx context.Context) (Status, error) {
	found, err := m.look(ctx)
	if err != nil && !errors.Is(err, ErrChanged) {
		return Status{}, fmt.Errorf("migration status: %w", err)
	}
	s := Status{Version: found.at.version, Known: m.known(), Pending: found.pending, Newer: found.newer}
	if found.held {
		s.Holder, s.HeldUntil = found.owner, found.until
	}
	if err != nil {
		return s, fmt.Errorf("migration status: %w", err)
	}
	return s, nil
}

// Check is for a process about to serve: nil when the schema has all files up
// to need, ErrOld when it has not. A newer schema is good, since files only add
// to what the release before needs. It reads one row and needs no other right.
func Check(ctx context.Context, db DB, need int64) error {
	var now row
	err := retry(ctx, "read", func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, callMax)
		defer cancel()
		now, err = readRow(ctx, db)
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("check the schema: %w", err)
	case now.at.version < need:
		return fmt.Errorf("check the schema: %w: it has version %d and this binary needs %d; run `warifu migrate up`", ErrOld, now.at.version, need)
	}
	return nil
}

// row is the one of warifu_schema. Its zero value is that of no schema.
type row struct {
	exists bool
	at     position
	owner  string
	fence  int64
	until  time.Time
	held   bool // by owner, at the database's time
}

// found is a row beside what this binary knows.
type found struct {
	row
	pending []Step
	newer   bool
}

// look reads the row, then the steps, so that every step the row counts is
// among them. ErrChanged comes with what was found.
func (m *Migrator) look(ctx context.Context) (found, error) {
	var now row
	var ran []Step
	err := retry(ctx, "read", func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, callMax)
		defer cancel()
		now, err = readRow(ctx, m.cfg.DB)
		if err != nil || !now.exists {
			return err
		}
		ran, err = readSteps(ctx, m.cfg.DB)
		return err
	})
	if err != nil {
		return found{}, err
	}
	f := found{row: now, newer: now.at.version > m.known() || now.at.version == m.known() && now.at.statement > 0}
	for _, s := range m.cfg.Steps {
		if !now.at.covers(s) {
			f.pending = append(f.pending, s)
		}
	}
	return f, m.compare(now.at, ran)
}

func (m *Migrator) known() int64 { return m.cfg.Steps[len(m.cfg.Steps)-1].Version }

// compare returns ErrChanged, and the first file it is about, unless what ran
// is what this binary would have run up to there.
func (m *Migrator) compare(at position, ran []Step) error {
	stored := make(map[string]Step, len(ran))
	for _, s := range ran {
		stored[s.ID()] = s
	}
	for _, s := range m.cfg.Steps {
		was, ok := stored[s.ID()]
		switch {
		case ok && was.SHA256 != s.SHA256:
			return fmt.Errorf("%w: statement %d of %s is not what ran as %s", ErrChanged, s.Statement, s.File, was.File)
		case !ok && at.covers(s):
			return fmt.Errorf("%w: statement %d of %s was added to it", ErrChanged, s.Statement, s.File)
		}
		delete(stored, s.ID())
	}
	for _, was := range ran {
		if _, left := stored[was.ID()]; left && was.Version <= m.known() {
			return fmt.Errorf("%w: statement %d of %s ran and is no longer in it", ErrChanged, was.Statement, was.File)
		}
	}
	return nil
}

// readRow returns the zero row where there is none yet.
func readRow(ctx context.Context, db DB) (row, error) {
	rows, err := db.Query(ctx, readRowSQL)
	if err == nil {
		var now row
		now, err = pgx.CollectExactlyOneRow(rows, func(r pgx.CollectableRow) (row, error) {
			now := row{exists: true}
			return now, r.Scan(&now.at.version, &now.at.statement, &now.owner, &now.fence, &now.until, &now.held)
		})
		if err == nil {
			return now, nil
		}
	}
	if code(err) == undefinedTable || errors.Is(err, pgx.ErrNoRows) {
		return row{}, nil
	}
	return row{}, err
}

func readSteps(ctx context.Context, db DB) ([]Step, error) {
	rows, err := db.Query(ctx, readStepsSQL)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (Step, error) {
		var s Step
		var hash []byte
		err := r.Scan(&s.Version, &s.Statement, &s.File, &hash)
		copy(s.SHA256[:], hash)
		return s, err
	})
}
