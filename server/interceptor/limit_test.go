package interceptor

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/overload"
)

func limiterOf(tb testing.TB, maxInFlight int) *Limiter {
	tb.Helper()
	l, err := NewLimiter(maxInFlight)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// pipe is a unary call's stream: a request comes when the test lets it, and an
// answer is taken when the test lets it.
type pipe struct {
	request, answer chan struct{} // nil: at once
	err             error         // of Receive
}

func (p *pipe) Receive(any) error {
	if p.request != nil {
		<-p.request
	}
	return p.err
}

func (p *pipe) SendHeaders() error { return nil }

func (p *pipe) Send(any) error {
	if p.answer != nil {
		<-p.answer
	}
	return nil
}

// limited runs calls through Limit alone.
type limited struct {
	t       *testing.T
	limiter *Limiter
	calls   sync.WaitGroup
}

func newLimited(t *testing.T, slots int) *limited {
	t.Helper()
	return &limited{t: t, limiter: limiterOf(t, slots)}
}

// do is one unary call whose handler receives, works, and sends.
func (l *limited) do(ctx context.Context, m Method, stream connect.ServerStream, work func(*Call) error) error {
	s := connect.NewServer(RequestID(table(m), time.Now), Recover(slog.New(slog.DiscardHandler)), Limit(l.limiter))
	s.Register(connect.Method{Spec: connect.Spec{Procedure: procedure}, Handler: func(ctx context.Context, _ connect.Spec, stream connect.ServerStream) error {
		if err := stream.Receive(nil); err != nil {
			return err
		}
		call := CallFrom(ctx)
		call.About("orders", "1")
		if err := work(call); err != nil {
			return err
		}
		return stream.Send(nil)
	}})
	return s.Call(ctx, procedure, &connect.CallInfo{}, stream)
}

// start runs a call until everything stands still.
func (l *limited) start(m Method, stream connect.ServerStream, work func(*Call) error) {
	l.calls.Go(func() {
		if err := l.do(context.Background(), m, stream, work); err != nil {
			l.t.Errorf("a call that had a slot: %v", err)
		}
	})
	synctest.Wait()
}

func (l *limited) want(when string, inFlight int64, working int) {
	l.t.Helper()
	if got, slots := l.limiter.InFlight(), l.limiter.Working(); got != inFlight || slots != working {
		l.t.Errorf("%s: %d have room and %d a slot, want %d and %d", when, got, slots, inFlight, working)
	}
}

var (
	claims   = Method{Name: "Claim", Class: overload.Claim}
	finishes = Method{Name: "Complete", Class: overload.Finish}
)

func hold(until <-chan struct{}) func(*Call) error {
	return func(*Call) error {
		<-until
		return nil
	}
}

// TestLimit: where there is no room calls are refused at once, with a time to
// come back and the promise that nothing was applied; a fifth of the room is for
// calls that finish work.
func TestLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slots = 5
		l := newLimited(t, slots)
		release := make(chan struct{})
		demand := func(when string, m Method, want warifuv1.Reason) {
			t.Helper()
			began := time.Now()
			err := l.do(t.Context(), m, &pipe{}, func(*Call) error { return nil })
			if reason(err) != want || time.Since(began) > 0 {
				t.Errorf("%s: %v after %v, want %v at once", when, err, time.Since(began), want)
			}
			if f := fault.Of(err); want >= 0 && (!f.NotApplied() || f.RetryAfter() < 100*time.Millisecond) {
				t.Errorf("%s: not applied %v, retry after %v", when, f.NotApplied(), f.RetryAfter())
			}
		}
		for range slots - 1 {
			l.start(claims, &pipe{}, hold(release))
		}
		demand("a claim above the bound", claims, warifuv1.Reason_REASON_OVERLOADED)
		demand("a list above the bound", Method{}, warifuv1.Reason_REASON_OVERLOADED)
		demand("a completion above it", finishes, -1)
		l.start(finishes, &pipe{}, hold(release))
		demand("a completion above all", finishes, warifuv1.Reason_REASON_OVERLOADED)
		if all, of := l.limiter.Shed(), l.limiter.ShedOf(overload.Finish); all != 3 || of != 1 {
			t.Errorf("%d shed, %d of them completions; want 3 and 1", all, of)
		}
		close(release)
		l.calls.Wait()
		l.want("after all have ended", 0, 0)
	})
}

// TestSlotIsForWork: a call has a slot from when its request is read until its
// answer is sent, unless it parks.
func TestSlotIsForWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, 100)
		p := &pipe{request: make(chan struct{}), answer: make(chan struct{})}
		work, park := make(chan struct{}), make(chan struct{})
		l.start(claims, p, hold(work))
		l.want("while the request drips in", 1, 0)
		close(p.request)
		synctest.Wait()
		l.want("while it is worked on", 1, 1)
		close(work)
		synctest.Wait()
		l.want("while the answer is read", 1, 0)
		close(p.answer)
		l.calls.Wait()
		l.want("after it", 0, 0)
		l.start(claims, &pipe{}, func(c *Call) error {
			c.Park()
			c.Park()
			<-park
			return nil
		})
		l.want("while it is parked", 0, 0)
		close(park)
		l.calls.Wait()
		l.want("after it was parked", 0, 0)
	})
}

// TestNothingLeaks: however a call ends, it holds nothing afterwards.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		stream pipe
		work   func(*Call) error
		want   warifuv1.Reason
	}{
		"answered":         {work: func(*Call) error { return nil }, want: -1},
		"refused":          {work: func(*Call) error { return fault.Invalid("lease", "1 s-24 h") }, want: warifuv1.Reason_REASON_INVALID_FIELD},
		"panic":            {work: func(*Call) error { panic("boom") }, want: warifuv1.Reason_REASON_INTERNAL},
		"parked and panic": {work: func(c *Call) error { c.Park(); panic("boom") }, want: warifuv1.Reason_REASON_INTERNAL},
		"broken request":   {stream: pipe{err: io.ErrUnexpectedEOF}, want: warifuv1.Reason_REASON_INTERNAL},
	} {
		l := newLimited(t, 100)
		if err := l.do(t.Context(), claims, &row.stream, row.work); reason(err) != row.want {
			t.Errorf("%s: %v, want %v", name, err, row.want)
		}
		l.want(name, 0, 0)
	}
}

// TestStreamsAreApart: a stream that is open for hours has neither room nor a
// slot, and the stream that the transport made; only a few are let in.
func TestStreamsAreApart(t *testing.T) {
	t.Parallel()
	l := limiterOf(t, 100)
	own := &pipe{}
	s := connect.NewServer(RequestID(table(Method{}), time.Now), Limit(l))
	s.Register(connect.Method{Spec: connect.Spec{Procedure: procedure, StreamType: connect.StreamTypeBidi},
		Handler: func(_ context.Context, _ connect.Spec, stream connect.ServerStream) error {
			if err := stream.Receive(nil); err != nil || stream != connect.ServerStream(own) {
				t.Errorf("stream %T, %v", stream, err)
			}
			if l.InFlight() != 0 || l.Working() != 0 {
				t.Errorf("%d have room and %d a slot", l.InFlight(), l.Working())
			}
			return nil
		}})
	for range 2 * streamsMax { // one after the other
		if err := s.Call(t.Context(), procedure, &connect.CallInfo{}, own); err != nil {
			t.Fatal(err)
		}
	}
	l.streams.Add(streamsMax)
	if err := s.Call(t.Context(), procedure, &connect.CallInfo{}, own); err == nil {
		t.Error("one more than may be open is let in")
	}
}

// TestQueueRefusals: who waits for a slot is told why there is none: not in
// time, too late, or gone. In each case nothing was applied and the handler did
// not run.
func TestQueueRefusals(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want warifuv1.Reason
		took time.Duration
	}{
		{"no slot in time", context.WithCancel, warifuv1.Reason_REASON_OVERLOADED, overload.QueueWaitDefault},
		{"deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Millisecond)
		}, warifuv1.Reason_REASON_DEADLINE_EXCEEDED, 10 * time.Millisecond},
		{"caller left", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, leave := context.WithCancel(ctx)
			time.AfterFunc(20*time.Millisecond, leave)
			return ctx, leave
		}, warifuv1.Reason_REASON_CANCELED, 20 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimited(t, 1000)
			release := make(chan struct{})
			for range l.limiter.Limit() - l.limiter.Limit()/5 {
				l.start(claims, &pipe{}, hold(release))
			}
			ctx, cancel := row.ctx(t.Context())
			defer cancel()
			began := time.Now()
			err := l.do(ctx, claims, &pipe{}, func(*Call) error {
				t.Errorf("%s: the handler ran", row.name)
				return nil
			})
			if reason(err) != row.want || !fault.Of(err).NotApplied() || time.Since(began) != row.took {
				t.Errorf("%s: %v after %v, want %v after %v", row.name, err, time.Since(began), row.want, row.took)
			}
			close(release)
			l.calls.Wait()
			l.want(row.name, 0, 0)
		})
	}
}

// TestLate: who could be given a slot but would not live to see the answer is
// told that more time would help.
func TestLate(t *testing.T) {
	t.Parallel()
	l := limiterOf(t, 10)
	if f := fault.Of(l.refusal(overload.ErrTooLate)); f.Reason != warifuv1.Reason_REASON_DEADLINE_EXCEEDED || !f.NotApplied() || f.RetryAfter() != 0 {
		t.Errorf("%v: %v, not applied %v, retry after %v", f.Reason, f, f.NotApplied(), f.RetryAfter())
	}
}

// TestRetryAfterSpreads: refusals carry different times to come back, none of
// which is made anew.
func TestRetryAfterSpreads(t *testing.T) {
	t.Parallel()
	for _, jitter := range []float64{0, 0.5, 0.999} {
		l, err := newLimiter(overload.Config{Ceiling: 10, Clock: time.Now, Rand: func() float64 { return jitter }})
		if err != nil {
			t.Fatal(err)
		}
		want := max(100*time.Millisecond, (50*time.Millisecond + time.Duration(jitter*float64(100*time.Millisecond))).Truncate(retryStep))
		if f := fault.Of(l.refusal(overload.ErrOverloaded)); f.RetryAfter() != want {
			t.Errorf("jitter %v: retry after %v, want %v", jitter, f.RetryAfter(), want)
		}
	}
}

// TestRefusalsAreCheap: they are made once. It counts allocations, and so runs alone.
func TestRefusalsAreCheap(t *testing.T) {
	l := limiterOf(t, 10)
	if n := testing.AllocsPerRun(100, func() { _ = l.refusal(overload.ErrOverloaded) }); n != 0 {
		t.Errorf("a refusal allocates %v times", n)
	}
}

// TestOutcomes: what a call tells the limiter about the store.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	failed := func(r warifuv1.Reason) error { return fault.New(r, "text") }
	for name, row := range map[string]struct {
		slot slot
		err  error
		want overload.Outcome
	}{
		"answered":              {slot{asked: true}, nil, overload.Answered},
		"store was not asked":   {slot{}, nil, overload.Silent},
		"refused before it":     {slot{}, failed(warifuv1.Reason_REASON_OVERLOADED), overload.Silent},
		"an item has no answer": {slot{asked: true, failed: true}, nil, overload.Abandoned},
		"the queue behind":      {slot{asked: true}, failed(warifuv1.Reason_REASON_OVERLOADED), overload.Dropped},
		"no answer in time":     {slot{asked: true}, failed(warifuv1.Reason_REASON_OUTCOME_UNKNOWN), overload.Dropped},
		"store away":            {slot{asked: true}, failed(warifuv1.Reason_REASON_STORE_UNAVAILABLE), overload.Abandoned},
		"caller's deadline":     {slot{asked: true}, failed(warifuv1.Reason_REASON_DEADLINE_EXCEEDED), overload.Abandoned},
		"caller left":           {slot{asked: true}, failed(warifuv1.Reason_REASON_CANCELED), overload.Abandoned},
		"caller's fault":        {slot{asked: true}, failed(warifuv1.Reason_REASON_ATTEMPT_ENDED), overload.Silent},
		"our fault":             {slot{asked: true}, errors.New("bug"), overload.Silent},
	} {
		if got := row.slot.outcome(row.err); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// TestWaitsAreNotLatency: long polls that take 30 s, requests that take a second
// to come in and answers that take one to be read leave the limit alone, and so
// do callers who give almost no time.
func TestWaitsAreNotLatency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, 1000)
		before := l.limiter.Limit()
		random := rand.New(rand.NewPCG(1, 2))
		for n := range 4000 {
			time.Sleep(5 * time.Millisecond)
			p := &pipe{request: make(chan struct{}), answer: make(chan struct{})}
			drip := time.Duration(random.IntN(1000)) * time.Millisecond
			time.AfterFunc(drip, func() { close(p.request) })
			time.AfterFunc(drip+time.Second, func() { close(p.answer) })
			l.calls.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				_ = l.do(ctx, claims, p, func(c *Call) error {
					switch n % 4 {
					case 0:
						c.Park()
						time.Sleep(30 * time.Second)
					case 1:
						time.Sleep(time.Millisecond)
						return Ended(context.DeadlineExceeded)
					default:
						time.Sleep(5 * time.Millisecond)
					}
					return nil
				})
			})
		}
		l.calls.Wait()
		if after := l.limiter.Limit(); after < before || l.limiter.Shed() != 0 {
			t.Errorf("the limit went from %d to %d, and %d calls were refused", before, after, l.limiter.Shed())
		}
		l.want("after all", 0, 0)
	})
}

// BenchmarkLimit is what the interceptor adds to a call that gets its slot.
func BenchmarkLimit(b *testing.B) {
	run := Limit(limiterOf(b, 1000))(func(_ context.Context, _ connect.Spec, stream connect.ServerStream) error {
		_ = stream.Receive(nil)
		return stream.Send(nil)
	})
	b.ReportAllocs()
	stream := &pipe{}
	call := &Call{Context: b.Context(), Method: &claims}
	for b.Loop() {
		call.slot = slot{}
		if err := run(call, connect.Spec{}, stream); err != nil {
			b.Fatal(err)
		}
	}
}
