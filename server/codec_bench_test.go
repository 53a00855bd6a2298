package server

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

const benchItems = 128

func benchRequest() *warifuv1.BatchClaimRequest {
	m := &warifuv1.BatchClaimRequest{}
	for i := range benchItems {
		m.Items = append(m.Items, &warifuv1.ClaimRequest{
			Consumer: "billing/invoices", EventId: fmt.Sprintf("order-%08d-paid", i), AttemptId: fuzzAttempt,
			Digests:   []*warifuv1.Digest{{Scheme: "jcs-sha256/order.v2", Value: bytes.Repeat([]byte{byte(i), 0xc3}, 16)}},
			EventTime: &timestamppb.Timestamp{Seconds: 1_800_000_000, Nanos: 123_000_000},
		})
	}
	return m
}

func benchResponse() *warifuv1.BatchClaimResponse {
	m := &warifuv1.BatchClaimResponse{}
	for i := range benchItems {
		m.Results = append(m.Results, &warifuv1.BatchClaimResult{Result: &warifuv1.BatchClaimResult_Claim{Claim: &warifuv1.ClaimResponse{
			Decision: warifuv1.Decision_DECISION_GRANTED, Consumer: "billing/invoices", EventId: fmt.Sprintf("order-%08d-paid", i),
			Accepted: proto.Bool(false), ProtocolVersion: 1, ExpiresAt: &timestamppb.Timestamp{Seconds: 1_800_000_000, Nanos: 123_000_000},
			Grant: &warifuv1.Grant{
				Fence: 1_800_000_000_000_000, Attempt: 1, AttemptId: fuzzAttempt, LeaseRemaining: durationpb.New(30 * time.Second),
			},
		}}})
	}
	return m
}

// BenchmarkCodec is one batch of 128, by the server's codec and by the plain one
// that it stands in for.
func BenchmarkCodec(b *testing.B) {
	request, response := benchRequest(), benchResponse()
	encoded, err := proto.Marshal(request)
	if err != nil {
		b.Fatal(err)
	}
	for _, side := range []struct {
		name  string
		codec connect.Codec
	}{{"ours", newBinaryCodec()}, {"plain", connectproto.NewBinaryCodec()}} {
		b.Run("decode/"+side.name, func(b *testing.B) {
			b.ReportAllocs()
			var src bytes.Buffer
			for b.Loop() {
				src.Reset()
				src.Write(encoded)
				if err := side.codec.UnmarshalRead(b.Context(), &src, &warifuv1.BatchClaimRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("encode/"+side.name, func(b *testing.B) {
			b.ReportAllocs()
			var dst bytes.Buffer
			for b.Loop() {
				dst.Reset()
				if err := side.codec.MarshalWrite(b.Context(), &dst, response); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkShape is what reading the bytes before decoding costs.
func BenchmarkShape(b *testing.B) {
	encoded, err := proto.Marshal(benchRequest())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if shapes[reflect.TypeFor[*warifuv1.BatchClaimRequest]()].read(encoded).strange {
			b.Fatal("strange")
		}
	}
}
