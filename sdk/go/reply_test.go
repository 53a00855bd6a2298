package warifu

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"unsafe"

	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// Whoever answers about something else, or says less than it must, is refused.
func TestRepliesAreBelievedOnlyIfTheyFit(t *testing.T) {
	t.Parallel()
	other := "another"
	claim := func(edit func(*warifuv1.ClaimResponse)) func(proto.Message) {
		return func(m proto.Message) {
			switch m := m.(type) {
			case *warifuv1.BatchClaimResponse:
				edit(m.GetResults()[0].GetClaim())
			case *warifuv1.ClaimResponse:
				edit(m)
			}
		}
	}
	for name, edit := range map[string]func(proto.Message){
		"consumer":      claim(func(r *warifuv1.ClaimResponse) { r.Consumer = other }),
		"event":         claim(func(r *warifuv1.ClaimResponse) { r.EventId = other }),
		"version":       claim(func(r *warifuv1.ClaimResponse) { r.ProtocolVersion = 2 }),
		"no version":    claim(func(r *warifuv1.ClaimResponse) { r.ProtocolVersion = 0 }),
		"accepted":      claim(func(r *warifuv1.ClaimResponse) { r.Accepted = nil }),
		"no decision":   claim(func(r *warifuv1.ClaimResponse) { r.Decision = 0 }),
		"new decision":  claim(func(r *warifuv1.ClaimResponse) { r.Decision = 99 }),
		"no grant":      claim(func(r *warifuv1.ClaimResponse) { r.Grant = nil }),
		"no fence":      claim(func(r *warifuv1.ClaimResponse) { r.Grant.Fence = 0 }),
		"other attempt": claim(func(r *warifuv1.ClaimResponse) { r.Grant.AttemptId = other }),
		"recorded":      claim(func(r *warifuv1.ClaimResponse) { r.Grant.Recorded = !r.GetGrant().GetRecorded() }),
		"no result":     claim(func(r *warifuv1.ClaimResponse) { r.Decision = warifuv1.Decision_DECISION_DUPLICATE }),
		"empty":         claim(func(r *warifuv1.ClaimResponse) { proto.Reset(r) }),
		"unknown outcome": claim(func(r *warifuv1.ClaimResponse) {
			r.Decision, r.Result = warifuv1.Decision_DECISION_DUPLICATE, &warifuv1.StoredResult{Outcome: 9}
		}),
	} {
		t.Run("claim/"+name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				f.edit = edit
				refused(t, "batched", second(c.Claim(t.Context(), event("e"))))
				refused(t, "alone", second(c.Claim(t.Context(), event("f"), WithWait(1))))
				refused(t, "record", second(c.Record(t.Context(), event("g"), Completion{})))
			})
		})
	}
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, ErrReply) || !errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrUnavailable) {
		t.Errorf("%s: %v", what, err)
	}
}

func TestOtherRepliesAreBelievedOnlyIfTheyFit(t *testing.T) {
	t.Parallel()
	const other = "another"
	edits := map[string]func(proto.Message){
		"consumer": func(m proto.Message) {
			switch m := m.(type) {
			case *warifuv1.BatchCompleteResponse:
				m.GetResults()[0].GetComplete().Consumer = other
			case *warifuv1.ExtendResponse:
				m.GetResults()[0].GetExtend().Consumer = other
			case *warifuv1.ReleaseResponse:
				m.Consumer = other
			case *warifuv1.LookupResponse:
				m.GetRecord().Consumer = other
			}
		},
		"event": func(m proto.Message) {
			switch m := m.(type) {
			case *warifuv1.BatchCompleteResponse:
				m.GetResults()[0].GetComplete().EventId = other
			case *warifuv1.ExtendResponse:
				m.GetResults()[0].GetExtend().EventId = other
			case *warifuv1.ReleaseResponse:
				m.EventId = other
			case *warifuv1.LookupResponse:
				m.GetRecord().EventId = other
			}
		},
		"version": func(m proto.Message) {
			switch m := m.(type) {
			case *warifuv1.BatchCompleteResponse:
				m.GetResults()[0].GetComplete().ProtocolVersion = 9
			case *warifuv1.ExtendResponse:
				m.ProtocolVersion = 9
			case *warifuv1.ReleaseResponse:
				m.ProtocolVersion = 9
			case *warifuv1.LookupResponse:
				m.ProtocolVersion = 9
			}
		},
		"status": func(m proto.Message) {
			switch m := m.(type) {
			case *warifuv1.BatchCompleteResponse:
				m.GetResults()[0].GetComplete().Status = 9
			case *warifuv1.ExtendResponse:
				m.GetResults()[0].GetExtend().Status = 0
			case *warifuv1.ReleaseResponse:
				m.Status = 0
			case *warifuv1.LookupResponse:
				m.GetRecord().State = 0
			}
		},
		"empty": func(m proto.Message) {
			if _, ok := m.(*warifuv1.BatchClaimResponse); !ok {
				proto.Reset(m)
			}
		},
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, f := setup(t)
				got, err := c.Claim(t.Context(), event("e"))
				if err != nil {
					t.Fatal(err)
				}
				f.edit = edit
				refused(t, "extend", second(c.Extend(t.Context(), got.Grant, 0)))
				refused(t, "lookup", second(c.Lookup(t.Context(), "billing", "e")))
				refused(t, "complete", c.Complete(t.Context(), got.Grant, Completion{}))
				refused(t, "release", c.Release(t.Context(), got.Grant))
			})
		})
	}
	t.Run("accepted", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c, f := setup(t)
			got, err := c.Claim(t.Context(), event("e"))
			if err != nil {
				t.Fatal(err)
			}
			f.edit = func(m proto.Message) {
				m.(*warifuv1.BatchCompleteResponse).GetResults()[0].GetComplete().Accepted = nil
			}
			refused(t, "complete", c.Complete(t.Context(), got.Grant, Completion{}))
		})
	})
}

// TestOmissionsAreTheContract: a reason has the number and the name that it has
// on the wire, and each one of the wire's is known here.
func TestOmissionsAreTheContract(t *testing.T) {
	t.Parallel()
	for number, wire := range warifuv1.ResultOmitted_name {
		s, err := readStored(opClaim, &warifuv1.StoredResult{
			Outcome: warifuv1.Outcome_OUTCOME_SUCCEEDED, ResultOmitted: warifuv1.ResultOmitted(number),
		})
		if err != nil {
			t.Fatal(err)
		}
		want := strings.TrimPrefix(wire, "RESULT_OMITTED_")
		if number == 0 {
			want = NotOmitted.String()
		}
		if s.Omitted.String() != want {
			t.Errorf("%s is read as %s", wire, s.Omitted)
		}
	}
	if Unreadable != Omission(warifuv1.ResultOmitted_RESULT_OMITTED_UNREADABLE) || Shredded != Omission(warifuv1.ResultOmitted_RESULT_OMITTED_SHREDDED) {
		t.Error("a constant is another reason")
	}
}

// TestStoredOwnsItsMemory: a result that a caller keeps does not keep the reply
// of its whole batch.
func TestStoredOwnsItsMemory(t *testing.T) {
	t.Parallel()
	r := &warifuv1.StoredResult{
		Outcome: warifuv1.Outcome_OUTCOME_SUCCEEDED, Result: []byte("body"), ContentType: "text/plain",
		Metadata: map[string]string{"name": "value"},
	}
	s, err := readStored(opClaim, r)
	if err != nil {
		t.Fatal(err)
	}
	if string(s.Body) != "body" || s.ContentType != "text/plain" || s.Metadata["name"] != "value" {
		t.Fatalf("%+v", s)
	}
	if &s.Body[0] == &r.Result[0] || unsafe.StringData(s.ContentType) == unsafe.StringData(r.ContentType) ||
		unsafe.StringData(s.Metadata["name"]) == unsafe.StringData(r.Metadata["name"]) {
		t.Error("the result shares memory with the reply")
	}
}
