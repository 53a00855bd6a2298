package reliability_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	warifu "github.com/warifu/warifu/sdk/go"
)

// lostTimeout is the SDK's patience with one try: what a silent network costs.
const lostTimeout = 300 * time.Millisecond

// lostLine is an SDK client on a network that loses replies, and a plain
// client on one that does not.
type lostLine struct {
	t      *testing.T
	losses *losses
	sdk    *warifu.Client
	plain  api
}

func newLostLine(t *testing.T, p *process, opts ...warifu.Option) *lostLine {
	t.Helper()
	l := &lostLine{t: t, losses: &losses{}}
	opts = append([]warifu.Option{warifu.WithTimeout(lostTimeout), warifu.WithRetry(warifu.RetryPolicy{DelayMin: time.Millisecond})}, opts...)
	l.sdk = p.sdk(func(next http.RoundTripper) http.RoundTripper { return &lossy{next: next, choose: l.losses.choose} }, opts...)
	l.plain, _ = p.dial(nil)
	return l
}

func (l *lostLine) send(o op) reply {
	l.t.Helper()
	r, err := send(l.t.Context(), l.plain, o)
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

// resent demands that the last call was sent as often as it was lost, and once
// more.
func (l *lostLine) resent(lost int) {
	l.t.Helper()
	if got := l.losses.seen(); got != lost+1 {
		l.t.Errorf("%d sends, want %d", got, lost+1)
	}
}

// TestLostReplies loses the reply of every call, in every way, once and twice.
// The SDK sends it again by itself, and its caller sees one grant, one
// completion, one release, as if nothing had happened.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	p := newHost(t).start()
	for how, name := range lossNames {
		for _, losses := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " ", losses), func(t *testing.T) {
				t.Parallel()
				lost := slices.Repeat([]loss{how}, losses)
				// A client each: their budget bounds how often clients resend.
				newLostLine(t, p).life(uuid.NewString(), lost)
				newLostLine(t, p).givenBack(uuid.NewString(), lost)
				newLostLine(t, p).recorded(uuid.NewString(), lost)
			})
		}
	}
}

// life is claim, extend and complete.
func (l *lostLine) life(event string, lost []loss) {
	l.t.Helper()
	g := l.claim(event, lost)
	l.losses.plan(lost...)
	longer, err := l.sdk.Extend(l.t.Context(), g, 2*leaseLength)
	if err != nil || !longer.LeaseUntil.After(g.LeaseUntil) {
		l.t.Errorf("extend: %v", err)
	}
	l.resent(len(lost))
	l.losses.plan(lost...)
	if err := l.sdk.Complete(l.t.Context(), g, warifu.Completion{Body: []byte("done")}); err != nil {
		l.t.Errorf("complete: %v", err)
	}
	l.resent(len(lost))
	l.mustBe(event, reply{verdict: "COMPLETED", attempt: g.AttemptID, number: 1, fence: g.Fence, takeover: "UNSPECIFIED", body: "done"})
}

// claim claims on a line that loses replies; there must be one grant, which is
// the first one.
func (l *lostLine) claim(event string, lost []loss) warifu.Grant {
	l.t.Helper()
	l.losses.plan(lost...)
	answer, err := l.sdk.Claim(l.t.Context(), warifu.Event{Consumer: hold, ID: event}, warifu.WithLease(leaseLength))
	if err != nil || answer.Decision != warifu.Granted {
		l.t.Fatalf("claim: %v %v", answer.Decision, err)
	}
	l.resent(len(lost))
	g := answer.Grant
	l.mustBe(event, reply{verdict: "IN_PROGRESS", attempt: g.AttemptID, number: 1, fence: g.Fence, takeover: "UNSPECIFIED"})
	return g
}

func (l *lostLine) mustBe(event string, want reply) {
	l.t.Helper()
	if got := l.send(op{kind: lookupCall, consumer: hold, event: event}); got != want {
		l.t.Errorf("stored is %+v, want %+v", got, want)
	}
}

// givenBack is claim and release; a second attempt is granted then.
func (l *lostLine) givenBack(event string, lost []loss) {
	l.t.Helper()
	g := l.claim(event, lost)
	l.losses.plan(lost...)
	if err := l.sdk.Release(l.t.Context(), g); err != nil {
		l.t.Errorf("release: %v", err)
	}
	l.resent(len(lost))
	second := l.send(op{kind: claimCall, consumer: hold, event: event, attempt: uuid.NewString()})
	if second.verdict != "GRANTED" || second.number != 2 || second.fence <= g.Fence || second.takeover != "RELEASED" {
		l.t.Errorf("claim after the release: %+v", second)
	}
}

// recorded is claim and outcome in one call: it is granted and recorded, not a
// duplicate of itself.
func (l *lostLine) recorded(event string, lost []loss) {
	l.t.Helper()
	l.losses.plan(lost...)
	answer, err := l.sdk.Record(l.t.Context(), warifu.Event{Consumer: hold, ID: event}, warifu.Completion{Body: []byte("at once")})
	if err != nil || answer.Decision != warifu.Granted || !answer.Grant.Recorded || !answer.Accepted {
		l.t.Fatalf("record: %+v %v", answer, err)
	}
	l.resent(len(lost))
	l.mustBe(event, reply{
		verdict: "COMPLETED", attempt: answer.Grant.AttemptID, number: 1, fence: answer.Grant.Fence, takeover: "UNSPECIFIED", body: "at once",
	})
}

// TestLostForNow: when the SDK has given up, its error says that nobody knows,
// and the caller's own resend with the attempt ID it kept gets the grant that
// was made the first time.
func TestLostForNow(t *testing.T) {
	t.Parallel()
	p := newHost(t).start()
	for how, name := range lossNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLostLine(t, p, warifu.WithRetry(warifu.RetryPolicy{Tries: 1}))
			event, attempt := uuid.NewString(), uuid.NewString()
			claim := func() (warifu.Claim, error) {
				return l.sdk.Claim(t.Context(), warifu.Event{Consumer: hold, ID: event}, warifu.WithAttemptID(attempt), warifu.WithLease(leaseLength))
			}
			l.losses.plan(how)
			if answer, err := claim(); !errors.Is(err, warifu.ErrOutcomeUnknown) || answer.Decision != warifu.Undecided {
				t.Fatalf("a lost reply: %v %v", answer.Decision, err)
			}
			made := l.send(op{kind: lookupCall, consumer: hold, event: event})
			again, err := claim()
			if err != nil || again.Decision != warifu.Granted || again.Grant.Fence != made.fence || again.Grant.Attempt != 1 {
				t.Errorf("the resend: %+v %v, want the grant that was made: %+v", again, err, made)
			}
			rival := l.send(op{kind: claimCall, consumer: hold, event: event, attempt: uuid.NewString()})
			if rival.verdict != "IN_PROGRESS" {
				t.Errorf("a rival: %+v", rival)
			}
		})
	}
}

// TestCallerLeaves: a grant that reaches nobody, because its caller had left,
// is found again by its attempt ID.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	p := newHost(t).start()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	wrap := func(next http.RoundTripper) http.RoundTripper {
		return &lossy{next: next, choose: func(*http.Request) loss {
			if ctx.Err() != nil {
				return keep
			}
			leave()
			return silent
		}}
	}
	client, _ := p.dial(wrap)
	o := op{kind: claimCall, consumer: regrant, event: "left", attempt: uuid.NewString()}
	if r, err := send(ctx, client, o); err != nil || r.verdict != unknown {
		t.Fatalf("a caller that left: %+v %v", r, err)
	}
	made, err := send(t.Context(), client, op{kind: lookupCall, consumer: regrant, event: "left"})
	if err != nil || made.verdict != "IN_PROGRESS" {
		t.Fatalf("%+v %v", made, err)
	}
	if again, err := send(t.Context(), client, o); err != nil || again.fence != made.fence || again.verdict != "GRANTED" {
		t.Errorf("the resend: %+v %v, want fence %d", again, err, made.fence)
	}
}
