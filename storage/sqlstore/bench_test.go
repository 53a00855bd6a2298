package sqlstore_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/sqlstore"
)

// benchRequest is a claim as a team would send it: an ID without order and one
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

func benchRequests(batch, size int) []claim.Request {
	reqs := make([]claim.Request, size)
	for i := range reqs {
		reqs[i] = benchRequest(uint64(batch*size + i))
	}
	return reqs
}

// benchOpen opens a store on a schema of its own. The server of the tests does
// not wait for its disk: what is measured is work, not waiting.
func benchOpen(b *testing.B) storage.Store {
	b.Helper()
	url, drop, err := server.Schema(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if err := migrated(b.Context(), url); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := drop(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return open(b, url, nil, claim.SweepGrace, func(c *sqlstore.Config) { c.Conns = 1 })
}

// benchItems runs op b.N times and reports what an item costs: time, and memory
// of this process, in which the database is not.
func benchItems(b *testing.B, size int, op func(batch int) error) {
	b.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	b.ResetTimer()
	runtime.ReadMemStats(&before)
	for n := range b.N {
		if err := op(n); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	runtime.ReadMemStats(&after)
	items := float64(b.N * size)
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/items, "allocs/item")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/items, "B/item")
	b.ReportMetric(items/b.Elapsed().Seconds(), "items/s")
}

// benchClaim stores fresh claims, and fails where one is not fresh.
func benchClaim(ctx context.Context, s storage.Store, reqs []claim.Request) ([]storage.Found, error) {
	found, err := s.InsertOrGet(ctx, reqs)
	for i := range found {
		if err == nil && (found[i].Err != nil || found[i].Record.AttemptID != reqs[i].Attempt || found[i].Record.State != claim.InProgress) {
			err = fmt.Errorf("a fresh claim is %s: %w", found[i].Record.State, found[i].Err)
		}
	}
	return found, err
}

// BenchmarkInsertOrGet is of fresh claims.
func BenchmarkInsertOrGet(b *testing.B) {
	for _, size := range []int{1, 25, 200, 500} {
		b.Run(fmt.Sprintf("fresh=%d", size), func(b *testing.B) {
			s := benchOpen(b)
			batches := make([][]claim.Request, b.N)
			for n := range batches {
				batches[n] = benchRequests(n, size)
			}
			benchItems(b, size, func(n int) error {
				_, err := benchClaim(b.Context(), s, batches[n])
				return err
			})
		})
	}
}

// BenchmarkMeet is of claims of what is completed: nothing is written. The
// filter would have them read instead.
func BenchmarkMeet(b *testing.B) {
	const size = 200
	s := benchOpen(b)
	reqs := benchRequests(0, size)
	for _, ts := range benchTransitions(b, s, size, 1) {
		if err := benchComplete(b.Context(), s, ts); err != nil {
			b.Fatal(err)
		}
	}
	keys := make([]claim.Key, size)
	for i := range reqs {
		keys[i] = reqs[i].Key
	}
	completed := func(found []storage.Found, err error) error {
		for i := range found {
			if err == nil && found[i].Record.State != claim.Completed {
				err = fmt.Errorf("what is completed is %s", found[i].Record.State)
			}
		}
		return err
	}
	b.Run("InsertOrGet=200", func(b *testing.B) {
		benchItems(b, size, func(int) error { return completed(s.InsertOrGet(b.Context(), reqs)) })
	})
	b.Run("Get=200", func(b *testing.B) {
		benchItems(b, size, func(int) error { return completed(s.Get(b.Context(), keys)) })
	})
}

// BenchmarkGet is of claims in progress.
func BenchmarkGet(b *testing.B) {
	const size = 200
	s := benchOpen(b)
	reqs := benchRequests(0, size)
	if _, err := benchClaim(b.Context(), s, reqs); err != nil {
		b.Fatal(err)
	}
	keys := make([]claim.Key, size)
	for i := range reqs {
		keys[i] = reqs[i].Key
	}
	b.Run("200", func(b *testing.B) {
		benchItems(b, size, func(int) error {
			found, err := s.Get(b.Context(), keys)
			if err == nil && found[size-1].Record.State != claim.InProgress {
				err = fmt.Errorf("a claim is %s", found[size-1].Record.State)
			}
			return err
		})
	})
}

// benchTransitions claims batches and returns their completions.
func benchTransitions(b *testing.B, s storage.Store, size, batches int) [][]claim.Transition {
	b.Helper()
	done := claim.Completion{Outcome: claim.Succeeded, ContentType: "application/json", Body: make([]byte, 64)}.Summed()
	out := make([][]claim.Transition, batches)
	for n := range out {
		reqs := benchRequests(n, size)
		found, err := benchClaim(b.Context(), s, reqs)
		if err != nil {
			b.Fatal(err)
		}
		for i := range reqs {
			out[n] = append(out[n], claim.Transition{
				Kind: claim.Complete, Key: reqs[i].Key, Attempt: reqs[i].Attempt, Fence: found[i].Record.Fence, Completion: &done,
			})
		}
	}
	return out
}

func benchComplete(ctx context.Context, s storage.Store, ts []claim.Transition) error {
	found, err := s.Transition(ctx, ts)
	for i := range found {
		if err == nil && !found[i].Applied {
			err = fmt.Errorf("a completion was not applied to what is %s: %w", found[i].Record.State, found[i].Err)
		}
	}
	return err
}

// BenchmarkTransition is of completions with small results.
func BenchmarkTransition(b *testing.B) {
	b.Run("complete=200", func(b *testing.B) {
		const size = 200
		s := benchOpen(b)
		batches := benchTransitions(b, s, size, b.N)
		benchItems(b, size, func(n int) error { return benchComplete(b.Context(), s, batches[n]) })
	})
}

// BenchmarkTrip is what a trip costs that asks for nothing: of all above it is
// the part that batches share.
func BenchmarkTrip(b *testing.B) {
	conn, err := pgx.Connect(b.Context(), server.URL())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := conn.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	for b.Loop() {
		if _, err := conn.Exec(b.Context(), "SELECT now()"); err != nil {
			b.Fatal(err)
		}
	}
}
