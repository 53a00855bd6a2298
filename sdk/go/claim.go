package warifu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"maps"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// ClaimOption sets what belongs to one claim rather than to the event.
type ClaimOption interface{ applyClaim(*claimSettings) }

type claimSettings struct {
	attemptID string
	ours      bool // nobody else knows the attempt ID
	lease     time.Duration
	wait      time.Duration
}

type claimOptionFunc func(*claimSettings)

func (f claimOptionFunc) applyClaim(s *claimSettings) { f(s) }

// WithAttemptID sets the attempt's UUID, for callers that keep it and may send
// the claim again themselves, after ErrOutcomeUnknown or a restart. It must be
// random, and used by one attempt only. By default each call makes its own.
func WithAttemptID(id string) ClaimOption {
	return claimOptionFunc(func(s *claimSettings) { s.attemptID = id })
}

// WithLease sets how long the attempt may work before others may take over: 1 s
// to 24 h, at most the consumer's maximum. By default the consumer's default
// (30 s). Do extends it as long as its handler runs.
func WithLease(d time.Duration) ClaimOption {
	return claimOptionFunc(func(s *claimSettings) { s.lease = d })
}

// WithWait lets the server wait up to d (at most 30 s) for another attempt to
// end before it answers IN_PROGRESS. Such claims travel alone. A lease begins
// when it is granted: the wait uses none of it up.
func WithWait(d time.Duration) ClaimOption {
	return claimOptionFunc(func(s *claimSettings) { s.wait = d })
}

func settings(opts []ClaimOption) claimSettings {
	var s claimSettings
	if len(opts) > 0 {
		s = applied(opts)
	}
	if s.attemptID == "" {
		s.attemptID, s.ours = uuid.NewString(), true
	}
	return s
}

// applied is apart from settings so that claims without options allocate none.
func applied(opts []ClaimOption) claimSettings {
	var s claimSettings
	for _, o := range opts {
		o.applyClaim(&s)
	}
	return s
}

// Claim asks whether one new attempt may act on the event. The answer is data,
// whichever it is; an error means that the question was not answered, and then
// nobody may act. A claim that was Granted is to be completed or released by
// its caller; see [Client.Do], which does it.
func (c *Client) Claim(ctx context.Context, e Event, opts ...ClaimOption) (Claim, error) {
	if !c.open.enter() {
		return Claim{}, closed(opClaim)
	}
	defer c.open.exit()
	answer, err := c.claim(ctx, &e, settings(opts), nil)
	return answer, err.std()
}

// Record claims and, when granted, completes in one durable write. The grant
// then says Recorded. Called before the effect it makes the effect happen at
// most once; called after it, a second effect is found out but not prevented.
func (c *Client) Record(ctx context.Context, e Event, done Completion, opts ...ClaimOption) (Claim, error) {
	if !c.open.enter() {
		return Claim{}, closed(opClaim)
	}
	defer c.open.exit()
	s := settings(opts)
	answer, err := c.claim(ctx, &e, s, done.message(false))
	if tooLarge(err, &done) {
		answer, err = c.claim(ctx, &e, s, done.message(true))
	}
	return answer, err.std()
}

// claimItem is one claim's message and the parts it points to, kept together so
// that a claim costs no allocation. Nothing of it is the caller's memory: the
// caller may leave, and change that, while a sender still reads.
type claimItem struct {
	request warifuv1.ClaimRequest
	ours    bool
	time    timestamppb.Timestamp
	lease   durationpb.Duration
	wait    durationpb.Duration
	digests []warifuv1.Digest
	refs    []*warifuv1.Digest
	values  []byte // of the digests
}

func (i *claimItem) fill(e *Event, s *claimSettings, record *warifuv1.Completion) {
	i.ours = s.ours
	r := &i.request
	r.Consumer, r.EventId, r.AttemptId, r.Record = e.Consumer, e.ID, s.attemptID, record
	r.EventTime, r.Lease, r.Wait, r.Digests = nil, nil, nil, nil
	if !e.Time.IsZero() {
		i.time.Seconds, i.time.Nanos = e.Time.Unix(), int32(e.Time.Nanosecond()) //nolint:gosec // below 1e9
		r.EventTime = &i.time
	}
	if s.lease != 0 {
		r.Lease = setDuration(&i.lease, s.lease)
	}
	if s.wait != 0 {
		r.Wait = setDuration(&i.wait, s.wait)
	}
	if len(e.Digests) > 0 {
		r.Digests = i.fillDigests(e.Digests)
	}
}

func (i *claimItem) fillDigests(ds []Digest) []*warifuv1.Digest {
	if len(i.digests) < len(ds) {
		i.digests, i.refs = make([]warifuv1.Digest, len(ds)), make([]*warifuv1.Digest, len(ds))
	}
	i.values = i.values[:0]
	for n := range ds {
		begin := len(i.values)
		i.values = append(i.values, ds[n].Value...)
		d := &i.digests[n]
		d.Scheme, d.Value = ds[n].Scheme, i.values[begin:len(i.values):len(i.values)]
		i.refs[n] = d
	}
	return i.refs[:len(ds)]
}

// forget lets go of what the message points to.
func (i *claimItem) forget() {
	r := &i.request
	r.Consumer, r.EventId, r.AttemptId, r.Record, r.Digests = "", "", "", nil, nil
	for n := range i.digests {
		i.digests[n].Scheme, i.digests[n].Value = "", nil
	}
}

func setDuration(to *durationpb.Duration, d time.Duration) *durationpb.Duration {
	to.Seconds, to.Nanos = int64(d/time.Second), int32(d%time.Second)
	return to
}

func (c *Client) claim(ctx context.Context, e *Event, s claimSettings, record *warifuv1.Completion) (Claim, *Error) {
	if err := checkClaim(e, &s, record); err != nil {
		return Claim{}, err
	}
	if s.wait != 0 {
		return c.claimAlone(ctx, e, s, record)
	}
	call := c.claims.get()
	call.item.fill(e, &s, record)
	call.bytes = sizeOfClaim(e, &s, record)
	if err := c.claims.do(ctx, call); err != nil {
		return Claim{}, err // the call is left behind: a sender may hold it
	}
	answer, err := readClaim(&call.item.request, call.reply.GetClaim(), call.sentAt)
	call.item.forget()
	c.claims.put(call)
	if err == nil && answer.Stored.Omitted == BatchBudget {
		return c.fetch(ctx, e, s, record, answer), nil
	}
	return answer, err
}

// Limits that are checked before sending, because one message that cannot be
// encoded would fail all that travel with it. All others are the server's.
const notUTF8 = "valid UTF-8"

func checkClaim(e *Event, s *claimSettings, record *warifuv1.Completion) *Error {
	err := checkText(opClaim, "consumer", e.Consumer, "event_id", e.ID, "attempt_id", s.attemptID)
	for i := range e.Digests {
		if err == nil {
			err = checkText(opClaim, "digests.scheme", e.Digests[i].Scheme)
		}
	}
	if err == nil && record != nil {
		err = checkCompletion(opClaim, record)
	}
	return err
}

// checkText takes fields and their texts by turns.
func checkText(op string, fields ...string) *Error {
	for i := 0; i < len(fields); i += 2 {
		if !utf8.ValidString(fields[i+1]) { //nolint:gosec // they come in pairs
			e := answered(op, ErrInvalid)
			e.Field, e.Limit = fields[i], notUTF8
			return e
		}
	}
	return nil
}

func sizeOfClaim(e *Event, s *claimSettings, record *warifuv1.Completion) int {
	n := itemBytes + len(e.Consumer) + len(e.ID) + len(s.attemptID)
	for i := range e.Digests {
		n += itemBytes + len(e.Digests[i].Scheme) + len(e.Digests[i].Value)
	}
	return n + sizeOfCompletion(record)
}

func (c *Client) sendClaims(ctx context.Context, batch []*call[claimItem, *warifuv1.BatchClaimResult]) ([]*warifuv1.BatchClaimResult, error) {
	items := make([]*warifuv1.ClaimRequest, len(batch))
	for i, call := range batch {
		items[i] = &call.item.request
	}
	reply, err := c.rpc.BatchClaim(ctx, &warifuv1.BatchClaimRequest{Items: items})
	return reply.GetResults(), err
}

// resultBytesMax is the contract's hard cap for a result.
const resultBytesMax = 512 << 10

// message returns the completion for the wire, a copy: see claimItem. Bodies
// above every limit, and those the server found too large, are left out; their
// digest lets a resend be recognised.
func (c *Completion) message(omit bool) *warifuv1.Completion {
	m := &warifuv1.Completion{
		Outcome: warifuv1.Outcome(c.stored().Outcome), ContentType: c.ContentType, Metadata: maps.Clone(c.Metadata),
	}
	if omit || len(c.Body) > resultBytesMax {
		sum := sha256.Sum256(c.Body)
		m.ResultSha256, m.ResultOmitted = sum[:], warifuv1.ResultOmitted_RESULT_OMITTED_TOO_LARGE
		return m
	}
	m.Result = bytes.Clone(c.Body)
	return m
}
