package server

import (
	"net"
	"net/http"
	"sync"
	"time"

	connectv1 "connectrpc.com/connect"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/grpchealth"

	"github.com/warifu/warifu/storage/claim"
)

// Bounds of the listener.
const (
	// requestSlackBytes is what a message may have above a batch, so that a
	// batch that is a little too large gets an error that names the limit.
	requestSlackBytes = 64 << 10
	healthBytesMax    = 4 << 10

	headerTimeout = 5 * time.Second
	// readTimeout covers headers and body. net/http ends the context of a
	// handler that still runs when it passes, so it is longer than a call.
	readTimeout    = CallTimeoutDefault + 5*time.Second
	writeTimeout   = CallTimeoutDefault + 20*time.Second
	idleTimeout    = 2 * time.Minute
	headerBytesMax = 16 << 10
	// streamsMax bounds the concurrent calls on one HTTP/2 connection.
	streamsMax = 250
	// connectionsMax bounds connections, whatever they do: each costs memory and
	// a file.
	connectionsMax = 8192
)

// newHandler mounts everything that the public listener serves.
func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	connecthttp.Mount(mux, s.connect,
		connecthttp.WithReadMaxBytes(claim.BatchBytesMax+requestSlackBytes),
		// No compression either way. A compressed request is refused before a
		// byte of it is expanded, and answers are small.
		connecthttp.WithCompressors(),
		connecthttp.WithCodecs(newBinaryCodec(), newJSONCodec()),
	)
	mux.Handle(grpchealth.NewHandler(grpcHealth{s},
		connectv1.WithReadMaxBytes(healthBytesMax), connectv1.WithCompression("gzip", nil, nil)))
	// Patterns have no method: one with a method would conflict with the
	// subtrees that Mount registers.
	mux.Handle("/livez", getOnly(s.livez))
	mux.Handle("/readyz", getOnly(s.readyz))
	mux.Handle("/startupz", getOnly(s.startupz))
	return secured(mux)
}

// NewHTTPServer returns an http.Server for h with every bound set, speaking
// HTTP/1.1 and HTTP/2, over TLS or not.
func NewHTTPServer(h http.Handler) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: h, Protocols: protocols,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerBytesMax,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: streamsMax},
		ConnState:      (&connections{open: map[net.Conn]struct{}{}}).changed,
	}
}

// connections closes those that are too many, the newest first: what works goes
// on working, and who is closed comes again.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

// changed is http.Server's ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if !c.add(conn) {
			_ = conn.Close() // it has said nothing yet
		}
	case http.StateHijacked, http.StateClosed:
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, conn)
	case http.StateActive, http.StateIdle:
	}
}

func (c *connections) add(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= connectionsMax {
		return false
	}
	c.open[conn] = struct{}{}
	return true
}

func getOnly(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
			return
		}
		h(w, r)
	})
}

// The header values are shared by all responses and never changed.
var (
	noSniff    = []string{"nosniff"}
	noStore    = []string{"no-store"}
	noReferrer = []string{"no-referrer"}
	noFrames   = []string{"default-src 'none'; frame-ancestors 'none'"}
)

// secured sets the headers that keep answers out of caches and browsers from
// guessing. Claims are never cacheable, also where they are asked for by GET.
// Binary posts go without: no browser sends one by itself or shows its answer,
// caches do not keep it, and the headers cost both sides a tenth of the call.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.Header.Get("Content-Type") == "application/proto" {
			next.ServeHTTP(w, r)
			return
		}
		h := w.Header()
		h["X-Content-Type-Options"] = noSniff
		h["Cache-Control"] = noStore
		h["Referrer-Policy"] = noReferrer
		h["Content-Security-Policy"] = noFrames
		next.ServeHTTP(w, r)
	})
}
