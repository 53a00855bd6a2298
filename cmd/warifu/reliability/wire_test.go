package reliability_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// kind names a call, or the lapse of every lease of a key (lapse), which the
// tests bring about by moving the clock.
type kind uint8

const (
	claimCall kind = iota
	recordCall
	completeCall
	extendCall
	releaseCall
	lookupCall
	lapse
)

var kindNames = [...]string{"claim", "record", "complete", "extend", "release", "lookup", "lapse"}

func (k kind) String() string { return kindNames[k] }

// op is one send of one call.
type op struct {
	kind            kind
	consumer, event string
	attempt         string
	fence           int64
	body            string // of a completion or record
}

func (o op) String() string {
	return fmt.Sprintf("%s %s/%s attempt=%.8s fence=%d body=%s", o.kind, o.consumer, o.event, o.attempt, o.fence, short(o.body))
}

// Verdicts that are no word of the contract.
const (
	unknown    = "unknown"     // no answer
	notApplied = "not applied" // the server says that this send changed nothing
)

// reply is everything in an answer that the contract speaks of, in its words.
type reply struct {
	verdict  string // decision, status, state of a lookup, ATTEMPT_ENDED, or one of the above
	state    string // complete, extend, release: the state after the call
	attempt  string
	takeover string
	number   uint32
	fence    int64
	recorded bool
	own      bool
	body     string // shortened
}

// shortMax is how much of a body is compared and printed as it is.
const shortMax = 48

// short stands for a body in comparisons and messages: long ones by digest.
func short(body string) string {
	if len(body) <= shortMax {
		return body
	}
	return fmt.Sprintf("%d bytes %x", len(body), sha256.Sum256([]byte(body)))
}

// lease of every claim and extension here: no test runs that long.
var lease = durationpb.New(leaseLength)

func (o op) claim() *warifuv1.ClaimRequest {
	m := &warifuv1.ClaimRequest{Consumer: o.consumer, EventId: o.event, AttemptId: o.attempt, Lease: lease}
	if o.kind == recordCall {
		m.Record = completion(o.body)
	}
	return m
}

func (o op) complete() *warifuv1.CompleteRequest {
	return &warifuv1.CompleteRequest{
		Consumer: o.consumer, EventId: o.event, AttemptId: o.attempt, Fence: o.fence, Completion: completion(o.body),
	}
}

func (o op) extend() *warifuv1.ExtendItem {
	return &warifuv1.ExtendItem{Consumer: o.consumer, EventId: o.event, AttemptId: o.attempt, Fence: o.fence, Lease: lease}
}

func completion(body string) *warifuv1.Completion {
	return &warifuv1.Completion{Outcome: warifuv1.Outcome_OUTCOME_SUCCEEDED, Result: []byte(body), ContentType: "text/plain"}
}

// send makes one call. An error is an answer that the contract does not allow.
func send(ctx context.Context, c api, o op) (reply, error) {
	switch o.kind {
	case claimCall, recordCall:
		m, err := c.Claim(ctx, o.claim())
		if err != nil {
			return failed(err)
		}
		return readClaim(o, m)
	case completeCall:
		m, err := c.Complete(ctx, o.complete())
		if err != nil {
			return failed(err)
		}
		return readComplete(o, m)
	case extendCall:
		replies, err := sendBatch(ctx, c, []op{o})
		if err != nil {
			return reply{}, err
		}
		return replies[0], nil
	case releaseCall:
		m, err := c.Release(ctx, &warifuv1.ReleaseRequest{Consumer: o.consumer, EventId: o.event, AttemptId: o.attempt, Fence: o.fence})
		if err != nil {
			return failed(err)
		}
		return transitioned(m.GetStatus(), m.GetState()), echoes(o, m)
	case lookupCall:
		m, err := c.Lookup(ctx, &warifuv1.LookupRequest{Consumer: o.consumer, EventId: o.event})
		if err != nil {
			return failed(err)
		}
		return readLookup(o, m.GetRecord())
	case lapse:
	}
	return reply{}, fmt.Errorf("%v is no call", o)
}

// sendBatch makes one call for operations of one kind, on different keys;
// claims and records may travel together.
func sendBatch(ctx context.Context, c api, ops []op) ([]reply, error) {
	switch ops[0].kind {
	case claimCall, recordCall:
		return batch(ops, op.claim, func(items []*warifuv1.ClaimRequest) ([]*warifuv1.BatchClaimResult, error) {
			m, err := c.BatchClaim(ctx, &warifuv1.BatchClaimRequest{Items: items})
			return m.GetResults(), err
		}, (*warifuv1.BatchClaimResult).GetClaim, readClaim)
	case completeCall:
		return batch(ops, op.complete, func(items []*warifuv1.CompleteRequest) ([]*warifuv1.BatchCompleteResult, error) {
			m, err := c.BatchComplete(ctx, &warifuv1.BatchCompleteRequest{Items: items})
			return m.GetResults(), err
		}, (*warifuv1.BatchCompleteResult).GetComplete, readComplete)
	case extendCall:
		return batch(ops, op.extend, func(items []*warifuv1.ExtendItem) ([]*warifuv1.ExtendResult, error) {
			m, err := c.Extend(ctx, &warifuv1.ExtendRequest{Items: items})
			return m.GetResults(), err
		}, (*warifuv1.ExtendResult).GetExtend, readExtend)
	case releaseCall, lookupCall, lapse:
	}
	return nil, fmt.Errorf("%v is not for batches", ops[0])
}

// batch sends items made from ops and reads one reply for each.
func batch[I any, R interface{ GetError() *warifuv1.ItemError }, M any](
	ops []op, item func(op) I, call func([]I) ([]R, error), answer func(R) M, read func(op, M) (reply, error),
) ([]reply, error) {
	items := make([]I, len(ops))
	for i, o := range ops {
		items[i] = item(o)
	}
	replies := make([]reply, len(ops))
	results, err := call(items)
	if err != nil {
		whole, err := failed(err)
		for i := range replies {
			replies[i] = whole
		}
		return replies, err
	}
	if len(results) != len(ops) {
		return nil, fmt.Errorf("%d answers to %d items", len(results), len(ops))
	}
	for i, r := range results {
		if e := r.GetError(); e != nil {
			replies[i], err = refused(e.GetInfo(), fmt.Errorf("item %d: %s: %s", i, e.GetCode(), e.GetMessage()))
		} else {
			replies[i], err = read(ops[i], answer(r))
		}
		if err != nil {
			return nil, err
		}
	}
	return replies, nil
}

func readClaim(o op, m *warifuv1.ClaimResponse) (reply, error) {
	g := m.GetGrant()
	r := reply{
		verdict: word(m.GetDecision(), "DECISION_"), own: m.GetOwnAttempt(), body: short(string(m.GetResult().GetResult())),
		attempt: g.GetAttemptId(), number: g.GetAttempt(), fence: g.GetFence(), recorded: g.GetRecorded(),
	}
	granted, duplicate := r.verdict == "GRANTED", r.verdict == "DUPLICATE"
	if granted {
		r.takeover = word(g.GetTakeover(), "TAKEOVER_")
	}
	switch {
	case granted != (g.GetFence() > 0):
		return r, fmt.Errorf("%v: decision and fence do not fit: %v", o, m)
	case m.GetAccepted() != (duplicate || r.recorded) || m.Accepted == nil:
		return r, fmt.Errorf("%v: accepted does not fit the decision: %v", o, m)
	}
	return r, echoes(o, m)
}

func readComplete(o op, m *warifuv1.CompleteResponse) (reply, error) {
	return transitioned(m.GetStatus(), m.GetState()), echoes(o, m)
}

func readExtend(o op, m *warifuv1.ExtendAnswer) (reply, error) {
	if m.GetConsumer() != o.consumer || m.GetEventId() != o.event {
		return reply{}, fmt.Errorf("%v: the answer is about another event: %v", o, m)
	}
	return transitioned(m.GetStatus(), m.GetState()), nil
}

func readLookup(o op, m *warifuv1.ClaimRecord) (reply, error) {
	if m.GetConsumer() != o.consumer || m.GetEventId() != o.event {
		return reply{}, fmt.Errorf("%v: the answer is about another event: %v", o, m)
	}
	r := reply{
		verdict: word(m.GetState(), "STATE_"), attempt: m.GetAttemptId(), number: m.GetAttempt(), fence: m.GetFence(),
		body: short(string(m.GetResult().GetResult())),
	}
	if r.verdict != "ABSENT" {
		r.takeover = word(m.GetTakeover(), "TAKEOVER_")
	}
	return r, nil
}

func transitioned(status warifuv1.Status, state warifuv1.State) reply {
	return reply{verdict: word(status, "STATUS_"), state: word(state, "STATE_")}
}

// word is an enum's name in the contract.
func word(value fmt.Stringer, prefix string) string {
	return strings.TrimPrefix(value.String(), prefix)
}

// echoes checks that an answer names the event that was asked about.
func echoes(o op, m interface {
	GetConsumer() string
	GetEventId() string
	GetProtocolVersion() uint32
},
) error {
	if m.GetConsumer() != o.consumer || m.GetEventId() != o.event || m.GetProtocolVersion() != 1 {
		return fmt.Errorf("%v: the answer is about another event or in another protocol: %v", o, m)
	}
	return nil
}

// failed reads the error of a call.
func failed(err error) (reply, error) {
	var wire *connect.Error
	if !errors.As(err, &wire) {
		return reply{}, fmt.Errorf("not a Connect error: %w", err)
	}
	for _, d := range wire.Details() {
		m, detailErr := connectproto.UnmarshalErrorDetail(d)
		if detailErr != nil {
			return reply{}, fmt.Errorf("error detail: %w", detailErr)
		}
		if info, ok := m.(*warifuv1.ErrorInfo); ok {
			return refused(info, err)
		}
	}
	// No server speaks without a reason: this is the network.
	return reply{verdict: unknown}, nil
}

// refused reads an error that the server gave.
func refused(info *warifuv1.ErrorInfo, err error) (reply, error) {
	switch info.GetReason() {
	case warifuv1.Reason_REASON_ATTEMPT_ENDED:
		return reply{verdict: "ATTEMPT_ENDED"}, nil
	case warifuv1.Reason_REASON_STORE_UNAVAILABLE, warifuv1.Reason_REASON_OUTCOME_UNKNOWN, warifuv1.Reason_REASON_OVERLOADED,
		warifuv1.Reason_REASON_SHUTTING_DOWN, warifuv1.Reason_REASON_DEADLINE_EXCEEDED, warifuv1.Reason_REASON_CANCELED:
		if info.GetNotApplied() {
			return reply{verdict: notApplied}, nil
		}
		return reply{verdict: unknown}, nil
	default:
		return reply{}, fmt.Errorf("a refusal that nothing here deserves: %w", err)
	}
}
