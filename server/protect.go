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
// admit, under the failure policy of their consumers.
func (s *Server) ask(ctx context.Context, e *edge, call *interceptor.Call, rs []claim.Request) []arbiter.Answered {
	out := make([]arbiter.Answered, len(rs))
	admitted := s.admit(ctx, e, rs, out)
	if len(admitted) == len(rs) {
		out = s.arbiter.Claim(ctx, rs)
	} else if len(admitted) > 0 {
		some := make([]claim.Request, len(admitted))
		for n, i := range admitted {
			some[n] = rs[i]
		}
		for n, a := range s.arbiter.Claim(ctx, some) {
			out[admitted[n]] = a
		}
	}
	s.note(e, rs, out)
	s.protect(ctx, e, call, rs, out, admitted)
	return out
}

// admit writes an error to what the quotas refuse, and returns the places of
// the others.
func (s *Server) admit(ctx context.Context, e *edge, rs []claim.Request, out []arbiter.Answered) (admitted []int) {
	n := len(rs)
	if s.quotas != nil {
		limits := s.limits(e.tenant)
		var standing quota.Standing
		standing, n = s.charge(e, &limits, rs, out)
		if standing.Tight() {
			for i, err := range s.quotas.Screen(ctx, s.arbiter, standing, rs[:n]) {
				out[i].Err = err //nolint:gosec // one for each of the first n
			}
		}
	}
	admitted = make([]int, 0, n)
	for i := range out[:n] {
		if out[i].Err == nil {
			admitted = append(admitted, i)
		}
	}
	return admitted
}

// charge charges the items, and returns how many the rate admits.
func (s *Server) charge(e *edge, limits *quota.Limits, rs []claim.Request, out []arbiter.Answered) (quota.Standing, int) {
	n, after := s.quotas.TakeItems(e.tenant.ID, limits, len(rs))
	for i := n; i < len(rs); i++ {
		out[i].Err = quota.ItemsExceeded(limits, after)
	}
	return s.quotas.Standing(e.tenant.ID, limits, n), n
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
// asked are the places of those that the store was asked about: what the quotas
// would have been asked about and could not is not theirs to open.
func (s *Server) protect(ctx context.Context, e *edge, call *interceptor.Call, rs []claim.Request, as []arbiter.Answered, asked []int) {
	var open []int
	var entries []journal.Entry
	for _, i := range asked {
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
