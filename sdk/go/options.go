package warifu

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
)

// The environment that New reads where its arguments are silent.
const (
	envURL    = "WARIFU_URL"
	envAPIKey = "WARIFU_API_KEY" //nolint:gosec // the name of the variable, not a key
)

// Defaults and bounds.
const (
	timeoutDefault  = 5 * time.Second
	triesDefault    = 3
	triesMax        = 10
	delayMinDefault = 50 * time.Millisecond
	delayMaxDefault = 2 * time.Second
	sendersDefault  = 2
	sendersMax      = 64
	itemsMaxDefault = 500 // the contract's bound for one batch
)

// Option configures a [Client]. Options are made by the With functions only.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	url       string
	apiKey    string
	http      *http.Client
	transport connect.Transport
	retry     RetryPolicy
	timeout   time.Duration
	logger    *slog.Logger
	batching  Batching
}

// WithAPIKey sets the credential, which also names the tenant. Default:
// WARIFU_API_KEY.
func WithAPIKey(key string) Option {
	return optionFunc(func(c *config) { c.apiKey = key })
}

// WithHTTPClient sets the HTTP client. Its transport should keep at least as
// many idle connections per host as there are senders, follow no redirects, and
// is the caller's to close. Default: one of the client's own, with a copy of
// http.DefaultTransport where that is an *http.Transport. A wrapper that was put
// there, to trace for one, is not used: give a client with it here.
func WithHTTPClient(h *http.Client) Option {
	return optionFunc(func(c *config) { c.http = h })
}

// WithTransport replaces HTTP altogether, for servers in the same process. The
// URL may then be empty and the API key missing.
func WithTransport(t connect.Transport) Option {
	return optionFunc(func(c *config) { c.transport = t })
}

// RetryPolicy says how a call without an answer is sent again, always with the
// same attempt ID. Received refusals are never sent again. A budget shared by
// all calls of the client (10 tokens; one for each retry, a tenth back for each
// success) keeps retries below a tenth of the traffic when a server is down.
type RetryPolicy struct {
	// Tries is how often a call is sent at most; 1-10, 3 when 0.
	Tries int
	// DelayMin and DelayMax bound the back-off: before try n+1 the client waits
	// a random share of min(DelayMax, DelayMin·2ⁿ⁻¹), after what the server
	// asked for. 50 ms and 2 s when 0.
	DelayMin, DelayMax time.Duration
}

// WithRetry sets the retry policy.
func WithRetry(p RetryPolicy) Option {
	return optionFunc(func(c *config) { c.retry = p })
}

// WithTimeout bounds one try of one call; the caller's context bounds all of
// them. Default: 5 s.
func WithTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) { c.timeout = d })
}

// WithLogger sets where the client reports retries and lost leases. It never
// logs event IDs, results or keys. Default: nowhere.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) { c.logger = l })
}

// Batching says how concurrent calls share requests. A call goes out at once
// while a sender is free; those that come while all are at work share the next
// request.
type Batching struct {
	// ItemsMax is how many calls one request carries at most; 1-500, 500 when 0.
	ItemsMax int
	// Senders is how many requests of a kind are under way at most; 1-64, 2
	// when 0.
	Senders int
}

// WithBatching sets how concurrent calls share requests.
func WithBatching(b Batching) Option {
	return optionFunc(func(c *config) { c.batching = b })
}

func newConfig(rawURL string, opts []Option) (config, error) {
	c := config{url: rawURL}
	for _, o := range opts {
		o.apply(&c)
	}
	if c.transport == nil {
		c.fromEnvironment()
	}
	c.defaults()
	return c, c.validate()
}

// fromEnvironment is the documented exception to "only commands read it".
func (c *config) fromEnvironment() {
	if c.url == "" {
		c.url = os.Getenv(envURL)
	}
	if c.apiKey == "" {
		c.apiKey = os.Getenv(envAPIKey)
	}
	c.apiKey = strings.TrimSpace(c.apiKey) // files end in a newline
}

func (c *config) defaults() {
	setDefault(&c.retry.Tries, triesDefault)
	setDefault(&c.retry.DelayMin, delayMinDefault)
	setDefault(&c.retry.DelayMax, max(delayMaxDefault, c.retry.DelayMin))
	setDefault(&c.timeout, timeoutDefault)
	setDefault(&c.batching.ItemsMax, itemsMaxDefault)
	setDefault(&c.batching.Senders, sendersDefault)
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// validate reports all faults at once.
func (c *config) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(c.retry.Tries < 1 || c.retry.Tries > triesMax, "retry: tries must be 1-%d", triesMax)
	fault(c.retry.DelayMin < 0 || c.retry.DelayMax < c.retry.DelayMin, "retry: 0 ≤ minimum delay ≤ maximum delay does not hold")
	fault(c.timeout < 0, "timeout must be above 0")
	fault(c.batching.ItemsMax < 1 || c.batching.ItemsMax > itemsMaxDefault, "batching: items must be 1-%d", itemsMaxDefault)
	fault(c.batching.Senders < 1 || c.batching.Senders > sendersMax, "batching: senders must be 1-%d", sendersMax)
	fault(strings.ContainsFunc(c.apiKey, notHeader), "API key: not printable ASCII")
	if c.transport == nil {
		u, err := url.Parse(c.url)
		fault(err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"),
			"URL: want http(s)://host:port, as an argument or in %s", envURL)
		fault(c.apiKey == "", "API key: missing; use WithAPIKey or %s", envAPIKey)
	}
	return errors.Join(faults...)
}

func notHeader(r rune) bool { return r < '!' || r > '~' }
