package warifutest_test

import (
	"context"
	"crypto/sha256"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	warifu "github.com/warifu/warifu/sdk/go"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/pebble"
)

// onDisk is a client of a server on a loopback port, over a store that syncs
// to a real disk before it answers.
func onDisk(b *testing.B) *warifu.Client {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	text, key := tenant.NewKey("bench")
	table, err := tenant.NewTable([]tenant.Config{{ID: 1, Name: "bench", Keys: []tenant.Key{key}}})
	must(err)
	store, err := pebble.Open(pebble.Config{Dir: b.TempDir(), Clock: time.Now})
	must(err)
	s, err := server.New(server.Config{Store: store, Directory: tenant.NewDirectory(table), Clock: time.Now})
	must(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	listener := server.NewHTTPServer(s.Handler())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	wg.Go(func() { _ = store.Run(ctx) })
	wg.Go(func() { _ = listener.Serve(l) })
	c, err := warifu.New("http://"+l.Addr().String(), warifu.WithAPIKey(text))
	must(err)
	b.Cleanup(func() {
		must(c.Close())
		must(listener.Shutdown(context.Background()))
		cancel()
		wg.Wait()
		must(store.Close())
	})
	return c
}

// callers runs do b.N times from n goroutines.
func callers(b *testing.B, n int, do func(i int64) error) {
	b.Helper()
	b.ReportAllocs()
	var (
		wg   sync.WaitGroup
		next atomic.Int64
	)
	b.ResetTimer()
	began := cpuTime(b)
	for range n {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := do(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(cpuTime(b)-began)/float64(b.N), "cpu-ns/event")
}

// cpuTime is what this process, client and server, has used so far. Unlike the
// rate it does not depend on who else uses the machine.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkClaim claims fresh events with one digest each.
func BenchmarkClaim(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		b.Run(strconv.Itoa(n)+"callers", func(b *testing.B) {
			c := onDisk(b)
			callers(b, n, func(i int64) error {
				e := order("order-" + strconv.FormatInt(i, 36))
				sum := sha256.Sum256([]byte(e.ID))
				e.Digests = []warifu.Digest{{Scheme: "sha256/order.v1", Value: sum[:]}}
				_, err := c.Claim(b.Context(), e)
				return err
			})
		})
	}
}

func BenchmarkDo(b *testing.B) {
	c := onDisk(b)
	callers(b, 256, func(i int64) error {
		_, err := c.Do(b.Context(), order("order-"+strconv.FormatInt(i, 36)), done("ok"))
		return err
	})
}

func BenchmarkReplay(b *testing.B) {
	c := onDisk(b)
	if _, err := c.Do(b.Context(), order("known"), done("ok")); err != nil {
		b.Fatal(err)
	}
	callers(b, 256, func(int64) error {
		_, err := c.Claim(b.Context(), order("known"))
		return err
	})
}
