package warifu

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// Complete stores the outcome of a granted attempt. Without an error it is
// durable, and every later claim is answered with it. ErrStale and
// ErrResultConflict say that it was not stored; sending the same completion
// again is always safe, and worth it after ErrInternal and ErrReply too.
func (c *Client) Complete(ctx context.Context, g Grant, done Completion) error {
	if !c.open.enter() {
		return closed(opComplete)
	}
	defer c.open.exit()
	_, err := c.complete(ctx, &g, &done)
	return err.std()
}

// complete also says whether the body was left out.
func (c *Client) complete(ctx context.Context, g *Grant, done *Completion) (Omission, *Error) {
	m := done.message(false)
	err := c.completeOnce(ctx, g, m)
	if tooLarge(err, done) {
		m = done.message(true)
		err = c.completeOnce(ctx, g, m)
	}
	return Omission(m.GetResultOmitted()), err //nolint:gosec // a small enum
}

// tooLarge recognises the server's refusal of a body above the consumer's
// limit, which only the server knows.
func tooLarge(e *Error, done *Completion) bool {
	return e != nil && errors.Is(e.kind, ErrInvalid) && len(done.Body) > 0 &&
		(e.Field == "result" || strings.HasSuffix(e.Field, ".result"))
}

type completeItem struct{ request warifuv1.CompleteRequest }

func (c *Client) completeOnce(ctx context.Context, g *Grant, m *warifuv1.Completion) *Error {
	if err := checkGrant(opComplete, g); err != nil {
		return err
	}
	if err := checkCompletion(opComplete, m); err != nil {
		return err
	}
	call := c.completes.get()
	r := &call.item.request
	r.Consumer, r.EventId, r.AttemptId, r.Fence, r.Completion = g.Consumer, g.EventID, g.AttemptID, g.Fence, m
	call.bytes = sizeOfGrant(g) + sizeOfCompletion(m)
	if err := c.completes.do(ctx, call); err != nil {
		return err
	}
	err := readComplete(g, call.reply.GetComplete())
	r.Completion = nil
	c.completes.put(call)
	return err
}

func (c *Client) sendCompletes(ctx context.Context, batch []*call[completeItem, *warifuv1.BatchCompleteResult]) ([]*warifuv1.BatchCompleteResult, error) {
	items := make([]*warifuv1.CompleteRequest, len(batch))
	for i, call := range batch {
		items[i] = &call.item.request
	}
	reply, err := c.rpc.BatchComplete(ctx, &warifuv1.BatchCompleteRequest{Items: items})
	return reply.GetResults(), err
}

// Extend lengthens the live lease of a grant: from now on by lease, or by the
// consumer's default when 0. It returns the grant with its new end, which is
// never before the old one and never beyond the consumer's maximum hold.
// ErrStale says that the lease was over, or that somebody else owns the event.
func (c *Client) Extend(ctx context.Context, g Grant, lease time.Duration) (Grant, error) {
	if !c.open.enter() {
		return g, closed(opExtend)
	}
	defer c.open.exit()
	err := c.extend(ctx, &g, lease)
	return g, err.std()
}

var errProtocol = errors.New("another protocol version")

type extendItem struct {
	request warifuv1.ExtendItem
	lease   durationpb.Duration
}

func (c *Client) extend(ctx context.Context, g *Grant, lease time.Duration) *Error {
	if err := checkGrant(opExtend, g); err != nil {
		return err
	}
	call := c.extends.get()
	r := &call.item.request
	r.Consumer, r.EventId, r.AttemptId, r.Fence, r.Lease = g.Consumer, g.EventID, g.AttemptID, g.Fence, nil
	if lease != 0 {
		r.Lease = setDuration(&call.item.lease, lease)
	}
	call.bytes = sizeOfGrant(g)
	if err := c.extends.do(ctx, call); err != nil {
		return err
	}
	err := readExtend(g, call.reply.GetExtend(), call.sentAt)
	c.extends.put(call)
	return err
}

func (c *Client) sendExtends(ctx context.Context, batch []*call[extendItem, *warifuv1.ExtendResult]) ([]*warifuv1.ExtendResult, error) {
	items := make([]*warifuv1.ExtendItem, len(batch))
	for i, call := range batch {
		items[i] = &call.item.request
	}
	reply, err := c.rpc.Extend(ctx, &warifuv1.ExtendRequest{Items: items})
	if err == nil && reply.GetProtocolVersion() != protocolVersion {
		return nil, errProtocol
	}
	return reply.GetResults(), err
}

// Release gives a grant back without an outcome: the next claim is granted at
// once. Only a caller who knows that nothing happened should release.
func (c *Client) Release(ctx context.Context, g Grant) error {
	if !c.open.enter() {
		return closed(opRelease)
	}
	defer c.open.exit()
	return c.release(ctx, &g).std()
}

func (c *Client) release(ctx context.Context, g *Grant) *Error {
	if err := checkGrant(opRelease, g); err != nil {
		return err
	}
	var reply *warifuv1.ReleaseResponse
	request := &warifuv1.ReleaseRequest{Consumer: g.Consumer, EventId: g.EventID, AttemptId: g.AttemptID, Fence: g.Fence}
	err := c.single(ctx, opRelease, 0, func(ctx context.Context) (err error) {
		reply, err = c.rpc.Release(ctx, request)
		return err
	})
	if err != nil {
		return err
	}
	return readRelease(g, reply)
}

// Lookup reads what is kept of one event and changes nothing. State is
// StateAbsent when nothing is.
func (c *Client) Lookup(ctx context.Context, consumer, eventID string) (Record, error) {
	if !c.open.enter() {
		return Record{}, closed(opLookup)
	}
	defer c.open.exit()
	var reply *warifuv1.LookupResponse
	if err := checkText(opLookup, "consumer", consumer, "event_id", eventID); err != nil {
		return Record{}, err
	}
	err := c.single(ctx, opLookup, 0, func(ctx context.Context) (err error) {
		reply, err = c.rpc.Lookup(ctx, &warifuv1.LookupRequest{Consumer: consumer, EventId: eventID})
		return err
	})
	if err != nil {
		return Record{}, err
	}
	record, err := readLookup(consumer, eventID, reply)
	return record, err.std()
}

func checkGrant(op string, g *Grant) *Error {
	return checkText(op, "consumer", g.Consumer, "event_id", g.EventID, "attempt_id", g.AttemptID)
}

func checkCompletion(op string, m *warifuv1.Completion) *Error {
	err := checkText(op, "completion.content_type", m.GetContentType())
	for k, v := range m.GetMetadata() {
		if err == nil {
			err = checkText(op, "completion.metadata", k, "completion.metadata", v)
		}
	}
	return err
}

func sizeOfGrant(g *Grant) int {
	return itemBytes + len(g.Consumer) + len(g.EventID) + len(g.AttemptID)
}

func sizeOfCompletion(m *warifuv1.Completion) int {
	if m == nil {
		return 0
	}
	n := itemBytes + len(m.GetResult()) + len(m.GetContentType())
	for k, v := range m.GetMetadata() {
		n += itemBytes + len(k) + len(v)
	}
	return n
}
