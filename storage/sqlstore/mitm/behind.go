package mitm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgproto3"
)

// duplicatesMax bounds the trips that wait for Redeliver.
const duplicatesMax = 10_000

// behind is what happens behind the clients' backs.
type behind struct {
	pending  int   // Late trips and second deliveries of Twice that are to come
	executed int   // those that were
	lost     error // those that could not be
	again    []duplicate
}

// duplicate is a trip that is to be delivered once more.
type duplicate struct {
	startup *pgproto3.StartupMessage
	needs   []*statement
	raw     []byte
}

// Late waits until every Late trip and every second delivery of Twice that was
// decided so far has been executed, and returns how many were, since Reset.
// For a Late trip that includes waiting for its client to give up. The error
// says that ctx ended, or that some could not be executed because the
// connection to the database was lost, to Cut for example. That the database refused one is no
// error: it was executed.
func (p *Proxy) Late(ctx context.Context) (int, error) {
	err := p.wait(ctx, func() bool { return p.mu.behind.pending == 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.behind.executed, errors.Join(err, p.mu.behind.lost)
}

// Redeliver executes the TwiceLate trips of so far once more, in their order,
// each on a new connection with the same user, database and parameters, and
// with the statements it needs prepared. It returns how many were delivered;
// whether the database refused one is nobody's business. Outside their session
// they also are outside its transaction: each commits by itself. The database
// must trust the connection: the proxy knows no password.
func (p *Proxy) Redeliver(ctx context.Context) (int, error) {
	p.mu.Lock()
	again := p.mu.behind.again
	p.mu.behind.again = nil
	p.mu.Unlock()
	for i, d := range again {
		if err := p.redeliver(ctx, d); err != nil {
			return i, fmt.Errorf("deliver trip %d of %d again: %w", i+1, len(again), err)
		}
	}
	return len(again), nil
}

// keep stores a trip for Redeliver.
func (p *Proxy) keep(startup *pgproto3.StartupMessage, t *trip) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.behind.again) >= duplicatesMax {
		return errors.New("too many trips wait for Redeliver")
	}
	p.mu.behind.again = append(p.mu.behind.again, duplicate{startup, slices.Clone(t.needs), t.raw})
	return nil
}

func (p *Proxy) redeliver(ctx context.Context, d duplicate) error {
	server, err := dial(ctx, p.config.Upstream)
	if err != nil {
		return err
	}
	defer closeQuietly(server)
	defer context.AfterFunc(ctx, func() { closeQuietly(server) })()
	var prepare []byte
	for _, st := range d.needs {
		prepare = append(prepare, st.parse...)
	}
	prepare = append(prepare, encode(&pgproto3.Sync{})...)
	back := bufio.NewReader(server)
	for _, step := range []struct {
		action    string
		raw       []byte
		mayRefuse bool
	}{
		{"start up", encode(d.startup), false},
		{"prepare", prepare, false},
		{"execute", d.raw, true},
	} {
		if _, err := server.Write(step.raw); err != nil {
			return fmt.Errorf("%s: %w", step.action, err)
		}
		if err := untilReady(back, step.mayRefuse); err != nil {
			return fmt.Errorf("%s: %w", step.action, err)
		}
	}
	_, err = server.Write(encode(&pgproto3.Terminate{}))
	return err
}

// untilReady reads a reply away.
func untilReady(back *bufio.Reader, mayRefuse bool) error {
	for {
		f, err := readFrame(back)
		if err != nil {
			return err
		}
		switch {
		case f.kind() == toClientReady:
			return nil
		case asksForProof(f):
			return errors.New("the database asks for a password")
		case f.kind() == toClientError && !mayRefuse:
			var e pgproto3.ErrorResponse
			if err := e.Decode(f.body()); err != nil {
				return err
			}
			return fmt.Errorf("the database refused: %s %s", e.Code, e.Message)
		}
	}
}

// late waits for the client to give up and executes the trip then.
func (s *session) late(t *trip) error {
	for {
		f, err := s.read()
		if err != nil || f.kind() == toServerTerminate {
			break
		}
	}
	err := errDropped
	select {
	case <-s.dead: // by Cut or Close, and the database's side with it
	default:
		s.gone.Store(true)
		closeQuietly(s.client)
		_, err = s.exec(t, false)
	}
	s.proxy.executed(err)
	return errors.Join(errDropped, err)
}

// twice passes the trip and executes its bytes again.
func (s *session) twice(t *trip) error {
	t.record = true
	if err := s.pass(t); err != nil {
		s.proxy.executed(err)
		return err
	}
	t.sent, t.record, t.replay = 0, false, true
	_, err := s.exec(t, false)
	s.proxy.executed(err)
	return err
}

// twiceLate passes the trip and keeps its bytes. They are kept before the
// client has the reply: its next call may be Redeliver.
func (s *session) twiceLate(t *trip) error {
	t.record = true
	r, err := s.exec(t, false)
	if err != nil {
		return err
	}
	if err := s.proxy.keep(s.startup, t); err != nil {
		return err
	}
	return s.write(r.all())
}

// executed settles one of pending.
func (p *Proxy) executed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.behind.pending--
	if err != nil {
		p.mu.behind.lost = errors.Join(p.mu.behind.lost, err)
	} else {
		p.mu.behind.executed++
	}
	p.broadcastLocked()
}

// Held waits until n trips at least are held.
func (p *Proxy) Held(ctx context.Context, n int) error {
	return p.wait(ctx, func() bool { return p.mu.held >= n })
}

// Release lets all trips pass that are held now.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.mu.gate)
	p.mu.gate = make(chan struct{})
	p.mu.held = 0
	p.broadcastLocked()
}

// hold waits for Release. It returns false when the session was cut first.
func (p *Proxy) hold(dead <-chan struct{}) bool {
	p.mu.Lock()
	gate := p.mu.gate
	p.mu.held++
	p.broadcastLocked()
	p.mu.Unlock()
	select {
	case <-gate:
		return true
	case <-dead:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if gate == p.mu.gate { // else Release has counted it off
		p.mu.held--
	}
	return false
}

// wait waits until a condition holds that reads what p.mu guards.
func (p *Proxy) wait(ctx context.Context, holds func() bool) error {
	for {
		p.mu.Lock()
		ok, changed := holds(), p.mu.changed
		p.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the proxy: %w", ctx.Err())
		}
	}
}

func (p *Proxy) broadcastLocked() {
	close(p.mu.changed)
	p.mu.changed = make(chan struct{})
}
