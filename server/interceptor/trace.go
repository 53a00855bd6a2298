package interceptor

import (
	"context"
	"fmt"
	"iter"

	"connectrpc.com/connect/v2"
	"connectrpc.com/otelconnect"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/warifu/warifu/server/fault"
)

// Trace returns two interceptors: spans is the outermost of all, before
// RequestID, and begins a span for each call of the table, under the caller's
// where the call carries one (W3C Trace Context); about comes behind RequestID
// and says in it what the call was about. Spans of calls that are not in the
// table do not exist: their names would be the caller's.
//
// Spans name the tenant, the consumer, the key ID and the request ID, and no
// event: neither IDs nor what came with them. Status texts are those that the
// caller got. Addresses of callers are left out, which is the default there.
//
// Without tracing, leave both out: then it costs nothing.
func Trace(methods Methods, provider trace.TracerProvider) (spans, about connect.ServerInterceptor, err error) {
	spans, err = otelconnect.NewServerInterceptor(
		otelconnect.WithTracerProvider(provider),
		otelconnect.WithPropagator(propagation.TraceContext{}),
		// Callers are authenticated, and the SDK's span is where a trace begins.
		otelconnect.WithTrustRemote(),
		otelconnect.WithoutMetrics(),
		otelconnect.WithFilter(func(_ context.Context, spec connect.Spec) bool { return methods[spec.Procedure] != nil }),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("trace: %w", err)
	}
	return spans, describe, nil
}

// describe adds what is known of a call to its span once the call ended.
func describe(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		err := next(ctx, spec, stream)
		span := trace.SpanFromContext(ctx)
		if !span.IsRecording() {
			return err
		}
		call := CallFrom(ctx)
		attrs := make([]attribute.KeyValue, 0, 7)
		attrs = append(attrs, attribute.String("warifu.request_id", call.RequestID))
		if p := call.Principal; p != nil {
			attrs = append(attrs, attribute.String("warifu.tenant", p.TenantName()), attribute.String("warifu.key", p.KeyID))
		}
		if call.consumer != "" {
			attrs = append(attrs, attribute.String("warifu.consumer", call.consumer))
		}
		if call.items > 0 {
			attrs = append(attrs, attribute.Int("warifu.items", call.items))
		}
		if err != nil {
			attrs = append(attrs, attribute.String("warifu.reason", fault.Of(err).Reason.String()))
		}
		span.SetAttributes(attrs...)
		return err
	}
}

// batchLinksMax bounds the links of one batch's span.
const batchLinksMax = 64

// BatchTrace is an arbiter.Config.Trace: it begins a span for each batch that a
// sampled call is in. The batch belongs to the first of them, and is linked to
// the others: each of their traces leads to what was asked of the store for it.
func BatchTrace(provider trace.TracerProvider) func(context.Context, string, iter.Seq[context.Context], int) (context.Context, func()) {
	tracer := provider.Tracer(tracerName)
	return func(ctx context.Context, action string, calls iter.Seq[context.Context], items int) (context.Context, func()) {
		var first trace.SpanContext
		var links []trace.Link
		for call := range calls {
			switch span := trace.SpanContextFromContext(call); {
			case !span.IsSampled():
			case !first.IsValid():
				first = span
			case len(links) < batchLinksMax:
				links = append(links, trace.Link{SpanContext: span})
			}
		}
		if !first.IsValid() {
			return ctx, func() {}
		}
		ctx, span := tracer.Start(trace.ContextWithSpanContext(ctx, first), "arbiter "+action,
			trace.WithLinks(links...), trace.WithAttributes(attribute.Int("warifu.items", items)))
		return ctx, func() { span.End() }
	}
}

const tracerName = "github.com/warifu/warifu/server"
