package warifu

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
)

// protocolVersion is the only one this client speaks.
const protocolVersion = 1

// The calls, as errors name them.
const (
	opClaim    = "claim"
	opComplete = "complete"
	opExtend   = "extend"
	opRelease  = "release"
	opLookup   = "lookup"
	opDo       = "do"
)

// Client asks one server for one tenant. It is safe for concurrent use, and
// meant to be shared: calls that are made at the same time travel together.
type Client struct {
	rpc     warifuv1connect.ClaimServiceClient
	retry   RetryPolicy
	timeout time.Duration
	log     *slog.Logger

	claims    *batcher[claimItem, *warifuv1.BatchClaimResult]
	completes *batcher[completeItem, *warifuv1.BatchCompleteResult]
	extends   *batcher[extendItem, *warifuv1.ExtendResult]

	budget  budget
	open    *gate
	senders sync.WaitGroup
	idle    func() // closes idle connections; nil when they are not ours
}

// New returns a client of the server at url, "http://127.0.0.1:8080" for one. An
// empty url is read from WARIFU_URL, a missing API key from WARIFU_API_KEY. New
// sends nothing; it reports all faults of its arguments at once.
func New(url string, opts ...Option) (*Client, error) {
	cfg, err := newConfig(url, opts)
	if err != nil {
		return nil, fmt.Errorf("warifu: new client: %w", err)
	}
	c := &Client{retry: cfg.retry, timeout: cfg.timeout, log: cfg.logger, open: newGate()}
	c.rpc = warifuv1connect.NewClaimServiceClient(connect.NewClient(c.transport(&cfg), authorize(cfg.apiKey)))
	c.claims = newBatcher(c, &cfg, opClaim, c.sendClaims)
	c.claims.orphan = c.returnOrphan
	c.completes = newBatcher(c, &cfg, opComplete, c.sendCompletes)
	c.extends = newBatcher(c, &cfg, opExtend, c.sendExtends)
	return c, nil
}

// Close waits for the calls under way, handlers of Do included, and refuses new
// ones with ErrClosed. To hurry it, end the contexts of the calls first. It may
// be called more than once.
func (c *Client) Close() error {
	c.open.close()
	c.senders.Wait() // of callers that left early
	if c.idle != nil {
		c.idle()
	}
	return nil
}

func (c *Client) transport(cfg *config) connect.Transport {
	if cfg.transport != nil {
		return cfg.transport
	}
	h := cfg.http
	if h == nil {
		h = c.newHTTPClient(cfg)
	}
	// Small messages on fast networks: compression costs more than it saves.
	return connecthttp.NewTransport(h, cfg.url, connecthttp.WithCompressors(), connecthttp.WithCodecs(newCodec()))
}

func (c *Client) newHTTPClient(cfg *config) *http.Client {
	t := newHTTPTransport()
	t.DisableCompression = true
	t.MaxIdleConns = 0 // bounded per host, and there is one host
	t.MaxIdleConnsPerHost = connsPerSender * cfg.batching.Senders
	c.idle = t.CloseIdleConnections
	return &http.Client{
		Transport: t,
		// The API key goes where it was meant to go.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// newHTTPTransport copies http.DefaultTransport, with what the program has set
// there. Where something else was put in its place, most often a tracer around
// it, there is nothing to copy, and it is made anew with the same settings.
func newHTTPTransport() *http.Transport {
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		return t.Clone()
	}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, ForceAttemptHTTP2: true,
		IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second,
	}
}

// connsPerSender keeps a connection for each sender of each kind, and some for
// single calls.
const connsPerSender = 8

// authorize sets the credential on every call.
func authorize(apiKey string) connect.ClientInterceptor {
	bearer := "Bearer " + apiKey
	return func(next connect.ClientFunc) connect.ClientFunc {
		if apiKey == "" {
			return next
		}
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			info, ok := connect.CallInfoForClientContext(ctx)
			if !ok {
				ctx, info = connect.NewClientContext(ctx)
			}
			info.RequestHeader().Set("Authorization", bearer)
			return next(ctx, spec)
		}
	}
}

// single makes one call that is not batched, with tries like all others.
func (c *Client) single(ctx context.Context, op string, extra time.Duration, call func(context.Context) error) *Error {
	return c.persist(ctx, func(last bool) *Error {
		try, cancel := context.WithTimeout(ctx, c.timeout+extra)
		defer cancel()
		err := call(try)
		switch {
		case err == nil:
			c.budget.settle(nil)
			return nil
		case ctx.Err() != nil:
			return ended(ctx, op, true)
		}
		e := failedCall(op, err)
		e.again = e.again && !last
		c.budget.settle([]*Error{e})
		return e
	})
}

// gate counts the calls under way and, once closed, lets no more begin.
type gate struct {
	state atomic.Int64 // twice the calls under way, plus 1 when closed
	once  sync.Once
	empty chan struct{}
}

func newGate() *gate { return &gate{empty: make(chan struct{})} }

func (g *gate) enter() bool {
	if g.state.Add(2)&1 == 0 {
		return true
	}
	g.exit()
	return false
}

func (g *gate) exit() {
	if g.state.Add(-2) == 1 {
		g.once.Do(func() { close(g.empty) })
	}
}

// close waits for the calls under way.
func (g *gate) close() {
	if g.state.Or(1)&^1 == 0 {
		g.once.Do(func() { close(g.empty) })
	}
	<-g.empty
}

func closed(op string) *Error { return &Error{Op: op, kind: ErrClosed, NotApplied: true} }
