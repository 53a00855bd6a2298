package reliability_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	warifu "github.com/warifu/warifu/sdk/go"
)

// crowd is how many ask at once.
var crowd = []int{2, 3, 8, 16, 33, 64}

// TestSimultaneousClaims: of any number of attempts at one key exactly one is
// granted, the others are in progress, and all of them get its result once it
// is there. One-shot claims are in progress for nobody: the others are
// duplicates at once.
func TestSimultaneousClaims(t *testing.T) {
	t.Parallel()
	p := newHost(t).start()
	for name, claim := range map[string]claimer{
		"generated client":      generated(p, false),
		"generated, one batch":  oneBatch(p),
		"generated, record":     generated(p, true),
		"SDK, batching":         throughSDK(p.sdk(nil), false),
		"SDK, batching, record": throughSDK(p.sdk(nil), true),
		"SDK, no batching":      throughSDK(p.sdk(nil, warifu.WithBatching(warifu.Batching{ItemsMax: 1, Senders: 64})), false),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, _ := p.dial(nil)
			for _, n := range crowd {
				for _, consumer := range []string{regrant, hold} {
					for round := range times(2) {
						s := &stampede{t: t, client: client, key: op{consumer: consumer, event: fmt.Sprintf("%s %d %d", name, n, round)}}
						s.run(n, claim)
					}
				}
			}
		})
	}
}

// claimer sends all operations at the same time.
type claimer func(*testing.T, []op) []reply

// stampede is one key and all who want it.
type stampede struct {
	t      *testing.T
	client api
	key    op
}

func (s *stampede) run(n int, claim claimer) {
	s.t.Helper()
	ops := make([]op, n)
	for i := range ops {
		ops[i] = s.key
		ops[i].attempt, ops[i].body = uuid.NewString(), fmt.Sprint("result of ", i)
	}
	replies := claim(s.t, ops)
	winner, counts := -1, map[string]int{}
	for i, r := range replies {
		counts[r.verdict]++
		if r.verdict == "GRANTED" {
			winner = i
		}
	}
	if winner < 0 {
		s.t.Fatalf("%d claims of one key: %v", n, counts)
	}
	loser := "IN_PROGRESS"
	if replies[winner].recorded {
		loser = "DUPLICATE"
	}
	if counts["GRANTED"] != 1 || counts[loser] != n-1 {
		s.t.Fatalf("%d claims of one key: %v", n, counts)
	}
	s.settle(ops, replies, winner)
}

// settle completes the winner's work, and everybody asks again.
func (s *stampede) settle(ops []op, replies []reply, winner int) {
	s.t.Helper()
	won := ops[winner]
	for i, r := range replies {
		if r.verdict == "DUPLICATE" && (r.body != won.body || r.own) {
			s.t.Errorf("claim %d was replayed %q, the winner recorded %q", i, r.body, won.body)
		}
	}
	if !replies[winner].recorded {
		won.kind, won.fence = completeCall, replies[winner].fence
		if r := s.send(won); r.verdict != "OK" {
			s.t.Fatalf("the winner's completion: %+v", r)
		}
	}
	for i, o := range ops {
		o.kind = claimCall
		if r := s.send(o); r.verdict != "DUPLICATE" || r.body != won.body || r.own != (i == winner) {
			s.t.Fatalf("claim %d after the completion: %+v", i, r)
		}
	}
}

func (s *stampede) send(o op) reply {
	s.t.Helper()
	r, err := send(s.t.Context(), s.client, o)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// together calls f for each operation at the same moment.
func together(t *testing.T, ops []op, f func(context.Context, op) (reply, error)) []reply {
	t.Helper()
	replies := make([]reply, len(ops))
	start := make(chan struct{})
	var all sync.WaitGroup
	for i, o := range ops {
		all.Go(func() {
			<-start
			var err error
			if replies[i], err = f(t.Context(), o); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	all.Wait()
	return replies
}

func generated(p *process, record bool) claimer {
	client, _ := p.dial(nil)
	return func(t *testing.T, ops []op) []reply {
		t.Helper()
		return together(t, ops, func(ctx context.Context, o op) (reply, error) {
			if record {
				o.kind = recordCall
			}
			return send(ctx, client, o)
		})
	}
}

// oneBatch sends all claims in one request, where they are folded in order.
func oneBatch(p *process) claimer {
	client, _ := p.dial(nil)
	return func(t *testing.T, ops []op) []reply {
		t.Helper()
		replies, err := sendBatch(t.Context(), client, ops)
		if err != nil {
			t.Fatal(err)
		}
		if replies[0].verdict != "GRANTED" {
			t.Errorf("the first item of a batch lost to a later one: %+v", replies)
		}
		return replies
	}
}

func throughSDK(c *warifu.Client, record bool) claimer {
	return func(t *testing.T, ops []op) []reply {
		t.Helper()
		return together(t, ops, func(ctx context.Context, o op) (reply, error) {
			e, as := warifu.Event{Consumer: o.consumer, ID: o.event}, warifu.WithAttemptID(o.attempt)
			var answer warifu.Claim
			var err error
			if record {
				answer, err = c.Record(ctx, e, warifu.Completion{Body: []byte(o.body), ContentType: "text/plain"}, as, warifu.WithLease(leaseLength))
			} else {
				answer, err = c.Claim(ctx, e, as, warifu.WithLease(leaseLength))
			}
			return reply{
				verdict: answer.Decision.String(), fence: answer.Grant.Fence, number: answer.Grant.Attempt,
				recorded: answer.Grant.Recorded, own: answer.OwnAttempt, body: short(string(answer.Stored.Body)),
			}, err
		})
	}
}
