package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/pebble"
)

// batchLen is how many claims a batch has: the most that there may be.
const batchLen = claim.BatchItemsMax

// withStore runs the store's background work, and do beside it.
func withStore(ctx context.Context, j *job, do func(context.Context, *pebble.Store) error) (err error) {
	store, err := pebble.Open(pebble.Config{Dir: j.Dir, Clock: time.Now, NoFilter: j.NoFilter})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()
	return do(ctx, store)
}

// driverClaim claims fresh events in batches, through the arbiter and the
// driver.
func driverClaim(ctx context.Context, j *job) (s measure.Sample, err error) {
	ev := newEvents()
	err = withStore(ctx, j, func(ctx context.Context, store *pebble.Store) (err error) {
		arb, err := arbiter.New(arbiter.Config{Store: store})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- arb.Run(ctx) }()
		defer func() {
			cancel()
			err = errors.Join(err, <-ended)
		}()
		<-arb.Started()
		s, err = measure.Loop(ctx, j.plan(), func(ctx context.Context, _ int) (int, error) {
			for _, a := range arb.Claim(ctx, ev.requests(batchLen)) {
				if a.Err != nil || a.Decision != claim.Granted {
					return 0, fmt.Errorf("a fresh event was answered %s: %w", a.Decision, a.Err)
				}
			}
			return batchLen, nil
		})
		return err
	})
	return s, err
}

// template is what the driver stores of one fresh claim.
type template struct {
	prefix []byte // of record keys; the event ID follows
	record []byte // attempt ID and digest are filled in
}

// attemptAt is where a record has the attempt ID; the digest ends a record.
const attemptAt = 4

// learn has the driver store one batch in dir and reads what became of it, so
// that the raw side writes the same bytes without being told them by the
// driver. What is written goes to the engine when the store is opened again. It
// returns the engine's options too.
func learn(ctx context.Context, j *job, ev *events) (t template, opts *engine.Options, err error) {
	reqs := ev.requests(batchLen)
	insert := func(ctx context.Context, store *pebble.Store) error {
		_, err := store.InsertOrGet(ctx, reqs)
		return err
	}
	if err := errors.Join(withStore(ctx, j, insert), withStore(ctx, j, insert)); err != nil {
		return t, nil, err
	}
	if opts, err = engineOptions(filepath.Join(j.Dir, "db")); err != nil {
		return t, nil, err
	}
	db, err := engine.Open(filepath.Join(j.Dir, "db"), opts)
	if err != nil {
		return t, nil, err
	}
	err = t.read(db, &reqs[0])
	return t, opts, errors.Join(err, db.Close())
}

func (t *template) read(db *engine.DB, r *claim.Request) error {
	it, err := db.NewIter(nil)
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		if key := it.Key(); bytes.HasSuffix(key, []byte(r.Key.EventID)) {
			t.prefix, t.record = bytes.Clone(key[:len(key)-eventIDLen]), bytes.Clone(it.Value())
		}
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return err
	}
	return t.check(r)
}

// check notices when the driver's layout is no longer the one that is imitated.
func (t *template) check(r *claim.Request) error {
	if len(t.record) < attemptAt+16+digestLen ||
		!bytes.Equal(t.record[attemptAt:attemptAt+16], r.Attempt[:]) ||
		!bytes.HasSuffix(t.record, r.Digests[0].Value) {
		return errors.New("raw side: records are not laid out as expected")
	}
	return nil
}

// engineOptions are those that the driver opened its engine with, except that
// the engine writes its own log and has memtables of the size of the driver's.
func engineOptions(dir string) (*engine.Options, error) {
	files, err := filepath.Glob(filepath.Join(dir, "OPTIONS-*"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("raw side: the engine left no OPTIONS file: %w", err)
	}
	text, err := os.ReadFile(slices.Max(files))
	if err != nil {
		return nil, err
	}
	opts := &engine.Options{}
	err = opts.Parse(string(text), &engine.ParseHooks{
		NewFilterPolicy: func(string) (engine.FilterPolicy, error) { return bloom.FilterPolicy(10), nil },
		SkipUnknown:     func(string, string) bool { return true },
	})
	opts.Logger = quiet{}
	opts.DisableWAL = false
	opts.MemTableSize, opts.MemTableStopWritesThreshold = pebble.MemTableBytesDefault, 4
	opts.L0StopWritesThreshold = 32
	return opts, err
}

// quiet drops the engine's routine messages.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// rawWrite writes the bytes of fresh claims to the engine, and nothing else is
// done: no reads, no filter, no index, no decisions.
func rawWrite(ctx context.Context, j *job) (s measure.Sample, err error) {
	ev := newEvents()
	t, opts, err := learn(ctx, j, ev)
	if err != nil {
		return s, err
	}
	db, err := engine.Open(filepath.Join(j.Dir, "db"), opts)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return measure.Loop(ctx, j.plan(), func(context.Context, int) (int, error) {
		reqs := ev.requests(batchLen)
		if j.Sorted {
			slices.SortFunc(reqs, func(a, b claim.Request) int { return strings.Compare(a.Key.EventID, b.Key.EventID) })
		}
		return batchLen, t.write(db, reqs)
	})
}

// scratches hold what a batch is written from, as the driver's do.
var scratches = sync.Pool{New: func() any { return new([]byte) }}

func (t *template) write(db *engine.DB, reqs []claim.Request) error {
	scratch := scratches.Get().(*[]byte) //nolint:forcetypeassert // nothing else is put there
	defer scratches.Put(scratch)
	batch := db.NewBatch()
	for i := range reqs {
		r := &reqs[i]
		line := append(append((*scratch)[:0], t.prefix...), r.Key.EventID...)
		key := len(line)
		line = append(line, t.record...)
		copy(line[key+attemptAt:], r.Attempt[:])
		copy(line[len(line)-digestLen:], r.Digests[0].Value)
		if err := batch.Set(line[:key], line[key:], nil); err != nil {
			return errors.Join(err, batch.Close())
		}
		*scratch = line
	}
	return errors.Join(batch.Commit(engine.Sync), batch.Close())
}

// fill stores the job's number of claims: what a store retains.
func fill(ctx context.Context, j *job) (s measure.Sample, err error) {
	ev := newEvents()
	began := time.Now()
	var left atomic.Int64
	left.Store(int64(j.Keys))
	err = withStore(ctx, j, func(ctx context.Context, store *pebble.Store) error {
		errs := make([]error, runtime.NumCPU())
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				for errs[i] == nil && left.Add(-batchLen) > -batchLen {
					_, errs[i] = store.InsertOrGet(ctx, ev.requests(batchLen))
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
	return measure.Sample{Ops: int64(j.Keys), Seconds: time.Since(began).Seconds()}, err
}

// retained inserts fresh claims into a store that holds many, at the driver.
func retained(ctx context.Context, j *job) (s measure.Sample, err error) {
	ev := newEvents()
	err = withStore(ctx, j, func(ctx context.Context, store *pebble.Store) error {
		began := time.Now()
		if !j.NoFilter {
			if err := awaitFilter(ctx, store); err != nil {
				return err
			}
		}
		built := time.Since(began)
		before, err := store.Stats(ctx)
		if err != nil {
			return err
		}
		s, err = measure.Loop(ctx, j.plan(), func(ctx context.Context, _ int) (int, error) {
			found, err := store.InsertOrGet(ctx, ev.requests(batchLen))
			if err == nil && found[0].Record.State != claim.InProgress {
				err = fmt.Errorf("a fresh event is %s", found[0].Record.State)
			}
			return batchLen, err
		})
		if err != nil {
			return err
		}
		after, err := store.Stats(ctx)
		s.Extra = filterUse(&before.Filter, &after.Filter)
		s.Extra["filter_built_s"] = built.Seconds()
		return err
	})
	return s, err
}

// skippedShare is the share of reads, in percent, that the filter made
// unnecessary.
const skippedShare = "reads_skipped_percent"

func filterUse(before, after *storage.FilterStats) map[string]float64 {
	skipped, passed := after.Skipped-before.Skipped, after.Passed-before.Passed
	audited := after.Audited - before.Audited // skipped, and read all the same
	use := map[string]float64{"filter_keys": float64(after.Keys), "filter_bytes": float64(after.Bytes)}
	if asked := skipped + passed; asked > 0 {
		use[skippedShare] = 100 * float64(skipped-audited) / float64(asked)
	}
	return use
}

// Bounds of the wait for the filter. A filter with more of its bits set passes
// over 0.4 % of fresh keys: it is about to be replaced by a larger one.
const (
	filterWait    = time.Minute
	filterPoll    = 20 * time.Millisecond
	filterFillMax = 0.25
)

// awaitFilter waits until the filter is built and large enough. It takes what
// there is when filterWait is over; the share of skipped reads then says so.
func awaitFilter(ctx context.Context, store *pebble.Store) error {
	ticker := time.NewTicker(filterPoll)
	defer ticker.Stop()
	for began := time.Now(); time.Since(began) < filterWait; {
		stats, err := store.Stats(ctx)
		if err != nil || (stats.Filter.Ready && stats.Filter.Fill <= filterFillMax) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}
