package mitm

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// apply does to a trip what the fault says. An error ends the session.
func (s *session) apply(t *trip, f Fault) error {
	switch f.Kind {
	case Pass:
		return s.pass(t)
	case Refuse:
		return s.refuse(t, f)
	case RefuseAtSync:
		return s.refuseAtSync(t, f)
	case Lose, LoseAtSync:
		return s.lose(t, f)
	case DropBefore:
		return errDropped
	case DropAfter, DropMidRow:
		r, err := s.exec(t, false)
		if err == nil && f.Kind == DropMidRow {
			err = s.write(r.untilMidRow())
		}
		return errors.Join(errDropped, err)
	case Late:
		return s.late(t)
	case Twice:
		return s.twice(t)
	case TwiceLate:
		return s.twiceLate(t)
	case Hold:
		if !s.proxy.hold(s.dead) {
			return errDropped
		}
		return s.pass(t)
	default:
		return fmt.Errorf("there is no fault of %v", f.Kind)
	}
}

func (s *session) pass(t *trip) error {
	_, err := s.exec(t, true)
	return err
}

// refuse answers for the database. Where that would know of a transaction, it
// is told that the trip failed.
func (s *session) refuse(t *trip, f Fault) error {
	if f.fatal() {
		return errors.Join(errDropped, s.fail(f, 0))
	}
	var err error
	switch {
	case t.sent == 0 && s.status != 'I' && t.endsTransaction():
		err = s.command("ROLLBACK")
	case t.sent > 0 || s.status == 'T':
		err = s.abort()
	}
	if err != nil {
		return err
	}
	return s.fail(f, s.status)
}

// refuseAtSync puts a message that fails before the trip's Sync. After a
// COMMIT that would be too late.
func (s *session) refuseAtSync(t *trip, f Fault) error {
	if t.simple || t.endsTransaction() {
		return s.refuse(t, f)
	}
	sync := len(encode(&pgproto3.Sync{}))
	t.raw = append(t.raw[:len(t.raw)-sync], abort()...)
	r, err := s.exec(t, false)
	if err != nil {
		return err
	}
	reply := r.withError(f.response())
	if f.fatal() {
		ready := len(r.frames[len(r.frames)-1])
		return errors.Join(errDropped, s.write(reply[:len(reply)-ready]))
	}
	return s.write(reply)
}

// lose executes the trip and answers with an error all the same.
func (s *session) lose(t *trip, f Fault) error {
	r, err := s.exec(t, false)
	if err != nil {
		return err
	}
	if f.Kind == LoseAtSync {
		if err := s.write(r.untilReady()); err != nil {
			return err
		}
	}
	if f.fatal() {
		return errors.Join(errDropped, s.fail(f, 0))
	}
	if s.status == 'T' {
		if err := s.abort(); err != nil {
			return err
		}
	}
	return s.fail(f, s.status)
}

// fail sends the client the fault's error, and ReadyForQuery unless that is
// fatal.
func (s *session) fail(f Fault, status byte) error {
	if f.fatal() {
		return s.write(encode(f.response()))
	}
	return s.write(encode(f.response(), &pgproto3.ReadyForQuery{TxStatus: status}))
}

// exec forwards a trip, or what a Flush has left of it, and returns its reply
// once the database is ready again. With stream the client gets the reply,
// without it the caller has it.
func (s *session) exec(t *trip, stream bool) (*reply, error) {
	if !t.replay {
		s.proxy.count(func(st *Stats) { st.Forwarded++ })
	}
	releases := s.proxy.cockroach && t.releasesRestart()
	inside := s.status != 'I'
	r, err := s.send(t, t.raw[t.sent:], stream && !releases)
	if err != nil {
		return nil, err
	}
	s.names.confirm(t.names, r.confirmed)
	if begin := t.begin(); !inside && begin != "" {
		s.begin = begin
	}
	if !releases {
		return r, nil
	}
	if !r.failed && r.status == 'T' {
		if r, err = s.commitAtRelease(r); err != nil {
			return nil, err
		}
	}
	if stream {
		return r, s.write(r.all())
	}
	return r, nil
}

// send forwards bytes and waits for ReadyForQuery.
func (s *session) send(t *trip, raw []byte, stream bool) (*reply, error) {
	r, err := s.open(stream, t.replay)
	if err != nil {
		return nil, err
	}
	if _, err := s.server.Write(raw); err != nil {
		// What the database said last is still to be passed: pump ends when it
		// has done so. Nothing more will be read, so it does not take long.
		<-r.done
		return nil, errors.Join(fmt.Errorf("forward: %w", err), r.err)
	}
	for {
		select {
		case <-r.done:
			if r.err == nil {
				s.status = r.status
			}
			return r, r.err
		case <-r.copyIn:
			if err := s.copyIn(t, r); err != nil {
				return nil, err
			}
		}
	}
}

// copyIn forwards what the client copies, to its end.
func (s *session) copyIn(t *trip, r *reply) error {
	for {
		f, err := s.readCopy()
		if err != nil {
			return err
		}
		select {
		case <-r.done:
			// The database did not want the rest.
			s.unread = f
			return nil
		default:
		}
		if t.record {
			if len(t.raw)+len(f) > tripBytesMax {
				return errTooLarge
			}
			t.raw = append(t.raw, f...)
		}
		if _, err := s.server.Write(f); err != nil {
			return fmt.Errorf("forward: %w", err)
		}
		if f.kind() == toServerCopyDone || f.kind() == toServerCopyFail {
			return nil
		}
	}
}

// readCopy reads a message of a COPY. A client that has gone copies nothing.
func (s *session) readCopy() (frame, error) {
	if s.gone.Load() {
		return encode(&pgproto3.CopyFail{Message: "the client has gone"}), nil
	}
	return s.read()
}

// abort makes the database's transaction fail, the implicit one of a flushed
// pipeline too.
func (s *session) abort() error {
	_, err := s.send(&trip{replay: true}, abort(), false)
	return err
}

// query executes a text of the proxy's own.
func (s *session) query(sql string) (*reply, error) {
	return s.send(&trip{replay: true}, encode(&pgproto3.Query{String: sql}), false)
}

// command is query for what must not fail.
func (s *session) command(sql string) error {
	r, err := s.query(sql)
	if err == nil && r.failed {
		err = fmt.Errorf("the database refused the proxy's own %s", sql)
	}
	return err
}
