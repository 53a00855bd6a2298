package interceptor

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/overload"
	"github.com/warifu/warifu/server/tenant"
)

const bearer = "bearer "

// The refusals of Authenticate. They are made once.
var (
	errUnauthenticated = fault.New(warifuv1.Reason_REASON_UNAUTHENTICATED,
		"no valid API key: send one as 'Authorization: Bearer wf_...'")
	errThrottled = fault.New(warifuv1.Reason_REASON_UNAUTHENTICATED,
		"too many calls without a valid API key came from this address; nothing was applied. Correct the key, and ask again in a minute").After(throttleWindow)
	errForbidden = fault.New(warifuv1.Reason_REASON_PERMISSION_DENIED, "this API key is not allowed to call this method")
	errNoTenant  = fault.New(warifuv1.Reason_REASON_PERMISSION_DENIED,
		"this API key belongs to the platform and to no tenant: call this method with a key of a tenant")
	errSuspended = fault.New(warifuv1.Reason_REASON_TENANT_SUSPENDED,
		"the tenant is suspended and is granted nothing new; what was granted may be completed, extended or released. Ask who runs the installation")
)

// Authenticate finds the principal of the bearer key and refuses callers
// without one. Missing, malformed, unknown, wrong, revoked and expired keys,
// and those of deleted tenants, get the same answer. An address that sends many
// of them gets another, which is the same for all of them too; valid keys from
// there are served. It reads memory only.
//
// With a principal it refuses, in this order: methods that the key's scopes do
// not hold, methods that act for a tenant where the key has none, and methods
// that begin work where the tenant is suspended.
//
// failures, one at most, is the throttle to count in, for whoever wants to read
// it; without one it is NewThrottle(0).
func Authenticate(dir *tenant.Directory, failures ...*Throttle) connect.ServerInterceptor {
	throttle := NewThrottle(0)
	if len(failures) > 0 {
		throttle = failures[0]
	}
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			call := CallFrom(ctx)
			info, _ := connect.CallInfoForServerContext(ctx)
			credential := bearerToken(info.RequestHeader().Get("Authorization"))
			principal, ok := dir.Authenticate(credential, call.Began)
			if !ok {
				if !throttle.Failed(info.PeerAddr, call.Began) {
					return errThrottled
				}
				info.ResponseHeader().Set("WWW-Authenticate", "Bearer")
				return errUnauthenticated
			}
			call.Principal = principal
			if f := refusal(call.Method, principal); f != nil {
				return f
			}
			return next(ctx, spec, stream)
		}
	}
}

// Still returns why a call that was let in would not be let in again now, and
// nil where it would be: for calls that wait.
func Still(dir *tenant.Directory, call *Call, now time.Time) *fault.Fault {
	principal, ok := dir.Current(call.Principal.KeyID, now)
	if !ok {
		return errUnauthenticated
	}
	return refusal(call.Method, principal)
}

// refusal is why a principal may not call a method; nil: it may.
func refusal(m *Method, p *tenant.Principal) *fault.Fault {
	switch {
	case !p.Scopes.Has(m.Scope):
		return errForbidden
	case p.Tenant == nil && m.Tenant:
		return errNoTenant
	case p.Tenant != nil && m.Class == overload.Claim && p.Tenant.Suspended():
		return errSuspended
	}
	return nil
}

// bearerToken returns the credential of an Authorization header, "" for any
// other scheme. The scheme's case does not matter (RFC 9110).
func bearerToken(header string) string {
	if len(header) <= len(bearer) || !strings.EqualFold(header[:len(bearer)], bearer) {
		return ""
	}
	return header[len(bearer):]
}
