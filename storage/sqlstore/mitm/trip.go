package mitm

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Trip is what a client sends until it waits for ReadyForQuery. Its slices are
// the proxy's: read them only.
type Trip struct {
	// Conn numbers the client's connections from 0; Reset leaves it alone.
	Conn int
	// Index numbers the trips over the proxy, of all connections and since
	// Reset, from 0.
	Index int
	// SQL has the texts that are executed, in their order, as the client wrote
	// them. It is empty when the trip only prepares or closes. A simple Query
	// is one text, whatever it contains. A statement whose Parse the proxy did
	// not see is "".
	SQL []string
	// Prepares has the texts of the trip's Parse messages.
	Prepares []string
	// InTransaction tells that the connection is in a transaction block, a
	// failed one too, when the trip begins.
	InTransaction bool
}

// trip is a Trip with what the proxy needs to execute it.
type trip struct {
	Trip
	raw     []byte // everything up to the end of the trip, rewritten
	sent    int    // bytes of raw that a Flush has forwarded already
	simple  bool   // ended by Query or FunctionCall, not by Sync
	names   []nameChange
	needs   []*statement // of earlier trips, that this one relies on
	replay  bool         // a second delivery: COPY data is part of raw
	record  bool         // COPY data is to become part of raw
	rewrite func(string) string
}

// statement is what a name stands for.
type statement struct {
	sql   string
	parse []byte // the Parse message, rewritten
}

// nameChange is a Parse, or a Close when statement is nil. The database
// confirms each by a message of its own, in order.
type nameChange struct {
	name      string
	statement *statement
}

// portalClosed stands for the Close of a portal among nameChanges. No statement
// can have this name: names end at their first zero byte.
const portalClosed = "\x00"

// names are the prepared statements and portals of a connection.
type names struct {
	statements map[string]*statement
	portals    map[string]string // name to text; a stale one does no harm
}

// confirm takes over the changes of a trip that the database confirmed: the
// first n.
func (n *names) confirm(changes []nameChange, confirmed int) {
	for _, c := range changes[:min(confirmed, len(changes))] {
		if c.statement != nil {
			n.statements[c.name] = c.statement
		} else {
			delete(n.statements, c.name)
		}
	}
}

// add takes one message into the trip.
func (t *trip) add(f frame, known *names) (err error) {
	switch f.kind() {
	case toServerParse:
		f, err = t.addParse(f)
	case toServerBind:
		err = t.addBind(f, known)
	case toServerClose:
		err = t.addClose(f)
	case toServerExecute:
		var m pgproto3.Execute
		if err = m.Decode(f.body()); err == nil {
			t.SQL = append(t.SQL, known.portals[m.Portal])
		}
	case toServerQuery:
		t.simple = true
		f, err = t.addQuery(f)
	case toServerFunctionCall:
		t.simple = true
	}
	if err != nil {
		return fmt.Errorf("read a message of type %q: %w", f.kind(), err)
	}
	if len(t.raw)+len(f) > tripBytesMax {
		return errTooLarge
	}
	t.raw = append(t.raw, f...)
	return nil
}

// ends tells whether a message of this type ends a trip.
func ends(kind byte) bool {
	return kind == toServerSync || kind == toServerQuery || kind == toServerFunctionCall
}

func (t *trip) addParse(f frame) (frame, error) {
	var m pgproto3.Parse
	if err := m.Decode(f.body()); err != nil {
		return f, err
	}
	sql := m.Query
	t.Prepares = append(t.Prepares, sql)
	if m.Query = t.rewritten(sql); m.Query != sql {
		f = encode(&m)
	}
	t.names = append(t.names, nameChange{m.Name, &statement{sql, f}})
	return f, nil
}

func (t *trip) addQuery(f frame) (frame, error) {
	var m pgproto3.Query
	if err := m.Decode(f.body()); err != nil {
		return f, err
	}
	sql := m.String
	t.SQL = append(t.SQL, sql)
	if m.String = t.rewritten(sql); m.String != sql {
		f = encode(&m)
	}
	return f, nil
}

func (t *trip) rewritten(sql string) string {
	if t.rewrite == nil {
		return sql
	}
	return t.rewrite(sql)
}

func (t *trip) addBind(f frame, known *names) error {
	var m pgproto3.Bind
	if err := m.Decode(f.body()); err != nil {
		return err
	}
	known.portals[m.DestinationPortal] = ""
	for i := len(t.names) - 1; i >= 0; i-- {
		if c := t.names[i]; c.name == m.PreparedStatement {
			if c.statement != nil {
				known.portals[m.DestinationPortal] = c.statement.sql
			}
			return nil
		}
	}
	if st := known.statements[m.PreparedStatement]; st != nil {
		known.portals[m.DestinationPortal] = st.sql
		if !slices.Contains(t.needs, st) {
			t.needs = append(t.needs, st)
		}
	}
	return nil
}

func (t *trip) addClose(f frame) error {
	var m pgproto3.Close
	if err := m.Decode(f.body()); err != nil {
		return err
	}
	if m.ObjectType == 'S' {
		t.names = append(t.names, nameChange{name: m.Name})
		return nil
	}
	// The database confirms this too; it must not be taken for another's.
	t.names = append(t.names, nameChange{name: portalClosed})
	return nil
}

var (
	endOfTransaction = regexp.MustCompile(`(?is)^\s*(commit|end|rollback|abort)(\s+(work|transaction))?(\s+and\s+no\s+chain)?\s*;?\s*$`)
	beginsWithBegin  = regexp.MustCompile(`(?is)^\s*(begin|start\s+transaction)\b`)
)

// endsTransaction tells whether the trip's last text is a COMMIT or ROLLBACK.
func (t *trip) endsTransaction() bool {
	return len(t.SQL) > 0 && endOfTransaction.MatchString(t.SQL[len(t.SQL)-1])
}

// begin returns the text of the trip that begins a transaction, or "".
func (t *trip) begin() string {
	for _, sql := range t.SQL {
		if beginsWithBegin.MatchString(sql) {
			return strings.TrimSpace(t.rewritten(sql))
		}
	}
	return ""
}
