package arbiter

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// nullStore grants everything and keeps nothing, so that what is left to
// measure is the arbiter.
type nullStore struct {
	storage.Store
	found  []storage.Found // reused, where only one sender asks; nil: made anew
	commit time.Duration   // what a call costs at least
}

func (s *nullStore) room(n int) []storage.Found {
	if s.found == nil {
		return make([]storage.Found, n)
	}
	return s.found[:n]
}

func (s *nullStore) InsertOrGet(_ context.Context, reqs []claim.Request) ([]storage.Found, error) {
	found := s.room(len(reqs))
	for i := range reqs {
		r := &found[i].Record
		r.Key, r.State, r.AttemptID, r.Attempt, r.Fence = reqs[i].Key, claim.InProgress, reqs[i].Attempt, 1, 1
		r.LeaseUntil = claim.Never
	}
	if s.commit > 0 {
		time.Sleep(s.commit)
	}
	return found, nil
}

func (s *nullStore) Transition(_ context.Context, ts []claim.Transition) ([]storage.Found, error) {
	found := s.room(len(ts))
	for i := range ts {
		found[i].Applied, found[i].Record.Key, found[i].Record.State = true, ts[i].Key, claim.Completed
	}
	return found, nil
}

// alone is an arbiter with one sender, whose store reuses its answers: what is
// allocated then is the arbiter's.
func alone(b *testing.B) *Arbiter {
	b.Helper()
	return benchArbiter(b, Config{Senders: 1, Store: &nullStore{found: make([]storage.Found, claim.BatchItemsMax)}})
}

func benchArbiter(b *testing.B, cfg Config) *Arbiter {
	b.Helper()
	a, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	<-a.Started()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
	return a
}

func benchRequests(n int) []claim.Request {
	reqs := make([]claim.Request, n)
	for i := range reqs {
		reqs[i] = claim.Request{
			Key:     claim.Key{Tenant: 1, Consumer: "inventory", EventID: fmt.Sprintf("order-%08d", i)},
			Attempt: claim.AttemptID{1, byte(i), byte(i >> 8)}, InsertBefore: claim.Never,
			Lease: claim.LeaseDefault, Policy: claim.DefaultPolicy(),
		}
	}
	return reqs
}

// BenchmarkArbiterBatch is the arbiter's cost per item of batches as large as
// they get, one caller after the other and two at once.
func BenchmarkArbiterBatch(b *testing.B) {
	for _, callers := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			a := alone(b)
			b.ReportAllocs()
			var wg sync.WaitGroup
			var left atomic.Int64
			left.Store(int64(b.N))
			for range callers {
				wg.Go(func() {
					reqs := benchRequests(claim.BatchItemsMax)
					for left.Add(-claim.BatchItemsMax) > -claim.BatchItemsMax {
						if got := a.Claim(b.Context(), reqs); got[7].Decision != claim.Granted {
							b.Error(got[7])
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkArbiterJoined is the cost per item when callers of 50 share batches.
func BenchmarkArbiterJoined(b *testing.B) {
	a := alone(b)
	b.ReportAllocs()
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(b.N))
	for range 20 {
		wg.Go(func() {
			reqs := benchRequests(50)
			for left.Add(-50) > -50 {
				a.Claim(b.Context(), reqs)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	reportSize(b, a.Stats().Claims)
}

// BenchmarkArbiterUnary is the cost of a single claim among n callers; on disk
// a commit takes a while, and callers share them.
func BenchmarkArbiterUnary(b *testing.B) {
	for _, commit := range []time.Duration{0, time.Millisecond} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("callers=%d/commit=%v", callers, commit), func(b *testing.B) {
				a := benchArbiter(b, Config{Store: &nullStore{commit: commit}})
				unary(b, a, callers)
				reportSize(b, a.Stats().Claims)
			})
		}
	}
}

func unary(b *testing.B, a *Arbiter, callers int) {
	b.Helper()
	b.ReportAllocs()
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(b.N))
	for i := range callers {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			req := benchRequests(callers)[i]
			for left.Add(-1) >= 0 {
				if got := a.ClaimOne(ctx, req); got.Decision != claim.Granted {
					b.Error(got)
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

// BenchmarkArbiterTransition is the cost per item of full batches.
func BenchmarkArbiterTransition(b *testing.B) {
	a := alone(b)
	ts := make([]claim.Transition, claim.BatchItemsMax)
	for i, r := range benchRequests(len(ts)) {
		ts[i] = claim.Transition{Kind: claim.Complete, Key: r.Key, Attempt: r.Attempt, Completion: &claim.Completion{}}
	}
	b.ReportAllocs()
	for n := b.N; n > 0; n -= len(ts) {
		if got := a.Transition(b.Context(), ts); got[3].Status != claim.OK {
			b.Fatal(got[3])
		}
	}
}

func reportSize(b *testing.B, s LaneStats) {
	b.Helper()
	b.ReportMetric(float64(s.Items)/float64(max(1, s.Batches)), "items/batch")
}
