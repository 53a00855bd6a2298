package server

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/storage/claim"
)

// echo is an answer; "?" is none.
type echo string

func (e echo) Failed() bool { return e == "?" }

// TestBatchRun: items that are not valid fail where they stand and are not
// asked about; the others are answered where they stand. What was asked is
// used again only when everything was answered.
func TestBatchRun(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ items, asked, answers, after []string }{
		{nil, nil, []string{}, nil},
		{[]string{"a", "b"}, []string{"a", "b"}, []string{"a", "b"}, []string{"", ""}},
		{[]string{"!", "a", "!", "b"}, []string{"a", "b"}, []string{"items[0].f", "a", "items[2].f", "b"}, []string{"", ""}},
		{[]string{"!", "!"}, nil, []string{"items[0].f", "items[1].f"}, nil},
		{[]string{"a", "?", "b"}, []string{"a", "?", "b"}, []string{"a", "REASON_STORE_FULL", "b"}, []string{"a", "?", "b"}},
	} {
		answers := make([]string, len(row.items))
		var asked, sent []string
		b := batch[string, string, echo]{
			rooms: &sync.Pool{},
			check: func(m string, q *string) *fault.Fault {
				if *q = m; m == "!" {
					return fault.Invalid("f", "limit")
				}
				return nil
			},
			ask: func(qs []string) (out []echo) {
				sent, asked = qs, slices.Clone(qs)
				for _, q := range qs {
					out = append(out, echo(q))
				}
				return out
			},
			settle: func(i int, q *string, a *echo) *fault.Fault {
				if a.Failed() {
					return fault.New(warifuv1.Reason_REASON_STORE_FULL, "full")
				}
				answers[i] = *q
				return nil
			},
			fail: func(i int, f *fault.Fault) {
				answers[i] = f.Field + strings.TrimPrefix(f.Reason.String(), "REASON_INVALID_FIELD")
			},
		}
		b.run(row.items)
		if !slices.Equal(asked, row.asked) || !slices.Equal(answers, row.answers) || !slices.Equal(sent, row.after) {
			t.Errorf("%q: asked %q, answered %q, %q left; want %q, %q, %q",
				row.items, asked, answers, sent, row.asked, row.answers, row.after)
		}
	}
}

// TestWireTimes: equal times that follow each other are one message, and none
// changes once it was given away.
func TestWireTimes(t *testing.T) {
	t.Parallel()
	w := &wireTimes{}
	var spans []*durationpb.Duration
	var instants []*timestamppb.Timestamp
	seconds := []int64{0, 0, 30, 30, 60, 30, 0}
	for _, s := range seconds {
		spans = append(spans, w.duration(time.Duration(s)*time.Second))
		instants = append(instants, w.timestamp(claim.Time(s*microsPerSecond)))
	}
	for i, s := range seconds {
		if spans[i].GetSeconds() != s || instants[i].GetSeconds() != s {
			t.Errorf("number %d is %v and %v, want %d s", i, spans[i], instants[i], s)
		}
		if same := i > 0 && s == seconds[i-1]; same && (spans[i] != spans[i-1] || instants[i] != instants[i-1]) {
			t.Errorf("number %d is not shared", i)
		}
	}
}
