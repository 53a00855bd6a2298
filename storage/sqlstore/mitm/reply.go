package mitm

import (
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgproto3"
)

// reply is what the database answers to one trip, up to ReadyForQuery. The
// session's lock guards it until done is closed; after that it is constant.
type reply struct {
	stream    bool    // its messages go to the client as they come
	replay    bool    // COPY data has been sent: CopyInResponse is nobody's business
	frames    []frame // what was held back: everything unless stream
	bytes     int     // of frames
	confirmed int     // ParseComplete and CloseComplete so far
	failed    bool    // an ErrorResponse came
	status    byte    // of ReadyForQuery
	err       error   // why there is no ReadyForQuery

	copyIn chan struct{} // the database waits for COPY data; never blocks
	done   chan struct{}
}

// take takes one message in and tells whether the client gets it now.
func (r *reply) take(f frame) (toClient bool, err error) {
	switch f.kind() {
	case toClientParameterStatus, toClientNotification:
		// They belong to the session and not to the trip.
		return true, nil
	case toClientCopyIn:
		if r.replay {
			return false, nil
		}
		select {
		case r.copyIn <- struct{}{}:
		default:
		}
		return true, nil // without it the client sends nothing
	case toClientParseComplete, toClientCloseComplete:
		r.confirmed++
	case toClientError:
		r.failed = true
	case toClientReady:
		if len(f.body()) != 1 {
			return false, errors.New("ReadyForQuery without a status")
		}
		r.status = f.body()[0]
	}
	if r.stream {
		return true, nil
	}
	if r.bytes += len(f); r.bytes > replyBytesMax {
		return false, errTooLarge
	}
	r.frames = append(r.frames, f)
	return false, nil
}

// all is the whole reply.
func (r *reply) all() []byte { return slices.Concat(r.frames...) }

// untilReady is the reply without ReadyForQuery.
func (r *reply) untilReady() []byte {
	return slices.Concat(r.frames[:max(0, len(r.frames)-1)]...)
}

// untilMidRow is the reply up to the middle of the first DataRow, or of the
// first message.
func (r *reply) untilMidRow() []byte {
	at := slices.IndexFunc(r.frames, func(f frame) bool { return f.kind() == toClientDataRow })
	at = max(0, at)
	if at >= len(r.frames) {
		return nil
	}
	half := r.frames[at][:len(r.frames[at])/2]
	return append(slices.Concat(r.frames[:at]...), half...)
}

// withError is the reply with another error in place of the one that abort
// provoked. An error of the trip's own stays.
func (r *reply) withError(other *pgproto3.ErrorResponse) []byte {
	var out []byte
	for _, f := range r.frames {
		var e pgproto3.ErrorResponse
		if f.kind() == toClientError && e.Decode(f.body()) == nil && provoked(&e) {
			f = encode(other)
		}
		out = append(out, f...)
	}
	return out
}

// noSuchStatement is bound to make a transaction fail: unlike a wrong text it
// leaves the unnamed statement and the unnamed portal of the client alone.
const noSuchStatement = "refused by the man in the middle"

func abort() []byte {
	return encode(&pgproto3.Bind{DestinationPortal: noSuchStatement, PreparedStatement: noSuchStatement}, &pgproto3.Sync{})
}

func provoked(e *pgproto3.ErrorResponse) bool {
	return e.Code == "26000" && e.Message == `prepared statement "`+noSuchStatement+`" does not exist`
}
