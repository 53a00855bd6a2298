package server_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server"
)

// What a connection may take, as the product promises it.
const (
	headersWithin = 5 * time.Second
	bodyWithin    = server.CallTimeoutDefault + 5*time.Second
	answerWithin  = server.CallTimeoutDefault + 20*time.Second
	idleWithin    = 2 * time.Minute
	streamsMost   = 250
	connsMost     = 8192
	tick          = time.Second // one byte each
)

// drip writes something at once and then a bit each second, until the other side
// has had enough.
func drip(conn net.Conn, at, one []byte) {
	for _, err := conn.Write(at); err == nil; _, err = conn.Write(one) {
		time.Sleep(tick)
	}
}

// head is a request's first lines.
func head(key string, length int) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: warifu.test\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n",
		warifuv1connect.ClaimServiceClaimProcedure, key, length)
}

// What of HTTP/2 is needed to misuse it.
const (
	preface          = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	dataFrame        = 0
	headersFrame     = 1
	resetFrame       = 3
	settingsFrame    = 4
	goAwayFrame      = 7
	continuedFrame   = 9
	acknowledges     = 1 // flag of settings
	endHeaders       = 4 // flag of headers
	streamsMaxID     = 3 // of a setting
	frameHeaderBytes = 9
)

func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	length := len(payload)
	b := []byte{byte(length >> 16), byte(length >> 8), byte(length), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// opening is a connection's first bytes.
func opening(more ...[]byte) []byte {
	return append([]byte(preface), bytes.Join(append([][]byte{frame(settingsFrame, 0, 0, nil)}, more...), nil)...)
}

// fields are the header of a claim: as many literals, none of them in the table.
func fields(key string) (b []byte) {
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", warifuv1connect.ClaimServiceClaimProcedure}, {":authority", "warifu.test"},
		{"content-type", "application/json"}, {"authorization", "Bearer " + key},
	} {
		b = append(append(append(append(b, 0, byte(len(f[0]))), f[0]...), byte(len(f[1]))), f[1]...)
	}
	return b
}

// slow is a way to keep a connection and say little, and when it is over.
type slow struct {
	talk   func(net.Conn)
	within time.Duration
}

func slowConnections(key string) map[string]slow {
	body := `{"consumer":"orders","eventId":"slow","attemptId":"` + attemptA + `"}`
	begin := fields(key)
	return map[string]slow{
		"Silent":       {func(net.Conn) {}, headersWithin},
		"Headers":      {func(c net.Conn) { drip(c, []byte("POST / HTTP/1.1\r\nHost: warifu.test\r\nX: "), []byte("x")) }, headersWithin},
		"Body":         {func(c net.Conn) { drip(c, head(key, 1000), []byte(" ")) }, bodyWithin},
		"Idle":         {func(c net.Conn) { _, _ = c.Write(append(head(key, len(body)), body...)) }, idleWithin},
		"HTTP2Preface": {func(c net.Conn) { drip(c, []byte(preface[:20]), []byte(" ")) }, headersWithin},
		"HTTP2Idle":    {func(c net.Conn) { _, _ = c.Write(opening()) }, idleWithin},
		"HTTP2Headers": {func(c net.Conn) {
			drip(c, opening(frame(headersFrame, 0, 1, begin)), frame(continuedFrame, 0, 1, []byte{0x80 | 31}))
		}, idleWithin},
		"HTTP2Body": {func(c net.Conn) {
			drip(c, opening(frame(headersFrame, endHeaders, 1, begin)), frame(dataFrame, 0, 1, []byte(" ")))
		}, bodyWithin + idleWithin},
	}
}

// TestSlowConnectionsAreClosed: nobody keeps a connection by saying little, and
// meanwhile two hundred who try keep nobody else from being answered.
func TestSlowConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := overHTTP(t, &slowStore{batch: 5 * time.Millisecond})
		const each = 25
		type end struct {
			name  string
			after time.Duration
			over  bool
		}
		kinds, began := slowConnections(w.keys["other"]), time.Now()
		ends := make(chan end, each*len(kinds))
		var talkers sync.WaitGroup
		defer talkers.Wait()
		for name, kind := range kinds {
			for range each {
				conn, err := w.pipes.dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				talkers.Go(func() { kind.talk(conn) })
				go func() {
					_, err := io.Copy(io.Discard, conn)
					took := time.Since(began)
					ok := err == nil && took <= kind.within+tick
					if strings.HasSuffix(name, "Idle") { // clients keep connections for their next call
						ok = ok && took >= kind.within
					}
					ends <- end{name, took, ok}
					_ = conn.Close() // what still talks stops
				}()
			}
		}
		if y := w.load(w.dial("shop", false), 50, 4*time.Second); y.shed > 0 || len(y.dishonest) > 0 || len(y.unclosed) > 0 || y.p50() != 5*time.Millisecond {
			t.Errorf("beside %d slow connections: %d claims were shed, p50 %v, %v %v", cap(ends), y.shed, y.p50(), y.dishonest, y.unclosed)
		}
		after := map[string]time.Duration{}
		for range cap(ends) {
			e := <-ends
			if after[e.name] = max(after[e.name], e.after); !e.over {
				t.Errorf("%s is closed after %v", e.name, e.after)
			}
		}
		t.Logf("closed after %v", after)
	})
}

// TestAnswerThatNobodyReads: who asks and does not read is let go too.
func TestAnswerThatNobodyReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := overHTTP(t, &slowStore{})
		conn, err := w.pipes.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		body := `{"consumer":"orders","eventId":"unread","attemptId":"` + attemptA + `"}`
		if _, err := conn.Write(append(head(w.keys["shop"], len(body)), body...)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(answerWithin + tick)
		if _, err := conn.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the connection is still there: %v", err)
		}
	})
}

// TestConnectionsAreCapped: one more than there may be is closed at once, and
// finds room when another has gone.
func TestConnectionsAreCapped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := overHTTP(t, &slowStore{})
		// answer is what a new connection hears within a moment.
		answer := func() string {
			conn, err := w.pipes.dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()                                                                                 //nolint:errcheck // a pipe
			_ = conn.SetDeadline(time.Now().Add(tick))                                                         // or it is closed
			_, _ = conn.Write([]byte("GET /livez HTTP/1.1\r\nHost: warifu.test\r\nConnection: close\r\n\r\n")) // or it is closed
			text, _ := io.ReadAll(conn)
			return string(text)
		}
		for range connsMost {
			if _, err := w.pipes.dial(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := answer(); got != "" {
			t.Errorf("one too many hears %q", got)
		}
		time.Sleep(headersWithin + tick) // they said nothing
		if got := answer(); !strings.Contains(got, "200 OK") {
			t.Errorf("once there is room: %q", got)
		}
	})
}

// TestStreamsAreCapped: one connection of HTTP/2 has only so many calls.
func TestStreamsAreCapped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := overHTTP(t, &slowStore{})
		conn, err := w.pipes.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // a pipe
		opened := opening(frame(settingsFrame, acknowledges, 0, nil))
		for n := range uint32(streamsMost + 1) {
			opened = append(opened, frame(headersFrame, endHeaders, 2*n+1, fields(w.keys["shop"]))...)
		}
		go func() { _, _ = conn.Write(opened) }()
		for {
			head := make([]byte, frameHeaderBytes)
			if _, err := io.ReadFull(conn, head); err != nil {
				t.Fatal(err)
			}
			payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
			if _, err := io.ReadFull(conn, payload); err != nil {
				t.Fatal(err)
			}
			switch stream := binary.BigEndian.Uint32(head[5:]); head[3] {
			case settingsFrame:
				if n := setting(payload, streamsMaxID); head[4] != acknowledges && n != streamsMost {
					t.Errorf("%d streams are announced", n)
				}
			case resetFrame:
				if stream != 2*streamsMost+1 {
					t.Errorf("stream %d is refused: %v", stream, payload)
				}
				return
			case goAwayFrame:
				t.Fatalf("the connection is given up: %v", payload)
			}
		}
	})
}

// setting is the value of one setting of a frame; 0: it is not there.
func setting(payload []byte, id uint16) uint32 {
	for ; len(payload) >= 6; payload = payload[6:] {
		if binary.BigEndian.Uint16(payload) == id {
			return binary.BigEndian.Uint32(payload[2:])
		}
	}
	return 0
}
