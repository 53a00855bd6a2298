package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/api/gen/warifu/v1/warifuv1connect"
	"github.com/warifu/warifu/server"
)

// roleEmpty is the job of serving claims without deciding anything.
const roleEmpty = "empty"

// emptyClaims answers every claim with the same grant: what the transport and
// the messages cost when nothing is behind them.
type emptyClaims struct {
	warifuv1connect.UnimplementedClaimServiceHandler
	answer *warifuv1.ClaimResponse
}

func (e *emptyClaims) Claim(context.Context, *warifuv1.ClaimRequest) (*warifuv1.ClaimResponse, error) {
	return e.answer, nil
}

// cannedGrant is as long as a true one.
func cannedGrant() *warifuv1.ClaimResponse {
	now := time.Now()
	return &warifuv1.ClaimResponse{
		Decision: warifuv1.Decision_DECISION_GRANTED, Consumer: consumer, EventId: newEvents().id(0),
		Accepted: proto.Bool(false), ProtocolVersion: 1,
		Grant: &warifuv1.Grant{
			Fence: now.UnixMicro(), Attempt: 1, LeaseRemaining: durationpb.New(30 * time.Second), AttemptId: uuid.NewString(),
		},
		ExpiresAt: timestamppb.New(now.Add(48 * time.Hour)),
	}
}

// serveEmpty serves on a free loopback port, which it writes to out, until ctx
// ends. The HTTP server is the product's; interceptors and further handlers
// there are none.
func serveEmpty(ctx context.Context, out io.Writer) error {
	dispatcher := connect.NewServer()
	warifuv1connect.RegisterClaimServiceHandler(dispatcher, &emptyClaims{answer: cannedGrant()})
	mux := http.NewServeMux()
	connecthttp.Mount(mux, dispatcher, connecthttp.WithCompressors())
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("empty server: %w", err)
	}
	if _, err := fmt.Fprintf(out, "http://%s\n", listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}
	api := server.NewHTTPServer(mux)
	stop := context.AfterFunc(ctx, func() { _ = api.Close() }) // connections are cut: nobody counts any more
	defer stop()
	if err := api.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("empty server: %w", err)
	}
	return nil
}
