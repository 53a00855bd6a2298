package mitm

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Kind is what happens to a trip.
type Kind int

// The kinds of fault. "Executed" means to the end: the database said
// ReadyForQuery, and what it commits by itself is committed.
const (
	// Pass forwards the trip and its reply.
	Pass Kind = iota
	// Refuse forwards nothing; the client gets Fault.Code. Inside a
	// transaction the database is brought to where the client believes it is:
	// a refused COMMIT or ROLLBACK rolls back and leaves no transaction,
	// anything else leaves the transaction failed.
	Refuse
	// RefuseAtSync executes a pipeline, passes all its rows and command tags,
	// and then fails it as a commit that fails does: nothing of the trip is
	// kept, the client gets Fault.Code instead of an undisturbed
	// ReadyForQuery. An error of the trip's own passes as it is. For a simple
	// Query, and for a pipeline whose last text is COMMIT or ROLLBACK, it is
	// the same as Refuse. A COMMIT in the middle of a pipeline stays done.
	RefuseAtSync
	// Lose executes the trip and swallows the reply; the client gets
	// Fault.Code. When the trip leaves a transaction open, that is then
	// failed, so that the client and the database agree; what the trip
	// committed stays.
	Lose
	// LoseAtSync is Lose, but everything except ReadyForQuery reaches the
	// client before Fault.Code does.
	LoseAtSync
	// DropBefore breaks the connection; nothing is forwarded.
	DropBefore
	// DropAfter executes the trip and breaks the connection without a reply.
	DropAfter
	// DropMidRow executes the trip, sends the reply up to half of the bytes of
	// the first DataRow and breaks the connection. Without a DataRow it is
	// half of the first message.
	DropMidRow
	// Late forwards nothing until the client has given up: it said Terminate
	// or its connection ended. Then the trip is executed. Whatever else the
	// client sent is dropped, and the connection to the database ends after
	// it, and with it a transaction that the trip does not commit. Proxy.Late
	// waits for it.
	Late
	// Twice passes the trip and its reply, and then executes the same bytes
	// once more in the same session; that reply is thrown away. The client's
	// next trip waits for it; Proxy.Late waits too. A second delivery that
	// fails inside a transaction leaves that failed without the client's
	// knowledge.
	Twice
	// TwiceLate passes the trip and its reply. Proxy.Redeliver executes the
	// same bytes once more, on a connection of its own.
	TwiceLate
	// Hold waits for Proxy.Release and then passes the trip, even when the
	// client has given up meanwhile.
	Hold
)

var kindNames = [...]string{
	Pass: "pass", Refuse: "refuse", RefuseAtSync: "refuse at sync", Lose: "lose", LoseAtSync: "lose at sync",
	DropBefore: "drop before", DropAfter: "drop after", DropMidRow: "drop mid-row",
	Late: "late", Twice: "twice", TwiceLate: "twice late", Hold: "hold",
}

// String names the kind in words.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", int(k))
	}
	return kindNames[k]
}

// Fault is what happens to one trip. The zero Fault lets it pass. An unknown
// kind breaks the connection.
type Fault struct {
	Kind Kind
	// Code is the SQLSTATE the client gets, for the kinds that refuse and
	// lose; the default is XX000. Codes of class 57P are FATAL, as servers
	// send them: the connection is broken after the error, without
	// ReadyForQuery, and the database rolls back what is open.
	Code string
	// Message is the error's text; the default says that it was injected.
	Message string
}

// String is for the names of subtests: "lose 40003".
func (f Fault) String() string {
	if f.Code == "" {
		return f.Kind.String()
	}
	return f.Kind.String() + " " + f.Code
}

// fatal tells whether servers end the connection with this code: class 57P is
// the operator's intervention, a shutdown above all.
func (f Fault) fatal() bool { return strings.HasPrefix(f.Code, "57P") }

func (f Fault) response() *pgproto3.ErrorResponse {
	code, message, severity := f.Code, f.Message, "ERROR"
	if code == "" {
		code = "XX000"
	}
	if message == "" {
		message = "injected fault: " + f.Kind.String()
		if code == "40001" {
			// CockroachDB's clients are told to look for these words.
			message = "restart transaction: " + message
		}
	}
	if f.fatal() {
		severity = "FATAL"
	}
	return &pgproto3.ErrorResponse{Severity: severity, SeverityUnlocalized: severity, Code: code, Message: message}
}
