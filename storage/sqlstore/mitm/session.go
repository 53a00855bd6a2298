package mitm

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgproto3"
)

// session is one client's connection and the one to the database that belongs
// to it. Two goroutines serve it: serve reads the client, pump the database.
type session struct {
	proxy  *Proxy
	number int
	dead   chan struct{} // closed by end
	once   sync.Once
	gone   atomic.Bool // the client gave up: nothing is written to it any more

	client net.Conn
	in     *bufio.Reader
	out    struct {
		sync.Mutex
		w *bufio.Writer
	}
	server  net.Conn
	back    *bufio.Reader
	startup *pgproto3.StartupMessage // as it was forwarded

	// Only serve uses these.
	names  names
	begin  string // the text that began the present transaction
	status byte   // of the last ReadyForQuery
	unread frame

	mu struct {
		sync.Mutex
		reply *reply
		ended error // why pump ended
	}
}

// errDropped ends a session on purpose.
var errDropped = errors.New("the connection is dropped")

// end breaks both connections, once.
func (s *session) end() {
	s.once.Do(func() {
		close(s.dead)
		closeQuietly(s.client)
		s.mu.Lock()
		server := s.server
		s.mu.Unlock()
		if server != nil {
			closeQuietly(server)
		}
	})
}

// closeQuietly closes what is broken on purpose: there is nothing to lose and
// nobody to tell.
func closeQuietly(c net.Conn) { _ = c.Close() }

// serve handles trip after trip until the client or the database ends. The
// startup is over.
func (s *session) serve() {
	var pumping sync.WaitGroup
	pumping.Go(s.pump)
	defer pumping.Wait()
	defer s.end()
	for {
		t, err := s.readTrip()
		if errors.Is(err, errTerminated) {
			_, _ = s.server.Write(encode(&pgproto3.Terminate{})) // a courtesy
		}
		if err != nil {
			return
		}
		if err := s.apply(t, s.proxy.decide(&t.Trip)); err != nil {
			return
		}
	}
}

var errTerminated = errors.New("the client said goodbye")

// readTrip collects the client's messages to the end of a trip.
func (s *session) readTrip() (*trip, error) {
	t := &trip{rewrite: s.proxy.config.Rewrite}
	for {
		f, err := s.read()
		if err != nil {
			return nil, err
		}
		switch f.kind() {
		case toServerTerminate:
			return nil, errTerminated
		case toServerCopyData, toServerCopyDone, toServerCopyFail:
			continue // left over from a COPY that failed, as the server does it
		}
		if err := t.add(f, &s.names); err != nil {
			return nil, err
		}
		if f.kind() == toServerFlush {
			if err := s.flush(t); err != nil {
				return nil, err
			}
		}
		if ends(f.kind()) {
			t.Conn, t.InTransaction = s.number, s.status != 'I'
			return t, nil
		}
	}
}

func (s *session) read() (frame, error) {
	if f := s.unread; f != nil {
		s.unread = nil
		return f, nil
	}
	return readFrame(s.in)
}

// flush forwards what the trip has so far.
func (s *session) flush(t *trip) error {
	if _, err := s.open(true, false); err != nil {
		return err
	}
	if _, err := s.server.Write(t.raw[t.sent:]); err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	t.sent = len(t.raw)
	return nil
}

// write sends bytes to the client.
func (s *session) write(b []byte) error {
	s.out.Lock()
	defer s.out.Unlock()
	if _, err := s.out.w.Write(b); err != nil {
		return fmt.Errorf("write to the client: %w", err)
	}
	if err := s.out.w.Flush(); err != nil {
		return fmt.Errorf("write to the client: %w", err)
	}
	return nil
}

// open makes ready for a reply. After a Flush that is open already, and only
// what becomes of the rest changes.
func (s *session) open(stream, replay bool) (*reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ended != nil {
		return nil, s.mu.ended
	}
	if s.mu.reply == nil {
		s.mu.reply = &reply{copyIn: make(chan struct{}, 1), done: make(chan struct{})}
	}
	s.mu.reply.stream, s.mu.reply.replay = stream, replay
	return s.mu.reply, nil
}

// pump takes what the database says to where it belongs, until the
// connection ends.
func (s *session) pump() {
	defer s.end()
	for {
		f, err := readFrame(s.back)
		if err == nil {
			err = s.deliver(f)
		}
		if err == nil {
			continue
		}
		s.mu.Lock()
		s.mu.ended = fmt.Errorf("the database's side ended: %w", err)
		if r := s.mu.reply; r != nil {
			s.mu.reply, r.err = nil, s.mu.ended
			close(r.done)
		}
		s.mu.Unlock()
		return
	}
}

// deliver handles one message of the database. What belongs to no trip goes
// to the client.
func (s *session) deliver(f frame) error {
	s.mu.Lock()
	r, toClient := s.mu.reply, true
	var err error
	if r != nil {
		toClient, err = r.take(f)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if toClient {
		if err := s.relay(f); err != nil && !s.gone.Load() {
			return err
		}
	}
	if r != nil && f.kind() == toClientReady {
		s.mu.Lock()
		s.mu.reply = nil
		s.mu.Unlock()
		close(r.done)
	}
	return nil
}

// relay sends a message to the client, together with what else the database
// has said already.
func (s *session) relay(f frame) error {
	s.out.Lock()
	defer s.out.Unlock()
	if _, err := s.out.w.Write(f); err != nil {
		return err
	}
	if s.back.Buffered() >= frameHeadBytes && f.kind() != toClientReady {
		return nil
	}
	return s.out.w.Flush()
}
