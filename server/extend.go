package server

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/storage/claim"
)

// extendItem is one item of a batch and everything its answer points to.
type extendItem struct {
	result    warifuv1.ExtendResult
	extend    warifuv1.ExtendResult_Extend
	answer    warifuv1.ExtendAnswer
	remaining durationpb.Duration
}

// Extend lengthens the live leases of its items, one by one.
func (s *claims) Extend(ctx context.Context, m *warifuv1.ExtendRequest) (*warifuv1.ExtendResponse, error) {
	call := interceptor.CallFrom(ctx)
	items := m.GetItems()
	if f := checkBatch(ctx, m, len(items)); f != nil {
		return nil, f
	}
	call.Items(len(items))
	slab := make([]extendItem, len(items))
	results := make([]*warifuv1.ExtendResult, len(items))
	for i := range slab {
		results[i] = &slab[i].result
	}
	fail := func(i int, f *fault.Fault) {
		slab[i].result.Result = &warifuv1.ExtendResult_Error{Error: f.Item(call.RequestID)}
	}
	e := s.edge(call)
	e.begun = true
	transitions(ctx, s, e, claim.Extend, items, e.extend, fail, func(i int, r *claim.Reply) { slab[i].fill(items[i], r) })
	return &warifuv1.ExtendResponse{Results: results, ProtocolVersion: protocolVersion}, nil
}

func (e *edge) extend(m *warifuv1.ExtendItem, t *claim.Transition) (f *fault.Fault) {
	t.Kind = claim.Extend
	if f = e.owner(t, m.GetConsumer(), m.GetEventId(), m.GetAttemptId(), m.GetFence()); f != nil {
		return f
	}
	t.Lease, f = e.lease(m.GetLease())
	return f
}

func (out *extendItem) fill(m *warifuv1.ExtendItem, r *claim.Reply) {
	out.answer.Status, out.answer.State = word(statuses[:], r.Status), word(states[:], r.State)
	out.answer.Consumer, out.answer.EventId = m.GetConsumer(), m.GetEventId()
	if r.Status == claim.OK {
		setDuration(&out.remaining, r.Lease)
		out.answer.LeaseRemaining = &out.remaining
	}
	out.extend.Extend = &out.answer
	out.result.Result = &out.extend
}
