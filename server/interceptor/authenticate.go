package interceptor

import (
	"context"
	"strings"

	"connectrpc.com/connect/v2"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/tenant"
)

const bearer = "bearer "

// Authenticate finds the principal of the bearer key and refuses callers
// without one. Missing, malformed, unknown, wrong, revoked and expired keys
// get the same answer. It reads memory only.
func Authenticate(dir *tenant.Directory) connect.ServerInterceptor {
	unauthenticated := fault.New(warifuv1.Reason_REASON_UNAUTHENTICATED,
		"no valid API key: send one as 'Authorization: Bearer wf_...'")
	forbidden := fault.New(warifuv1.Reason_REASON_PERMISSION_DENIED, "this API key is not allowed to call this method")
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			call := CallFrom(ctx)
			info, _ := connect.CallInfoForServerContext(ctx)
			credential := bearerToken(info.RequestHeader().Get("Authorization"))
			principal, ok := dir.Authenticate(credential, call.Began)
			if !ok {
				info.ResponseHeader().Set("WWW-Authenticate", "Bearer")
				return unauthenticated
			}
			call.Principal = principal
			if !principal.Scopes.Has(call.Method.Scope) {
				return forbidden
			}
			return next(ctx, spec, stream)
		}
	}
}

// bearerToken returns the credential of an Authorization header, "" for any
// other scheme. The scheme's case does not matter (RFC 9110).
func bearerToken(header string) string {
	if len(header) <= len(bearer) || !strings.EqualFold(header[:len(bearer)], bearer) {
		return ""
	}
	return header[len(bearer):]
}
