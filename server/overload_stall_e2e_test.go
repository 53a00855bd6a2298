package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	warifu "github.com/warifu/warifu/sdk/go"
)

// items counts the claims and completions that are sent, however many of them
// one request carries.
type items struct {
	next http.RoundTripper
	sent *atomic.Int64
}

func (i items) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err := errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	claims, completions := &warifuv1.BatchClaimRequest{}, &warifuv1.BatchCompleteRequest{}
	switch r.URL.Path {
	case warifuv1connect.ClaimServiceBatchClaimProcedure:
		err = proto.Unmarshal(body, claims)
	case warifuv1connect.ClaimServiceBatchCompleteProcedure:
		err = proto.Unmarshal(body, completions)
	default:
		i.sent.Add(1)
	}
	if err != nil {
		return nil, err
	}
	i.sent.Add(int64(len(claims.GetItems()) + len(completions.GetItems())))
	return i.next.RoundTrip(r)
}

// crowd are programs with the product's client, each with a budget of retries of
// its own.
type crowd struct {
	*wire
	clients []*warifu.Client
	calls   atomic.Int64 // that the programs made
	sent    atomic.Int64 // that came of them
}

func (w *wire) crowd(n int, batching warifu.Batching) *crowd {
	c := &crowd{wire: w}
	for range n {
		client, err := warifu.New("http://warifu.test", warifu.WithAPIKey(w.keys["shop"]), warifu.WithBatching(batching),
			warifu.WithHTTPClient(&http.Client{Transport: items{w.network(false), &c.sent}}))
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() {
			if err := client.Close(); err != nil {
				w.t.Error(err)
			}
		})
		c.clients = append(c.clients, client)
	}
	return c
}

// phase is what the programs saw of a while.
type phase struct {
	mu     sync.Mutex
	good   int
	failed []error
	took   []time.Duration
}

// work has events come in at a rate, each claimed and completed by one of the
// programs, and returns when all of them have ended.
func (c *crowd) work(perSecond int, length time.Duration) *phase {
	var p phase
	var events sync.WaitGroup
	for n := range int(length.Seconds() * float64(perSecond)) {
		time.Sleep(time.Second / time.Duration(perSecond))
		events.Go(func() {
			began := time.Now()
			err := c.life(c.clients[n%len(c.clients)])
			p.mu.Lock()
			defer p.mu.Unlock()
			if err != nil {
				p.failed = append(p.failed, err)
				return
			}
			p.good++
			p.took = append(p.took, time.Since(began))
		})
	}
	events.Wait()
	return &p
}

// stallPatience is how long a program waits for one call.
const stallPatience = 10 * time.Second

func (c *crowd) life(client *warifu.Client) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), stallPatience)
	defer cancel()
	c.calls.Add(1)
	claimed, err := client.Claim(ctx, warifu.Event{Consumer: "orders", ID: uuid.NewString()})
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	if claimed.Decision != warifu.Granted {
		return fmt.Errorf("a fresh event is answered %v", claimed.Decision)
	}
	c.calls.Add(1)
	if err := client.Complete(ctx, claimed.Grant, warifu.Completion{Body: []byte("done")}); err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	return nil
}

// TestStoreStall: a store that answers nobody for 30 s, at 70 % of its load and
// with clients that try again, is not buried when it is back, and nobody has to
// restart anything.
func TestStoreStall(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		batching warifu.Batching
		most     float64 // sends for each call while there was no store
	}{
		"OneByOne": {warifu.Batching{ItemsMax: 1, Senders: 64}, 1.2},
		// The budget of retries counts requests. When each takes 5 s to fail, a
		// client makes few, and one that is sent again carries all that came in 5 s.
		"InBatches": {warifu.Batching{}, 1.7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { stall(t, tt.batching, tt.most) })
		})
	}
}

func stall(t *testing.T, batching warifu.Batching, most float64) {
	t.Helper()
	const rate, calm, long, within = 70, 10 * time.Second, 30 * time.Second, 5 * time.Second
	store := &slowStore{batch: 5 * time.Millisecond, key: 4 * time.Millisecond}
	c := overHTTP(t, store).crowd(8, batching)
	before := c.work(rate, calm)
	if len(before.failed) > 0 {
		t.Fatalf("before: %d events failed, such as %v", len(before.failed), before.failed[0])
	}
	calls, sent := c.calls.Load(), c.sent.Load()
	if sent != calls {
		t.Errorf("before: %d calls became %d", calls, sent)
	}
	timer := time.AfterFunc(long, store.stall())
	defer timer.Stop()
	during := c.work(rate, long+within)
	calls, sent = c.calls.Load()-calls, c.sent.Load()-sent
	t.Logf("the stall: %d events went well and %d did not; %d calls became %d", during.good, len(during.failed), calls, sent)
	if len(during.failed) < rate*int((long-stallPatience)/time.Second)/2 {
		t.Errorf("only %d events failed while there was no store", len(during.failed))
	}
	if float64(sent) > most*float64(calls) || sent == calls {
		t.Errorf("%d calls became %d, want more and at most %v times as many", calls, sent, most)
	}
	after := c.work(rate, calm)
	if len(after.failed) > 0 {
		t.Errorf("after: %d of %d events failed, such as %v", len(after.failed), after.good+len(after.failed), after.failed[0])
	}
	was, is := (&tally{took: before.took}).p50(), (&tally{took: after.took}).p50()
	if is > was*3/2 {
		t.Errorf("after: p50 %v; before it was %v", is, was)
	}
}
