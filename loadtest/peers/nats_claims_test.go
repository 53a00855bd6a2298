package peers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// fakeNATS speaks as much of the protocol as a claim needs.
type fakeNATS struct {
	address string
	stream  string // the reply to whoever asks for a stream; "": there is one
	publish string // the reply to what is published; "": as a stream does
	open    sync.WaitGroup

	mu struct {
		sync.Mutex
		configs  []string // of the streams that were asked for
		messages []message
		ids      map[string]bool
	}
}

// message is what a client publishes.
type message struct{ subject, reply, header, body string }

const noStream = `{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`

func newFakeNATS(t *testing.T, stream, publish string) *fakeNATS {
	t.Helper()
	l := listen(t)
	f := &fakeNATS{address: l.Addr().String(), stream: stream, publish: publish}
	f.mu.ids = map[string]bool{}
	f.open.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.open.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.open.Wait() // every client has closed what it opened
	})
	return f
}

// serve answers requests on the one subscription a client has: its inbox.
func (f *fakeNATS) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // the client has gone
	r, inbox := bufio.NewReader(conn), ""
	_, err := io.WriteString(conn, `INFO {"server_id":"fake","version":"2.15.3","proto":1,"headers":true,"jetstream":true,"max_payload":1048576}`+"\r\n")
	for err == nil {
		var line string
		if line, err = r.ReadString('\n'); err != nil {
			return
		}
		words := strings.Fields(line)
		switch words[0] {
		case "PING":
			_, err = io.WriteString(conn, "PONG\r\n")
		case "SUB":
			inbox = words[len(words)-1]
		case "PUB", "HPUB":
			var m message
			if m, err = readMessage(r, words); err == nil {
				reply := f.answer(m)
				_, err = fmt.Fprintf(conn, "MSG %s %s %d\r\n%s\r\n", m.reply, inbox, len(reply), reply)
			}
		}
	}
}

// readMessage reads what follows "PUB subject reply size", or "HPUB subject
// reply size-of-header size".
func readMessage(r io.Reader, words []string) (m message, err error) {
	size, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		return m, err
	}
	head := 0
	if words[0] == "HPUB" {
		if head, err = strconv.Atoi(words[len(words)-2]); err != nil {
			return m, err
		}
	}
	text := make([]byte, size+len("\r\n"))
	if _, err = io.ReadFull(r, text); err != nil {
		return m, err
	}
	return message{subject: words[1], reply: words[2], header: string(text[:head]), body: string(text[head:size])}, nil
}

func (f *fakeNATS) answer(m message) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case strings.HasPrefix(m.subject, "$JS.API.STREAM.UPDATE.") && f.stream == "":
		return noStream // a new server has none
	case strings.HasPrefix(m.subject, "$JS.API.STREAM."):
		f.mu.configs = append(f.mu.configs, m.body)
		if f.stream != "" {
			return f.stream
		}
		return `{"type":"io.nats.jetstream.api.v1.stream_create_response","config":` + m.body + `}`
	}
	f.mu.messages = append(f.mu.messages, m)
	if f.publish != "" {
		return f.publish
	}
	reply := fmt.Sprintf(`{"stream":"claims","seq":%d,"duplicate":%v}`, len(f.mu.messages), f.mu.ids[m.header])
	f.mu.ids[m.header] = true
	return reply
}

func TestNATSClaims(t *testing.T) {
	t.Parallel()
	fake := newFakeNATS(t, "", "")
	checkNATSClaims(t, fake.address)
	fake.mu.Lock()
	defer fake.mu.Unlock()
	var config struct {
		Name, Storage string
		Subjects      []string
		Window        int64 `json:"duplicate_window"`
	}
	if len(fake.mu.configs) != 1 {
		t.Fatalf("%d streams were asked for: %q", len(fake.mu.configs), fake.mu.configs)
	}
	if err := json.Unmarshal([]byte(fake.mu.configs[0]), &config); err != nil {
		t.Fatal(err)
	}
	if config.Name != "claims" || config.Storage != "file" || fmt.Sprint(config.Subjects) != "[claims]" || time.Duration(config.Window) != 2*time.Minute {
		t.Errorf("the stream is %+v", config)
	}
	for i, id := range []string{"event-1", "event-2", "event-1"} {
		if i >= len(fake.mu.messages) {
			t.Fatalf("%d messages for 3 claims", len(fake.mu.messages))
		}
		m := fake.mu.messages[i]
		if m.subject != "claims" || !strings.Contains(m.header, "Nats-Msg-Id: "+id+"\r\n") || len(m.body) != 32 {
			t.Errorf("claim %d: published %q", i, m)
		}
	}
}

// checkNATSClaims claims two fresh IDs and one of them again.
func checkNATSClaims(t *testing.T, address string) {
	t.Helper()
	op, end, err := NATSClaims(t.Context(), address, keys("event-1", "event-2", "event-1", "event-3"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 2 {
		if n, err := op(ctx, 0); n != 1 || err != nil {
			t.Errorf("a fresh ID: %d claims, %v", n, err)
		}
	}
	if _, err := op(ctx, 0); err == nil || !strings.Contains(err.Error(), "nats: a fresh ID was taken") {
		t.Errorf("an ID that was taken: %v", err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if _, err := op(ctx, 0); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("after its end: %v", err)
	}
}

// TestNATSRefuses: what is not an acknowledgement is an error, and never a
// claim.
func TestNATSRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ reply, want string }{
		"no space":         {`{"error":{"code":503,"err_code":10077,"description":"insufficient storage"}}`, "insufficient storage"},
		"not JSON":         {"+OK", "invalid"},
		"no sequence":      {`{}`, "invalid"},
		"of another world": {`{"stream":""}`, "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFakeNATS(t, "", c.reply)
			op, end, err := NATSClaims(t.Context(), fake.address, keys("event-1"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := op(t.Context(), 0); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want one about %q", err, c.want)
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNATSRefusesStream(t *testing.T) {
	t.Parallel()
	fake := newFakeNATS(t, `{"error":{"code":500,"err_code":10047,"description":"insufficient storage"}}`, "")
	op, end, err := NATSClaims(t.Context(), fake.address, keys())
	if err == nil || !strings.Contains(err.Error(), "nats: create stream: ") || op != nil || end != nil {
		t.Errorf("claims without a stream: %v", err)
	}
}

func TestNATSIsGone(t *testing.T) {
	t.Parallel()
	l := listen(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	op, end, err := NATSClaims(t.Context(), l.Addr().String(), keys())
	if !errors.Is(err, nats.ErrNoServers) || op != nil || end != nil {
		t.Errorf("claims of nobody: %v", err)
	}

	fake := newFakeNATS(t, "", "")
	op, end, err = NATSClaims(t.Context(), fake.address, keys("event-1"))
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := op(ended, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}
