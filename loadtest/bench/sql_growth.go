package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/ratio"
	"github.com/warifu/warifu/storage/sqlstore"
)

// The sizes of growth: from growthFirst in steps of ten.
const (
	growthLeast = 1_000
	growthFirst = 100_000
	growthMost  = 10_000_000
)

// growthFill makes $1 claims like the one that is stored, whose keys come in no
// order, so that rows lie elsewhere than their index entries, as those of a
// grown table do. The columns that stay the same are put in place of the two
// marks.
const growthFill = `
INSERT INTO claims (shard, event_id, attempt_id, fence, expiry_shard, expires_at, %[1]s)
SELECT
  (i %% 16)::INT2, left(md5(i::TEXT), 16) || '-' || right(md5(i::TEXT), 16), md5(i::TEXT)::UUID, fence + i,
  (i %% 16)::INT2, expires_at - i * INTERVAL '1 millisecond', %[1]s
FROM claims, generate_series(1, $1::INT8) AS i`

const growthColumns = `
SELECT string_agg(attname, ', ') FROM pg_attribute
WHERE attrelid = 'claims'::regclass AND attnum > 0 AND NOT attisdropped
  AND attname NOT IN ('shard', 'event_id', 'attempt_id', 'fence', 'expiry_shard', 'expires_at')`

// growth: what a batch costs as the table grows, one batch at a time. The sides
// are the sizes.
func growth(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	db, err := f.startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	e := &ratio.Experiment{Name: f.name}
	for size := min(growthFirst, f.opts.growth); size <= f.opts.growth; size *= 10 {
		url, _, err := db.server.Database(ctx)
		if err != nil {
			return nil, err
		}
		if err := grown(ctx, url, size); err != nil {
			return nil, err
		}
		j := db.job("sql-growth", url, 1)
		j.Seconds = f.opts.seconds / 2
		name := fmt.Sprintf("%s rows, claim + complete, 1 × %d", count(size), sqlBatch)
		side := f.side(name, j)
		e.Sides = append(e.Sides, ratio.Side{Name: name, Measure: func(ctx context.Context, round int) (measure.Sample, error) {
			if err := db.checkpoint(ctx); err != nil {
				return measure.Sample{}, err
			}
			return side.Measure(ctx, round)
		}})
		for _, what := range [][2]string{
			{"claims, ms", claimMillis}, {"completions, ms", completeMillis}, {"index entries read per event", entriesPerEvent},
		} {
			e.Floors = append(e.Floors, ratio.Floor{
				ID: f.name, What: fmt.Sprintf("%s rows: batch of %d %s", count(size), sqlBatch, what[0]), Side: name, Key: what[1],
			})
		}
		if first := e.Sides[0].Name; first != name {
			e.Comparisons = append(e.Comparisons, ratio.Comparison{ID: f.name, Unit: "events", Ours: name, Against: first})
		}
	}
	return e, nil
}

// grown makes a table of so many rows, and refuses it if any statement that the
// store runs would read a table or an index whole.
func grown(ctx context.Context, url string, size int) error {
	if err := migrated(ctx, url); err != nil {
		return err
	}
	model := &job{Address: url, Callers: 1}
	err := withSQL(ctx, model, func(ctx context.Context, store *sqlstore.Store) error {
		ts, err := claimAll(ctx, store, newEvents().requests(1))
		if err != nil {
			return err
		}
		return completeAll(ctx, store, ts)
	})
	if err != nil {
		return err
	}
	err = withConn(ctx, url, func(ctx context.Context, conn *pgx.Conn) error {
		var same string
		if err := conn.QueryRow(ctx, growthColumns).Scan(&same); err != nil {
			return fmt.Errorf("fill the table: %w", err)
		}
		if _, err := conn.Exec(ctx, fmt.Sprintf(growthFill, same), size); err != nil {
			return fmt.Errorf("fill the table: %w", err)
		}
		_, err := conn.Exec(ctx, "VACUUM ANALYZE claims")
		return err
	})
	if err != nil {
		return err
	}
	return lookUps(ctx, url)
}

// lookUps is an error unless every plan is one of index look-ups.
func lookUps(ctx context.Context, url string) error {
	planned, err := sqlstore.Plans(ctx, sqlstore.Config{URL: url})
	if err == nil && len(planned.Plans) == 0 {
		err = errors.New("no statement was planned")
	}
	for _, p := range planned.Plans {
		if p.Err != nil || len(p.FullScans)+len(p.WideScans) > 0 {
			err = errors.Join(err, fmt.Errorf("plan of %s: reads %v whole, %v in part: %w", p.Statement, p.FullScans, p.WideScans, p.Err))
		}
	}
	return err
}

// What sqlGrowth reports.
const (
	claimMillis     = "claim_batch_p50_ms"
	completeMillis  = "complete_batch_p50_ms"
	entriesPerEvent = "index_entries_read_per_event"
)

// entriesMax bounds the index entries that a claim and a completion read: each
// has its row looked up twice, and once more while a new page version is found.
const entriesMax = 8

// sqlGrowth claims fresh events and completes them, and has the database say
// afterwards which indexes it used for that.
func sqlGrowth(ctx context.Context, j *job) (s measure.Sample, err error) {
	before, err := tableUse(ctx, j.Address)
	if err != nil {
		return s, err
	}
	ev := newEvents()
	var claims, completions []float64 // ms; one caller
	err = withSQL(ctx, j, func(ctx context.Context, store *sqlstore.Store) error {
		s, err = measure.Loop(ctx, j.plan(), func(ctx context.Context, _ int) (int, error) {
			reqs := ev.requests(sqlBatch)
			began := time.Now()
			ts, err := claimAll(ctx, store, reqs)
			if err != nil {
				return 0, err
			}
			claimed := time.Now()
			err = completeAll(ctx, store, ts)
			claims = append(claims, claimed.Sub(began).Seconds()*1000)
			completions = append(completions, time.Since(claimed).Seconds()*1000)
			return sqlBatch, err
		})
		return err
	})
	if err != nil {
		return s, err
	}
	after, err := tableUse(ctx, j.Address)
	if err != nil {
		return s, err
	}
	used := after.since(before)
	s.Extra = ev.made(madeClaims, madeCompletions)
	s.Extra[claimMillis], s.Extra[completeMillis] = ratio.SpreadOf(claims).Median, ratio.SpreadOf(completions).Median
	s.Extra[entriesPerEvent] = float64(used.entries) / s.Extra[madeClaims]
	return s, used.check(int64(s.Extra[madeClaims]))
}

// use is what was done with the table of claims. Counts of a session arrive
// when it ends.
type use struct {
	seqScans, expiryScans int64
	entries               int64 // of the primary key
	inserted              int64
	updated, hot          int64
}

const selectUse = `
SELECT t.seq_scan, e.idx_scan, p.idx_tup_read, t.n_tup_ins, t.n_tup_upd, t.n_tup_hot_upd
FROM pg_stat_user_tables AS t
  JOIN pg_stat_user_indexes AS p ON p.relid = t.relid AND p.indexrelname = 'claims_pkey'
  JOIN pg_stat_user_indexes AS e ON e.relid = t.relid AND e.indexrelname = 'claims_expiry_idx'
WHERE t.relid = 'claims'::regclass`

// Bounds of the wait for the sessions of a store that was closed.
const (
	sessionsWait = 10 * time.Second
	sessionsPoll = 20 * time.Millisecond
)

// tableUse waits until no store is connected and returns what all have done.
func tableUse(ctx context.Context, url string) (u use, err error) {
	ctx, cancel := context.WithTimeout(ctx, sessionsWait)
	defer cancel()
	err = withConn(ctx, url, func(ctx context.Context, conn *pgx.Conn) error {
		ticker := time.NewTicker(sessionsPoll)
		defer ticker.Stop()
		for sessions := 1; sessions > 0; {
			err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'warifu%'`).Scan(&sessions)
			if err != nil {
				return fmt.Errorf("wait for the store's sessions to end: %w", err)
			}
			if sessions > 0 {
				<-ticker.C
			}
		}
		return conn.QueryRow(ctx, selectUse).Scan(&u.seqScans, &u.expiryScans, &u.entries, &u.inserted, &u.updated, &u.hot)
	})
	return u, err
}

func (u use) since(before use) use {
	return use{
		u.seqScans - before.seqScans, u.expiryScans - before.expiryScans, u.entries - before.entries,
		u.inserted - before.inserted, u.updated - before.updated, u.hot - before.hot,
	}
}

// check is an error unless events were claimed and completed by look-ups of the
// primary key alone, each about as often as it has to be.
func (u use) check(events int64) error {
	switch {
	case u.inserted != events || u.updated != events:
		return fmt.Errorf("%d rows were inserted and %d updated for %d events", u.inserted, u.updated, events)
	case u.seqScans != 0 || u.expiryScans != 0:
		return fmt.Errorf("the table was read whole %d times, the index of expiries was used %d times", u.seqScans, u.expiryScans)
	case u.entries > entriesMax*events:
		return fmt.Errorf("%d index entries were read for %d events: these are no look-ups", u.entries, events)
	}
	return nil
}
