package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/pebble"
)

// What is counted: batches of this many claims, from the HTTP handler down to
// the disk, background work of the store included.
const (
	allocationBatch   = 256
	allocationBatches = 400
)

// Numbers that allocations reports.
const (
	allocsPerClaim = "allocs_per_claim"
	bytesPerClaim  = "alloc_bytes_per_claim"
)

// allocations counts what the server allocates for a claim. Requests are made
// beforehand and answers are thrown away, so that nothing of a client counts.
func allocations(ctx context.Context, j *job) (s measure.Sample, err error) {
	batches := j.Keys / allocationBatch
	err = withStore(ctx, j, func(ctx context.Context, store *pebble.Store) (err error) {
		handler, key, end, err := serverOn(ctx, store)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
		bodies, err := encodedBatches(batches + 1)
		if err != nil {
			return err
		}
		if err := post(ctx, handler, key, bodies[0]); err != nil {
			return err
		}
		var before, after runtime.MemStats
		began := time.Now()
		runtime.ReadMemStats(&before)
		for _, body := range bodies[1:] {
			if err := post(ctx, handler, key, body); err != nil {
				return err
			}
		}
		runtime.ReadMemStats(&after)
		claims := float64(batches * allocationBatch)
		s = measure.Sample{Ops: int64(claims), Seconds: time.Since(began).Seconds(), Extra: map[string]float64{
			allocsPerClaim: float64(after.Mallocs-before.Mallocs) / claims,
			bytesPerClaim:  float64(after.TotalAlloc-before.TotalAlloc) / claims,
		}}
		return nil
	})
	return s, err
}

// serverOn is the product's server on a store, with one tenant and its key.
func serverOn(ctx context.Context, store *pebble.Store) (http.Handler, string, func() error, error) {
	text, key := tenant.NewKey("bench")
	table, err := tenant.NewTable([]tenant.Config{{ID: 1, Name: "bench", Keys: []tenant.Key{key}}})
	if err != nil {
		return nil, "", nil, err
	}
	srv, err := server.New(server.Config{Store: store, Directory: tenant.NewDirectory(table), Clock: time.Now})
	if err != nil {
		return nil, "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	return srv.Handler(), text, func() error { cancel(); return <-ended }, nil
}

func encodedBatches(n int) ([][]byte, error) {
	ev := newEvents()
	bodies := make([][]byte, n)
	for i := range bodies {
		m := &warifuv1.BatchClaimRequest{}
		for range allocationBatch {
			at := ev.take(1)
			m.Items = append(m.Items, &warifuv1.ClaimRequest{
				Consumer: consumer, EventId: ev.id(at), AttemptId: uuid.NewString(),
				Digests: []*warifuv1.Digest{{Scheme: digestScheme, Value: ev.appendDigest(nil, at)}},
			})
		}
		var err error
		if bodies[i], err = proto.Marshal(m); err != nil {
			return nil, err
		}
	}
	return bodies, nil
}

// post has the handler answer one batch. The little that it allocates itself
// is spread over the claims of the batch.
func post(ctx context.Context, h http.Handler, key string, body []byte) error {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, warifuv1connect.ClaimServiceBatchClaimProcedure, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/proto")
	r.Header.Set("Authorization", "Bearer "+key)
	w := discard{header: http.Header{}, status: http.StatusOK}
	h.ServeHTTP(&w, r)
	if w.status != http.StatusOK {
		return fmt.Errorf("a batch was answered with status %d", w.status)
	}
	return nil
}

// discard is a response nobody reads.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
