package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/warifu/warifu/loadtest/ratio"
)

// callersSQL is how many callers P2 has, and connections its other side.
const callersSQL = 64

// p2: claims through the SDK on PostgreSQL against one insert for each event.
func p2(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	db, err := f.startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	ours, err := f.startWarifuOn(ctx, db)
	if err != nil {
		return nil, err
	}
	if err := makeEvents(ctx, db); err != nil {
		return nil, err
	}
	const us, plain = "Go SDK on PostgreSQL, 64 callers", "pgx pool, an INSERT for each event, 64 callers"
	return &ratio.Experiment{
		Name: f.name,
		Sides: []ratio.Side{
			db.side(f, us, ourTable, ours.job("sdk-claim", callersSQL)),
			db.side(f, plain, plainTable, db.job("sql-rows", db.url, callersSQL)),
		},
		Comparisons: []ratio.Comparison{{ID: "P2", Unit: "claims", Ours: us, Against: plain, Budget: 4}},
		Floors:      []ratio.Floor{{ID: "P2", What: "claims per transaction", Side: us, Key: writesPerCommit}},
	}, nil
}

// p6SQL: which trips the filter saves in front of a database. Without it a claim
// is one trip, whatever is stored: the statement that inserts is followed by one
// that reads. With it, keys that may be stored are read first.
func p6SQL(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	db, err := f.startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	if err := migrated(ctx, db.url); err != nil {
		return nil, err
	}
	fill := db.job("sql-fill", db.url, submitters)
	fill.Seed, fill.Keys = rand.Uint64(), f.opts.completed-f.opts.completed%sqlBatch
	if _, err := fill.run(ctx); err != nil {
		return nil, err
	}
	e := &ratio.Experiment{Name: f.name}
	for _, share := range []int{0, 50, 100} {
		var names [2]string
		for i, without := range []bool{false, true} {
			j := fill
			j.Role, j.Duplicates, j.NoFilter, j.Seconds = "sql-mix", share, without, f.opts.seconds/2
			names[i] = fmt.Sprintf("%d %% duplicates, filter %s", share, [...]string{"on", "off"}[i])
			e.Sides = append(e.Sides, db.side(f, names[i], ourTable, j))
			e.Floors = append(e.Floors,
				ratio.Floor{ID: "P6-sql", What: names[i] + ": trips per batch of 200", Side: names[i], Key: tripsPerBatch},
				ratio.Floor{ID: "P6-sql", What: names[i] + ": keys that reach the inserting statement, %", Side: names[i], Key: insertedShare},
				ratio.Floor{ID: "P6-sql", What: names[i] + ": bytes of the database's log per key", Side: names[i], Key: logPerKey})
		}
		e.Comparisons = append(e.Comparisons, ratio.Comparison{ID: "P6-sql", Unit: "keys", Ours: names[0], Against: names[1]})
	}
	return e, nil
}

// p8SQL: replays against fresh claims, on PostgreSQL.
func p8SQL(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	db, err := f.startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	ours, err := f.startWarifuOn(ctx, db)
	if err != nil {
		return nil, err
	}
	prepare := ours.job("sdk-prepare", callersSDK)
	prepare.Seed, prepare.Keys = rand.Uint64(), f.opts.completed
	if _, err := prepare.run(ctx); err != nil {
		return nil, err
	}
	replay := prepare
	replay.Role = "sdk-replay"
	const replays, fresh = "PostgreSQL: replays, 256 callers", "PostgreSQL: fresh claims, 256 callers"
	return &ratio.Experiment{
		Name: f.name,
		Sides: []ratio.Side{
			db.side(f, replays, ourTable, replay),
			db.side(f, fresh, ourTable, ours.job("sdk-claim", callersSDK)),
		},
		Comparisons: []ratio.Comparison{{ID: "P8-sql", Unit: "answers", Ours: replays, Against: fresh, Budget: 1}},
	}, nil
}

// p9SQL: the whole life of an event against its claim alone, on PostgreSQL.
func p9SQL(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	db, err := f.startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	ours, err := f.startWarifuOn(ctx, db)
	if err != nil {
		return nil, err
	}
	const life, claims = "PostgreSQL: claim + complete, 256 callers", "PostgreSQL: claim alone, 256 callers"
	return &ratio.Experiment{
		Name: f.name,
		Sides: []ratio.Side{
			db.side(f, life, ourTable, ours.job("sdk-life", callersSDK)),
			db.side(f, claims, ourTable, ours.job("sdk-claim", callersSDK)),
		},
		Comparisons: []ratio.Comparison{{ID: "P9-sql", Unit: "events", Ours: life, Against: claims, Budget: 0.45}},
		Floors: []ratio.Floor{
			{ID: "P9-sql", What: "claims and completions per transaction", Side: life, Key: writesPerCommit},
			{ID: "P9-sql", What: "claims per transaction", Side: claims, Key: writesPerCommit},
		},
	}, nil
}

func makeEvents(ctx context.Context, db *postgres) error {
	if _, err := db.admin.Exec(ctx, peersSchema); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}
