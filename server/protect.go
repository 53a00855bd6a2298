package server

import (
	"context"
	"errors"

	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/journal"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
)

// ask has the arbiter answer claims of one call: those that the tenant's quotas
// let through, under the failure policy of their consumers.
func (s *Server) ask(ctx context.Context, e *edge, call *interceptor.Call, rs []claim.Request) []arbiter.Answered {
	refused := s.refuse(ctx, e, rs)
	if refused == nil {
		return s.answer(ctx, e, call, rs)
	}
	out := make([]arbiter.Answered, len(rs))
	var some []claim.Request
	var places []int
	for i := range rs {
		if out[i].Err = refused[i]; refused[i] == nil {
			some, places = append(some, rs[i]), append(places, i)
		}
	}
	if len(some) == 0 {
		return out
	}
	for n, a := range s.answer(ctx, e, call, some) {
		out[places[n]] = a
	}
	return out
}

// answer asks about claims that nothing refuses.
func (s *Server) answer(ctx context.Context, e *edge, call *interceptor.Call, rs []claim.Request) []arbiter.Answered {
	var as []arbiter.Answered
	if len(rs) == 1 {
		as = []arbiter.Answered{s.arbiter.ClaimOne(ctx, rs[0])}
	} else {
		as = s.arbiter.Claim(ctx, rs)
	}
	s.note(e, rs, as)
	s.protect(ctx, e, call, rs, as)
	return as
}

// refuse charges the claims, and returns an error for each that the quotas do
// not let through; nil where they let all of them through, which costs nothing
// more.
func (s *Server) refuse(ctx context.Context, e *edge, rs []claim.Request) []error {
	if s.quotas == nil {
		return nil
	}
	limits := s.limits(e.tenant)
	n, after := s.quotas.TakeItems(e.tenant.ID, &limits, len(rs))
	standing := s.quotas.Standing(e.tenant.ID, &limits, n)
	if n == len(rs) && !standing.Tight() {
		return nil
	}
	errs := make([]error, len(rs))
	for i := n; i < len(rs); i++ {
		errs[i] = quota.ItemsExceeded(&limits, after)
	}
	if standing.Tight() {
		copy(errs, s.quotas.Screen(ctx, s.arbiter, standing, rs[:n]))
	}
	return errs
}

// limits are a tenant's quotas in force.
func (s *Server) limits(t *tenant.Tenant) quota.Limits { return s.quotaDefaults.Resolve(t.Limits) }

// note tells the quotas what was granted.
func (s *Server) note(e *edge, rs []claim.Request, as []arbiter.Answered) {
	if s.quotas == nil {
		return
	}
	for i := range as {
		if as[i].Err == nil {
			s.quotas.NoteClaim(e.tenant.ID, &rs[i], &as[i].Answer)
		}
	}
}

// protect applies the failure policy: a claim that the store cannot answer is
// UNPROTECTED where its consumer is FAIL_OPEN, somebody is there to hear it, and
// the journal has taken it. A refusal that was received is never opened.
//
// It is for claims that the store was asked about: a look at the quotas that
// failed opens nothing.
func (s *Server) protect(ctx context.Context, e *edge, call *interceptor.Call, rs []claim.Request, as []arbiter.Answered) {
	var open []int
	var entries []journal.Entry
	for i := range as {
		if as[i].Err == nil || ctx.Err() != nil || !unanswered(as[i].Err) {
			continue
		}
		call.Unanswered()
		if e.policy(rs[i].Key.Consumer).OnUnavailable != tenant.FailOpen {
			continue
		}
		open = append(open, i)
		entries = append(entries, journal.Entry{
			Key: rs[i].Key, Attempt: rs[i].Attempt, Digests: rs[i].Digests, KeyID: call.Principal.KeyID, RequestID: call.RequestID,
		})
	}
	if len(open) == 0 {
		return
	}
	if err := s.journal.Append(ctx, entries); err != nil {
		for _, i := range open {
			as[i].Err = errors.Join(as[i].Err, err) // the answer is that of the store; the log says why it is closed
		}
		return
	}
	for _, i := range open {
		as[i] = arbiter.Answered{Answer: claim.Answer{Decision: claim.Unprotected}}
	}
}
