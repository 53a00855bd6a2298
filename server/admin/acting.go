package admin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/pagetoken"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// acting is who calls, for whom, and what is stored now.
type acting struct {
	*known
	call   *interceptor.Call
	tenant *registry.Tenant // nil: the platform
}

// id is 0 for the platform.
func (w *acting) id() claim.TenantID {
	if w.tenant == nil {
		return 0
	}
	return w.tenant.ID
}

const (
	limitTenantNamed = "required with a credential of the platform: the name of the tenant to act for"
	// TextNoTenant is the one answer for a tenant that is not there and for one
	// that is not the caller's.
	TextNoTenant = "no such tenant"
)

// ErrNoTenant is the fault of a tenant that is not there, or not for this caller.
var ErrNoTenant = fault.New(warifuv1.Reason_REASON_NOT_FOUND, TextNoTenant)

var errConfigured = fault.New(warifuv1.Reason_REASON_PRECONDITION,
	"this tenant stands in the configuration of the server, which is where it is administered")

// of returns who acts for the tenant that a request names.
func (a *Admin) of(ctx context.Context, name string) (*acting, error) {
	w, err := a.maybeOf(ctx, name)
	if err == nil && w.tenant == nil {
		return nil, fault.Invalid("tenant", limitTenantNamed)
	}
	return w, err
}

// maybeOf is of, where a credential of the platform may name no tenant: then it
// acts for the platform.
func (a *Admin) maybeOf(ctx context.Context, name string) (*acting, error) {
	call := interceptor.CallFrom(ctx)
	k, err := a.look(ctx)
	if err != nil {
		return nil, readFault(err)
	}
	w := &acting{known: k, call: call}
	own := call.Principal.Tenant
	switch {
	case own != nil && own.Version == 0:
		return nil, errConfigured
	case own == nil && name == "" && !call.Principal.Scopes.Has(tenant.ScopeAdminPlatform):
		return nil, fault.Invalid("tenant", limitTenantNamed) // it acts for tenants, and not for the platform
	case own != nil && (name == "" || name == own.Name):
		w.tenant = k.tenants[own.ID]
	case own == nil && name == "":
		return w, nil
	case own == nil:
		w.tenant = k.byName[name]
	}
	if w.tenant == nil || w.tenant.State == registry.TenantDeleted {
		return nil, ErrNoTenant
	}
	return w, nil
}

// takesNew refuses new rows of tenants that are being deleted, or have as many as
// they may have.
func (w *acting) takesNew(have, most int, what string) error {
	switch {
	case w.tenant != nil && w.tenant.State == registry.TenantDeleting:
		return fault.New(warifuv1.Reason_REASON_PRECONDITION, "the tenant is being deleted")
	case have >= most:
		return fault.New(warifuv1.Reason_REASON_PRECONDITION, fmt.Sprintf("there are %d %s, which is as many as there can be", have, what))
	}
	return nil
}

// scope is what lists show.
func (w *acting) scope() registry.Scope {
	if w.tenant == nil {
		return registry.Platform()
	}
	return registry.Of(w.tenant.ID)
}

// page is what a list was asked for.
type page struct {
	limit  int
	cursor []byte
	bound  [][]byte
}

// page checks size and token. The token is bound to the list, to whose it is
// and to the filter.
func (a *Admin) page(w *acting, list string, size uint32, token string, filter ...string) (page, error) {
	p := page{bound: [][]byte{[]byte(list), binary.BigEndian.AppendUint64(nil, uint64(w.scope().Mark()))}} //nolint:gosec // its bits
	for _, f := range filter {
		p.bound = append(p.bound, []byte(f))
	}
	var ok bool
	if p.limit, ok = pagetoken.Size(size); !ok {
		return p, fault.Invalid("page_size", pagetoken.LimitSize)
	}
	if token == "" {
		return p, nil
	}
	if p.cursor, ok = a.cfg.Tokens.Open(token, p.bound...); !ok {
		return p, errPageToken
	}
	return p, nil
}

var errPageToken = fault.New(warifuv1.Reason_REASON_INVALID_PAGE_TOKEN,
	"page_token: not one of ours, or made for another list; begin again without one")

// next is the token that goes on behind a cursor; none where it is nil.
func (a *Admin) next(p *page, cursor []byte) string {
	if cursor == nil {
		return ""
	}
	return a.cfg.Tokens.Seal(cursor, p.bound...)
}

// cut returns the first page of what is left of a list, and the key of its last
// row where there are more.
func cut[R any](rows []R, limit int, key func(R) string) (on []R, cursor []byte) {
	if len(rows) <= limit {
		return rows, nil
	}
	return rows[:limit], []byte(key(rows[limit-1]))
}

// readFault is the fault of a registry that cannot be read.
func readFault(err error) error {
	switch {
	case errors.Is(err, storage.ErrCursor):
		return errPageToken
	case errors.Is(err, storage.ErrClosed):
		return fault.New(warifuv1.Reason_REASON_SHUTTING_DOWN, "the server is going away; ask another one").WithCause(err)
	case errors.Is(err, storage.ErrUnavailable), errors.Is(err, storage.ErrUnknown),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fault.New(warifuv1.Reason_REASON_STORE_UNAVAILABLE, "the store cannot answer now; ask again").WithCause(err)
	}
	return fault.Internal(err)
}
