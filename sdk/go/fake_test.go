package warifu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
)

const fakeLease = 30 * time.Second

// fake is a server small enough to be read, with faults at every seam. It
// follows the contract where the SDK depends on it and nowhere else; the real
// server is met in warifutest.
type fake struct {
	warifuv1connect.UnimplementedClaimServiceHandler

	// before runs ahead of an RPC: an error means that nothing is applied.
	before func(ctx context.Context, rpc string) error
	// after runs behind it: an error loses the reply of what was applied.
	after func(rpc string) error
	// item fails one item of a batch, unless nil.
	item func(eventID string) *warifuv1.ItemError
	// edit changes a reply on its way.
	edit func(proto.Message)

	mu struct {
		sync.Mutex
		records  map[string]*fakeRecord
		fence    int64
		rpcs     map[string]int      // by method
		batches  []int               // items of each BatchClaim
		attempts map[string][]string // attempt IDs by event, one for each claim that came
		extends  int
	}
}

type fakeRecord struct {
	state   warifuv1.State
	attempt string
	count   uint32
	fence   int64
	until   time.Time
	hold    bool
	digest  []byte
	done    *warifuv1.Completion
}

func setup(t *testing.T, opts ...Option) (*Client, *fake) {
	t.Helper()
	f := &fake{}
	f.mu.records, f.mu.rpcs, f.mu.attempts = map[string]*fakeRecord{}, map[string]int{}, map[string][]string{}
	server := connect.NewServer()
	warifuv1connect.RegisterClaimServiceHandler(server, f)
	c, err := New("", append([]Option{WithTransport(connectinprocess.New(server))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, f
}

// fail sets before while calls are under way.
func (f *fake) fail(before func(context.Context, string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

func (f *fake) record(id string) *fakeRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.records[id]
}

func (f *fake) rpcs(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.rpcs[method]
}

func (f *fake) attempts(id string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.attempts[id]
}

// serve wraps every RPC with the faults.
func serve[T proto.Message](ctx context.Context, f *fake, rpc string, answer func() T) (T, error) {
	var none T
	f.mu.Lock()
	f.mu.rpcs[rpc]++
	before, after, edit := f.before, f.after, f.edit
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx, rpc); err != nil {
			return none, err
		}
	}
	f.mu.Lock()
	reply := answer()
	f.mu.Unlock()
	if after != nil {
		if err := after(rpc); err != nil {
			return none, err
		}
	}
	if edit != nil {
		edit(reply)
	}
	return reply, nil
}

func (f *fake) Claim(ctx context.Context, r *warifuv1.ClaimRequest) (*warifuv1.ClaimResponse, error) {
	return serve(ctx, f, "Claim", func() *warifuv1.ClaimResponse { return f.claim(r) })
}

func (f *fake) BatchClaim(ctx context.Context, r *warifuv1.BatchClaimRequest) (*warifuv1.BatchClaimResponse, error) {
	return serve(ctx, f, "BatchClaim", func() *warifuv1.BatchClaimResponse {
		f.mu.batches = append(f.mu.batches, len(r.GetItems()))
		out := &warifuv1.BatchClaimResponse{}
		for _, item := range r.GetItems() {
			if f.item != nil {
				if fault := f.item(item.GetEventId()); fault != nil {
					f.mu.attempts[item.GetEventId()] = append(f.mu.attempts[item.GetEventId()], item.GetAttemptId())
					out.Results = append(out.Results, &warifuv1.BatchClaimResult{Result: &warifuv1.BatchClaimResult_Error{Error: fault}})
					continue
				}
			}
			out.Results = append(out.Results, &warifuv1.BatchClaimResult{Result: &warifuv1.BatchClaimResult_Claim{Claim: f.claim(item)}})
		}
		return out
	})
}

func (f *fake) claim(r *warifuv1.ClaimRequest) *warifuv1.ClaimResponse {
	id := r.GetEventId()
	f.mu.attempts[id] = append(f.mu.attempts[id], r.GetAttemptId())
	out := &warifuv1.ClaimResponse{
		Consumer: r.GetConsumer(), EventId: id, Accepted: new(bool), ProtocolVersion: 1,
		ExpiresAt: timestamppb.New(time.Now().Add(48 * time.Hour)),
	}
	rec := f.mu.records[id]
	if rec == nil {
		rec = &fakeRecord{state: warifuv1.State_STATE_RELEASED, digest: firstDigest(r)}
		f.mu.records[id] = rec
	}
	lapsed := rec.state == warifuv1.State_STATE_IN_PROGRESS && !time.Now().Before(rec.until)
	switch {
	case !bytes.Equal(rec.digest, firstDigest(r)):
		out.Decision = warifuv1.Decision_DECISION_MISMATCH
	case rec.state == warifuv1.State_STATE_COMPLETED:
		*out.Accepted, out.OwnAttempt = true, rec.attempt == r.GetAttemptId()
		out.Decision = warifuv1.Decision_DECISION_DUPLICATE
		out.Result = &warifuv1.StoredResult{
			Outcome: rec.done.GetOutcome(), Result: rec.done.GetResult(), ContentType: rec.done.GetContentType(),
			Metadata: rec.done.GetMetadata(), ResultOmitted: rec.done.GetResultOmitted(), CompletedAt: timestamppb.Now(),
		}
	case lapsed && rec.hold:
		out.Decision = warifuv1.Decision_DECISION_IN_DOUBT
	case rec.state == warifuv1.State_STATE_IN_PROGRESS && !lapsed && rec.attempt != r.GetAttemptId():
		out.Decision = warifuv1.Decision_DECISION_IN_PROGRESS
		out.RetryAfter = durationpb.New(time.Until(rec.until))
	default:
		f.grant(rec, r, out, lapsed)
	}
	return out
}

func (f *fake) grant(rec *fakeRecord, r *warifuv1.ClaimRequest, out *warifuv1.ClaimResponse, lapsed bool) {
	lease := fakeLease
	if r.GetLease() != nil {
		lease = r.GetLease().AsDuration()
	}
	takeover := warifuv1.Takeover_TAKEOVER_UNSPECIFIED
	if rec.state != warifuv1.State_STATE_IN_PROGRESS || rec.attempt != r.GetAttemptId() {
		if rec.count > 0 {
			takeover = warifuv1.Takeover_TAKEOVER_RELEASED
			if lapsed {
				takeover = warifuv1.Takeover_TAKEOVER_LEASE_LAPSED
			}
		}
		f.mu.fence++
		rec.fence, rec.attempt, rec.until = f.mu.fence, r.GetAttemptId(), time.Now().Add(lease)
		rec.state, rec.count = warifuv1.State_STATE_IN_PROGRESS, rec.count+1
	}
	out.Decision = warifuv1.Decision_DECISION_GRANTED
	out.Grant = &warifuv1.Grant{
		Fence: rec.fence, Attempt: rec.count, AttemptId: rec.attempt, Takeover: takeover,
		LeaseRemaining: durationpb.New(time.Until(rec.until)),
	}
	if r.GetRecord() != nil {
		rec.state, rec.done = warifuv1.State_STATE_COMPLETED, r.GetRecord()
		out.Grant.Recorded, *out.Accepted = true, true
	}
}

func (f *fake) BatchComplete(ctx context.Context, r *warifuv1.BatchCompleteRequest) (*warifuv1.BatchCompleteResponse, error) {
	return serve(ctx, f, "BatchComplete", func() *warifuv1.BatchCompleteResponse {
		out := &warifuv1.BatchCompleteResponse{}
		for _, item := range r.GetItems() {
			if fault := f.refuse(item); fault != nil {
				out.Results = append(out.Results, &warifuv1.BatchCompleteResult{Result: &warifuv1.BatchCompleteResult_Error{Error: fault}})
				continue
			}
			out.Results = append(out.Results, &warifuv1.BatchCompleteResult{Result: &warifuv1.BatchCompleteResult_Complete{Complete: f.complete(item)}})
		}
		return out
	})
}

const fakeResultMax = 256 << 10

func (f *fake) refuse(r *warifuv1.CompleteRequest) *warifuv1.ItemError {
	if f.item != nil {
		if fault := f.item(r.GetEventId()); fault != nil {
			return fault
		}
	}
	if len(r.GetCompletion().GetResult()) > fakeResultMax {
		return &warifuv1.ItemError{Code: "invalid_argument", Info: &warifuv1.ErrorInfo{
			Reason: warifuv1.Reason_REASON_INVALID_FIELD, Field: "items[0].completion.result", Limit: "262144 bytes", NotApplied: true,
		}}
	}
	return nil
}

func (f *fake) complete(r *warifuv1.CompleteRequest) *warifuv1.CompleteResponse {
	out := &warifuv1.CompleteResponse{Consumer: r.GetConsumer(), EventId: r.GetEventId(), Accepted: new(bool), ProtocolVersion: 1}
	rec := f.mu.records[r.GetEventId()]
	switch {
	case rec == nil || rec.attempt != r.GetAttemptId() || rec.fence != r.GetFence():
		out.Status = warifuv1.Status_STATUS_STALE
	case rec.state == warifuv1.State_STATE_COMPLETED && !proto.Equal(rec.done, r.GetCompletion()):
		out.Status = warifuv1.Status_STATUS_RESULT_CONFLICT
	default:
		rec.state, rec.done = warifuv1.State_STATE_COMPLETED, proto.CloneOf(r.GetCompletion())
		out.Status, *out.Accepted = warifuv1.Status_STATUS_OK, true
	}
	out.State = rec.stateOf()
	return out
}

func (f *fake) Extend(ctx context.Context, r *warifuv1.ExtendRequest) (*warifuv1.ExtendResponse, error) {
	return serve(ctx, f, "Extend", func() *warifuv1.ExtendResponse {
		out := &warifuv1.ExtendResponse{ProtocolVersion: 1}
		for _, item := range r.GetItems() {
			f.mu.extends++
			out.Results = append(out.Results, &warifuv1.ExtendResult{Result: &warifuv1.ExtendResult_Extend{Extend: f.extend(item)}})
		}
		return out
	})
}

func (f *fake) extend(r *warifuv1.ExtendItem) *warifuv1.ExtendAnswer {
	out := &warifuv1.ExtendAnswer{Consumer: r.GetConsumer(), EventId: r.GetEventId(), Status: warifuv1.Status_STATUS_STALE}
	rec := f.mu.records[r.GetEventId()]
	out.State = rec.stateOf()
	if rec == nil || rec.fence != r.GetFence() || rec.state != warifuv1.State_STATE_IN_PROGRESS || !time.Now().Before(rec.until) {
		return out
	}
	lease := fakeLease
	if r.GetLease() != nil {
		lease = r.GetLease().AsDuration()
	}
	if until := time.Now().Add(lease); until.After(rec.until) {
		rec.until = until
	}
	out.Status, out.LeaseRemaining = warifuv1.Status_STATUS_OK, durationpb.New(time.Until(rec.until))
	return out
}

func (f *fake) Release(ctx context.Context, r *warifuv1.ReleaseRequest) (*warifuv1.ReleaseResponse, error) {
	return serve(ctx, f, "Release", func() *warifuv1.ReleaseResponse {
		out := &warifuv1.ReleaseResponse{Consumer: r.GetConsumer(), EventId: r.GetEventId(), ProtocolVersion: 1, Status: warifuv1.Status_STATUS_STALE}
		rec := f.mu.records[r.GetEventId()]
		if rec != nil && rec.fence == r.GetFence() && rec.state == warifuv1.State_STATE_IN_PROGRESS {
			rec.state, out.Status = warifuv1.State_STATE_RELEASED, warifuv1.Status_STATUS_OK
		}
		out.State = rec.stateOf()
		return out
	})
}

func (f *fake) Lookup(ctx context.Context, r *warifuv1.LookupRequest) (*warifuv1.LookupResponse, error) {
	return serve(ctx, f, "Lookup", func() *warifuv1.LookupResponse {
		rec := f.mu.records[r.GetEventId()]
		out := &warifuv1.LookupResponse{ProtocolVersion: 1, Record: &warifuv1.ClaimRecord{
			Consumer: r.GetConsumer(), EventId: r.GetEventId(), State: rec.stateOf(),
		}}
		if rec != nil {
			out.Record.Fence, out.Record.AttemptId = rec.fence, rec.attempt
			if rec.done != nil {
				out.Record.Result = &warifuv1.StoredResult{Outcome: rec.done.GetOutcome(), Result: rec.done.GetResult()}
			}
		}
		return out
	})
}

func (r *fakeRecord) stateOf() warifuv1.State {
	if r == nil {
		return warifuv1.State_STATE_ABSENT
	}
	return r.state
}

// rpcError is an error as the server makes it.
func rpcError(t *testing.T, code connect.Code, info *warifuv1.ErrorInfo) error {
	t.Helper()
	detail, err := connectproto.NewErrorDetail(info)
	if err != nil {
		t.Fatal(err)
	}
	return connect.NewError(code, "told by the server").WithDetail(detail)
}

func unavailable(t *testing.T, notApplied bool) error {
	t.Helper()
	return rpcError(t, connect.CodeUnavailable, &warifuv1.ErrorInfo{
		Reason: warifuv1.Reason_REASON_STORE_UNAVAILABLE, NotApplied: notApplied, RequestId: "req-1",
	})
}

func event(id string) Event { return Event{Consumer: "billing", ID: id} }

func digested(id, content string) Event {
	sum := sha256.Sum256([]byte(content))
	return Event{Consumer: "billing", ID: id, Digests: []Digest{{Scheme: "sha256/test.v1", Value: sum[:]}}}
}

func firstDigest(r *warifuv1.ClaimRequest) []byte {
	if len(r.GetDigests()) == 0 {
		return nil
	}
	return r.GetDigests()[0].GetValue()
}
