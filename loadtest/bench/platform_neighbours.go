package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/ratio"
)

// What neighbours do. All of it is done by this process, on the same machine:
// what it costs here is in the ratios too.
const (
	callersQuiet = 4 // whose claims are measured: they leave CPU to others
	slowConns    = 200
	slowTick     = time.Second
	bombsPer     = 10 // bombs a second, which are a MiB together
	bombBytes    = 1 << 20 / bombsPer
)

// neighbours: what claims take beside a tenant at its quota, beside one that
// sends ten times that, and beside bombs and slow connections. Callers wait for
// their answers, so that the ratio of rates is that of times.
func neighbours(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	t, noisy, err := f.startServed(ctx, rolePlatform)
	if err != nil {
		return nil, err
	}
	quiet := f.side("4 callers alone", t.job("unary", callersQuiet))
	beside := func(name string, trouble func(context.Context) error) ratio.Side {
		s := f.side(name, t.job("unary", callersQuiet))
		return ratio.Side{Name: name, Measure: func(ctx context.Context, round int) (measure.Sample, error) {
			ctx, cancel := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() { ended <- trouble(ctx) }()
			sample, err := s.Measure(ctx, round)
			cancel()
			return sample, errors.Join(err, <-ended)
		}}
	}
	const within, over, attacked = "beside a tenant at its quota", "beside one at ten times its quota", "beside bombs and 200 slow connections"
	e := &ratio.Experiment{Name: f.name, Sides: []ratio.Side{
		quiet,
		beside(within, func(ctx context.Context) error { return noise(ctx, t.url, noisy, noisyQuota*9/10) }),
		beside(over, func(ctx context.Context) error { return noise(ctx, t.url, noisy, noisyQuota*10) }),
		beside(attacked, func(ctx context.Context) error { return attack(ctx, t.url, noisy) }),
	}}
	for name, budget := range map[string]float64{within: 1 / 1.2, over: 1 / 1.2, attacked: 1 / 1.1} {
		e.Comparisons = append(e.Comparisons, ratio.Comparison{ID: f.name, Unit: "claims", Ours: name, Against: quiet.Name, Budget: budget})
	}
	return e, nil
}

// noiseTick is how often noise is made: as many calls as the rate says since.
const noiseTick = 10 * time.Millisecond

// noise asks at a rate, whatever it hears, until ctx ends.
func noise(ctx context.Context, url, key string, perSecond int) error {
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, callersSDK
	defer transport.CloseIdleConnections()
	rpc := warifuv1connect.NewClaimServiceClient(connect.NewClient(
		connecthttp.NewTransport(&http.Client{Transport: transport}, url, connecthttp.WithCompressors()), bearer(key)))
	slots := make(chan struct{}, callersSDK) // calls under way
	var calls sync.WaitGroup
	defer calls.Wait()
	ticker := time.NewTicker(noiseTick)
	defer ticker.Stop()
	for owed := 0.0; ; owed += float64(perSecond) * noiseTick.Seconds() {
		for ; owed >= 1; owed-- {
			select {
			case slots <- struct{}{}:
				calls.Go(func() {
					defer func() { <-slots }()
					// What it hears is not what is measured.
					_, _ = rpc.Claim(ctx, &warifuv1.ClaimRequest{Consumer: consumer, EventId: uuid.NewString(), AttemptId: uuid.NewString()})
				})
			default: // all are waiting
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// attack sends bombs, and lets headers and bodies drip, until ctx ends. A bomb
// that is not refused is an error.
func attack(ctx context.Context, url, key string) error {
	bomb, err := bombOf(bombBytes)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	for n := range slowConns {
		conn, err := (&net.Dialer{}).DialContext(context.WithoutCancel(ctx), "tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			return fmt.Errorf("attack: %w", err)
		}
		start := "POST / HTTP/1.1\r\nHost: bench\r\nX: "
		if n%2 == 0 {
			start = fmt.Sprintf("POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/proto\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n",
				warifuv1connect.ClaimServiceClaimProcedure, key)
		}
		all.Go(func() { drip(ctx, conn, start) })
	}
	ticker := time.NewTicker(time.Second / bombsPer)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if err := throw(ctx, url, key, bomb); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return nil
}

func drip(ctx context.Context, conn net.Conn, start string) {
	defer conn.Close() //nolint:errcheck // it is cut
	ticker := time.NewTicker(slowTick)
	defer ticker.Stop()
	for _, err := conn.Write([]byte(start)); err == nil; _, err = conn.Write([]byte("x")) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// bombOf is a file of gzip of so many bytes that becomes a thousand times as
// long. It may have many parts.
func bombOf(length int) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(make([]byte, 16<<20)); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return bytes.Repeat(b.Bytes(), length/b.Len()+1)[:length], nil
}

func throw(ctx context.Context, url, key string, bomb []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+warifuv1connect.ClaimServiceClaimProcedure, bytes.NewReader(bomb))
	if err != nil {
		return err
	}
	r.Header = http.Header{"Content-Type": {"application/proto"}, "Content-Encoding": {"gzip"}, "Authorization": {"Bearer " + key}}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusNotImplemented {
		return fmt.Errorf("a bomb was answered with status %d", answer.StatusCode)
	}
	return nil
}
