// Package admin serves the administration of tenants and of an installation:
// warifu.v1.TenantAdminService and warifu.v1.PlatformAdminService.
//
// # Whose rows
//
// A credential of a tenant acts for that tenant and sees no other: the name of
// another tenant is answered as one that does not exist. A credential of the
// platform names the tenant that it acts for.
//
// # How a change is made
//
// Each handler reads the rows as they are now, builds one registry.Change with
// its audit entry, and has the registry apply it under the version that the
// caller has looked at. Whether that version still holds is judged by the
// registry alone: so a call that is sent again with its change_id is answered by
// its proof, although the version has moved on by its own doing.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/pagetoken"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// Config is what New needs.
type Config struct {
	// Registry keeps the rows.
	Registry registry.Registry
	// Records are the claims' store.
	Records Records
	// Refresh makes a change that was just applied known to this server. What
	// it cannot do now it does with its next look.
	Refresh func(context.Context) error
	// Quotas know what tenants use; nil: nothing is known. QuotaDefaults hold for
	// tenants that say nothing.
	Quotas        *quota.Quotas
	QuotaDefaults quota.Limits
	// DataKeys seals results. Without it nothing is sealed, and shredding is
	// refused.
	DataKeys DataKeys
	// Tokens seals page tokens.
	Tokens *pagetoken.Sealer
	// Owner names this process in leases; random and its own.
	Owner string
	// Clock tells the time, for key expiries and pauses.
	Clock func() time.Time
	// Pause waits, or returns the context's error.
	Pause func(context.Context, time.Duration) error
	// Reserved is the largest tenant ID that is given out elsewhere: new tenants
	// have larger ones.
	Reserved claim.TenantID
	// Configured reports whether a configuration has a tenant of that name, which
	// goes before one of the registry. Nil: there are none.
	Configured func(name string) bool
	// Logger is told what background work meets.
	Logger *slog.Logger
}

// DataKeys are the keys that results are sealed with.
type DataKeys interface {
	// Rotate has new results sealed with a new key, and returns its number.
	Rotate(ctx context.Context, id claim.TenantID, consumer string, why registry.AuditEntry) (uint32, error)
	// Shred destroys all keys of a consumer, or of the whole tenant where
	// consumer is empty, at the version of that row.
	Shred(ctx context.Context, id claim.TenantID, consumer string, version int64, why registry.AuditEntry) error
}

// Admin serves the two services. Make it with New.
type Admin struct {
	cfg  Config
	rows rows
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Admin, error) {
	var faults []error
	for name, missing := range map[string]bool{
		"Registry": cfg.Registry == nil, "Records": cfg.Records == nil, "Refresh": cfg.Refresh == nil, "Tokens": cfg.Tokens == nil,
		"Owner": cfg.Owner == "", "Clock": cfg.Clock == nil, "Pause": cfg.Pause == nil,
	} {
		if missing {
			faults = append(faults, fmt.Errorf("%s is missing", name))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if cfg.Configured == nil {
		cfg.Configured = func(string) bool { return false }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Admin{cfg: cfg, rows: rows{turn: make(chan struct{}, 1)}}, nil
}

// Register has a server answer both services.
func (a *Admin) Register(s *connect.Server) {
	warifuv1connect.RegisterTenantAdminServiceHandler(s, &team{a})
	warifuv1connect.RegisterPlatformAdminServiceHandler(s, &platform{a})
}

// Methods says who may call what.
func Methods() interceptor.Methods {
	out := interceptor.Methods{}
	for scope, procedures := range map[tenant.Scope]map[string]string{
		tenant.ScopeAdminTenant: {
			warifuv1connect.TenantAdminServicePutConsumerProcedure:    "PutConsumer",
			warifuv1connect.TenantAdminServiceGetConsumerProcedure:    "GetConsumer",
			warifuv1connect.TenantAdminServiceListConsumersProcedure:  "ListConsumers",
			warifuv1connect.TenantAdminServiceDeleteConsumerProcedure: "DeleteConsumer",
			warifuv1connect.TenantAdminServiceCreateKeyProcedure:      "CreateKey",
			warifuv1connect.TenantAdminServiceRotateKeyProcedure:      "RotateKey",
			warifuv1connect.TenantAdminServiceRevokeKeyProcedure:      "RevokeKey",
			warifuv1connect.TenantAdminServiceListKeysProcedure:       "ListKeys",
			warifuv1connect.TenantAdminServiceGetUsageProcedure:       "GetUsage",
			warifuv1connect.TenantAdminServiceListAuditProcedure:      "ListAudit",
			warifuv1connect.TenantAdminServiceListFindingsProcedure:   "ListFindings",
			warifuv1connect.TenantAdminServiceUpdateFindingProcedure:  "UpdateFinding",
			warifuv1connect.TenantAdminServiceRotateDataKeyProcedure:  "RotateDataKey",
			warifuv1connect.TenantAdminServiceShredResultsProcedure:   "ShredResults",
		},
		tenant.ScopeAdminPlatform: {
			warifuv1connect.PlatformAdminServiceCreateTenantProcedure:  "CreateTenant",
			warifuv1connect.PlatformAdminServiceGetTenantProcedure:     "GetTenant",
			warifuv1connect.PlatformAdminServiceListTenantsProcedure:   "ListTenants",
			warifuv1connect.PlatformAdminServiceUpdateTenantProcedure:  "UpdateTenant",
			warifuv1connect.PlatformAdminServiceSuspendTenantProcedure: "SuspendTenant",
			warifuv1connect.PlatformAdminServiceResumeTenantProcedure:  "ResumeTenant",
			warifuv1connect.PlatformAdminServiceDeleteTenantProcedure:  "DeleteTenant",
			warifuv1connect.PlatformAdminServiceListJobsProcedure:      "ListJobs",
		},
	} {
		for procedure, name := range procedures {
			out[procedure] = &interceptor.Method{Name: name, Scope: scope}
		}
	}
	return out
}

// team serves warifu.v1.TenantAdminService.
type team struct{ *Admin }

// platform serves warifu.v1.PlatformAdminService.
type platform struct{ *Admin }
