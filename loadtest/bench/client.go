package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/peers"
	warifu "github.com/warifu/warifu/sdk/go"
)

// resultLen is the size of a small result.
const resultLen = 64

// event is what a user of the SDK would make of a message.
func (e *events) event(n uint64) warifu.Event {
	return warifu.Event{
		Consumer: consumer, ID: e.id(n),
		Digests: []warifu.Digest{{Scheme: digestScheme, Value: e.appendDigest(make([]byte, 0, digestLen), n)}},
	}
}

// What a job has made in all, the warm-up included: parents compare it with the
// rows of a database.
const (
	madeClaims      = "claims_made"
	madeCompletions = "completions_made"
)

// made are all events that were taken, each as often as keys says.
func (e *events) made(keys ...string) map[string]float64 {
	out := map[string]float64{}
	for _, key := range keys {
		out[key] = float64(e.next.Load())
	}
	return out
}

// withSDK runs op against the job's server through the Go SDK.
func withSDK(ctx context.Context, j *job, op func(*warifu.Client) measure.Op) (s measure.Sample, err error) {
	client, err := warifu.New(j.Address, warifu.WithAPIKey(j.Key))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return measure.Loop(ctx, j.plan(), op(client))
}

func claimFresh(ctx context.Context, client *warifu.Client, ev *events) (warifu.Grant, error) {
	answer, err := client.Claim(ctx, ev.event(ev.take(1)))
	if err == nil && answer.Decision != warifu.Granted {
		err = fmt.Errorf("a fresh event was answered %s", answer.Decision)
	}
	return answer.Grant, err
}

// sdkClaim claims fresh events.
func sdkClaim(ctx context.Context, j *job) (measure.Sample, error) {
	ev := newEvents()
	s, err := withSDK(ctx, j, func(client *warifu.Client) measure.Op {
		return func(ctx context.Context, _ int) (int, error) {
			_, err := claimFresh(ctx, client, ev)
			return 1, err
		}
	})
	s.Extra = ev.made(madeClaims)
	return s, err
}

// sdkLife claims fresh events and completes them.
func sdkLife(ctx context.Context, j *job) (measure.Sample, error) {
	ev := newEvents()
	done := smallResult()
	s, err := withSDK(ctx, j, func(client *warifu.Client) measure.Op {
		return func(ctx context.Context, _ int) (int, error) {
			grant, err := claimFresh(ctx, client, ev)
			if err != nil {
				return 0, err
			}
			return 1, client.Complete(ctx, grant, done)
		}
	})
	s.Extra = ev.made(madeClaims, madeCompletions)
	return s, err
}

// sdkPrepare completes the job's events, for sdkReplay to claim again.
func sdkPrepare(ctx context.Context, j *job) (s measure.Sample, err error) {
	client, err := warifu.New(j.Address, warifu.WithAPIKey(j.Key))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	ev := &events{seed: j.Seed}
	errs := make([]error, j.Callers)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for n := ev.take(1); n < uint64(j.Keys) && errs[i] == nil; n = ev.take(1) { //nolint:gosec // a count
				var answer warifu.Claim
				if answer, errs[i] = client.Claim(ctx, ev.event(n)); errs[i] == nil {
					errs[i] = client.Complete(ctx, answer.Grant, smallResult())
				}
			}
		})
	}
	wg.Wait()
	return measure.Sample{Ops: int64(j.Keys), Seconds: 1}, errors.Join(errs...)
}

func smallResult() warifu.Completion {
	return warifu.Completion{Body: make([]byte, resultLen), ContentType: "application/json"}
}

// sdkReplay claims events that sdkPrepare completed.
func sdkReplay(ctx context.Context, j *job) (measure.Sample, error) {
	ev := &events{seed: j.Seed}
	return withSDK(ctx, j, func(client *warifu.Client) measure.Op {
		return func(ctx context.Context, _ int) (int, error) {
			answer, err := client.Claim(ctx, ev.event(rand.Uint64N(uint64(j.Keys)))) //nolint:gosec // a count
			if err == nil && (answer.Decision != warifu.Duplicate || len(answer.Stored.Body) != resultLen) {
				err = fmt.Errorf("a completed event was answered %s with %d bytes", answer.Decision, len(answer.Stored.Body))
			}
			return 1, err
		}
	})
}

// unary claims fresh events one by one, with nothing between the generated
// client and the wire.
func unary(ctx context.Context, j *job) (measure.Sample, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	transport.DisableCompression = true
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, j.Callers
	defer transport.CloseIdleConnections()
	rpc := warifuv1connect.NewClaimServiceClient(connect.NewClient(
		connecthttp.NewTransport(&http.Client{Transport: transport}, j.Address, connecthttp.WithCompressors()), bearer(j.Key)))
	ev := newEvents()
	return measure.Loop(ctx, j.plan(), func(ctx context.Context, _ int) (int, error) {
		n := ev.take(1)
		answer, err := rpc.Claim(ctx, &warifuv1.ClaimRequest{
			Consumer: consumer, EventId: ev.id(n), AttemptId: uuid.NewString(),
			Digests: []*warifuv1.Digest{{Scheme: digestScheme, Value: ev.appendDigest(nil, n)}},
		})
		if connect.CodeOf(err) == connect.CodeResourceExhausted {
			return 0, nil // it took its time, and is no claim
		}
		if err == nil && answer.GetDecision() != warifuv1.Decision_DECISION_GRANTED {
			err = fmt.Errorf("a fresh event was answered %s", answer.GetDecision())
		}
		return 1, err
	})
}

func bearer(key string) connect.ClientInterceptor {
	return func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			ctx, info := connect.NewClientContext(ctx)
			info.RequestHeader().Set("Authorization", "Bearer "+key)
			return next(ctx, spec)
		}
	}
}

func redisClaim(ctx context.Context, j *job) (s measure.Sample, err error) {
	ev := newEvents()
	op, end := peers.RedisClaims(j.Address, j.Callers, func() string { return ev.id(ev.take(1)) })
	defer func() { err = errors.Join(err, end()) }()
	return measure.Loop(ctx, j.plan(), op)
}

func natsClaim(ctx context.Context, j *job) (s measure.Sample, err error) {
	ev := newEvents()
	op, end, err := peers.NATSClaims(ctx, j.Address, func() string { return ev.id(ev.take(1)) })
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, end()) }()
	return measure.Loop(ctx, j.plan(), op)
}
