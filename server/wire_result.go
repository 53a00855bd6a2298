package server

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/storage/claim"
)

const (
	limitOutcome      = "OUTCOME_SUCCEEDED or OUTCOME_REJECTED"
	limitOmitted      = "RESULT_OMITTED_TOO_LARGE, or not set; the other reasons are the server's"
	limitOmittedBody  = "empty when result_omitted is set"
	limitOmittedSum   = "32 bytes, the SHA-256 of the result that is left out"
	limitSumAlone     = "only with result_omitted"
	limitMetadataName = "names and values are UTF-8, and names are not empty"
)

// completion checks the outcome of an attempt. field is where it stands in the
// request.
func (e *edge) completion(m *warifuv1.Completion, field string) (*claim.Completion, *fault.Fault) {
	c := &claim.Completion{ContentType: m.GetContentType(), Body: m.GetResult()}
	if f := e.checkCompletion(m, c); f != nil {
		return nil, f.Within(field)
	}
	return c, nil
}

func (e *edge) checkCompletion(m *warifuv1.Completion, c *claim.Completion) *fault.Fault {
	switch m.GetOutcome() {
	case warifuv1.Outcome_OUTCOME_SUCCEEDED:
		c.Outcome = claim.Succeeded
	case warifuv1.Outcome_OUTCOME_REJECTED:
		c.Outcome = claim.Rejected
	case warifuv1.Outcome_OUTCOME_UNSPECIFIED:
		return fault.Invalid("outcome", limitOutcome)
	default:
		return fault.Invalid("outcome", limitOutcome)
	}
	if len(c.Body) > int(e.consumer.Policy.ResultBytesMax) {
		return fault.Invalid("result", fmt.Sprintf("at most %d bytes, the result limit of this consumer", e.consumer.Policy.ResultBytesMax))
	}
	if !plainText(c.ContentType, claim.ContentTypeMax) {
		return fault.Invalid("content_type", limitContentType)
	}
	if f := checkOmission(m, c); f != nil {
		return f
	}
	return checkMetadata(m.GetMetadata(), c)
}

// checkOmission sets why there is no body and the digest of the plain body,
// which is the caller's word where the body is left out.
func checkOmission(m *warifuv1.Completion, c *claim.Completion) *fault.Fault {
	sum := m.GetResultSha256()
	if m.GetResultOmitted() == warifuv1.ResultOmitted_RESULT_OMITTED_UNSPECIFIED {
		if len(sum) != 0 {
			return fault.Invalid("result_sha256", limitSumAlone)
		}
		c.Sum = sha256.Sum256(c.Body)
		return nil
	}
	switch {
	case m.GetResultOmitted() != warifuv1.ResultOmitted_RESULT_OMITTED_TOO_LARGE:
		return fault.Invalid("result_omitted", limitOmitted)
	case len(c.Body) != 0:
		return fault.Invalid("result", limitOmittedBody)
	case len(sum) != len(c.Sum):
		return fault.Invalid("result_sha256", limitOmittedSum)
	}
	c.Omitted, c.Body = claim.TooLarge, nil
	copy(c.Sum[:], sum)
	return nil
}

func checkMetadata(m map[string]string, c *claim.Completion) *fault.Fault {
	if len(m) == 0 {
		return nil
	}
	if len(m) > claim.MetadataMax {
		return fault.Invalid("metadata", limitMetadata)
	}
	size := 0
	c.Metadata = make([]claim.Pair, 0, len(m))
	for name, value := range m {
		if name == "" || !utf8.ValidString(name) || !utf8.ValidString(value) {
			return fault.Invalid("metadata", limitMetadataName)
		}
		size += len(name) + len(value)
		c.Metadata = append(c.Metadata, claim.Pair{Name: name, Value: value})
	}
	if size > claim.MetadataBytesMax {
		return fault.Invalid("metadata", limitMetadataSize)
	}
	slices.SortFunc(c.Metadata, func(a, b claim.Pair) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// storedReply is a stored result with what it points to.
type storedReply struct {
	result    warifuv1.StoredResult
	completed timestamppb.Timestamp
}

// fill writes what the completing attempt left.
func (s *storedReply) fill(c *claim.Completion, endedAt claim.Time) *warifuv1.StoredResult {
	out := &s.result
	out.Outcome = word(outcomes[:], c.Outcome)
	out.Result = c.Body
	out.ContentType = c.ContentType
	out.ResultOmitted = word(omissions[:], c.Omitted)
	if len(c.Metadata) > 0 {
		out.Metadata = make(map[string]string, len(c.Metadata))
		for _, p := range c.Metadata {
			out.Metadata[p.Name] = p.Value
		}
	}
	if endedAt != 0 {
		setTimestamp(&s.completed, endedAt)
		out.CompletedAt = &s.completed
	}
	return out
}

// timestamp returns t as a message, nil for never.
func timestamp(t claim.Time) *timestamppb.Timestamp {
	if t == claim.Never {
		return nil
	}
	ts := &timestamppb.Timestamp{}
	setTimestamp(ts, t)
	return ts
}

const microsPerSecond = 1_000_000

func setTimestamp(ts *timestamppb.Timestamp, t claim.Time) {
	seconds, micros := int64(t)/microsPerSecond, int64(t)%microsPerSecond
	if micros < 0 {
		seconds, micros = seconds-1, micros+microsPerSecond
	}
	ts.Seconds, ts.Nanos = seconds, int32(micros*1000)
}
