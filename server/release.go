package server

import (
	"context"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/storage/claim"
)

// Release gives a grant back without an outcome.
func (s *claims) Release(ctx context.Context, m *warifuv1.ReleaseRequest) (*warifuv1.ReleaseResponse, error) {
	call := interceptor.CallFrom(ctx)
	e := s.edge(call)
	e.begun = true
	ts := []claim.Transition{{Kind: claim.Release}}
	if f := e.owner(&ts[0], m.GetConsumer(), m.GetEventId(), m.GetAttemptId(), m.GetFence()); f != nil {
		return nil, f
	}
	call.About(m.GetConsumer(), m.GetEventId())
	r := s.transition(ctx, e, ts)[0]
	s.metrics.transition(claim.Release, &r)
	if r.Err != nil {
		return nil, writeFault(r.Err)
	}
	return &warifuv1.ReleaseResponse{
		Status: word(statuses[:], r.Status), State: word(states[:], r.State),
		Consumer: m.GetConsumer(), EventId: m.GetEventId(), ProtocolVersion: protocolVersion,
	}, nil
}
