package sealed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// nothing is a store that costs nothing: what is measured is sealing alone.
type nothing struct {
	storage.Store
	found []storage.Found
}

func (n *nothing) Get(context.Context, []claim.Key) ([]storage.Found, error) {
	return clone(n.found), nil
}
func (n *nothing) Transition(_ context.Context, ts []claim.Transition) ([]storage.Found, error) {
	for i := range ts {
		n.found[i].Record = claim.Record{Key: ts[i].Key, State: claim.Completed, AttemptID: ts[i].Attempt, Completion: ts[i].Completion}
	}
	return clone(n.found), nil
}

func clone(found []storage.Found) []storage.Found { return append([]storage.Found(nil), found...) }

// benchBody is like JSON: it shrinks, but not to nothing.
func benchBody(n int, text bool) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	b := make([]byte, 0, n+64)
	for len(b) < n {
		if text {
			b = fmt.Appendf(b, `{"sku":"item-%06d","count":%d,"price":"%d.%02d"},`, r.IntN(1e6), r.IntN(20), r.IntN(500), r.IntN(100))
		} else {
			b = append(b, byte(r.Uint32()))
		}
	}
	return b[:n]
}

// BenchmarkSealing is what sealing adds to a completion and to a duplicate.
func BenchmarkSealing(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 256 << 10} {
		for kind, text := range map[string]bool{"text": true, "random": false} {
			c := claim.Completion{Outcome: claim.Succeeded, ContentType: "application/json", Body: benchBody(size, text)}.Summed()
			t := []claim.Transition{{Kind: claim.Complete, Key: key(1, "own", "order-1"), Attempt: attempt(1), Completion: &c}}
			inner := &nothing{found: make([]storage.Found, 1)}
			s, err := New(Config{Store: inner, Keys: anyKeys{}})
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("complete/%s/%d", kind, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := s.Transition(b.Context(), t); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(len(inner.found[0].Record.Completion.Body)), "stored-B")
			})
			b.Run(fmt.Sprintf("duplicate/%s/%d", kind, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if f, err := s.Get(b.Context(), []claim.Key{t[0].Key}); err != nil || f[0].Err != nil {
						b.Fatal(err, f[0].Err)
					}
				}
			})
		}
	}
}

// BenchmarkStore is one-shot claims and their duplicates on an embedded store in
// memory, 50 in a call, with and without sealing.
func BenchmarkStore(b *testing.B) {
	const batch = 50
	for _, size := range []int{100, 4 << 10, 256 << 10} {
		for _, plain := range []bool{true, false} {
			driver := openPebble(b, vfs.NewMem(), time.Now, time.Hour)
			s, err := New(Config{Store: driver, Keys: anyKeys{}, WritePlain: plain})
			if err != nil {
				b.Fatal(err)
			}
			c := claim.Completion{Outcome: claim.Succeeded, Body: benchBody(size, true)}.Summed()
			made := 0
			b.Run(fmt.Sprintf("record/%d/plain=%v", size, plain), func(b *testing.B) {
				for b.Loop() {
					reqs := make([]claim.Request, batch)
					for i := range reqs {
						reqs[i] = request(key(1, "own", fmt.Sprint(made)), 1)
						reqs[i].Record = &c
						made++
					}
					if _, err := s.InsertOrGet(b.Context(), reqs); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/claim")
			})
			b.Run(fmt.Sprintf("duplicate/%d/plain=%v", size, plain), func(b *testing.B) {
				for b.Loop() {
					keys := make([]claim.Key, batch)
					for i := range keys {
						keys[i] = key(1, "own", fmt.Sprint(i))
					}
					if f, err := s.Get(b.Context(), keys); err != nil || f[0].Err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/claim")
			})
		}
	}
}
