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

	"github.com/warifu/warifu/server/tenant"
)

// Method is what the interceptors must know of a procedure. A procedure that
// is not in the table is not served: nothing is open by forgetting.
type Method struct {
	// Name labels metrics and logs: "Claim".
	Name string
	// Scope is what a credential needs; 0: any valid credential.
	Scope tenant.Scope
	// Kept calls finish work that was granted (complete, extend, release).
	// Refusing them makes duplicates, so they are shed last.
	Kept bool
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
	slot              *Limiter // nil: no slot is held
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

// About tells the log which event the call is about. The log shows a keyed
// hash of it.
func (c *Call) About(consumer, eventID string) { c.consumer, c.eventID = consumer, eventID }

// Items tells the log how many items the call's batch has.
func (c *Call) Items(n int) { c.items = n }

// Park gives the call's concurrency slot back: from now on it only waits. Long
// polls have bounds of their own and would otherwise keep claims out.
func (c *Call) Park() {
	if c.slot != nil {
		c.slot.inFlight.Add(-1)
		c.slot = nil
	}
}
