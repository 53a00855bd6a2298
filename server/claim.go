package server

import (
	"context"
	"errors"
	"sync"
	"time"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/storage/claim"
)

// claims serves warifu.v1.ClaimService.
type claims struct {
	*Server
}

// Claim answers one claim, waiting for another attempt to end if asked to.
func (s *claims) Claim(ctx context.Context, m *warifuv1.ClaimRequest) (*warifuv1.ClaimResponse, error) {
	call := interceptor.CallFrom(ctx)
	e := s.edge(call)
	var r claim.Request
	digests := make([]claim.Digest, 0, min(len(m.GetDigests()), claim.DigestsMax))
	wait, f := e.claim(m, &r, &digests)
	if f != nil {
		return nil, f
	}
	call.About(m.GetConsumer(), m.GetEventId())
	asked := call.Began // the decision is not older
	var a arbiter.Answered
	if wait > 0 {
		a = s.askWait(ctx, e, call, r, wait, func() { asked = s.clock() })
	} else {
		a = s.ask(ctx, e, call, []claim.Request{r})[0]
	}
	if f := settle(&a); f != nil {
		s.metrics.claimFailed(classOf(e, &r), f)
		return nil, f
	}
	s.metrics.claims[classOf(e, &r)][a.Decision].Inc()
	reply := &struct {
		claimReply
		times wireTimes
	}{}
	reply.fill(m, &r, &a.Answer, &reply.times, func() *storedReply { return &storedReply{} })
	reply.fillWaited(asked.Sub(call.Began))
	return &reply.response, nil
}

// askWait is ask for one claim that waits for another attempt to end.
func (s *claims) askWait(
	ctx context.Context, e *edge, call *interceptor.Call, r claim.Request, wait time.Duration, asked func(),
) arbiter.Answered {
	rs, out := []claim.Request{r}, make([]arbiter.Answered, 1)
	if refused := s.refuse(ctx, e, rs); refused != nil && refused[0] != nil {
		out[0].Err = refused[0]
		return out[0]
	}
	call.Park()
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	out[0] = s.arbiter.ClaimWait(waiting, r, wait, func() {
		asked()
		if f := interceptor.Still(s.directory, call, s.clock()); f != nil {
			stop(f) // who waits is let in no more
		}
	})
	var refused *fault.Fault
	if out[0].Err != nil && errors.As(context.Cause(waiting), &refused) {
		out[0].Err = refused
		return out[0]
	}
	s.note(e, rs, out)
	s.protect(ctx, e, call, rs, out)
	return out[0]
}

// settle returns the fault of a claim that has no decision.
func settle(a *arbiter.Answered) *fault.Fault {
	switch {
	case a.Err == nil && a.Decision == claim.AttemptEnded:
		return errAttemptEnded
	case a.Err == nil:
		return nil
	}
	return writeFault(a.Err)
}

// batchItem is one item of a claim batch: its answer and everything the answer
// points to, so that a batch is one allocation.
type batchItem struct {
	result warifuv1.BatchClaimResult
	claim  warifuv1.BatchClaimResult_Claim
	reply  claimReply
}

// BatchClaim answers the items one by one. An invalid item has its own error
// and the others are served.
func (s *claims) BatchClaim(ctx context.Context, m *warifuv1.BatchClaimRequest) (*warifuv1.BatchClaimResponse, error) {
	call := interceptor.CallFrom(ctx)
	items := m.GetItems()
	if f := checkBatch(ctx, m, len(items)); f != nil {
		return nil, f
	}
	call.Items(len(items))
	w := newClaimWork(s.Server, call, items)
	b := batch[*warifuv1.ClaimRequest, claim.Request, arbiter.Answered]{
		rooms: &claimRooms, check: w.check, fail: w.fail,
		ask: func(rs []claim.Request) []arbiter.Answered { return s.ask(ctx, w.edge, call, rs) },
		settle: func(i int, r *claim.Request, a *arbiter.Answered) *fault.Fault {
			w.class = classOf(w.edge, r)
			if f := settle(a); f != nil {
				return f
			}
			w.answer(i, r, &a.Answer)
			return nil
		},
	}
	b.run(items)
	w.count()
	return &warifuv1.BatchClaimResponse{Results: w.results}, nil
}

var claimRooms sync.Pool // of *room[claim.Request]

// claimWork is what one batch of claims is answered with.
type claimWork struct {
	edge    *edge
	metrics *metrics
	call    *interceptor.Call
	items   []*warifuv1.ClaimRequest
	digests []claim.Digest // slab of the digests of all items
	slab    []batchItem
	results []*warifuv1.BatchClaimResult
	stored  []storedReply
	times   wireTimes
	budget  bodyBudget
	class   consumerClass // of the item at hand; unknown until the items are valid
	decided [classes][len(decisionLabels)]int
}

func newClaimWork(s *Server, call *interceptor.Call, items []*warifuv1.ClaimRequest) *claimWork {
	digests := 0
	for _, m := range items {
		digests += min(len(m.GetDigests()), claim.DigestsMax)
	}
	w := &claimWork{
		edge: s.edge(call), metrics: s.metrics, call: call, items: items, budget: newBodyBudget(),
		digests: make([]claim.Digest, 0, digests),
		slab:    make([]batchItem, len(items)),
		results: make([]*warifuv1.BatchClaimResult, len(items)),
	}
	for i := range w.slab {
		w.results[i] = &w.slab[i].result
	}
	return w
}

func (w *claimWork) check(m *warifuv1.ClaimRequest, r *claim.Request) *fault.Fault {
	if m.GetWait() != nil {
		return fault.Invalid("wait", limitWaitInBatch)
	}
	_, f := w.edge.claim(m, r, &w.digests)
	return f
}

// answer writes the answer to item i.
func (w *claimWork) answer(i int, r *claim.Request, a *claim.Answer) {
	w.decided[w.class][a.Decision]++
	if a.Completion != nil {
		a.Completion = w.budget.fit(a.Completion)
	}
	item := &w.slab[i]
	item.reply.fill(w.items[i], r, a, &w.times, w.storedResult)
	item.claim.Claim = &item.reply.response
	item.result.Result = &item.claim
}

// storedResult takes a result from a slab that is made when the first
// duplicate is met.
func (w *claimWork) storedResult() *storedReply {
	if w.stored == nil {
		w.stored = make([]storedReply, len(w.items))
	}
	r := &w.stored[0]
	w.stored = w.stored[1:]
	return r
}

func (w *claimWork) fail(i int, f *fault.Fault) {
	w.metrics.itemFailed(w.class, f)
	w.slab[i].result.Result = &warifuv1.BatchClaimResult_Error{Error: f.Item(w.call.RequestID)}
}

func (w *claimWork) count() {
	for class := range w.decided {
		for d, n := range w.decided[class] {
			if n > 0 {
				w.metrics.claims[class][d].Add(float64(n))
			}
		}
	}
}

// bodyBudget bounds the result bodies of one batch reply. What does not fit is
// left out: the event is done all the same, and its body can be had alone.
type bodyBudget struct{ left int }

func newBodyBudget() bodyBudget { return bodyBudget{left: claim.ReplyBodyBytesMax} }

func (b *bodyBudget) fit(c *claim.Completion) *claim.Completion {
	if len(c.Body) > b.left {
		return c.Without(claim.BatchBudget)
	}
	b.left -= len(c.Body)
	return c
}
