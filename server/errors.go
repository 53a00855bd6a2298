package server

import (
	"context"
	"errors"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/arbiter"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
)

// row is one line of the only error mapping there is. Code, retry_after and
// not_applied follow from the reason (package fault).
type row struct {
	sentinel error
	reason   warifuv1.Reason
	// unanswered: the store cannot answer, so a claim of a FAIL_OPEN consumer
	// is UNPROTECTED. Overload and shutdown are not of this kind: this server
	// asks to come back, and says when.
	unanswered bool
	message    string
}

// rows are looked through in order. ErrUnknown is first: it may wrap any of the
// others, and then none of their promises holds.
var rows = []row{
	{storage.ErrUnknown, warifuv1.Reason_REASON_OUTCOME_UNKNOWN, true,
		"the change may or may not be applied; resend with the same attempt ID"},
	{storage.ErrUnavailable, warifuv1.Reason_REASON_STORE_UNAVAILABLE, true,
		"the store cannot answer now; nothing was applied, ask again after retry_after"},
	{storage.ErrFull, warifuv1.Reason_REASON_STORE_FULL, true,
		"the store is short of space and takes no new claims; nothing was applied"},
	{storage.ErrClockSuspect, warifuv1.Reason_REASON_CLOCK_SUSPECT, true,
		"the store's clock jumped, and this answer depends on it; nothing was applied"},
	{storage.ErrDamaged, warifuv1.Reason_REASON_INTERNAL, true,
		"the store is damaged and answers nothing; its operator has to restore it"},
	{storage.ErrClosed, warifuv1.Reason_REASON_SHUTTING_DOWN, false,
		"the server is going away; nothing was applied, ask another one"},
	{storage.ErrRepeatedKey, warifuv1.Reason_REASON_INTERNAL, false,
		"a bug on our side: report the request ID"},
	{storage.ErrBatchTooLarge, warifuv1.Reason_REASON_INTERNAL, false,
		"a bug on our side: report the request ID"},
	{storage.ErrCursor, warifuv1.Reason_REASON_INVALID_PAGE_TOKEN, false,
		"the page token is not one of ours; begin again without one"},
	{arbiter.ErrOverloaded, warifuv1.Reason_REASON_OVERLOADED, false,
		"too many requests wait; nothing was applied, ask again after retry_after"},
	{tenant.ErrUnknownConsumer, warifuv1.Reason_REASON_UNKNOWN_CONSUMER, false,
		"the tenant accepts declared consumers only; declare this one or correct its name"},
	{tenant.ErrFaultyConsumer, warifuv1.Reason_REASON_PRECONDITION, false,
		"the stored policy of this consumer cannot be followed; nothing was applied: its administrator has to put it right"},
	{context.DeadlineExceeded, warifuv1.Reason_REASON_DEADLINE_EXCEEDED, false,
		"the deadline ended before the work began; nothing was applied"},
	{context.Canceled, warifuv1.Reason_REASON_CANCELED, false,
		"the caller went away; nothing was applied"},
	{arbiter.ErrNotSent, warifuv1.Reason_REASON_CANCELED, false,
		"the caller went away; nothing was applied"},
}

// errorRow finds err's line; false for an error that nobody has classified.
func errorRow(err error) (row, bool) {
	for i := range rows {
		if errors.Is(err, rows[i].sentinel) {
			return rows[i], true
		}
	}
	return row{}, false
}

// writeFault is the fault of a call that could have changed something. An
// error that nobody has classified is a bug, and the outcome is unknown.
func writeFault(err error) *fault.Fault {
	var f *fault.Fault
	if errors.As(err, &f) {
		return f
	}
	var over quota.Exceeded
	if errors.As(err, &over) {
		return interceptor.QuotaFault(over)
	}
	r, known := errorRow(err)
	if !known {
		return fault.Internal(err)
	}
	return fault.New(r.reason, r.message).WithCause(err)
}

// readFault is the fault of a call that changes nothing: an unknown outcome is
// only a missing answer.
func readFault(err error) *fault.Fault {
	if errors.Is(err, storage.ErrUnknown) {
		return fault.New(warifuv1.Reason_REASON_STORE_UNAVAILABLE, "the store did not answer; ask again").WithCause(err)
	}
	return writeFault(err)
}

// unanswered reports whether err means that the store cannot answer, as
// opposed to a refusal that was received: those are never turned into
// UNPROTECTED.
func unanswered(err error) bool {
	r, known := errorRow(err)
	return known && r.unanswered
}

var errAttemptEnded = fault.New(warifuv1.Reason_REASON_ATTEMPT_ENDED,
	"this attempt was released or forgotten; claim with a new attempt ID")
