// Package mitm is a man in the middle for the PostgreSQL protocol: a proxy in
// front of a real database that makes the network and the server fail on
// command. It exists for tests: a store has to keep its promises whatever a
// trip to the database answers, and a real database answers the interesting
// things too seldom.
//
// The unit is the trip: what a client sends until it waits for ReadyForQuery.
// That is one simple Query, or a pipeline of Parse, Bind, Describe and Execute
// up to its Sync. The proxy collects the whole trip, finds out which texts it
// executes, asks Config.Decide, and does what the Fault says. A COPY FROM
// STDIN is part of the trip that began it.
//
// With crdb_version among Config.Announce a client takes the database for
// CockroachDB, and the proxy imitates the little that such a client needs; see
// crdb.go. It remains PostgreSQL: nothing here shows how CockroachDB behaves.
//
// Flush in a pipeline: what came before it is forwarded at once and answered,
// because the client may wait for that; Decide is asked at the Sync, with all
// texts of the trip. A fault then governs the rest of the trip and its reply.
// The trip's implicit transaction is aborted where the fault promises that
// nothing happened.
package mitm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
)

// Config says what a Proxy does. Upstream is required.
type Config struct {
	// Upstream is the host:port of the database, reached without TLS.
	Upstream string
	// Listen is the host:port to listen on; the default is a free port of
	// 127.0.0.1.
	Listen string
	// Announce adds ParameterStatus messages to the startup reply.
	Announce map[string]string
	// Decide says what happens to a trip; nil lets all pass. It is called by
	// the goroutine of the connection, by several at once, and may wait; Close
	// waits for it. It must not call Close.
	Decide func(Trip) Fault
	// DropParameters names runtime parameters that are taken out of the
	// StartupMessage. The default is CockroachParameters() when crdb_version
	// is announced, and none when it is not.
	DropParameters []string
	// Rewrite changes the text of every Parse and Query on its way upstream.
	// Trip has the text as the client sent it. The default is
	// WithoutSystemTime when crdb_version is announced, and none when it is
	// not. It is called by several goroutines at once.
	Rewrite func(sql string) string
}

// Proxy stands between clients and one database. All methods are safe for
// concurrent use; between Start and Close only where they say so.
type Proxy struct {
	config    Config
	cockroach bool // crdb_version is announced
	running   sync.WaitGroup

	mu struct {
		sync.Mutex
		listener net.Listener
		cancel   context.CancelFunc
		closed   bool
		refusing bool
		sessions map[*session]struct{}
		numbers  int // connections so far, for Trip.Conn; never reset
		stats    Stats
		trips    []Trip
		behind   behind
		gate     chan struct{} // closed by Release
		held     int
		changed  chan struct{} // closed and replaced when anything here changes
	}
}

// New checks the configuration and starts nothing.
func New(config Config) (*Proxy, error) {
	var faults []error
	if _, _, err := net.SplitHostPort(config.Upstream); err != nil {
		faults = append(faults, fmt.Errorf("the upstream is not host:port: %w", err))
	}
	if config.Listen == "" {
		config.Listen = "127.0.0.1:0"
	}
	if _, _, err := net.SplitHostPort(config.Listen); err != nil {
		faults = append(faults, fmt.Errorf("the address to listen on is not host:port: %w", err))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if config.Decide == nil {
		config.Decide = func(Trip) Fault { return Fault{} }
	}
	p := &Proxy{config: config}
	_, p.cockroach = config.Announce["crdb_version"]
	if p.cockroach && config.DropParameters == nil {
		p.config.DropParameters = CockroachParameters()
	}
	if p.cockroach && config.Rewrite == nil {
		p.config.Rewrite = WithoutSystemTime
	}
	p.mu.sessions = map[*session]struct{}{}
	p.mu.gate = make(chan struct{})
	p.mu.changed = make(chan struct{})
	return p, nil
}

// Start listens and returns. ctx bounds only the call; the proxy ends by
// Close. It can be started once.
func (p *Proxy) Start(ctx context.Context) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", p.config.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed || p.mu.listener != nil {
		cancel()
		return errors.Join(errors.New("the proxy was started or closed before"), listener.Close())
	}
	p.mu.listener, p.mu.cancel = listener, cancel
	p.running.Go(func() { p.accept(serving, listener) })
	return nil
}

// Close ends all connections and waits for every goroutine. Calling it again
// does nothing.
func (p *Proxy) Close() error {
	p.mu.Lock()
	listener, cancel := p.mu.listener, p.mu.cancel
	first := !p.mu.closed
	p.mu.closed = true
	p.mu.Unlock()
	var err error
	if first && listener != nil {
		err = listener.Close()
		cancel()
	}
	p.Cut()
	p.running.Wait()
	return err
}

// Addr is the host:port that clients connect to. It is "" before Start.
func (p *Proxy) Addr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.listener == nil {
		return ""
	}
	return p.mu.listener.Addr().String()
}

// URL returns the database URL with the proxy's address in place of its host
// and port. The proxy speaks no TLS, so sslmode=require will not connect.
func (p *Proxy) URL(database string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", fmt.Errorf("read the database URL: %w", err)
	}
	if u.Host = p.Addr(); u.Host == "" {
		return "", errors.New("the proxy has no address before Start")
	}
	return u.String(), nil
}

// Cut breaks all connections at once, on both sides, without a word. It does
// not wait for what the database makes of that. It may be called by Decide.
func (p *Proxy) Cut() {
	p.mu.Lock()
	sessions := make([]*session, 0, len(p.mu.sessions))
	for s := range p.mu.sessions {
		sessions = append(sessions, s)
	}
	p.mu.Unlock()
	for _, s := range sessions {
		s.end()
	}
}

// Refusing says whether new connections are closed as soon as they are made,
// as if the database were down. Existing ones live on: use Cut for them.
func (p *Proxy) Refusing(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.refusing = refuse
}
