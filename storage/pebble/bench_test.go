package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/warifu/warifu/storage/claim"
)

const benchBatch = 500

// benchRequest is a claim as a team would send it: a UUID-like event ID and one
// SHA-256 digest.
func benchRequest(n uint64) claim.Request {
	h := n * 0x9E3779B97F4A7C15
	var a claim.AttemptID
	binary.BigEndian.PutUint64(a[:], n+1)
	digest := make([]byte, 32)
	binary.BigEndian.PutUint64(digest, h)
	return claim.Request{
		Key:     claim.Key{Tenant: 1, Consumer: "inventory", EventID: fmt.Sprintf("%016x-%016x", h, n)},
		Attempt: a, Digests: []claim.Digest{{Scheme: "jcs-sha256/order.v2", Value: digest}},
		InsertBefore: claim.Never, Lease: claim.LeaseDefault, Policy: claim.DefaultPolicy(),
	}
}

func benchOpen(b *testing.B, cfg Config) *Store {
	b.Helper()
	cfg.Dir, cfg.Clock = b.TempDir(), time.Now
	s, err := Open(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// benchClaims reports claims/s of op over prepared batches from several
// goroutines.
func benchClaims(b *testing.B, workers int, op func([]claim.Request) error) {
	b.Helper()
	batches := make([][]claim.Request, b.N)
	for i := range batches {
		batches[i] = make([]claim.Request, benchBatch)
		for j := range batches[i] {
			batches[i][j] = benchRequest(uint64(i*benchBatch + j))
		}
	}
	b.ResetTimer()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				if err := op(batches[i]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N*benchBatch)/b.Elapsed().Seconds(), "claims/s")
}

// BenchmarkFresh is what a first claim costs the driver in batches of 500,
// against the engine alone with the same keys and bytes.
func BenchmarkFresh(b *testing.B) {
	for _, workers := range []int{1, 4} {
		b.Run(fmt.Sprintf("driver/workers=%d", workers), func(b *testing.B) {
			s := benchOpen(b, Config{})
			benchClaims(b, workers, func(reqs []claim.Request) error {
				_, err := s.InsertOrGet(context.Background(), reqs)
				return err
			})
		})
		b.Run(fmt.Sprintf("nofilter/workers=%d", workers), func(b *testing.B) {
			s := benchOpen(b, Config{NoFilter: true})
			benchClaims(b, workers, func(reqs []claim.Request) error {
				_, err := s.InsertOrGet(context.Background(), reqs)
				return err
			})
		})
		b.Run(fmt.Sprintf("raw/workers=%d", workers), func(b *testing.B) {
			db := benchRaw(b)
			benchClaims(b, workers, func(reqs []claim.Request) error { return rawInsert(db, reqs) })
		})
	}
}

func benchRaw(b *testing.B) *pebble.DB {
	b.Helper()
	opts := &pebble.Options{
		FormatMajorVersion: formatVersion, MemTableSize: MemTableBytesDefault, MemTableStopWritesThreshold: 4,
		L0CompactionThreshold: 4, L0StopWritesThreshold: 32, LBaseMaxBytes: 256 << 20,
		Cache: pebble.NewCache(CacheBytesDefault), Logger: engineLogger{slog.New(slog.DiscardHandler), func(m string) { panic(m) }},
	}
	defer opts.Cache.Unref()
	opts.ApplyCompressionSettings(compression)
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := pebble.Open(b.TempDir(), opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := db.Close(); err != nil {
			b.Error(err)
		}
	})
	return db
}

// rawInsert writes what the driver would write for fresh claims, and nothing
// else.
func rawInsert(db *pebble.DB, reqs []claim.Request) error {
	batch := db.NewBatch()
	now := claim.FromTime(time.Now())
	var key, value []byte
	for i := range reqs {
		rec := claim.Fresh(&reqs[i], now, 0)
		key = appendRecordKey(key[:0], &rec.Key)
		value = appendRecord(value[:0], &rec, false)
		if err := batch.Set(key, value, nil); err != nil {
			return err
		}
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return err
	}
	return batch.Close()
}
