// Package interceptor holds what surrounds every RPC: request IDs, logs,
// metrics, panics, credentials, concurrency and deadlines, one file each. Each
// wraps the whole call and runs before the body is read, so that a caller
// without a credential costs no decoding.
//
// They are meant to be chained in this order, the first outermost: RequestID,
// Log, Metrics, Recover, Authenticate, Limit, Deadline.
package interceptor

import (
	"context"
	"time"

	"github.com/warifu/warifu/server/overload"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
)

// Method is what the interceptors must know of a procedure. A procedure that
// is not in the table is not served: nothing is open by forgetting.
type Method struct {
	// Name labels metrics and logs: "Claim".
	Name string
	// Scope is what a credential needs; 0: any valid credential.
	Scope tenant.Scope
	// Tenant: the call acts for the tenant of its credential. Keys of the
	// platform, which have none, are refused.
	Tenant bool
	// Class says when the procedure is shed. 0: overload.Console, first. Those of
	// overload.Claim begin new work, and are refused for suspended tenants.
	Class overload.Class
}

// Methods maps procedures ("/warifu.v1.ClaimService/Claim") to what must be
// known of them. It is immutable once given away.
type Methods map[string]*Method

// Call is what is known of one RPC while it runs. It is the context that
// handlers see, and it belongs to the goroutine that serves the call.
type Call struct {
	context.Context //nolint:containedctx // a Call is a context, and carries what belongs to one RPC

	Began     time.Time
	RequestID string
	Method    *Method
	Principal *tenant.Principal // nil until authenticated

	consumer, eventID string
	items             int
	slot              slot
	share             quota.Slot
}

type callKey struct{}

// Value makes the Call findable in the contexts derived from it.
func (c *Call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// CallFrom returns the call that ctx belongs to, or nil outside of one.
func CallFrom(ctx context.Context) *Call {
	call, _ := ctx.Value(callKey{}).(*Call)
	return call
}

// About tells the log which event the call is about, and the limiter that the
// store is asked from now on. The log shows a keyed hash of the event.
func (c *Call) About(consumer, eventID string) {
	c.consumer, c.eventID = consumer, eventID
	c.slot.asked = true
}

// Items tells log and limiter how many items the call's batch has, and that the
// store is asked from now on.
func (c *Call) Items(n int) {
	c.items = n
	c.slot.asked = true
}

// Unanswered tells the limiter that the store did not answer some part of the
// call, though the call itself succeeds: an item of a batch, or a claim that
// goes on unprotected. Such a call says nothing about how long answers take.
func (c *Call) Unanswered() { c.slot.failed = true }

// Park gives the call's slot and its room back: from now on it only waits.
// Long polls have bounds of their own and would otherwise keep claims out, and
// their patience must not look like a slow store.
func (c *Call) Park() {
	c.slot.ticket.Park()
	c.share.Leave()
}
