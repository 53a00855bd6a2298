package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/process"
	"github.com/warifu/warifu/loadtest/ratio"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
)

// layout is a way to keep claims.
type layout struct {
	name   string
	change string // of the schema, from that of the migrations
	mixed  bool   // completed in other batches than claimed
}

// layouts begins with the one of the migrations. PostgreSQL counts the columns of
// a partial index's condition as indexed, and a completion changes one of them.
// With a lower fill factor, all completions of a page find room on it even when
// they come at once.
var layouts = []layout{
	{name: "as it is, 4 × 200"},
	{name: "as it is, completed in another order", mixed: true},
	{name: "partial index of expiries", change: `DO $$ DECLARE plain TEXT := pg_get_indexdef('claims_expiry_idx'::regclass); BEGIN
  DROP INDEX claims_expiry_idx;
  EXECUTE plain || ' WHERE state IN (2, 4, 5) OR (state = 1 AND NOT hold)';
END $$`},
	{name: "fill factor 40", change: `ALTER TABLE claims SET (fillfactor = 40)`},
	{name: "fill factor 100", change: `ALTER TABLE claims SET (fillfactor = 100)`},
}

// updates: what a completion costs where no index changes with it, and where one
// does. Each measurement has a schema of its own.
func updates(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	db, err := f.startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	e := &ratio.Experiment{Name: f.name}
	for _, l := range layouts {
		e.Sides = append(e.Sides, db.updatesSide(f, l))
		if l.name != layouts[0].name {
			e.Comparisons = append(e.Comparisons, ratio.Comparison{ID: f.name, Unit: "events", Ours: layouts[0].name, Against: l.name})
		}
	}
	for _, what := range [][2]string{
		{"updates that touch no index (HOT), %", hotShare}, {"bytes of log per claim", logPerClaim}, {"bytes of log per completion", logPerCompletion},
		{"claims per s", claimRate}, {"completions per s", completionRate}, {"bytes of table and indexes per event", bytesPerEvent},
	} {
		for _, side := range e.Sides {
			e.Floors = append(e.Floors, ratio.Floor{ID: f.name, What: side.Name + ": " + what[0], Side: side.Name, Key: what[1]})
		}
	}
	return e, nil
}

const updatesCallers = 4

func (p *postgres) updatesSide(f *folder, l layout) ratio.Side {
	return ratio.Side{Name: l.name, Measure: func(ctx context.Context, round int) (s measure.Sample, err error) {
		url, drop, err := p.server.Schema(ctx)
		if err != nil {
			return s, err
		}
		if err := migrated(ctx, url); err != nil {
			return s, err
		}
		err = withConn(ctx, url, func(ctx context.Context, conn *pgx.Conn) error {
			if _, err := conn.Exec(ctx, l.change); err != nil {
				return fmt.Errorf("change the schema: %w", err)
			}
			return p.checkpoint(ctx)
		})
		if err != nil {
			return s, err
		}
		j := p.job("sql-updates", url, updatesCallers)
		j.Keys, j.Mixed = f.opts.updated-f.opts.updated%sqlBatch, l.mixed
		if s, err = f.measured(ctx, l.name, round, j); err != nil {
			return s, err
		}
		return s, drop(ctx)
	}}
}

// What sqlUpdates reports.
const (
	hotShare         = "hot_updates_percent"
	logPerClaim      = "log_bytes_per_claim"
	logPerCompletion = "log_bytes_per_completion"
	claimRate        = "claims_per_s"
	completionRate   = "completions_per_s"
	bytesPerEvent    = "stored_bytes_per_event"
)

// sqlUpdates claims the job's events and then completes all of them.
func sqlUpdates(ctx context.Context, j *job) (s measure.Sample, err error) {
	ev := newEvents()
	lives := make([][]claim.Transition, j.Keys/sqlBatch)
	var claims, completions phase
	err = withSQL(ctx, j, func(ctx context.Context, store *sqlstore.Store) (err error) {
		claims, err = j.phase(ctx, func(n int) (err error) {
			lives[n], err = claimAll(ctx, store, ev.requests(sqlBatch))
			return err
		})
		if err != nil {
			return err
		}
		if j.Mixed {
			deal(lives)
		}
		completions, err = j.phase(ctx, func(n int) error { return completeAll(ctx, store, lives[n]) })
		return err
	})
	if err != nil {
		return s, err
	}
	used, err := tableUse(ctx, j.Address)
	if err != nil {
		return s, err
	}
	n := float64(j.Keys)
	if used.inserted != int64(j.Keys) || used.updated != int64(j.Keys) {
		return s, fmt.Errorf("%d rows were inserted and %d updated for %d events", used.inserted, used.updated, j.Keys)
	}
	size, err := storedBytes(ctx, j.Address)
	s = measure.Sample{
		Ops: int64(j.Keys), Seconds: claims.seconds + completions.seconds, ClientCPU: claims.client + completions.client,
		ServerCPU: claims.database + completions.database, DatabaseCPU: claims.database + completions.database,
		Extra: map[string]float64{
			hotShare: 100 * float64(used.hot) / float64(used.updated), bytesPerEvent: float64(size) / n,
			logPerClaim: float64(claims.log) / n, logPerCompletion: float64(completions.log) / n,
			claimRate: n / claims.seconds, completionRate: n / completions.seconds,
		},
	}
	return s, err
}

// deal deals all completions anew.
func deal(lives [][]claim.Transition) {
	all := slices.Concat(lives...)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for n := range lives {
		lives[n] = all[n*sqlBatch : (n+1)*sqlBatch]
	}
}

// phase is what a part of a job took: seconds by the clock and of CPU, and bytes
// of the database's log.
type phase struct {
	seconds, client, database float64
	log                       int64
}

func (j *job) phase(ctx context.Context, do func(batch int) error) (phase, error) {
	before, err := j.spent(ctx)
	if err != nil {
		return phase{}, err
	}
	began := time.Now()
	if err := j.batches(do); err != nil {
		return phase{}, err
	}
	took := time.Since(began).Seconds()
	after, err := j.spent(ctx)
	return phase{took, after.client - before.client, after.database - before.database, after.log - before.log}, err
}

// spent is what was spent so far.
func (j *job) spent(ctx context.Context) (p phase, err error) {
	if p.client, err = process.CPUSeconds(os.Getpid()); err != nil {
		return p, err
	}
	if p.database, err = process.FamilyCPUSeconds(j.Database); err != nil {
		return p, err
	}
	p.log, err = logBytes(ctx, j.Address)
	return p, err
}

func storedBytes(ctx context.Context, url string) (n int64, err error) {
	err = withConn(ctx, url, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT pg_total_relation_size('claims')`).Scan(&n)
	})
	return n, err
}
