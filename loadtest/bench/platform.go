package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/loadtest/measure"
	"github.com/warifu/warifu/loadtest/ratio"
	"github.com/warifu/warifu/server"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/pebble"
)

// What a shared installation has: the tenant that is measured is one of many.
const (
	platformTenants   = 1000
	platformConsumers = 10 // of each
	platformQuota     = 1_000_000
	noisyQuota        = 100 // claims a second of the tenant that makes noise
)

// Roles of servers in children: the whole product, and the same store, arbiter,
// messages and HTTP server without authentication, quotas and policies.
const (
	rolePlatform = "platform"
	roleBare     = "bare"
)

// The rows of this file are the last ones.
func init() {
	roles[rolePlatform] = func(ctx context.Context, j *job) (measure.Sample, error) {
		return measure.Sample{}, serveStore(ctx, j, platformHandler)
	}
	roles[roleBare] = func(ctx context.Context, j *job) (measure.Sample, error) {
		return measure.Sample{}, serveStore(ctx, j, bareHandler)
	}
	all = append(all, experiment{"P3-platform", p3Platform}, experiment{"neighbours", neighbours})
}

// served is a handler on a store, and the keys of its two tenants.
type served struct {
	handler    http.Handler
	key, noisy string
	run        func(context.Context) error
}

// serveStore serves on a free loopback port until ctx ends. It says where, and
// the keys of two tenants.
func serveStore(ctx context.Context, j *job, build func(*pebble.Store) (*served, error)) error {
	return withStore(ctx, j, func(ctx context.Context, store *pebble.Store) (err error) {
		s, err := build(store)
		if err != nil {
			return err
		}
		var lc net.ListenConfig
		listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- s.run(ctx) }()
		defer func() {
			cancel()
			err = errors.Join(err, <-ended)
		}()
		api := server.NewHTTPServer(s.handler)
		stop := context.AfterFunc(ctx, func() { _ = api.Close() }) // nobody counts any more
		defer stop()
		if _, err := fmt.Fprintf(os.Stdout, "http://%s %s %s\n", listener.Addr(), s.key, s.noisy); err != nil {
			return errors.Join(err, listener.Close())
		}
		if err := api.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
}

// platformHandler is the product with many tenants, all of which have quotas,
// and declared consumers.
func platformHandler(store *pebble.Store) (*served, error) {
	s := &served{}
	var configs []tenant.Config
	for id := range claim.TenantID(platformTenants) {
		text, key := tenant.NewKey("bench")
		c := tenant.Config{ID: id + 1, Name: fmt.Sprint("tenant-", id), Keys: []tenant.Key{key}, Consumers: []tenant.ConsumerConfig{{Name: consumer}}}
		for n := range platformConsumers - 1 {
			c.Consumers = append(c.Consumers, tenant.ConsumerConfig{Name: fmt.Sprint("consumer-", n)})
		}
		configs = append(configs, c)
		switch id {
		case platformTenants / 2:
			s.key = text
		case platformTenants / 3:
			s.noisy = text
		}
	}
	table, err := tenant.NewTable(configs)
	if err != nil {
		return nil, err
	}
	noisy, _ := table.TenantByID(platformTenants/3 + 1)
	noisy.Limits.ItemsPerSecond = noisyQuota // nobody has seen it yet
	began := time.Now()
	quotas, err := quota.New(quota.Config{Monotonic: func() time.Duration { return time.Since(began) }})
	if err != nil {
		return nil, err
	}
	srv, err := server.New(server.Config{
		Store: store, Directory: tenant.NewDirectory(table), Clock: time.Now, Quotas: quotas, QuotaDefaults: quota.Limits{
			Requests: platformQuota, Items: platformQuota, LiveLeases: 1 << 40, Keys: 1 << 40, Bytes: 1 << 50,
		},
	})
	if err != nil {
		return nil, err
	}
	s.handler, s.run = srv.Handler(), srv.Run
	return s, nil
}

// bareClaims asks the arbiter and nobody else.
type bareClaims struct {
	warifuv1connect.UnimplementedClaimServiceHandler
	arbiter *arbiter.Arbiter
}

func bareHandler(store *pebble.Store) (*served, error) {
	arb, err := arbiter.New(arbiter.Config{Store: store})
	if err != nil {
		return nil, err
	}
	dispatcher := connect.NewServer()
	warifuv1connect.RegisterClaimServiceHandler(dispatcher, &bareClaims{arbiter: arb})
	mux := http.NewServeMux()
	connecthttp.Mount(mux, dispatcher, connecthttp.WithCompressors())
	return &served{handler: mux, key: "none", noisy: "none", run: arb.Run}, nil
}

// Claim is what a claim costs when everybody may do everything.
func (b *bareClaims) Claim(ctx context.Context, m *warifuv1.ClaimRequest) (*warifuv1.ClaimResponse, error) {
	attempt, err := uuid.Parse(m.GetAttemptId())
	if err != nil {
		return nil, err
	}
	r := claim.Request{
		Key: claim.Key{Tenant: 1, Consumer: m.GetConsumer(), EventID: m.GetEventId()}, Attempt: claim.AttemptID(attempt),
		InsertBefore: claim.Never, Lease: claim.LeaseDefault,
		Policy: claim.DefaultPolicy(),
	}
	for _, d := range m.GetDigests() {
		r.Digests = append(r.Digests, claim.Digest{Scheme: d.GetScheme(), Value: d.GetValue()})
	}
	a := b.arbiter.Claim(ctx, []claim.Request{r})[0]
	if a.Err != nil {
		return nil, a.Err
	}
	if a.Decision != claim.Granted {
		return nil, fmt.Errorf("a fresh event was answered %s", a.Decision)
	}
	return &warifuv1.ClaimResponse{
		Decision: warifuv1.Decision_DECISION_GRANTED, Consumer: m.GetConsumer(), EventId: m.GetEventId(), ProtocolVersion: 1,
		Grant: &warifuv1.Grant{
			Fence: int64(a.Fence), Attempt: a.Attempt, LeaseRemaining: durationpb.New(a.Lease), AttemptId: m.GetAttemptId(),
		},
		ExpiresAt: timestamppb.New(time.UnixMicro(int64(a.ExpiresAt))),
	}, nil
}

// startServed starts a server of one of the roles above; noisy is the key of its
// other tenant.
func (f *folder) startServed(ctx context.Context, role string) (t *target, noisy string, err error) {
	c, err := startChild(ctx, &job{Role: role, Dir: f.sub(role)})
	if err != nil {
		return nil, "", err
	}
	f.stops = append(f.stops, c.end)
	line, err := bufio.NewReader(c.out).ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) != 3 {
		return nil, "", fmt.Errorf("%s: says %q: %w", role, line, err)
	}
	return &target{url: words[0], key: words[1], pid: c.cmd.Process.Pid}, words[2], nil
}

// p3Platform: what authentication, quotas and policies add to P3. The side
// without them has the ordinary codec of messages, which is a little slower than
// the product's.
func p3Platform(ctx context.Context, f *folder) (*ratio.Experiment, error) {
	with, _, err := f.startServed(ctx, rolePlatform)
	if err != nil {
		return nil, err
	}
	without, _, err := f.startServed(ctx, roleBare)
	if err != nil {
		return nil, err
	}
	const ours, against = "unary Claim, 1000 tenants with quotas", "no authentication, quota, policy"
	return &ratio.Experiment{
		Name:  f.name,
		Sides: []ratio.Side{f.side(ours, with.job("unary", callersUnary)), f.side(against, without.job("unary", callersUnary))},
		Comparisons: []ratio.Comparison{
			{ID: "P3", Unit: "claims", Ours: ours, Against: against, Budget: 0.9},
		},
	}, nil
}
