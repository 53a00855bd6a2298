package server_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/storagetest"
)

// limitRow is one limit of page 1: a claim at the limit, which is served, and
// claims beyond it, which are refused with field and limit and without a call
// to the store.
type limitRow struct {
	name   string
	field  string
	limit  string
	within []func(*warifuv1.ClaimRequest)
	beyond []func(*warifuv1.ClaimRequest)
}

type edits = []func(*warifuv1.ClaimRequest)

func consumer(s string) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) { m.Consumer = s }
}

func eventID(s string) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) { m.EventId = s }
}

func attempt(s string) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) { m.AttemptId = s }
}

func lease(d time.Duration) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) { m.Lease = durationpb.New(d) }
}

func rawLease(seconds int64, nanos int32) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) { m.Lease = &durationpb.Duration{Seconds: seconds, Nanos: nanos} }
}

func wait(d time.Duration) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) { m.Wait = durationpb.New(d) }
}

func made(at time.Time) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) { m.EventTime = timestamppb.New(at) }
}

func digest(scheme string, size int) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) {
		m.Digests = append(m.Digests, &warifuv1.Digest{Scheme: scheme, Value: make([]byte, size)})
	}
}

func digests(n int) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) {
		for i := range n {
			digest(fmt.Sprintf("scheme-%d", i), 32)(m)
		}
	}
}

func both(fs ...func(*warifuv1.ClaimRequest)) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) {
		for _, f := range fs {
			f(m)
		}
	}
}

func record(edit func(*warifuv1.Completion)) func(*warifuv1.ClaimRequest) {
	return func(m *warifuv1.ClaimRequest) {
		m.Record = success("")
		edit(m.Record)
	}
}

func metadata(n, size int) func(*warifuv1.ClaimRequest) {
	return record(func(c *warifuv1.Completion) {
		c.Metadata = map[string]string{}
		for i := range n {
			c.Metadata[fmt.Sprintf("%02d", i)] = ""
		}
		if n > 0 {
			c.Metadata["00"] = strings.Repeat("v", size-2*n)
		}
	})
}

func omitted(why warifuv1.ResultOmitted, body string, sum int) func(*warifuv1.ClaimRequest) {
	return record(func(c *warifuv1.Completion) {
		c.ResultOmitted, c.Result, c.ResultSha256 = why, []byte(body), make([]byte, sum)
	})
}

const tooLarge = warifuv1.ResultOmitted_RESULT_OMITTED_TOO_LARGE

func limitRows() []limitRow {
	start := storagetest.Start
	return []limitRow{
		{
			"consumer", "consumer", "1-128 characters of [A-Za-z0-9._/-]",
			edits{consumer("a"), consumer(strings.Repeat("z", 128)), consumer("A.z_0/9-")},
			edits{consumer(""), consumer(strings.Repeat("z", 129)), consumer("a b"), consumer("naïve"), consumer("a\x00"), consumer("a\n"), consumer("a:b")},
		},
		{
			"event ID", "event_id", "1-512 bytes of UTF-8 without NUL",
			edits{eventID("e"), eventID(strings.Repeat("é", 256)), eventID(" \n\u2028"), eventID("\U0010FFFF")},
			edits{eventID(""), eventID(strings.Repeat("e", 513)), eventID(strings.Repeat("é", 257)), eventID("a\x00b"), eventID("\xff"), eventID("\xed\xa0\x80")},
		},
		{
			"attempt ID", "attempt_id", "a UUID other than nil, 36 characters or 32 hexadecimal digits",
			edits{attempt(""), attempt(attemptA), attempt(strings.ToUpper(attemptA)), attempt(strings.ReplaceAll(attemptA, "-", "")), attempt("00000000-0000-0000-0000-000000000001")},
			edits{
				attempt("00000000-0000-0000-0000-000000000000"), attempt(strings.Repeat("0", 32)), attempt("x"), attempt("{" + attemptA + "}"),
				attempt("urn:uuid:" + attemptA), attempt(attemptA[:35]), attempt(attemptA + "0"), attempt("0e1a5b527c26-4b6e-9d5c-4a6f-3a0f2a01"),
				attempt("0e1a5b52-7c26-4b6e-9d5c-4a6f3a0f2a0g"), attempt("0e1a5b52-7c26-4b6e-9d5c-4a6f3a0f2a-1"), attempt(strings.Repeat("-", 36)),
			},
		},
		{
			"attempt ID of HOLD", "attempt_id", "required for consumers whose lapsed leases HOLD: make a UUID before the first send",
			edits{both(consumer("held"), attempt(attemptA))}, edits{both(consumer("held"), attempt(""))},
		},
		{
			"digest count", "digests", "at most 8 digests",
			edits{digests(0), digests(1), digests(8)}, edits{digests(9), digests(100)},
		},
		{
			"digest required", "digests", "this consumer requires a digest",
			edits{both(consumer("signed"), digests(1))}, edits{consumer("signed")},
		},
		{
			"digest scheme", "digests[0].scheme", "1-64 characters without control characters",
			edits{digest("s", 32), digest(strings.Repeat("ü", 64), 32), digest("jcs-sha256/order.v2", 32)},
			edits{digest("", 32), digest(strings.Repeat("s", 65), 32), digest("a\n", 32), digest("\xff", 32), digest("a\x7f", 32)},
		},
		{
			"digest value", "digests[1].value", "1-64 bytes",
			edits{both(digest("a", 32), digest("b", 1)), both(digest("a", 32), digest("b", 64))},
			edits{both(digest("a", 32), digest("b", 0)), both(digest("a", 32), digest("b", 65))},
		},
		{
			"digest scheme twice", "digests[2].scheme", "no scheme twice",
			edits{both(digest("a", 1), digest("b", 1), digest("A", 1))}, edits{both(digest("a", 1), digest("b", 1), digest("a", 1))},
		},
		{
			"lease", "lease", "1s-24h0m0s",
			edits{lease(time.Second), lease(24 * time.Hour)},
			edits{
				lease(0), lease(-time.Second), lease(time.Second - 1), lease(24*time.Hour + 1),
				rawLease(math.MaxInt64, 0), rawLease(math.MinInt64, 0), rawLease(1, 2_000_000_000), rawLease(1, -1), rawLease(315_576_000_000, 0),
			},
		},
		{
			"lease of the consumer", "lease", "at most 1m0s, the longest lease of this consumer",
			edits{both(consumer("small"), lease(time.Minute))}, edits{both(consumer("small"), lease(time.Minute+1))},
		},
		{
			"event time", "event_time", "a valid time after 1970-01-01T00:00:00Z",
			edits{made(start), made(time.UnixMicro(1))},
			edits{
				made(time.Unix(0, 0)), made(time.Unix(-1, 0)), made(time.UnixMicro(0).Add(999)),
				func(m *warifuv1.ClaimRequest) { m.EventTime = &timestamppb.Timestamp{Seconds: 1, Nanos: -1} },
				func(m *warifuv1.ClaimRequest) { m.EventTime = &timestamppb.Timestamp{Seconds: math.MaxInt64} },
			},
		},
		{
			"event time in the future", "event_time", "at most 5m0s in the future",
			edits{made(start.Add(5 * time.Minute))}, edits{made(start.Add(5*time.Minute + time.Microsecond)), made(start.AddDate(1000, 0, 0))},
		},
		{
			"event time in the future, short retention", "event_time", "at most 5s in the future",
			edits{both(consumer("tight"), made(start.Add(5*time.Second)))}, edits{both(consumer("tight"), made(start.Add(5*time.Second+time.Microsecond)))},
		},
		{
			"wait", "wait", "0s-30s",
			edits{wait(0), wait(30 * time.Second)}, edits{wait(-1), wait(30*time.Second + 1), func(m *warifuv1.ClaimRequest) {
				m.Wait = &durationpb.Duration{Seconds: math.MaxInt64}
			}},
		},
		{
			"outcome", "record.outcome", "OUTCOME_SUCCEEDED or OUTCOME_REJECTED",
			edits{record(func(c *warifuv1.Completion) { c.Outcome = warifuv1.Outcome_OUTCOME_REJECTED })},
			edits{record(func(c *warifuv1.Completion) { c.Outcome = 0 }), record(func(c *warifuv1.Completion) { c.Outcome = 9 })},
		},
		{
			"result", "record.result", "at most 262144 bytes, the result limit of this consumer",
			edits{record(func(c *warifuv1.Completion) { c.Result = make([]byte, claim.ResultBytesDefault) })},
			edits{record(func(c *warifuv1.Completion) { c.Result = make([]byte, claim.ResultBytesDefault+1) })},
		},
		{
			"result of the consumer", "record.result", "at most 16 bytes, the result limit of this consumer",
			edits{both(consumer("small"), record(func(c *warifuv1.Completion) { c.Result = make([]byte, 16) }))},
			edits{both(consumer("small"), record(func(c *warifuv1.Completion) { c.Result = make([]byte, 17) }))},
		},
		{
			"content type", "record.content_type", "at most 255 characters without control characters",
			edits{record(func(c *warifuv1.Completion) { c.ContentType = strings.Repeat("t", 255) })},
			edits{
				record(func(c *warifuv1.Completion) { c.ContentType = strings.Repeat("t", 256) }),
				record(func(c *warifuv1.Completion) { c.ContentType = "text/plain\r\nSet-Cookie: a" }),
			},
		},
		{
			"metadata entries", "record.metadata", "at most 16 entries",
			edits{metadata(0, 0), metadata(16, 100)}, edits{metadata(17, 100)},
		},
		{
			"metadata bytes", "record.metadata", "at most 4096 bytes of names and values together",
			edits{metadata(4, 4096)}, edits{metadata(4, 4097)},
		},
		{
			"metadata names", "record.metadata", "names and values are UTF-8, and names are not empty",
			edits{metadata(1, 3)},
			edits{
				record(func(c *warifuv1.Completion) { c.Metadata = map[string]string{"": "v"} }),
				record(func(c *warifuv1.Completion) { c.Metadata = map[string]string{"n": "\xff"} }),
			},
		},
		{
			"omitted reason", "record.result_omitted", "RESULT_OMITTED_TOO_LARGE, or not set; the other reasons are the server's",
			edits{omitted(tooLarge, "", 32)},
			edits{omitted(warifuv1.ResultOmitted_RESULT_OMITTED_SHREDDED, "", 32), omitted(warifuv1.ResultOmitted_RESULT_OMITTED_BATCH_BUDGET, "", 32), omitted(77, "", 32)},
		},
		{
			"omitted body", "record.result", "empty when result_omitted is set",
			nil, edits{omitted(tooLarge, "x", 32)},
		},
		{
			"omitted digest", "record.result_sha256", "32 bytes, the SHA-256 of the result that is left out",
			nil, edits{omitted(tooLarge, "", 0), omitted(tooLarge, "", 31), omitted(tooLarge, "", 33)},
		},
		{
			"digest of a body", "record.result_sha256", "only with result_omitted",
			nil, edits{omitted(0, "x", 32)},
		},
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	for _, row := range limitRows() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			client := r.client("shop")
			for i, edit := range row.beyond {
				m := request("beyond", attemptA)
				edit(m)
				_, err := client.Claim(t.Context(), m)
				r.demandInvalid(fmt.Sprintf("beyond %d", i), err, row.field, row.limit)
			}
			if n := r.store.Trips(); n != 0 {
				t.Errorf("the store was asked %d times about invalid claims", n)
			}
			for i, edit := range row.within {
				m := request(fmt.Sprintf("within %d", i), attemptA)
				edit(m)
				if _, err := client.Claim(t.Context(), m); err != nil {
					t.Errorf("within %d: %v", i, err)
				}
			}
			if n := r.store.Calls(storagetest.InsertOrGet); n != len(row.within) {
				t.Errorf("the store was asked %d times about %d valid claims", n, len(row.within))
			}
		})
	}
}

// demandInvalid demands invalid_argument, naming field and limit in the detail
// and in the text, and nothing applied.
func (r *rig) demandInvalid(what string, err error, field, limit string) {
	r.t.Helper()
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		r.t.Errorf("%s: %v, want invalid_argument", what, err)
		return
	}
	i := info(r.t, err)
	if i.GetReason() != warifuv1.Reason_REASON_INVALID_FIELD || i.GetField() != field || i.GetLimit() != limit || !i.GetNotApplied() {
		r.t.Errorf("%s: info = %v, want field %q and limit %q", what, i, field, limit)
	}
	if i.GetRequestId() == "" || i.GetRetryAfter() != nil {
		r.t.Errorf("%s: info = %v, want a request ID and no retry_after", what, i)
	}
	if !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), limit) {
		r.t.Errorf("%s: %q names neither field nor limit", what, err)
	}
}

// TestOwnerLimits holds what complete, extend, release and look-up check.
func TestOwnerLimits(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.client("shop")
	_, err := c.Complete(t.Context(), &warifuv1.CompleteRequest{Consumer: "orders", EventId: "e", AttemptId: attemptA, Fence: 1})
	r.demandInvalid("complete without outcome", err, "completion.outcome", "OUTCOME_SUCCEEDED or OUTCOME_REJECTED")
	_, err = c.Complete(t.Context(), &warifuv1.CompleteRequest{
		Consumer: "orders", EventId: "e", AttemptId: attemptA, Fence: 1,
		Completion: &warifuv1.Completion{Outcome: warifuv1.Outcome_OUTCOME_SUCCEEDED, Result: make([]byte, claim.ResultBytesDefault+1)},
	})
	r.demandInvalid("complete, large result", err, "completion.result", "at most 262144 bytes, the result limit of this consumer")
	for _, fence := range []int64{0, -1, math.MinInt64} {
		_, err = c.Complete(t.Context(), &warifuv1.CompleteRequest{Consumer: "orders", EventId: "e", AttemptId: attemptA, Fence: fence, Completion: success("")})
		r.demandInvalid("complete, fence", err, "fence", "the positive fence of the grant")
		_, err = c.Release(t.Context(), &warifuv1.ReleaseRequest{Consumer: "orders", EventId: "e", AttemptId: attemptA, Fence: fence})
		r.demandInvalid("release, fence", err, "fence", "the positive fence of the grant")
	}
	_, err = c.Release(t.Context(), &warifuv1.ReleaseRequest{Consumer: "orders", EventId: "e", Fence: 1})
	r.demandInvalid("release without attempt", err, "attempt_id", "a UUID other than nil, 36 characters or 32 hexadecimal digits")
	_, err = c.Lookup(t.Context(), &warifuv1.LookupRequest{Consumer: "orders"})
	r.demandInvalid("look-up without event", err, "event_id", "1-512 bytes of UTF-8 without NUL")
	_, err = c.GetPolicy(t.Context(), &warifuv1.GetPolicyRequest{})
	r.demandInvalid("policy without consumer", err, "consumer", "1-128 characters of [A-Za-z0-9._/-]")
	_, err = c.Extend(t.Context(), &warifuv1.ExtendRequest{})
	r.demandInvalid("extend nothing", err, "items", "1-500 items")
	_, err = r.adminClient("shop").ListClaims(t.Context(), &warifuv1.ListClaimsRequest{PageSize: 501})
	r.demandInvalid("page size", err, "page_size", "1-500, or 0 for 50")
	_, err = r.adminClient("shop").ListClaims(t.Context(), &warifuv1.ListClaimsRequest{EventIdPrefix: "e"})
	r.demandInvalid("prefix without consumer", err, "event_id_prefix", "at most 512 bytes of UTF-8 without NUL; needs consumer")
	_, err = r.adminClient("shop").ListClaims(t.Context(), &warifuv1.ListClaimsRequest{States: []warifuv1.State{warifuv1.State_STATE_COMPLETED, warifuv1.State_STATE_ABSENT}})
	r.demandInvalid("state", err, "states[1]", "states that records can have")
	_, err = r.adminClient("shop").ListClaims(t.Context(), &warifuv1.ListClaimsRequest{Consumer: "a b"})
	r.demandInvalid("list, consumer", err, "consumer", "1-128 characters of [A-Za-z0-9._/-]")
	if r.store.Trips() != 0 || r.store.Calls(storagetest.ListPage) != 0 {
		t.Error("the store was asked about an invalid request")
	}
}
