package interceptor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// TestBounded: a bounded context is what context.WithDeadline would be, whether
// its channel was asked for before it ends or not.
func TestBounded(t *testing.T) {
	t.Parallel()
	type key struct{}
	for _, row := range []struct {
		name string
		end  func(b *bounded, leave context.CancelFunc)
		want error
	}{
		{"deadline", func(*bounded, context.CancelFunc) { time.Sleep(time.Minute) }, context.DeadlineExceeded},
		{"caller leaves", func(_ *bounded, leave context.CancelFunc) { leave() }, context.Canceled},
		{"call is over", func(b *bounded, _ context.CancelFunc) { b.stop() }, context.Canceled},
	} {
		for _, asked := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				parent, leave := context.WithCancel(context.WithValue(t.Context(), key{}, "kept"))
				defer leave()
				b := &bounded{Context: parent, end: time.Now().Add(time.Minute)}
				defer b.stop()
				if asked && ended(b) {
					t.Errorf("%s: ended before its end", row.name)
				}
				if err := b.Err(); err != nil || b.Value(key{}) != "kept" {
					t.Errorf("%s: before: %v, %v", row.name, err, b.Value(key{}))
				}
				row.end(b, leave)
				synctest.Wait()
				first := b.Err()
				if !ended(b) || !errors.Is(first, row.want) || !errors.Is(b.Err(), row.want) || b.Value(key{}) != "kept" {
					t.Errorf("%s, asked %v: ended %v with %v, then %v, want %v", row.name, asked, ended(b), first, b.Err(), row.want)
				}
			})
		}
	}
}

func ended(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// TestDeadlineEndsWaits: whoever waits within a call hears of the server's
// maximum at that moment, on the call's context and on one made from it.
func TestDeadlineEndsWaits(t *testing.T) {
	t.Parallel()
	waits := map[string]func(ctx context.Context) (context.Context, context.CancelFunc){
		"own":     func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} },
		"derived": context.WithCancel,
		"longer": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
	}
	for name, wait := range waits {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var late error
			_, err := call(t.Context(), func(ctx context.Context, _ connect.Spec, _ connect.ServerStream) error {
				within, cancel := wait(ctx)
				defer cancel()
				<-within.Done()
				late = ctx.Err()
				return Ended(within.Err())
			}, RequestID(table(Method{}), time.Now), Deadline(40*time.Second))
			if took := time.Since(began); took != 40*time.Second || !errors.Is(late, context.DeadlineExceeded) || reason(err) != warifuv1.Reason_REASON_DEADLINE_EXCEEDED {
				t.Errorf("%s: ended after %v with %v, %v", name, took, late, err)
			}
		})
	}
}

// TestDeadlineEndsWithCall: nothing goes on in the name of a call that is over.
func TestDeadlineEndsWithCall(t *testing.T) {
	t.Parallel()
	keep := make(chan context.Context, 1)
	_, err := call(t.Context(), func(ctx context.Context, _ connect.Spec, _ connect.ServerStream) error {
		keep <- ctx
		return nil
	}, RequestID(table(Method{}), time.Now), Deadline(time.Minute))
	kept := <-keep
	if err != nil || !errors.Is(kept.Err(), context.Canceled) || !ended(kept) {
		t.Errorf("%v; afterwards %v", err, kept.Err())
	}
}
