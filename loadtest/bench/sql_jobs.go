package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/peers"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/bloom"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
	"github.com/warifu/warifu/storage/storagetest"
)

// sqlBatch is how many keys a batch has where a store is measured directly.
const sqlBatch = 200

const peersSchema = peers.PostgresSchema

// sqlRows inserts fresh events as people do today.
func sqlRows(ctx context.Context, j *job) (s measure.Sample, err error) {
	ev := newEvents()
	op, end, err := peers.PostgresClaims(ctx, j.Address, j.Callers, func() (string, []byte) {
		n := ev.take(1)
		return ev.id(n), ev.appendDigest(make([]byte, 0, digestLen), n)
	})
	if err != nil {
		return s, err
	}
	defer end()
	s, err = measure.Loop(ctx, j.plan(), op)
	s.Extra = ev.made(madeClaims)
	return s, err
}

// withSQL does something with the driver on the job's database.
func withSQL(ctx context.Context, j *job, do func(context.Context, *sqlstore.Store) error) (err error) {
	began := time.Now()
	store, err := sqlstore.Open(ctx, sqlstore.Config{URL: j.Address, Monotonic: func() time.Duration { return time.Since(began) }})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return do(ctx, store)
}

// claimAll claims fresh events and returns their completions.
func claimAll(ctx context.Context, store storage.Store, reqs []claim.Request) ([]claim.Transition, error) {
	found, err := store.InsertOrGet(ctx, reqs)
	if err != nil {
		return nil, err
	}
	done := claim.Completion{Outcome: claim.Succeeded, ContentType: "application/json", Body: make([]byte, resultLen)}.Summed()
	ts := make([]claim.Transition, len(reqs))
	for i := range reqs {
		rec := &found[i].Record
		if err := isFresh(&found[i], &reqs[i]); err != nil {
			return nil, err
		}
		ts[i] = claim.Transition{Kind: claim.Complete, Key: reqs[i].Key, Attempt: rec.AttemptID, Fence: rec.Fence, Completion: &done}
	}
	return ts, nil
}

func isFresh(found *storage.Found, r *claim.Request) error {
	if rec := &found.Record; found.Err != nil || rec.State != claim.InProgress || rec.AttemptID != r.Attempt {
		return fmt.Errorf("a fresh event is %s: %w", rec.State, found.Err)
	}
	return nil
}

func completeAll(ctx context.Context, store storage.Store, ts []claim.Transition) error {
	found, err := store.Transition(ctx, ts)
	for i := range found {
		if err == nil && (found[i].Err != nil || !found[i].Applied || found[i].Record.State != claim.Completed) {
			err = fmt.Errorf("a completed event is %s: %w", found[i].Record.State, found[i].Err)
		}
	}
	return err
}

// batches runs do from the job's callers for each of its batches.
func (j *job) batches(do func(batch int) error) error {
	var next atomic.Int64
	errs := make([]error, j.Callers)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for n := int(next.Add(1)) - 1; n < j.Keys/sqlBatch && errs[i] == nil; n = int(next.Add(1)) - 1 {
				errs[i] = do(n)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// sqlFill completes the job's events, in whole batches.
func sqlFill(ctx context.Context, j *job) (measure.Sample, error) {
	ev := &events{seed: j.Seed}
	began := time.Now()
	err := withSQL(ctx, j, func(ctx context.Context, store *sqlstore.Store) error {
		return j.batches(func(n int) error {
			ts, err := claimAll(ctx, store, ev.requestsFrom(uint64(n*sqlBatch), sqlBatch)) //nolint:gosec // an index
			if err != nil {
				return err
			}
			return completeAll(ctx, store, ts)
		})
	})
	return measure.Sample{Ops: int64(j.Keys), Seconds: time.Since(began).Seconds()}, err
}

// What sqlMix reports.
const (
	tripsPerBatch = "trips_per_batch"
	insertedShare = "keys_inserted_percent"
	logPerKey     = "log_bytes_per_key"
)

// sqlMix claims batches in which some events are completed and the others are
// fresh, through the filter or without it.
func sqlMix(ctx context.Context, j *job) (s measure.Sample, err error) {
	fresh, seen := newEvents(), &events{seed: j.Seed}
	old := sqlBatch * j.Duplicates / 100
	err = withSQL(ctx, j, func(ctx context.Context, inner *sqlstore.Store) error {
		counted := storagetest.NewCounting(inner)
		store, end, err := j.filtered(ctx, counted)
		if err != nil {
			return err
		}
		defer end()
		counted.Reset()
		var batches atomic.Int64
		written, err := logBytes(ctx, j.Address)
		if err != nil {
			return err
		}
		s, err = measure.Loop(ctx, j.plan(), func(ctx context.Context, _ int) (int, error) {
			batches.Add(1)
			at := rand.Uint64N(uint64(j.Keys - sqlBatch + 1)) //nolint:gosec // a count
			return sqlBatch, claimMix(ctx, store, seen.requestsFrom(at, old), fresh.requests(sqlBatch-old))
		})
		if err != nil {
			return err
		}
		after, err := logBytes(ctx, j.Address)
		n := float64(batches.Load())
		s.Extra = fresh.made(madeClaims)
		s.Extra[tripsPerBatch] = float64(counted.Trips()) / n
		s.Extra[insertedShare] = 100 * float64(counted.Items(storagetest.InsertOrGet)) / (n * sqlBatch)
		s.Extra[logPerKey] = float64(after-written) / (n * sqlBatch)
		return err
	})
	return s, err
}

// claimMix holds every answer against what was to be expected.
func claimMix(ctx context.Context, store storage.Store, seen, fresh []claim.Request) error {
	found, err := store.InsertOrGet(ctx, append(seen, fresh...))
	if err != nil {
		return err
	}
	for i := range found {
		if i >= len(seen) {
			err = isFresh(&found[i], &fresh[i-len(seen)])
		} else if found[i].Err != nil || found[i].Record.State != claim.Completed {
			err = fmt.Errorf("a completed event is %s: %w", found[i].Record.State, found[i].Err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// filtered is store behind the filter, once that is built, unless the job is
// without one.
func (j *job) filtered(ctx context.Context, store storage.Store) (storage.Store, func(), error) {
	if j.NoFilter {
		return store, func() {}, nil
	}
	f, err := bloom.New(bloom.Config{Store: store, Capacity: filterKeys, FalsePositives: filterFalsePositives})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	end := func() {
		cancel()
		<-ended //nolint:errcheck // it has no other error than that of ctx
	}
	ticker := time.NewTicker(filterPoll)
	defer ticker.Stop()
	for began := time.Now(); !f.FilterStats().Ready; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil || time.Since(began) > filterWait {
			end()
			return nil, nil, errors.New("the filter was not built in time")
		}
	}
	return f, end, nil
}

// logBytes is how much a database has written to its log, ever.
func logBytes(ctx context.Context, url string) (n int64, err error) {
	err = withConn(ctx, url, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::INT8`).Scan(&n)
	})
	return n, err
}

// filterKeys and filterFalsePositives are a filter as a server has it: larger
// than what a measurement adds, and with the server's share of false positives.
const (
	filterKeys           = 8 << 20
	filterFalsePositives = 0.001
)
