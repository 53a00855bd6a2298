package server

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
)

const (
	limitWaitInBatch    = "not in batches"
	limitRepeatedScheme = "no scheme twice"
	limitDigestRequired = "this consumer requires a digest"
	limitEventTime      = "a valid time after 1970-01-01T00:00:00Z"
)

const (
	// retryAfterMax bounds what a caller is told to wait for another attempt:
	// most end long before their lease does.
	retryAfterMax = 5 * time.Second
	// retryJitter spreads callers who were told the same (part of retry_after).
	retryJitter = 0.2
	// doubtRetryAfter is for events that wait for an operator.
	doubtRetryAfter = time.Minute
)

// claim checks one claim and writes it to r. digests is a slab that the
// digests of all items are appended to; it has room for them.
func (e *edge) claim(m *warifuv1.ClaimRequest, r *claim.Request, digests *[]claim.Digest) (wait time.Duration, f *fault.Fault) {
	if r.Key, f = e.key(m.GetConsumer(), m.GetEventId()); f != nil {
		return 0, f
	}
	c := e.consumer
	r.Policy, r.AcceptNoCommonScheme, r.InsertBefore = c.Policy, c.AcceptNoCommonScheme, claim.Never
	if f = e.claimAttempt(m.GetAttemptId(), r); f != nil {
		return 0, f
	}
	if f = e.digests(m.GetDigests(), r, digests); f != nil {
		return 0, f
	}
	if r.Lease, f = e.lease(m.GetLease()); f != nil {
		return 0, f
	}
	if f = e.eventTime(m.GetEventTime(), r); f != nil {
		return 0, f
	}
	if m.GetRecord() != nil {
		if r.Record, f = e.completion(m.GetRecord(), "record"); f != nil {
			return 0, f
		}
	}
	if m.GetWait() != nil {
		var ok bool
		if wait, ok = span(m.GetWait()); !ok || wait < 0 || wait > claim.WaitMax {
			return 0, fault.Invalid("wait", limitWait)
		}
	}
	return wait, nil
}

// claimAttempt reads the attempt ID, or makes one where the consumer's policy
// can bear a lost reply.
func (e *edge) claimAttempt(text string, r *claim.Request) *fault.Fault {
	if text == "" {
		if e.consumer.Policy.Hold {
			return fault.Invalid("attempt_id", limitAttemptRequired)
		}
		r.Attempt = newAttempt()
		return nil
	}
	var ok bool
	if r.Attempt, ok = parseAttempt(text); !ok {
		return fault.Invalid("attempt_id", limitAttempt)
	}
	return nil
}

func (e *edge) digests(ms []*warifuv1.Digest, r *claim.Request, slab *[]claim.Digest) *fault.Fault {
	if len(ms) == 0 {
		if e.consumer.DigestRequired {
			return fault.Invalid("digests", limitDigestRequired)
		}
		return nil
	}
	if len(ms) > claim.DigestsMax {
		return fault.Invalid("digests", limitDigests)
	}
	begin := len(*slab)
	for i, m := range ms {
		if f := checkDigest(m, (*slab)[begin:]); f != nil {
			return f.Within(fmt.Sprintf("digests[%d]", i))
		}
		*slab = append(*slab, claim.Digest{Scheme: m.GetScheme(), Value: m.GetValue()})
	}
	r.Digests = (*slab)[begin:len(*slab):len(*slab)]
	return nil
}

func checkDigest(m *warifuv1.Digest, before []claim.Digest) *fault.Fault {
	scheme := m.GetScheme()
	if scheme == "" || !plainText(scheme, claim.SchemeCharsMax) {
		return fault.Invalid("scheme", limitScheme)
	}
	if n := len(m.GetValue()); n == 0 || n > claim.DigestBytesMax {
		return fault.Invalid("value", limitDigestBytes)
	}
	for i := range before {
		if before[i].Scheme == scheme {
			return fault.Invalid("scheme", limitRepeatedScheme)
		}
	}
	return nil
}

// eventTime checks when the event was made and finds the instant from which it
// is too old. The epoch itself is a forgotten field, not a time.
func (e *edge) eventTime(ts *timestamppb.Timestamp, r *claim.Request) *fault.Fault {
	if ts == nil {
		return nil
	}
	made := claim.FromTime(ts.AsTime())
	if ts.CheckValid() != nil || made <= 0 {
		return fault.Invalid("event_time", limitEventTime)
	}
	if made > e.now.Add(e.consumer.Skew) {
		return fault.Invalid("event_time", fmt.Sprintf("at most %v in the future", e.consumer.Skew))
	}
	r.EventTime = made
	r.InsertBefore = e.consumer.History.InsertBefore(made, e.consumer.Skew)
	return nil
}

// claimReply is a reply with what most replies point to, so that a batch of
// them is one allocation.
type claimReply struct {
	response warifuv1.ClaimResponse
	grant    warifuv1.Grant
}

// wireTimes makes the times of replies. Claims that are granted together mostly
// have the same lease and expiry: equal ones that follow each other are one
// message.
type wireTimes struct {
	span    *durationpb.Duration
	lasts   time.Duration
	expires *timestamppb.Timestamp
	at      claim.Time

	first struct { // room for those that most calls need
		span    durationpb.Duration
		expires timestamppb.Timestamp
	}
}

func (w *wireTimes) duration(d time.Duration) *durationpb.Duration {
	switch {
	case w.span == nil:
		w.span = &w.first.span
	case w.lasts == d:
		return w.span
	default:
		w.span = &durationpb.Duration{}
	}
	w.lasts = d
	setDuration(w.span, d)
	return w.span
}

func (w *wireTimes) timestamp(t claim.Time) *timestamppb.Timestamp {
	switch {
	case w.expires == nil:
		w.expires = &w.first.expires
	case w.at == t:
		return w.expires
	default:
		w.expires = &timestamppb.Timestamp{}
	}
	w.at = t
	setTimestamp(w.expires, t)
	return w.expires
}

// accepted and refused are shared by all replies.
var accepted, refused = true, false

// fill writes the answer to request m. result is where a stored result goes; it
// is asked for only when there is one.
func (out *claimReply) fill(m *warifuv1.ClaimRequest, r *claim.Request, a *claim.Answer, times *wireTimes, result func() *storedReply) {
	res := &out.response
	res.Decision = word(decisions[:], a.Decision)
	res.Consumer, res.EventId = m.GetConsumer(), m.GetEventId()
	res.Accepted, res.ProtocolVersion = &refused, protocolVersion
	if a.ExpiresAt != 0 && a.ExpiresAt != claim.Never {
		res.ExpiresAt = times.timestamp(a.ExpiresAt)
	}
	switch a.Decision {
	case claim.Granted:
		out.fillGrant(m, r, a, times)
	case claim.Duplicate:
		res.Accepted, res.OwnAttempt = &accepted, a.OwnAttempt
		if a.Completion != nil {
			res.Result = result().fill(a.Completion, a.EndedAt)
		}
	case claim.HeldByOther:
		res.RetryAfter = times.duration(jittered(min(a.RetryAfter, retryAfterMax)))
	case claim.Doubtful:
		res.RetryAfter = times.duration(doubtRetryAfter)
	case claim.Mismatch, claim.TooOld, claim.Unprotected, claim.Undecided, claim.AttemptEnded:
	}
}

func (out *claimReply) fillGrant(m *warifuv1.ClaimRequest, r *claim.Request, a *claim.Answer, times *wireTimes) {
	g := &out.grant
	g.Fence, g.Attempt, g.Takeover, g.Recorded = int64(a.Fence), a.Attempt, word(takeovers[:], a.Takeover), a.Recorded
	if g.AttemptId = m.GetAttemptId(); !canonicalAttempt(g.AttemptId) {
		g.AttemptId = attemptText(r.Attempt)
	}
	if a.Recorded {
		out.response.Accepted = &accepted
	} else {
		g.LeaseRemaining = times.duration(a.Lease)
	}
	out.response.Grant = g
}

// fillWaited says in a grant how long the call had been here when the store was
// asked. Clients count the lease from there: counted from the send, a wait
// would use it up.
func (out *claimReply) fillWaited(d time.Duration) {
	if d > 0 && out.grant.LeaseRemaining != nil {
		out.grant.Waited = durationpb.New(d)
	}
}

// canonicalAttempt reports whether a valid attempt ID is written the way
// attemptText writes it.
func canonicalAttempt(s string) bool {
	if len(s) != attemptChars {
		return false
	}
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'F' {
			return false
		}
	}
	return true
}

// jittered lengthens d by up to a fifth, so that those who were told the same
// do not all come back at once, and nobody comes before there is anything new.
func jittered(d time.Duration) time.Duration {
	later := time.Duration(rand.Float64() * retryJitter * float64(d))
	return (d + later + time.Millisecond - 1).Truncate(time.Millisecond)
}

func setDuration(out *durationpb.Duration, d time.Duration) {
	out.Seconds, out.Nanos = int64(d/time.Second), int32(d%time.Second)
}

// policyMessage writes a policy for clients.
func policyMessage(c *tenant.Consumer) *warifuv1.Policy {
	p := &warifuv1.Policy{
		OnLeaseLoss: onLeaseLoss(c.Policy.Hold), OnUnavailable: warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_CLOSED,
		RedeliveryWindow: durationpb.New(c.Policy.Window), Retention: durationpb.New(c.Policy.Retention),
		LeaseDefault: durationpb.New(c.LeaseDefault), LeaseMax: durationpb.New(c.LeaseMax),
		HoldMax: durationpb.New(c.Policy.HoldMax), AttemptsMax: c.Policy.AttemptsMax,
		ResultBytesMax: uint32(c.Policy.ResultBytesMax), //nolint:gosec // never negative
		DigestRequired: c.DigestRequired, AcceptNoCommonScheme: c.AcceptNoCommonScheme,
	}
	if c.OnUnavailable == tenant.FailOpen {
		p.OnUnavailable = warifuv1.OnUnavailable_ON_UNAVAILABLE_FAIL_OPEN
	}
	return p
}

func onLeaseLoss(hold bool) warifuv1.OnLeaseLoss {
	if hold {
		return warifuv1.OnLeaseLoss_ON_LEASE_LOSS_HOLD
	}
	return warifuv1.OnLeaseLoss_ON_LEASE_LOSS_REGRANT
}
