package warifu

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// hold makes the fake keep every BatchClaim until the returned function is
// called.
func hold(f *fake) (letGo func()) {
	gate := make(chan struct{})
	f.before = func(_ context.Context, rpc string) error {
		if rpc == "BatchClaim" {
			<-gate
		}
		return nil
	}
	return sync.OnceFunc(func() { close(gate) })
}

func TestConcurrentCallsTravelTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const callers = 500
		c, f := setup(t)
		letGo := hold(f)
		answers, errs := make([]Claim, callers), make([]error, callers)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() { answers[i], errs[i] = c.Claim(t.Context(), event(strconv.Itoa(i))) })
		}
		synctest.Wait()
		letGo()
		wg.Wait()
		fences := map[int64]bool{}
		for i := range callers {
			if errs[i] != nil || answers[i].Decision != Granted || answers[i].Grant.EventID != strconv.Itoa(i) {
				t.Fatalf("caller %d: %+v, %v", i, answers[i], errs[i])
			}
			fences[answers[i].Grant.Fence] = true
		}
		if len(fences) != callers {
			t.Errorf("%d different fences, want %d", len(fences), callers)
		}
		// Four senders took what was there first; the rest waited together.
		if got := f.rpcs("BatchClaim"); got > 2*sendersDefault {
			t.Errorf("%d calls took %d requests, want at most %d", callers, got, 2*sendersDefault)
		}
	})
}

func TestLoneCallIsNotHeldBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := setup(t)
		began := time.Now()
		if _, err := c.Claim(t.Context(), event("e")); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("a lone call took %s of a clock that only waiting moves", d)
		}
	})
}

// A sender that ends and a call that comes then must not miss each other.
func TestNoCallIsLeftBehind(t *testing.T) {
	t.Parallel()
	c, _ := setup(t, WithBatching(Batching{Senders: 1}))
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 200 {
				if _, err := c.Claim(t.Context(), event(fmt.Sprintf("%d-%d", w, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Messages are used again: nothing of one claim may come with the next.
func TestMessagesAreFilledAnew(t *testing.T) {
	t.Parallel()
	var used, fresh claimItem
	full := digested("first", "content")
	full.Time = time.Unix(1, 0)
	s := settings([]ClaimOption{WithLease(time.Hour), WithWait(time.Second)})
	used.fill(&full, &s, (&Completion{}).message(false))
	used.forget()
	plain, bare := event("second"), settings(nil)
	used.fill(&plain, &bare, nil)
	fresh.fill(&plain, &bare, nil)
	if !proto.Equal(&used.request, &fresh.request) {
		t.Errorf("%v, want %v", &used.request, &fresh.request)
	}
}

func TestItemsAreAnsweredOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t, WithBatching(Batching{Senders: 1}))
		f.item = func(id string) *warifuv1.ItemError {
			if id != "bad" {
				return nil
			}
			return &warifuv1.ItemError{Code: "invalid_argument", Message: "no good", Info: &warifuv1.ErrorInfo{
				Reason: warifuv1.Reason_REASON_INVALID_FIELD, Field: "items[1].event_id", Limit: "1-512 bytes", RequestId: "r", NotApplied: true,
			}}
		}
		letGo := hold(f)
		ids := []string{"first", "a", "bad", "b"}
		errs := make([]error, len(ids))
		var wg sync.WaitGroup
		for i, id := range ids {
			wg.Go(func() { _, errs[i] = c.Claim(t.Context(), event(id)) })
			synctest.Wait() // in this order: the first travels alone
		}
		letGo()
		wg.Wait()
		for i, id := range ids {
			if (errs[i] != nil) != (id == "bad") {
				t.Errorf("%s: %v", id, errs[i])
			}
		}
		e, ok := errors.AsType[*Error](errs[2])
		if !ok || !errors.Is(e, ErrInvalid) || errors.Is(e, ErrOutcomeUnknown) ||
			e.Field != "items[1].event_id" || e.Limit != "1-512 bytes" || e.RequestID != "r" || e.Op != "claim" {
			t.Errorf("error of the bad item: %#v", e)
		}
		if got := f.attempts("bad"); len(got) != 1 {
			t.Errorf("a refused item was sent %d times", len(got))
		}
	})
}

func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		callers int
		body    int
		items   int
		want    int // the largest batch
	}{
		{"by items", 50, 0, 10, 10},
		{"by bytes", 50, 100 << 10, 500, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t, WithBatching(Batching{Senders: 1, ItemsMax: tt.items}))
				letGo := hold(f)
				done := Completion{Body: make([]byte, tt.body)}
				var wg sync.WaitGroup
				for i := range tt.callers {
					wg.Go(func() {
						if _, err := c.Record(t.Context(), event(strconv.Itoa(i)), done); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				letGo()
				wg.Wait()
				largest, sum := 0, 0
				for _, n := range f.mu.batches {
					largest, sum = max(largest, n), sum+n
				}
				if largest != tt.want && largest != tt.want-1 || sum != tt.callers {
					t.Errorf("batches %v: largest %d, want %d; %d in all", f.mu.batches, largest, tt.want, sum)
				}
			})
		})
	}
}

func TestEstimatesAreNeverBelowTheEncodedSize(t *testing.T) {
	t.Parallel()
	var item claimItem
	e := Event{
		Consumer: strings.Repeat("c", 128), ID: strings.Repeat("e", 512), Time: time.Unix(1<<33, 999999999),
		Digests: make([]Digest, 8),
	}
	for i := range e.Digests {
		e.Digests[i] = Digest{Scheme: strings.Repeat("s", 64), Value: make([]byte, 64)}
	}
	done := Completion{Body: make([]byte, 1000), ContentType: strings.Repeat("t", 255), Metadata: map[string]string{"a": "b", "c": ""}}
	s := settings([]ClaimOption{WithLease(time.Hour + 1), WithWait(time.Second + 1)})
	item.fill(&e, &s, done.message(false))
	if got, est := proto.Size(&item.request)+8, sizeOfClaim(&e, &s, item.request.GetRecord()); got > est {
		t.Errorf("claim: %d bytes, estimated %d", got, est)
	}
	g := Grant{Consumer: e.Consumer, EventID: e.ID, AttemptID: s.attemptID, Fence: 1 << 62}
	r := &warifuv1.CompleteRequest{Consumer: g.Consumer, EventId: g.EventID, AttemptId: g.AttemptID, Fence: g.Fence, Completion: done.message(true)}
	if got, est := proto.Size(r)+8, sizeOfGrant(&g)+sizeOfCompletion(r.GetCompletion()); got > est {
		t.Errorf("complete: %d bytes, estimated %d", got, est)
	}
}

func TestCallerLeavesAtOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		sent       bool
		own        bool
		notApplied bool
		state      warifuv1.State // of the event in the end
	}{
		{name: "queued", notApplied: true, state: warifuv1.State_STATE_ABSENT},
		{name: "sent", sent: true, state: warifuv1.State_STATE_RELEASED},
		{name: "sent with the caller's attempt ID", sent: true, own: true, state: warifuv1.State_STATE_IN_PROGRESS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, callerLeaves(tt.sent, tt.own, tt.notApplied, tt.state))
		})
	}
}

func callerLeaves(sent, own, notApplied bool, state warifuv1.State) func(*testing.T) {
	return func(t *testing.T) {
		c, f := setup(t, WithBatching(Batching{Senders: 1}))
		letGo := hold(f)
		var wg sync.WaitGroup
		defer wg.Wait()
		if !sent { // keep the only sender busy
			wg.Go(func() {
				if _, err := c.Claim(t.Context(), event("other")); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var opts []ClaimOption
		if own {
			opts = append(opts, WithAttemptID("7d444840-9dc0-4bdf-8b72-1f0a3b6f1d11"))
		}
		left := make(chan error, 1)
		go func() {
			_, err := c.Claim(ctx, event("e"), opts...)
			left <- err
		}()
		synctest.Wait()
		cancel()
		err := <-left // though the server has not answered
		e, ok := errors.AsType[*Error](err)
		if !ok || !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
			t.Errorf("error: %v", err)
		} else if e.NotApplied != notApplied || errors.Is(err, ErrOutcomeUnknown) == notApplied {
			t.Errorf("not applied: %v, want %v: %v", e.NotApplied, notApplied, err)
		}
		letGo()
		wg.Wait()
		synctest.Wait()
		if got := f.record("e").stateOf(); got != state {
			t.Errorf("the event is %s, want %s", got, state)
		}
	}
}

func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t, WithBatching(Batching{Senders: 1}), WithRetry(RetryPolicy{Tries: 1}))
		letGo := hold(f)
		defer letGo()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { _, _ = c.Claim(ctx, event("first")) })
		synctest.Wait()
		for range queueMax {
			if !c.claims.enqueue(&call[claimItem, *warifuv1.BatchClaimResult]{done: make(chan struct{}, 1)}) {
				t.Fatal("the queue is full too early")
			}
		}
		_, err := c.Claim(ctx, event("one too many"))
		if !errors.Is(err, ErrOverloaded) || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("error: %v", err)
		}
		c.claims.mu.Lock()
		c.claims.mu.queue = nil
		c.claims.mu.Unlock()
	})
}

func TestOneItemCannotSpoilTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		bad := "\xff"
		big := Completion{Metadata: map[string]string{"k": strings.Repeat("x", 1<<20)}}
		for i, err := range []error{
			second(c.Claim(t.Context(), event(bad))),
			second(c.Claim(t.Context(), Event{Consumer: bad, ID: "e"})),
			second(c.Claim(t.Context(), event("e"), WithAttemptID(bad))),
			second(c.Claim(t.Context(), Event{Consumer: "c", ID: "e", Digests: []Digest{{Scheme: bad}}})),
			second(c.Record(t.Context(), event("e"), Completion{ContentType: bad})),
			second(c.Record(t.Context(), event("e"), Completion{Metadata: map[string]string{"a": bad}})),
			second(c.Record(t.Context(), event("e"), big)),
			c.Complete(t.Context(), Grant{EventID: bad}, Completion{}),
			c.Complete(t.Context(), Grant{}, Completion{Metadata: map[string]string{bad: ""}}),
			second(c.Extend(t.Context(), Grant{Consumer: bad}, 0)),
			c.Release(t.Context(), Grant{AttemptID: bad}),
			second(c.Lookup(t.Context(), "c", bad)),
		} {
			e, ok := errors.AsType[*Error](err)
			if !ok || !errors.Is(err, ErrInvalid) || !e.NotApplied || e.Limit == "" {
				t.Errorf("%d: %v", i, err)
			}
		}
		if len(f.mu.rpcs) != 0 {
			t.Errorf("something was sent: %v", f.mu.rpcs)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestRepliesThatMissItemsAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, f := setup(t)
		f.edit = func(m proto.Message) {
			if r, ok := m.(*warifuv1.BatchClaimResponse); ok {
				r.Results = append(r.Results, r.GetResults()[0])
			}
		}
		_, err := c.Claim(t.Context(), event("e"))
		if !errors.Is(err, ErrReply) || !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("error: %v", err)
		}
	})
}

func TestTenThousandCallersOnOneEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const callers = 10_000
		c, _ := setup(t)
		var (
			wg sync.WaitGroup
			mu sync.Mutex
		)
		ran, got := 0, map[string]int{}
		for range callers {
			wg.Go(func() {
				r, err := c.Do(t.Context(), event("hot"), func(context.Context, Grant) (Completion, error) {
					mu.Lock()
					defer mu.Unlock()
					ran++
					return Completion{Body: []byte("done")}, nil
				})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && string(r.Body) == "done" && r.Accepted && r.Applied != r.Replayed:
					got[fmt.Sprintf("applied %v", r.Applied)]++
				case errors.Is(err, ErrInProgress):
					got["in progress"]++
				default:
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		wg.Wait()
		if ran != 1 || got["applied true"] != 1 {
			t.Errorf("ran %d times: %v", ran, got)
		}
	})
}
