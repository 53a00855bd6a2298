package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// nullStore grants everything and keeps nothing: what is left is the server.
type nullStore struct{ storage.Store }

func (nullStore) InsertOrGet(_ context.Context, reqs []claim.Request) ([]storage.Found, error) {
	now := claim.FromTime(time.Now())
	out := make([]storage.Found, len(reqs))
	for i := range reqs {
		out[i] = storage.Found{Record: claim.Fresh(&reqs[i], now, 0), Now: now}
	}
	return out, nil
}

// doneStore answers every claim with a completed record of another attempt.
type doneStore struct{ storage.Store }

var doneResult = &claim.Completion{Outcome: claim.Succeeded, Body: make([]byte, 64)}

func (doneStore) InsertOrGet(_ context.Context, reqs []claim.Request) ([]storage.Found, error) {
	now := claim.FromTime(time.Now())
	out := make([]storage.Found, len(reqs))
	for i := range reqs {
		rec := claim.Fresh(&reqs[i], now, 0)
		rec.AttemptID, rec.State = claim.AttemptID{1}, claim.Completed
		rec.Completion, rec.EndedAt = doneResult, now
		out[i] = storage.Found{Record: rec, Now: now}
	}
	return out, nil
}

func benchServer(b *testing.B, store storage.Store) (*Server, string, *tenant.Tenant) {
	b.Helper()
	text, key := tenant.NewKey("bench")
	table := mustTable(b, key)
	s, err := New(Config{Store: store, Directory: tenant.NewDirectory(table), Clock: time.Now})
	if err != nil {
		b.Fatal(err)
	}
	runUntilCleanup(b, s)
	shop, _ := table.Tenant("shop")
	return s, text, shop
}

// BenchmarkBatchClaim is the work on one batch of 500, decoding and encoding
// left out.
func BenchmarkBatchClaim(b *testing.B) {
	for name, store := range map[string]storage.Store{"fresh": nullStore{}, "replay": doneStore{}} {
		b.Run(name, func(b *testing.B) {
			s, _, shop := benchServer(b, store)
			m := &warifuv1.BatchClaimRequest{}
			for i := range claim.BatchItemsMax {
				m.Items = append(m.Items, &warifuv1.ClaimRequest{
					Consumer: "orders", EventId: fmt.Sprintf("order-%020d", i), AttemptId: fuzzAttempt,
					Digests: []*warifuv1.Digest{{Scheme: "raw-sha256", Value: make([]byte, 32)}},
				})
			}
			call := &interceptor.Call{Context: b.Context(), Began: time.Now(), Principal: &tenant.Principal{Tenant: shop}}
			b.ReportAllocs()
			for b.Loop() {
				res, err := (&claims{s}).BatchClaim(call, m)
				if err != nil || res.GetResults()[0].GetClaim() == nil {
					b.Fatal(res, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*claim.BatchItemsMax), "ns/item")
		})
	}
}

// emptyHandler answers with the same messages and does nothing.
type emptyHandler struct {
	warifuv1connect.UnimplementedClaimServiceHandler
}

func (emptyHandler) Claim(_ context.Context, m *warifuv1.ClaimRequest) (*warifuv1.ClaimResponse, error) {
	reply := &claimReply{}
	reply.fill(m, &claim.Request{}, &claim.Answer{Decision: claim.Granted, Fence: 1, Lease: time.Second, ExpiresAt: 1}, &wireTimes{}, nil)
	return &reply.response, nil
}

func emptyMux() http.Handler {
	empty := connect.NewServer()
	warifuv1connect.RegisterClaimServiceHandler(empty, emptyHandler{})
	mux := http.NewServeMux()
	connecthttp.Mount(mux, empty, connecthttp.WithCompressors())
	return mux
}

// BenchmarkHandler is the handler's work on a claim alone and in a batch of 256,
// without a network and a store, and an empty handler's on the former.
func BenchmarkHandler(b *testing.B) {
	s, text, _ := benchServer(b, nullStore{})
	one := &warifuv1.ClaimRequest{
		Consumer: "orders", EventId: "order-00000000000000000001", AttemptId: fuzzAttempt,
		Digests: []*warifuv1.Digest{{Scheme: "raw-sha256", Value: make([]byte, 32)}},
	}
	many := &warifuv1.BatchClaimRequest{}
	for i := range 256 {
		item := proto.CloneOf(one)
		item.EventId = fmt.Sprintf("order-%020d", i)
		many.Items = append(many.Items, item)
	}
	for _, row := range []struct {
		name      string
		handler   http.Handler
		procedure string
		message   proto.Message
		claims    int
	}{
		{"claim", s.Handler(), warifuv1connect.ClaimServiceClaimProcedure, one, 1},
		{"empty", emptyMux(), warifuv1connect.ClaimServiceClaimProcedure, one, 1},
		{"batch", s.Handler(), warifuv1connect.ClaimServiceBatchClaimProcedure, many, 256},
	} {
		body, err := proto.Marshal(row.message)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(row.name, func(b *testing.B) { // per claim
			b.ReportAllocs()
			for n := b.N; n > 0; n -= row.claims {
				ctx, cancel := context.WithCancel(b.Context()) // as net/http makes one for each request
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, row.procedure, bytes.NewReader(body))
				r.Header.Set("Content-Type", "application/proto")
				r.Header.Set("Authorization", "Bearer "+text)
				w := discard{header: http.Header{}, status: http.StatusOK}
				row.handler.ServeHTTP(&w, r)
				if cancel(); w.status != http.StatusOK {
					b.Fatal(w.status)
				}
			}
		})
	}
}

// discard is a response nobody reads.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkUnary is budget P3 without a store: a claim over HTTP by 64 callers,
// against an empty handler without interceptors.
func BenchmarkUnary(b *testing.B) {
	s, text, _ := benchServer(b, nullStore{})
	mux := emptyMux()
	for _, side := range []struct {
		name    string
		handler http.Handler
	}{{"claim", s.Handler()}, {"empty", mux}, {"claim again", s.Handler()}, {"empty again", mux}} {
		b.Run(side.name, func(b *testing.B) { benchUnary(b, side.handler, text) })
	}
}

func benchUnary(b *testing.B, h http.Handler, key string) {
	b.Helper()
	ln, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := NewHTTPServer(h)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	b.Cleanup(func() {
		tr.CloseIdleConnections()
		_ = srv.Close() // the benchmark is over either way
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			b.Error(err)
		}
	})
	c := warifuv1connect.NewClaimServiceClient(connect.NewClient(
		connecthttp.NewTransport(&http.Client{Transport: tr}, "http://"+ln.Addr().String(), connecthttp.WithCompressors()),
		func(next connect.ClientFunc) connect.ClientFunc {
			return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
				info, _ := connect.CallInfoForClientContext(ctx)
				info.RequestHeader().Set("Authorization", "Bearer "+key)
				return next(ctx, spec)
			}
		}))
	var n atomic.Int64
	b.SetParallelism(32) // 64 callers on 2 cores
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			m := &warifuv1.ClaimRequest{Consumer: "orders", EventId: fmt.Sprint(n.Add(1)), AttemptId: fuzzAttempt}
			if _, err := c.Claim(b.Context(), m); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
