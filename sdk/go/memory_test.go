package warifu

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
)

// lateRPC is a transport that looks at a message when the gate opens.
type lateRPC struct {
	warifuv1connect.ClaimServiceClient
	gate chan struct{}
}

func (l *lateRPC) BatchClaim(ctx context.Context, r *warifuv1.BatchClaimRequest) (*warifuv1.BatchClaimResponse, error) {
	<-l.gate
	return l.ClaimServiceClient.BatchClaim(ctx, r)
}

func (l *lateRPC) BatchComplete(ctx context.Context, r *warifuv1.BatchCompleteRequest) (*warifuv1.BatchCompleteResponse, error) {
	<-l.gate
	return l.ClaimServiceClient.BatchComplete(ctx, r)
}

// A caller whose context ends has its memory back, whatever is still on its way.
func TestCallersMemoryIsItsOwnAgain(t *testing.T) {
	t.Parallel()
	const attempt = "7d444840-9dc0-4bdf-8b72-1f0a3b6f1d11"
	for name, call := range map[string]func(context.Context, *Client, Grant, *Event, *Completion) error{
		"claim": func(ctx context.Context, c *Client, _ Grant, e *Event, _ *Completion) error {
			return second(c.Claim(ctx, *e, WithAttemptID(attempt)))
		},
		"record": func(ctx context.Context, c *Client, _ Grant, e *Event, done *Completion) error {
			return second(c.Record(ctx, *e, *done, WithAttemptID(attempt)))
		},
		"complete": func(ctx context.Context, c *Client, g Grant, _ *Event, done *Completion) error {
			return c.Complete(ctx, g, *done)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				e, done := digested("e", "content"), Completion{Body: []byte("body"), Metadata: map[string]string{"k": "v"}}
				digest := bytes.Clone(e.Digests[0].Value)
				held := Claim{}
				if name == "complete" {
					var err error
					if held, err = c.Claim(t.Context(), e, WithAttemptID(attempt)); err != nil {
						t.Fatal(err)
					}
				}
				late := &lateRPC{c.rpc, make(chan struct{})}
				c.rpc = late
				ctx, cancel := context.WithCancel(t.Context())
				left := make(chan error, 1)
				go func() { left <- call(ctx, c, held.Grant, &e, &done) }()
				synctest.Wait()
				cancel()
				if err := <-left; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("error: %v", err)
				}
				clear(e.Digests[0].Value)
				clear(done.Body)
				done.Metadata["k"], done.Metadata["other"] = "changed", "changed"
				close(late.gate)
				synctest.Wait()
				rec := f.record("e")
				if !bytes.Equal(rec.digest, digest) {
					t.Errorf("digest %x, want %x", rec.digest, digest)
				}
				if kept := rec.done; name != "claim" && (string(kept.GetResult()) != "body" || len(kept.GetMetadata()) != 1 || kept.GetMetadata()["k"] != "v") {
					t.Errorf("kept: %v", kept)
				}
			})
		})
	}
}

// Digests share one buffer, which is used again with the message.
func TestDigestsDoNotRunIntoEachOther(t *testing.T) {
	t.Parallel()
	var item claimItem
	s := settings(nil)
	for _, values := range [][]string{{"first", "second"}, {"a", "longer than all before together", "b"}, {"last"}} {
		e := event("e")
		for _, v := range values {
			e.Digests = append(e.Digests, Digest{Scheme: "s-" + v, Value: []byte(v)})
		}
		item.fill(&e, &s, nil)
		ds := item.request.GetDigests()
		if len(ds) != len(values) {
			t.Fatalf("%d digests, want %d", len(ds), len(values))
		}
		for n, v := range values {
			if string(ds[n].GetValue()) != v || ds[n].GetScheme() != "s-"+v || cap(ds[n].GetValue()) != len(v) {
				t.Errorf("digest %d of %q: %v", n, values, ds[n])
			}
		}
		item.forget()
	}
}
