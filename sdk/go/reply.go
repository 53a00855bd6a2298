package warifu

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// Replies are believed only when they name the event that was asked about, in
// this protocol, and say everything that their kind must say. What a newer
// server may add is never taken for a grant.

// echo is what every reply about one event repeats.
type echo interface {
	GetConsumer() string
	GetEventId() string
	GetProtocolVersion() uint32
}

func checkEcho(op string, reply echo, consumer, eventID string) *Error {
	switch {
	case reply.GetProtocolVersion() != protocolVersion:
		return distrust(op, fmt.Sprintf("protocol version %d instead of %d", reply.GetProtocolVersion(), protocolVersion))
	case reply.GetConsumer() != consumer || reply.GetEventId() != eventID:
		return distrust(op, "the reply is about another event")
	}
	return nil
}

func readClaim(asked *warifuv1.ClaimRequest, r *warifuv1.ClaimResponse, sentAt time.Time) (Claim, *Error) {
	if err := checkEcho(opClaim, r, asked.GetConsumer(), asked.GetEventId()); err != nil {
		return Claim{}, err
	}
	if r.Accepted == nil {
		return Claim{}, distrust(opClaim, "the reply does not say whether the event is accepted")
	}
	answer := Claim{
		Accepted: r.GetAccepted(), OwnAttempt: r.GetOwnAttempt(),
		RetryAfter: r.GetRetryAfter().AsDuration(), ExpiresAt: timeOf(r.GetExpiresAt()),
	}
	switch r.GetDecision() {
	case warifuv1.Decision_DECISION_GRANTED:
		grant, err := readGrant(asked, r.GetGrant(), sentAt)
		if err != nil {
			return Claim{}, err
		}
		answer.Decision, answer.Grant = Granted, grant
	case warifuv1.Decision_DECISION_DUPLICATE:
		stored, err := readStored(opClaim, r.GetResult())
		if err != nil {
			return Claim{}, err
		}
		answer.Decision, answer.Stored = Duplicate, stored
	case warifuv1.Decision_DECISION_IN_PROGRESS:
		answer.Decision = InProgress
	case warifuv1.Decision_DECISION_MISMATCH:
		answer.Decision = Mismatch
	case warifuv1.Decision_DECISION_IN_DOUBT:
		answer.Decision = InDoubt
	case warifuv1.Decision_DECISION_TOO_OLD:
		answer.Decision = TooOld
	case warifuv1.Decision_DECISION_UNPROTECTED:
		answer.Decision = Unprotected
	case warifuv1.Decision_DECISION_UNSPECIFIED:
		fallthrough
	default:
		return Claim{}, distrust(opClaim, "unknown decision "+r.GetDecision().String())
	}
	return answer, nil
}

func readGrant(asked *warifuv1.ClaimRequest, g *warifuv1.Grant, sentAt time.Time) (Grant, *Error) {
	switch {
	case g.GetFence() <= 0:
		return Grant{}, distrust(opClaim, "a grant without a fence")
	case g.GetAttemptId() != asked.GetAttemptId():
		return Grant{}, distrust(opClaim, "a grant to another attempt")
	case g.GetRecorded() != (asked.GetRecord() != nil):
		return Grant{}, distrust(opClaim, "a grant that does not fit the claim")
	}
	grant := Grant{
		Consumer: asked.GetConsumer(), EventID: asked.GetEventId(), AttemptID: asked.GetAttemptId(),
		Fence: g.GetFence(), Attempt: g.GetAttempt(), Takeover: Takeover(g.GetTakeover()), Recorded: g.GetRecorded(), //nolint:gosec // a small enum
	}
	if !grant.Recorded {
		grant.LeaseUntil = decidedAfter(g, sentAt).Add(g.GetLeaseRemaining().AsDuration())
	}
	return grant, nil
}

// decidedAfter is an instant before which the grant was not decided: when it was
// asked for, or as much later as the server waited before it decided. More than
// has passed here is not believed.
func decidedAfter(g *warifuv1.Grant, sentAt time.Time) time.Time {
	if g.GetWaited() == nil {
		return sentAt
	}
	return sentAt.Add(max(0, min(g.GetWaited().AsDuration(), time.Since(sentAt))))
}

func readStored(op string, r *warifuv1.StoredResult) (Stored, *Error) {
	s := Stored{ // copies: the reply of a whole batch is not to live as long as one of its results
		Body: bytes.Clone(r.GetResult()), ContentType: strings.Clone(r.GetContentType()), Metadata: ownMap(r.GetMetadata()),
		Omitted:     Omission(r.GetResultOmitted()), //nolint:gosec // a small enum
		CompletedAt: timeOf(r.GetCompletedAt()),
	}
	switch r.GetOutcome() {
	case warifuv1.Outcome_OUTCOME_SUCCEEDED:
		s.Outcome = Succeeded
	case warifuv1.Outcome_OUTCOME_REJECTED:
		s.Outcome = Rejected
	case warifuv1.Outcome_OUTCOME_UNSPECIFIED:
		fallthrough
	default:
		return Stored{}, distrust(op, "unknown outcome "+r.GetOutcome().String())
	}
	return s, nil
}

func ownMap(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	own := make(map[string]string, len(m))
	for name, value := range m {
		own[strings.Clone(name)] = strings.Clone(value)
	}
	return own
}

func readComplete(g *Grant, r *warifuv1.CompleteResponse) *Error {
	if err := checkEcho(opComplete, r, g.Consumer, g.EventID); err != nil {
		return err
	}
	if r.Accepted == nil {
		return distrust(opComplete, "the reply does not say whether the event is accepted")
	}
	return readStatus(opComplete, r.GetStatus(), r.GetState())
}

func readExtend(g *Grant, r *warifuv1.ExtendAnswer, sentAt time.Time) *Error {
	if r.GetConsumer() != g.Consumer || r.GetEventId() != g.EventID {
		return distrust(opExtend, "the reply is about another event")
	}
	if err := readStatus(opExtend, r.GetStatus(), r.GetState()); err != nil {
		return err
	}
	if until := sentAt.Add(r.GetLeaseRemaining().AsDuration()); until.After(g.LeaseUntil) {
		g.LeaseUntil = until
	}
	return nil
}

func readRelease(g *Grant, r *warifuv1.ReleaseResponse) *Error {
	if err := checkEcho(opRelease, r, g.Consumer, g.EventID); err != nil {
		return err
	}
	return readStatus(opRelease, r.GetStatus(), r.GetState())
}

func readStatus(op string, s warifuv1.Status, state warifuv1.State) *Error {
	var e *Error
	switch s {
	case warifuv1.Status_STATUS_OK:
		return nil
	case warifuv1.Status_STATUS_STALE:
		e = answered(op, ErrStale)
	case warifuv1.Status_STATUS_RESULT_CONFLICT:
		e = answered(op, ErrResultConflict)
	case warifuv1.Status_STATUS_UNSPECIFIED:
		fallthrough
	default:
		return distrust(op, "unknown status "+s.String())
	}
	e.State = State(state) //nolint:gosec // a small enum
	return e
}

func readLookup(consumer, eventID string, r *warifuv1.LookupResponse) (Record, *Error) {
	k := r.GetRecord()
	switch {
	case r.GetProtocolVersion() != protocolVersion:
		return Record{}, distrust(opLookup, "another protocol version")
	case k.GetConsumer() != consumer || k.GetEventId() != eventID:
		return Record{}, distrust(opLookup, "the reply is about another event")
	case k.GetState() == warifuv1.State_STATE_UNSPECIFIED:
		return Record{}, distrust(opLookup, "the reply has no state")
	}
	rec := Record{
		State: State(k.GetState()), AttemptID: k.GetAttemptId(), Attempt: k.GetAttempt(), Fence: k.GetFence(), //nolint:gosec // a small enum
		Takeover: Takeover(k.GetTakeover()), DigestSchemes: k.GetDigestSchemes(), //nolint:gosec // a small enum
		ClaimedAt: timeOf(k.GetClaimedAt()), GrantedAt: timeOf(k.GetGrantedAt()), LeaseUntil: timeOf(k.GetLeaseUntil()),
		ExpiresAt: timeOf(k.GetExpiresAt()), EventTime: timeOf(k.GetEventTime()),
		Hold: k.GetOnLeaseLoss() == warifuv1.OnLeaseLoss_ON_LEASE_LOSS_HOLD,
	}
	if rec.State != StateCompleted {
		return rec, nil
	}
	var err *Error
	rec.Stored, err = readStored(opLookup, k.GetResult())
	return rec, err
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
