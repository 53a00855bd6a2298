package mitm

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	dialTimeout   = 10 * time.Second // of a connection to the database
	cancelTimeout = 10 * time.Second // of a CancelRequest, from dialing on
	offersMax     = 2                // TLS and GSSAPI encryption, each refused once
)

// accept takes connections until the listener is closed.
func (p *Proxy) accept(ctx context.Context, listener net.Listener) {
	for {
		client, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // one connection failed, not the listener
		}
		s, ok := p.admit(client)
		if !ok {
			closeQuietly(client)
			continue
		}
		p.running.Go(func() {
			defer p.dismiss(s)
			defer s.end()
			if ready, err := s.greet(ctx); err == nil && ready {
				s.serve()
			}
		})
	}
}

// admit registers a connection so that Cut and Close know it.
func (p *Proxy) admit(client net.Conn) (*session, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.refusing || p.mu.closed {
		return nil, false
	}
	s := &session{proxy: p, client: client, in: bufio.NewReader(client), dead: make(chan struct{})}
	s.out.w = bufio.NewWriter(client)
	s.names = names{statements: map[string]*statement{}, portals: map[string]string{}}
	p.mu.sessions[s] = struct{}{}
	return s, true
}

func (p *Proxy) dismiss(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.sessions, s)
	p.broadcastLocked()
}

func dial(ctx context.Context, upstream string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, "tcp", upstream)
	if err != nil {
		return nil, fmt.Errorf("dial the database: %w", err)
	}
	return c, nil
}

// greet handles what comes before the first trip. It returns false for a
// connection that only carried a CancelRequest.
func (s *session) greet(ctx context.Context) (bool, error) {
	for range offersMax + 1 {
		code, body, err := readStartup(s.in)
		if err != nil {
			return false, err
		}
		switch code {
		case codeSSL, codeGSSEnc:
			if err := s.write([]byte{'N'}); err != nil {
				return false, err
			}
		case codeCancel:
			s.proxy.count(func(st *Stats) { st.Cancels++ })
			return false, s.forwardCancel(ctx, body)
		default:
			return true, s.begins(ctx, body)
		}
	}
	return false, errors.New("the client goes on asking for encryption")
}

// forwardCancel passes a CancelRequest on a connection of its own. The client
// sees its connection end when the database has taken note.
func (s *session) forwardCancel(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, cancelTimeout)
	defer cancel()
	if err := s.connect(ctx); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, s.end)()
	if _, err := s.server.Write(withLength(body)); err != nil {
		return fmt.Errorf("forward a cancel: %w", err)
	}
	_, err := io.Copy(io.Discard, s.server)
	return err
}

func withLength(body []byte) []byte {
	n := uint32(len(body)) + 4 //nolint:gosec // G115: readStartup bounded it
	return append(binary.BigEndian.AppendUint32(nil, n), body...)
}

// connect dials the database, unless the session was ended meanwhile.
func (s *session) connect(ctx context.Context) error {
	server, err := dial(ctx, s.proxy.config.Upstream)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.server = server
	s.mu.Unlock()
	s.back = bufio.NewReader(server)
	select {
	case <-s.dead: // end may have missed it
		closeQuietly(server)
		return errDropped
	default:
		return nil
	}
}

// begins connects to the database and passes the startup to its end.
func (s *session) begins(ctx context.Context, body []byte) error {
	s.number = s.proxy.connected()
	s.startup = &pgproto3.StartupMessage{}
	if err := s.startup.Decode(body); err != nil {
		return fmt.Errorf("read the startup message: %w", err)
	}
	for _, name := range s.proxy.config.DropParameters {
		delete(s.startup.Parameters, name)
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	if _, err := s.server.Write(encode(s.startup)); err != nil {
		return fmt.Errorf("forward the startup message: %w", err)
	}
	for {
		f, err := readFrame(s.back)
		if err != nil {
			return err
		}
		if f.kind() == toClientReady {
			s.status = 'I'
			return s.write(append(s.proxy.announcements(), f...))
		}
		if err := s.write(f); err != nil {
			return err
		}
		if !asksForProof(f) {
			continue
		}
		proof, err := readFrame(s.in)
		if err != nil {
			return err
		}
		if _, err := s.server.Write(proof); err != nil {
			return fmt.Errorf("forward the authentication: %w", err)
		}
	}
}

// asksForProof tells whether the client has to answer this message.
func asksForProof(f frame) bool {
	if f.kind() != toClientAuthentication || len(f.body()) < 4 {
		return false
	}
	silent := []uint32{pgproto3.AuthTypeOk, pgproto3.AuthTypeSASLFinal}
	return !slices.Contains(silent, binary.BigEndian.Uint32(f.body()))
}
