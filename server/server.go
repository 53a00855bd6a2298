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
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/grpcreflect/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
)

// Bounds and their defaults.
const (
	// InFlightDefault bounds the calls that are decoded or worked on at once:
	// at most a MiB of body each. Long polls that wait are not among them.
	InFlightDefault = 1024
	// CallTimeoutDefault is the longest a call may take: the longest wait, and
	// time for the store before and after it.
	CallTimeoutDefault = claim.WaitMax + 10*time.Second
	// pageTokenKeyMin is what a configured page-token key must have at least.
	pageTokenKeyMin = 16
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
	// Registry takes the metrics. The server has its own when nil.
	Registry *prometheus.Registry
	// Version is the program's, for warifu_build_info. "unknown" when empty.
	Version string
	// InFlightMax bounds calls in flight; a fifth of them is reserved for
	// completions, extensions and releases. InFlightDefault when 0.
	InFlightMax int
	// CallTimeout is the longest a call may take. CallTimeoutDefault when 0, and
	// at most that: NewHTTPServer's timeouts are made for it.
	CallTimeout time.Duration
	// PageTokenKey seals page tokens. Replicas that share one accept each
	// other's tokens. Random when empty, at least 16 bytes otherwise.
	PageTokenKey []byte
	// Arbiter tunes batching. Its Store is set from the one above.
	Arbiter arbiter.Config
}

// Server serves the API. It is safe for concurrent use.
type Server struct {
	store   storage.Store
	clock   func() time.Time
	arbiter *arbiter.Arbiter
	logger  *slog.Logger
	metrics *metrics
	tokens  *pageTokens
	limiter *interceptor.Limiter
	connect *connect.Server
	public  http.Handler
	scrape  http.Handler

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
	arb, err := arbiter.New(cfg.Arbiter)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s := &Server{
		store: cfg.Store, clock: cfg.Clock, arbiter: arb, logger: cfg.Logger,
		tokens: &pageTokens{key: cfg.PageTokenKey}, limiter: interceptor.NewLimiter(cfg.InFlightMax),
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
	refuse(c.InFlightMax < 0, "InFlightMax is negative")
	refuse(c.CallTimeout < 0 || c.CallTimeout > CallTimeoutDefault, "CallTimeout is not within 0-"+CallTimeoutDefault.String())
	refuse(len(c.PageTokenKey) > 0 && len(c.PageTokenKey) < pageTokenKeyMin, "PageTokenKey is shorter than 16 bytes")
	refuse(c.Arbiter.Store != nil && c.Arbiter.Store != c.Store, "Arbiter.Store is another store")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
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
		warifuv1connect.ClaimServiceClaimProcedure:           {Name: "Claim", Scope: tenant.ScopeClaim},
		warifuv1connect.ClaimServiceBatchClaimProcedure:      {Name: "BatchClaim", Scope: tenant.ScopeClaim},
		warifuv1connect.ClaimServiceCompleteProcedure:        {Name: "Complete", Scope: tenant.ScopeClaim, Kept: true},
		warifuv1connect.ClaimServiceBatchCompleteProcedure:   {Name: "BatchComplete", Scope: tenant.ScopeClaim, Kept: true},
		warifuv1connect.ClaimServiceExtendProcedure:          {Name: "Extend", Scope: tenant.ScopeClaim, Kept: true},
		warifuv1connect.ClaimServiceReleaseProcedure:         {Name: "Release", Scope: tenant.ScopeClaim, Kept: true},
		warifuv1connect.ClaimServiceGetPolicyProcedure:       {Name: "GetPolicy", Scope: tenant.ScopeClaim},
		warifuv1connect.ClaimServiceLookupProcedure:          {Name: "Lookup", Scope: tenant.ScopeRead},
		warifuv1connect.ClaimAdminServiceListClaimsProcedure: {Name: "ListClaims", Scope: tenant.ScopeRead},
		reflectionProcedureV1:                                reflection,
		reflectionProcedureV1Alpha:                           reflection,
	}
}

const (
	reflectionProcedureV1      = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
	reflectionProcedureV1Alpha = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
)

// register builds the dispatcher: interceptors, services and reflection.
func (s *Server) register(cfg *Config) error {
	table := methods()
	measured, err := interceptor.Metrics(cfg.Registry, table, cfg.Clock)
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	s.connect = connect.NewServer(
		interceptor.RequestID(table, cfg.Clock),
		interceptor.Log(cfg.Logger, cfg.Clock),
		measured,
		interceptor.Recover(cfg.Logger),
		interceptor.Authenticate(cfg.Directory),
		interceptor.Limit(s.limiter),
		interceptor.Deadline(cfg.CallTimeout),
	)
	warifuv1connect.RegisterClaimServiceHandler(s.connect, &claims{s})
	warifuv1connect.RegisterClaimAdminServiceHandler(s.connect, &admin{s})
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

// Run serves claims until ctx ends, then answers what was accepted before and
// returns. It can be called once.
func (s *Server) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { s.stopped.Store(true) })()
	return s.arbiter.Run(ctx)
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
	return &edge{tenant: call.Principal.Tenant, now: claim.FromTime(call.Began)}
}
