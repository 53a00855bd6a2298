package server

import (
	"context"
	"strconv"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/tenant"
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
	var a arbiter.Answered
	if wait > 0 {
		call.Park()
		a = s.arbiter.ClaimWait(ctx, r, wait)
	} else {
		a = s.arbiter.ClaimOne(ctx, r)
	}
	if f := settle(ctx, e.consumer, &a); f != nil {
		s.metrics.claimFailed(f, 1)
		return nil, f
	}
	s.metrics.claims[a.Decision].Inc()
	reply := &claimReply{}
	reply.fill(m, &r, &a.Answer, func() *storedReply { return &storedReply{} })
	return &reply.response, nil
}

// settle applies the failure policy: a claim that the store cannot answer is
// UNPROTECTED where the consumer is FAIL_OPEN and somebody is there to hear it.
// It returns the fault of a claim that has no decision.
func settle(ctx context.Context, c *tenant.Consumer, a *arbiter.Answered) *fault.Fault {
	switch {
	case a.Err == nil && a.Decision == claim.AttemptEnded:
		return errAttemptEnded
	case a.Err == nil:
		return nil
	case c.OnUnavailable == tenant.FailOpen && unanswered(a.Err) && ctx.Err() == nil:
		*a = arbiter.Answered{Answer: claim.Answer{Decision: claim.Unprotected}}
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
	b := claimBatch{server: s.Server, call: call, items: items}
	b.decode()
	if len(b.requests) > 0 {
		answers := s.arbiter.Claim(ctx, b.requests)
		for v := range answers {
			b.settle(ctx, v, &answers[v])
		}
	}
	b.count()
	return &warifuv1.BatchClaimResponse{Results: b.results}, nil
}

// claimBatch is the work on one batch.
type claimBatch struct {
	server    *Server
	call      *interceptor.Call
	items     []*warifuv1.ClaimRequest
	requests  []claim.Request    // the valid ones, in order
	consumers []*tenant.Consumer // of the valid ones
	index     []int              // of the valid ones among the items
	slab      []batchItem
	results   []*warifuv1.BatchClaimResult
	stored    []storedReply
	budget    bodyBudget
	decided   [len(decisionLabels)]int
}

func (b *claimBatch) decode() {
	n, digestCount := len(b.items), 0
	for _, m := range b.items {
		digestCount += min(len(m.GetDigests()), claim.DigestsMax)
	}
	b.requests = make([]claim.Request, 0, n)
	b.consumers = make([]*tenant.Consumer, 0, n)
	b.index = make([]int, 0, n)
	b.slab = make([]batchItem, n)
	b.results = make([]*warifuv1.BatchClaimResult, n)
	b.budget = newBodyBudget()
	digests := make([]claim.Digest, 0, digestCount)
	e := b.server.edge(b.call)
	for i, m := range b.items {
		b.results[i] = &b.slab[i].result
		next := len(b.requests)
		b.requests = b.requests[:next+1]
		if f := e.batched(m, &b.requests[next], &digests); f != nil {
			b.requests[next] = claim.Request{}
			b.requests = b.requests[:next]
			b.fail(i, f.Within(itemPath(i)))
			continue
		}
		b.consumers = append(b.consumers, e.consumer)
		b.index = append(b.index, i)
	}
}

func (e *edge) batched(m *warifuv1.ClaimRequest, r *claim.Request, digests *[]claim.Digest) *fault.Fault {
	if m.GetWait() != nil {
		return fault.Invalid("wait", limitWaitInBatch)
	}
	_, f := e.claim(m, r, digests)
	return f
}

// settle writes the answer to the valid item with number v.
func (b *claimBatch) settle(ctx context.Context, v int, a *arbiter.Answered) {
	i := b.index[v]
	if f := settle(ctx, b.consumers[v], a); f != nil {
		b.fail(i, f)
		return
	}
	b.decided[a.Decision]++
	if a.Completion != nil {
		a.Completion = b.budget.fit(a.Completion)
	}
	item := &b.slab[i]
	item.reply.fill(b.items[i], &b.requests[v], &a.Answer, b.storedResult)
	item.claim.Claim = &item.reply.response
	item.result.Result = &item.claim
}

// storedResult takes a result from a slab that is made when the first
// duplicate is met.
func (b *claimBatch) storedResult() *storedReply {
	if b.stored == nil {
		b.stored = make([]storedReply, len(b.items))
	}
	r := &b.stored[0]
	b.stored = b.stored[1:]
	return r
}

func (b *claimBatch) fail(i int, f *fault.Fault) {
	b.server.metrics.claimFailed(f, 1)
	b.slab[i].result.Result = &warifuv1.BatchClaimResult_Error{Error: f.Item(b.call.RequestID)}
}

func (b *claimBatch) count() {
	for d, n := range b.decided {
		if n > 0 {
			b.server.metrics.claims[d].Add(float64(n))
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

func itemPath(i int) string { return "items[" + strconv.Itoa(i) + "]" }
