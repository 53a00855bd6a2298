package server

import (
	"context"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/storage/claim"
)

// Complete stores the outcome of a granted attempt.
func (s *claims) Complete(ctx context.Context, m *warifuv1.CompleteRequest) (*warifuv1.CompleteResponse, error) {
	call := interceptor.CallFrom(ctx)
	e := s.edge(call)
	e.begun = true
	ts := make([]claim.Transition, 1)
	if f := e.complete(m, &ts[0]); f != nil {
		return nil, f
	}
	call.About(m.GetConsumer(), m.GetEventId())
	r := s.transition(ctx, e, ts)[0]
	s.metrics.transition(claim.Complete, &r)
	if r.Err != nil {
		return nil, writeFault(r.Err)
	}
	reply := &completeReply{}
	reply.fill(m, &r.Reply)
	return &reply.response, nil
}

// transition has the arbiter finish granted work, which is charged and never
// refused.
func (s *Server) transition(ctx context.Context, e *edge, ts []claim.Transition) []arbiter.Replied {
	if s.quotas != nil {
		limits := s.limits(e.tenant)
		s.quotas.ChargeItems(e.tenant.ID, &limits, len(ts))
	}
	rs := s.arbiter.Transition(ctx, ts)
	for i := range ts {
		switch err := rs[i].Err; {
		case err != nil && unanswered(err):
			interceptor.CallFrom(ctx).Unanswered()
		case err == nil && s.quotas != nil:
			s.quotas.NoteTransition(e.tenant.ID, &ts[i], &rs[i].Reply)
		}
	}
	return rs
}

func (e *edge) complete(m *warifuv1.CompleteRequest, t *claim.Transition) (f *fault.Fault) {
	t.Kind = claim.Complete
	if f = e.owner(t, m.GetConsumer(), m.GetEventId(), m.GetAttemptId(), m.GetFence()); f != nil {
		return f
	}
	t.Completion, f = e.completion(m.GetCompletion(), "completion")
	return f
}

// completeReply is a reply with what it points to.
type completeReply struct {
	response warifuv1.CompleteResponse
	expires  timestamppb.Timestamp
}

func (out *completeReply) fill(m *warifuv1.CompleteRequest, r *claim.Reply) {
	res := &out.response
	res.Status, res.State = word(statuses[:], r.Status), word(states[:], r.State)
	res.Consumer, res.EventId = m.GetConsumer(), m.GetEventId()
	// Done now, or done before by this attempt: the sender may stop retrying.
	res.Accepted, res.ProtocolVersion = &refused, protocolVersion
	if r.Status == claim.OK {
		res.Accepted = &accepted
	}
	if r.ExpiresAt != 0 && r.ExpiresAt != claim.Never && r.State != claim.InDoubt {
		setTimestamp(&out.expires, r.ExpiresAt)
		res.ExpiresAt = &out.expires
	}
}

// completeItem is one item of a batch and everything its answer points to.
type completeItem struct {
	result   warifuv1.BatchCompleteResult
	complete warifuv1.BatchCompleteResult_Complete
	reply    completeReply
}

// BatchComplete completes the items one by one. An invalid item has its own
// error and the others are completed.
func (s *claims) BatchComplete(ctx context.Context, m *warifuv1.BatchCompleteRequest) (*warifuv1.BatchCompleteResponse, error) {
	call := interceptor.CallFrom(ctx)
	items := m.GetItems()
	if f := checkBatch(ctx, m, len(items)); f != nil {
		return nil, f
	}
	call.Items(len(items))
	slab := make([]completeItem, len(items))
	results := make([]*warifuv1.BatchCompleteResult, len(items))
	for i := range slab {
		results[i] = &slab[i].result
	}
	fail := func(i int, f *fault.Fault) {
		slab[i].result.Result = &warifuv1.BatchCompleteResult_Error{Error: f.Item(call.RequestID)}
	}
	e := s.edge(call)
	e.begun = true
	transitions(ctx, s, e, claim.Complete, items, e.complete, fail, func(i int, r *claim.Reply) {
		item := &slab[i]
		item.reply.fill(items[i], r)
		item.complete.Complete = &item.reply.response
		item.result.Result = &item.complete
	})
	return &warifuv1.BatchCompleteResponse{Results: results}, nil
}

var transitionRooms sync.Pool // of *room[claim.Transition]

// transitions makes one kind of transition for the items of a batch.
func transitions[M any](
	ctx context.Context, s *claims, e *edge, kind claim.TransitionKind, items []M,
	check func(M, *claim.Transition) *fault.Fault, fail func(int, *fault.Fault), answer func(int, *claim.Reply),
) {
	b := batch[M, claim.Transition, arbiter.Replied]{
		rooms: &transitionRooms, check: check, fail: fail,
		ask: func(ts []claim.Transition) []arbiter.Replied { return s.transition(ctx, e, ts) },
		settle: func(i int, _ *claim.Transition, r *arbiter.Replied) *fault.Fault {
			s.metrics.transition(kind, r)
			if r.Err != nil {
				return writeFault(r.Err)
			}
			answer(i, &r.Reply)
			return nil
		},
	}
	b.run(items)
}
