package server

import (
	"context"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/storage/claim"
)

// Lookup reads one record and changes nothing.
func (s *claims) Lookup(ctx context.Context, m *warifuv1.LookupRequest) (*warifuv1.LookupResponse, error) {
	call := interceptor.CallFrom(ctx)
	e := s.edge(call)
	e.begun = true
	key, f := e.key(m.GetConsumer(), m.GetEventId())
	if f != nil {
		return nil, f
	}
	call.About(m.GetConsumer(), m.GetEventId())
	if s.quotas != nil {
		limits := s.limits(e.tenant)
		if n, after := s.quotas.TakeItems(e.tenant.ID, &limits, 1); n == 0 {
			return nil, interceptor.QuotaFault(quota.ItemsExceeded(&limits, after))
		}
	}
	found, err := s.arbiter.Lookup(ctx, []claim.Key{key})
	if err != nil {
		return nil, readFault(err)
	}
	if found[0].Err != nil {
		return nil, readFault(found[0].Err)
	}
	record := recordMessage(&found[0].Record, found[0].Now)
	record.Consumer, record.EventId = key.Consumer, key.EventID
	return &warifuv1.LookupResponse{Record: record, ProtocolVersion: protocolVersion}, nil
}

// recordMessage shows a record as decisions see it at now: what has expired is
// absent, swept or not.
func recordMessage(rec *claim.Record, now claim.Time) *warifuv1.ClaimRecord {
	if rec.State == claim.Absent || rec.Expired(now) {
		return &warifuv1.ClaimRecord{State: warifuv1.State_STATE_ABSENT}
	}
	state := rec.Effective(now)
	out := &warifuv1.ClaimRecord{
		Consumer: rec.Key.Consumer, EventId: rec.Key.EventID,
		State: word(states[:], state), AttemptId: attemptText(rec.AttemptID), Attempt: rec.Attempt,
		Fence: int64(rec.Fence), Takeover: word(takeovers[:], rec.Takeover),
		ClaimedAt: timestamp(rec.ClaimedAt), GrantedAt: timestamp(rec.GrantedAt),
		OnLeaseLoss: onLeaseLoss(rec.Policy.Hold),
	}
	for i := range rec.Digests {
		out.DigestSchemes = append(out.DigestSchemes, rec.Digests[i].Scheme)
	}
	if state == claim.InProgress {
		out.LeaseUntil = timestamp(rec.LeaseUntil)
	}
	if state != claim.InDoubt { // what is in doubt never expires
		out.ExpiresAt = timestamp(rec.ExpiresAt)
	}
	if rec.EventTime != 0 {
		out.EventTime = timestamp(rec.EventTime)
	}
	if rec.Completion != nil {
		out.Result = (&storedReply{}).fill(rec.Completion, rec.EndedAt)
	}
	return out
}
