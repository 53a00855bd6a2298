// Package server serves the API: it turns messages into claims, checks them
// once, asks the arbiter, and turns answers into messages. Which driver keeps
// the claims, where the tenants come from and which listener is used are for
// the caller to say.
//
// To stop without losing anything: Drain; wait for load balancers to notice;
// http.Server.Shutdown, which lets calls in flight finish; end Run's context;
// close the store.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/grpcreflect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	adminapi "github.com/warifu/warifu/server/admin"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/journal"
	"github.com/warifu/warifu/server/overload"
	"github.com/warifu/warifu/server/pagetoken"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// Bounds and their defaults.
const (
	// InFlightDefault bounds the calls that are decoded or worked on at once:
	// at most a MiB of body each. Long polls that wait are not among them.
	InFlightDefault = 1024
	// CallTimeoutDefault is the longest a call may take: the longest wait, and
	// time for the store before and after it.
	CallTimeoutDefault = claim.WaitMax + 10*time.Second
)

// Config of a Server. Store, Directory and Clock are required; other zero
// values are the documented defaults.
type Config struct {
	// Store keeps the claims. The server does not close it.
	Store storage.Store
	// Directory holds tenants, credentials and policies.
	Directory *tenant.Directory
	// Clock tells the time: for event times in the future, key expiry,
	// durations in logs and metrics, and how long a claim has waited, for which
	// it has to carry the monotonic clock. Leases and expiries follow the
	// store's.
	Clock func() time.Time
	// Logger takes one line per failed call, and one per call at debug level.
	// Nothing is logged when nil.
	Logger *slog.Logger
	// EventHashKey is what logs hash event IDs with (interceptor.EventHash). At
	// least 16 bytes; random when empty, and then nobody can compute the hashes.
	EventHashKey []byte
	// Tracer begins spans; nil: there are none, and nothing is spent on them. The
	// server does not shut it down.
	Tracer trace.TracerProvider
	// Registry takes the metrics. The server has its own when nil.
	Registry *prometheus.Registry
	// Version is the program's, for warifu_build_info. "unknown" when empty.
	Version string
	// InFlightMax bounds calls in flight, and how many of them may ask the store
	// at once, which is fewer when it is slow. A fifth of both is reserved for
	// completions, extensions and releases. InFlightDefault when 0.
	InFlightMax int
	// CallTimeout is the longest a call may take. CallTimeoutDefault when 0, and
	// at most that: NewHTTPServer's timeouts are made for it.
	CallTimeout time.Duration
	// PageTokenKey seals page tokens. Replicas that share one accept each
	// other's tokens. Random when empty, at least 16 bytes otherwise.
	PageTokenKey []byte
	// Quotas keep tenants apart; nil: there are none. QuotaDefaults hold for
	// tenants that say nothing.
	Quotas        *quota.Quotas
	QuotaDefaults quota.Limits
	// Journal takes unprotected runs before they are answered. Without one,
	// consumers that are FAIL_OPEN fail closed. The server does not close it.
	Journal *journal.Journal
	// Synced keeps the directory up to date; nil: nobody does. A server is not
	// ready before it has.
	Synced *tenant.Syncer
	// Platform is what administration needs. Without it tenants are those of the
	// directory, and nobody can decide about claims.
	Platform *Platform
	// Arbiter tunes batching. Its Store is set from the one above.
	Arbiter arbiter.Config
}

// Platform is what a server needs to administer tenants.
type Platform struct {
	// Registry keeps tenants, consumers, keys and the audit log.
	Registry registry.Registry
	// Refresh makes a change known to this server: tenant.Syncer's.
	Refresh func(context.Context) error
	// DataKeys seals results; nil: nothing is sealed.
	DataKeys adminapi.DataKeys
	// Owner names this process among all servers of the store.
	Owner string
	// Pause waits, or returns the context's error.
	Pause func(context.Context, time.Duration) error
	// Reserved is the largest tenant ID of the configuration, and Configured says
	// which names it has; nil: none.
	Reserved   claim.TenantID
	Configured func(name string) bool
}

// Server serves the API. It is safe for concurrent use.
type Server struct {
	store     storage.Store
	directory *tenant.Directory
	registry  registry.Registry // nil: there is no audit log
	admin     *adminapi.Admin   // nil: tenants are not administered here
	clock     func() time.Time
	arbiter   *arbiter.Arbiter
	synced    *tenant.Syncer
	quotas    *quota.Quotas
	journal   *journal.Journal

	quotaDefaults quota.Limits

	logger  *slog.Logger
	metrics *metrics
	tokens  *pagetoken.Sealer
	limiter *interceptor.Limiter
	// throttle counts calls without a valid key.
	throttle *interceptor.Throttle
	connect  *connect.Server
	public   http.Handler
	scrape   http.Handler

	stopped  atomic.Bool // Run's context ended
	draining atomic.Bool
	started  atomic.Bool  // was ready once
	verdict  atomic.Int32 // of the last readiness check, to log changes
}

// New checks the configuration, all of it, and builds the server. It starts
// nothing: calls are answered "unavailable" until Run.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	cfg.Arbiter.Store = cfg.Store
	if cfg.Tracer != nil {
		cfg.Arbiter.Trace = interceptor.BatchTrace(cfg.Tracer)
	}
	arb, err := arbiter.New(cfg.Arbiter)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s := &Server{
		store: cfg.Store, clock: cfg.Clock, arbiter: arb, logger: cfg.Logger,
		tokens: pagetoken.New(cfg.PageTokenKey), directory: cfg.Directory,
		throttle: interceptor.NewThrottle(0), synced: cfg.Synced, quotas: cfg.Quotas, quotaDefaults: cfg.QuotaDefaults, journal: cfg.Journal,
	}
	if cfg.Platform != nil {
		if err := s.administer(&cfg); err != nil {
			return nil, fmt.Errorf("server: %w", err)
		}
	}
	if s.limiter, err = interceptor.NewLimiter(cfg.InFlightMax); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if s.metrics, err = newMetrics(cfg.Registry, s, cfg.Version); err != nil {
		return nil, fmt.Errorf("server: register metrics: %w", err)
	}
	if err := s.register(&cfg); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.public, s.scrape = s.newHandler(), newMetricsHandler(cfg.Registry)
	return s, nil
}

// validate fills in the defaults and reports all faults at once.
func (c *Config) validate() error {
	var faults []error
	refuse := func(broken bool, text string) {
		if broken {
			faults = append(faults, errors.New(text))
		}
	}
	refuse(c.Store == nil, "Store is missing")
	refuse(c.Directory == nil, "Directory is missing")
	refuse(c.Clock == nil, "Clock is missing")
	refuse(c.InFlightMax < 0 || c.InFlightMax > overload.CeilingMax, "InFlightMax is not within 0-1048576")
	refuse(c.CallTimeout < 0 || c.CallTimeout > CallTimeoutDefault, "CallTimeout is not within 0-"+CallTimeoutDefault.String())
	refuse(len(c.PageTokenKey) > 0 && len(c.PageTokenKey) < pagetoken.KeyBytesMin, "PageTokenKey is shorter than 16 bytes")
	refuse(len(c.EventHashKey) > 0 && len(c.EventHashKey) < interceptor.EventHashKeyBytesMin, "EventHashKey is shorter than 16 bytes")
	refuse(c.Arbiter.Store != nil && c.Arbiter.Store != c.Store, "Arbiter.Store is another store")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = slog.New(interceptor.Redacted(c.Logger.Handler()))
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if c.Version == "" {
		c.Version = "unknown"
	}
	if c.InFlightMax == 0 {
		c.InFlightMax = InFlightDefault
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = CallTimeoutDefault
	}
	if len(c.PageTokenKey) == 0 {
		c.PageTokenKey = make([]byte, 32)
		_, _ = rand.Read(c.PageTokenKey) // never fails: it ends the process instead
	}
	c.PageTokenKey = slices.Clone(c.PageTokenKey)
	return errors.Join(faults...)
}

// methods says what each procedure needs. What is not here is not served.
func methods() interceptor.Methods {
	reflection := &interceptor.Method{Name: "ServerReflectionInfo"}
	return interceptor.Methods{
		warifuv1connect.ClaimServiceClaimProcedure:              {Name: "Claim", Tenant: true, Scope: tenant.ScopeClaim, Class: overload.Claim},
		warifuv1connect.ClaimServiceBatchClaimProcedure:         {Name: "BatchClaim", Tenant: true, Scope: tenant.ScopeClaim, Class: overload.Claim},
		warifuv1connect.ClaimServiceCompleteProcedure:           {Name: "Complete", Tenant: true, Scope: tenant.ScopeClaim, Class: overload.Finish},
		warifuv1connect.ClaimServiceBatchCompleteProcedure:      {Name: "BatchComplete", Tenant: true, Scope: tenant.ScopeClaim, Class: overload.Finish},
		warifuv1connect.ClaimServiceExtendProcedure:             {Name: "Extend", Tenant: true, Scope: tenant.ScopeClaim, Class: overload.Finish},
		warifuv1connect.ClaimServiceReleaseProcedure:            {Name: "Release", Tenant: true, Scope: tenant.ScopeClaim, Class: overload.Finish},
		warifuv1connect.ClaimServiceGetPolicyProcedure:          {Name: "GetPolicy", Tenant: true, Scope: tenant.ScopeClaim, Class: overload.Read},
		warifuv1connect.ClaimServiceLookupProcedure:             {Name: "Lookup", Tenant: true, Scope: tenant.ScopeRead, Class: overload.Read},
		warifuv1connect.ClaimAdminServiceListClaimsProcedure:    {Name: "ListClaims", Scope: tenant.ScopeRead, Class: overload.Console},
		warifuv1connect.ClaimAdminServiceResolveClaimProcedure:  {Name: "ResolveClaim", Scope: tenant.ScopeResolve, Class: overload.Console},
		warifuv1connect.ClaimAdminServiceForgetClaimProcedure:   {Name: "ForgetClaim", Scope: tenant.ScopeResolve, Class: overload.Console},
		warifuv1connect.ClaimAdminServiceResolveClaimsProcedure: {Name: "ResolveClaims", Scope: tenant.ScopeResolve, Class: overload.Console},
		reflectionProcedureV1:                                   reflection,
		reflectionProcedureV1Alpha:                              reflection,
	}
}

const (
	reflectionProcedureV1      = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
	reflectionProcedureV1Alpha = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
)

// administer prepares the administration of tenants.
func (s *Server) administer(cfg *Config) (err error) {
	p := cfg.Platform
	s.registry = p.Registry
	s.admin, err = adminapi.New(adminapi.Config{
		Registry: p.Registry, Records: cfg.Store, Refresh: p.Refresh, Quotas: cfg.Quotas, QuotaDefaults: cfg.QuotaDefaults, DataKeys: p.DataKeys, Tokens: s.tokens,
		Owner: p.Owner, Clock: cfg.Clock, Pause: p.Pause, Reserved: p.Reserved, Configured: p.Configured, Logger: cfg.Logger,
	})
	return err
}

// register builds the dispatcher: interceptors, services and reflection.
func (s *Server) register(cfg *Config) error {
	table := methods()
	if s.admin != nil {
		maps.Copy(table, adminapi.Methods())
	}
	chain, err := s.outer(cfg, table)
	if err != nil {
		return err
	}
	if s.quotas != nil {
		chain = append(chain, interceptor.Quota(s.quotas, s.quotaDefaults, s.limiter))
	}
	s.connect = connect.NewServer(append(chain, interceptor.Limit(s.limiter), interceptor.Deadline(cfg.CallTimeout))...)
	warifuv1connect.RegisterClaimServiceHandler(s.connect, &claims{s})
	warifuv1connect.RegisterClaimAdminServiceHandler(s.connect, &admin{s})
	if s.admin != nil {
		s.admin.Register(s.connect)
	}
	grpcreflect.Register(s.connect)
	// Unknown methods go as far as RequestID, which serves what the table has.
	s.connect.SetUnknownHandler(func(context.Context, connect.Spec, connect.ServerStream) error { return nil })
	for spec := range s.connect.Specs() {
		if table[spec.Procedure] == nil {
			return fmt.Errorf("%s is registered, but nothing says who may call it", spec.Procedure)
		}
	}
	return nil
}

// outer are the interceptors that every call passes, refused or not.
func (s *Server) outer(cfg *Config, table interceptor.Methods) (chain []connect.ServerInterceptor, err error) {
	if s.metrics.meter, err = interceptor.NewMeter(cfg.Registry, table, cfg.Clock, cfg.Tracer != nil); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	chain = []connect.ServerInterceptor{interceptor.RequestID(table, cfg.Clock)}
	if cfg.Tracer != nil {
		spans, about, err := interceptor.Trace(table, cfg.Tracer)
		if err != nil {
			return nil, err
		}
		chain = []connect.ServerInterceptor{spans, chain[0], about}
	}
	return append(chain,
		interceptor.Log(cfg.Logger, cfg.Clock, cfg.EventHashKey),
		s.metrics.meter.Intercept,
		interceptor.Recover(cfg.Logger),
		interceptor.Authenticate(cfg.Directory, s.throttle),
	), nil
}

// Run serves claims until ctx ends, then answers what was accepted before and
// returns. It can be called once.
func (s *Server) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { s.stopped.Store(true) })()
	if s.admin == nil {
		return s.arbiter.Run(ctx)
	}
	background, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.admin.Run(background) }()
	err := s.arbiter.Run(ctx)
	cancel()
	return errors.Join(err, <-ended)
}

// running reports whether calls reach the store.
func (s *Server) running() bool {
	select {
	case <-s.arbiter.Started():
		return !s.stopped.Load()
	default:
		return false
	}
}

// Drain makes the server not ready, at once and for good. Calls are still
// served.
func (s *Server) Drain() { s.draining.Store(true) }

// Connect is the dispatcher with all interceptors, for in-process transports.
func (s *Server) Connect() *connect.Server { return s.connect }

// Handler serves the public listener: the API over Connect, gRPC and gRPC-Web,
// health and reflection.
func (s *Server) Handler() http.Handler { return s.public }

// MetricsHandler serves Prometheus metrics. They name no tenant and no event,
// and still belong on a private listener.
func (s *Server) MetricsHandler() http.Handler { return s.scrape }

// edge returns the checks for one call of the call's tenant.
func (s *Server) edge(call *interceptor.Call) *edge {
	return &edge{tenant: call.Principal.Tenant, principal: call.Principal, now: claim.FromTime(call.Began)}
}
