package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"

	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server"
)

// bomb is a MiB that would become a GiB: a file of gzip may have many parts.
var bomb = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.CopyN(z, zeros{}, 16<<20); err != nil {
		panic(err)
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return bytes.Repeat(b.Bytes(), 1<<20/b.Len()+1)[:1<<20]
})

// TestBombIsRefusedUnread: a compressed request is answered before it has come
// in, so nothing of it can have been expanded.
func TestBombIsRefusedUnread(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		contentType, encoding string
		status                int
		grpcStatus            string
	}{
		{"application/proto", "Content-Encoding", http.StatusNotImplemented, ""},
		{"application/json", "Content-Encoding", http.StatusNotImplemented, ""},
		{"application/grpc", "Grpc-Encoding", http.StatusOK, "12"},
		{"application/grpc-web", "Grpc-Encoding", http.StatusOK, "12"},
	} {
		for _, http2 := range []bool{false, true} {
			if tt.contentType == "application/grpc" && !http2 {
				continue // gRPC is for HTTP/2
			}
			t.Run(fmt.Sprintf("%s/%v", tt.contentType, http2), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := overHTTP(t, &slowStore{})
					header := http.Header{"Content-Type": {tt.contentType}, tt.encoding: {"gzip"}, "Authorization": {"Bearer " + w.keys["shop"]}}
					if status, grpcStatus := w.half(http2, header); status != tt.status || grpcStatus != tt.grpcStatus {
						t.Errorf("status %d, Grpc-Status %q; want %d and %q", status, grpcStatus, tt.status, tt.grpcStatus)
					}
				})
			})
		}
	}
}

// half sends the first KiB of a bomb and waits for the answer to all of it.
func (w *wire) half(http2 bool, header http.Header) (status int, grpcStatus string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), headersWithin)
	defer cancel()
	body, in := io.Pipe()
	defer context.AfterFunc(ctx, func() { _ = in.Close() })() // who waits for the rest waits no longer
	defer in.Close()                                          //nolint:errcheck // a pipe
	go func() { _, _ = in.Write(bomb()[:1024]) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://warifu.test"+warifuv1connect.ClaimServiceClaimProcedure, body)
	if err != nil {
		w.t.Fatal(err)
	}
	req.ContentLength, req.Header = int64(len(bomb())), header
	res, err := (&http.Client{Transport: w.network(http2)}).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("Grpc-Status") + res.Trailer.Get("Grpc-Status")
}

// attack is what somebody with a key of a tenant does: bombs, and connections
// whose headers and bodies drip.
type attack struct {
	rig     *rig
	address string
	cancel  context.CancelFunc
	all     sync.WaitGroup
	faults  chan error
}

// Its size.
const (
	slowConns  = 200
	bombPause  = 100 * time.Millisecond
	bombPart   = 1 << 20 / 10 // a MiB a second
	attackTick = 50 * time.Millisecond
)

func (r *rig) attack(address string) *attack {
	ctx, cancel := context.WithCancel(r.t.Context())
	a := &attack{rig: r, address: address, cancel: cancel, faults: make(chan error, slowConns+1)}
	headers := []byte("POST / HTTP/1.1\r\nHost: warifu.test\r\nX: ")
	for n := range slowConns {
		start, rest := headers, []byte("x")
		if n%2 == 0 {
			start, rest = head(r.keys["other"], 1000), []byte(" ")
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			r.t.Fatal(err)
		}
		a.all.Go(func() { a.drip(ctx, conn, start, rest) })
	}
	a.all.Go(func() { a.bomb(ctx) })
	return a
}

func (a *attack) drip(ctx context.Context, conn net.Conn, start, rest []byte) {
	defer conn.Close() //nolint:errcheck // it is cut
	ticker := time.NewTicker(attackTick)
	defer ticker.Stop()
	for _, err := conn.Write(start); err == nil; _, err = conn.Write(rest) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (a *attack) bomb(ctx context.Context) {
	client := a.rig.httpClient(false)
	ticker := time.NewTicker(bombPause)
	defer ticker.Stop()
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.address+warifuv1connect.ClaimServiceClaimProcedure, bytes.NewReader(bomb()[:bombPart]))
		if err != nil {
			a.faults <- err
			return
		}
		req.Header = http.Header{"Content-Type": {"application/proto"}, "Content-Encoding": {"gzip"}, "Authorization": {"Bearer " + a.rig.keys["other"]}}
		res, err := client.Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			err = errors.Join(err, res.Body.Close())
			if res.StatusCode != http.StatusNotImplemented {
				a.faults <- fmt.Errorf("a bomb is answered with %d", res.StatusCode)
				return
			}
		}
		if err != nil && ctx.Err() == nil {
			a.faults <- err
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

func (a *attack) end() {
	a.cancel()
	a.all.Wait()
	close(a.faults)
	for err := range a.faults {
		a.rig.t.Error(err)
	}
}

// TestOthersUnderAttack: bombs and two hundred slow connections of one tenant
// leave another's claims as they are. The best of several turns, with and
// without, are compared: this machine has other work. loadtest/bench measures it.
func TestOthersUnderAttack(t *testing.T) {
	t.Parallel()
	const turns, calls = 2, 100
	r := setup(t, withQuota(t, 1000), func(c *server.Config) { c.Logger = nil })
	url, _ := r.listen()
	c := warifuv1connect.NewClaimServiceClient(connect.NewClient(
		connecthttp.NewTransport(r.httpClient(false), url, connecthttp.WithCompressors()), bearer(r.keys["shop"])))
	p50 := func() time.Duration {
		took := make([]time.Duration, calls)
		for n := range took {
			began := time.Now()
			if _, err := c.Claim(t.Context(), request(uuid.NewString(), uuid.NewString())); err != nil {
				t.Fatal(err)
			}
			took[n] = time.Since(began)
		}
		slices.Sort(took)
		return took[calls/2]
	}
	calm, attacked := time.Hour, time.Hour
	bomb()
	for range turns {
		calm = min(calm, p50())
		a := r.attack(url[len("http://"):])
		attacked = min(attacked, p50())
		a.end()
	}
	t.Logf("p50 %v, under attack %v", calm, attacked)
	if attacked > calm*4 { // the bench has the figure; here the machine is shared with other tests
		t.Errorf("p50 %v, under attack %v", calm, attacked)
	}
}
