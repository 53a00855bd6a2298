package warifu

import (
	"context"
	"time"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// Claims that are made alone, and grants that find nobody.

// returnOrphan gives back a grant whose caller left before it came. Nobody acted
// under it, and nobody can ask for it again: its attempt ID was never told.
// Left alone it would block the event for a lease, or put it in doubt.
func (c *Client) returnOrphan(call *call[claimItem, *warifuv1.BatchClaimResult]) {
	if call.err != nil || !call.item.ours {
		return
	}
	answer, err := readClaim(&call.item.request, call.reply.GetClaim(), call.sentAt)
	if err == nil && answer.Decision == Granted && !answer.Grant.Recorded {
		c.senders.Go(func() { _ = c.giveBack(context.Background(), &answer.Grant) }) // logged there
	}
}

// claimAlone makes one claim by itself: those that wait would hold up others.
// What it may have been granted without anybody knowing is given back.
func (c *Client) claimAlone(ctx context.Context, e *Event, s claimSettings, record *warifuv1.Completion) (Claim, *Error) {
	var (
		item   claimItem
		reply  *warifuv1.ClaimResponse
		sentAt time.Time
	)
	item.fill(e, &s, record)
	err := c.single(ctx, opClaim, s.wait, func(ctx context.Context) (err error) {
		sentAt = time.Now()
		reply, err = c.rpc.Claim(ctx, &item.request)
		return err
	})
	if err != nil {
		if s.ours && record == nil && !err.NotApplied {
			c.withdraw(e, s)
		}
		return Claim{}, err
	}
	return readClaim(&item.request, reply, sentAt)
}

// withdraw finds out, behind the back of the caller, what became of a claim
// without an answer, and gives back what was granted. Sending it again finds
// out for certain, where a look-up could come too early: what it is granted
// anew ends with the release, and the earlier send, should it still arrive, is
// refused.
func (c *Client) withdraw(e *Event, s claimSettings) {
	s.wait = 0
	call := c.claims.get()
	call.item.fill(e, &s, nil)
	call.bytes = sizeOfClaim(e, &s, nil)
	c.senders.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		defer cancel()
		if err := c.claims.do(ctx, call); err != nil {
			c.log.WarnContext(ctx, "warifu: a claim that nobody waits for may be granted", "consumer", call.item.request.GetConsumer(), "error", err)
			return
		}
		c.returnOrphan(call)
	})
}

// fetch asks alone for a duplicate whose body did not fit into a common reply.
// When it cannot be had, the answer stands without it. When the record has
// expired or was forgotten in between, the event is this attempt's to act on.
func (c *Client) fetch(ctx context.Context, e *Event, s claimSettings, record *warifuv1.Completion, without Claim) Claim {
	full, err := c.claimAlone(ctx, e, s, record)
	if err != nil || full.Decision != Duplicate && full.Decision != Granted {
		c.log.WarnContext(ctx, "warifu: a stored result could not be fetched", "consumer", e.Consumer, "error", err)
		return without
	}
	return full
}
