package reliability_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
)

// loss is a way in which a reply is lost after the server has done its work.
type loss uint8

const (
	keep     loss = iota
	dropped       // the connection breaks before the reply
	cutShort      // it breaks within the reply
	badGate       // a proxy gives up and answers itself
	silent        // nothing comes, until the caller has no more patience
)

var lossNames = map[loss]string{dropped: "dropped", cutShort: "cut short", badGate: "bad gateway", silent: "silence"}

var errLost = errors.New("the reply was lost")

// lossy is a network that loses replies. The server has always answered in
// full before one is lost, so that the call has had its effect.
type lossy struct {
	next http.RoundTripper
	// choose says what becomes of a reply; it is called once for each.
	choose func(*http.Request) loss
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	how := l.choose(r)
	if how == keep {
		return response, nil
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	switch how {
	case cutShort:
		response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body[:len(body)/2]), broken{}))
		return response, nil
	case badGate:
		return &http.Response{
			Status: "502 Bad Gateway", StatusCode: http.StatusBadGateway, Proto: r.Proto, ProtoMajor: 1, ProtoMinor: 1, Request: r,
			Header: http.Header{"Content-Type": {"text/html"}}, Body: io.NopCloser(bytes.NewReader([]byte("<html>bad gateway</html>"))),
		}, nil
	case silent:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case keep, dropped:
	}
	return nil, errLost
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// losses loses the next replies in the ways it was told.
type losses struct {
	mu struct {
		sync.Mutex
		next []loss
		seen int // replies, lost or not
	}
}

func (l *losses) plan(next ...loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.next, l.mu.seen = next, 0
}

func (l *losses) choose(*http.Request) loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.seen++
	if len(l.mu.next) == 0 {
		return keep
	}
	how := l.mu.next[0]
	l.mu.next = l.mu.next[1:]
	return how
}

// seen returns how many replies there were since the last plan.
func (l *losses) seen() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.seen
}
