package server

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
)

// protocolVersion is what every reply says. Clients refuse another one.
const protocolVersion = 1

// The limits of the contract as callers read them.
var (
	limitConsumer     = fmt.Sprintf("1-%d characters of [A-Za-z0-9._/-]", claim.ConsumerCharsMax)
	limitEventID      = fmt.Sprintf("1-%d bytes of UTF-8 without NUL", claim.EventIDBytesMax)
	limitDigests      = fmt.Sprintf("at most %d digests", claim.DigestsMax)
	limitScheme       = fmt.Sprintf("1-%d characters without control characters", claim.SchemeCharsMax)
	limitDigestBytes  = fmt.Sprintf("1-%d bytes", claim.DigestBytesMax)
	limitLease        = fmt.Sprintf("%v-%v", claim.LeaseMin, claim.LeaseMax)
	limitWait         = fmt.Sprintf("0s-%v", claim.WaitMax)
	limitItems        = fmt.Sprintf("1-%d items", claim.BatchItemsMax)
	limitBatchBytes   = fmt.Sprintf("at most %d bytes", claim.BatchBytesMax)
	limitContentType  = fmt.Sprintf("at most %d characters without control characters", claim.ContentTypeMax)
	limitMetadata     = fmt.Sprintf("at most %d entries", claim.MetadataMax)
	limitMetadataSize = fmt.Sprintf("at most %d bytes of names and values together", claim.MetadataBytesMax)
)

const (
	limitAttempt         = "a UUID other than nil, 36 characters or 32 hexadecimal digits"
	limitAttemptRequired = "required for consumers whose lapsed leases HOLD: make a UUID before the first send"
	limitFence           = "the positive fence of the grant"
)

// edge turns the messages of one call into claim types: every value is checked
// here, once, and nothing invalid goes further. It remembers the consumer it
// looked up last, because batches mostly name one.
type edge struct {
	tenant    *tenant.Tenant
	principal *tenant.Principal
	// begun: the call is about what was granted before. A strict tenant refuses
	// claims of consumers that it no longer declares; refusing to finish theirs
	// would only make duplicates.
	begun    bool
	now      claim.Time
	name     string
	consumer *tenant.Consumer
}

// key checks what names an event and finds the consumer's policy.
func (e *edge) key(consumer, eventID string) (claim.Key, *fault.Fault) {
	if e.consumer == nil || consumer != e.name {
		if !tenant.ValidConsumer(consumer) {
			return claim.Key{}, fault.Invalid("consumer", limitConsumer)
		}
		if !e.principal.Consumer(consumer) {
			return claim.Key{}, errOtherConsumer
		}
		c, _, err := e.tenant.Consumer(consumer)
		if err != nil && !e.begun {
			return claim.Key{}, writeFault(err)
		}
		if err != nil {
			c = e.tenant.Fallback()
		}
		e.name, e.consumer = consumer, c
	}
	if !validEventID(eventID) {
		return claim.Key{}, fault.Invalid("event_id", limitEventID)
	}
	return claim.Key{Tenant: e.tenant.ID, Consumer: consumer, EventID: eventID}, nil
}

var errOtherConsumer = fault.New(warifuv1.Reason_REASON_PERMISSION_DENIED,
	"this API key is limited to other consumers")

// policy is that of a consumer that a valid item names.
func (e *edge) policy(consumer string) *tenant.Consumer {
	if consumer != e.name {
		e.name = consumer
		e.consumer, _, _ = e.tenant.Consumer(consumer) // never fails: it was found before
	}
	return e.consumer
}

func validEventID(s string) bool {
	return s != "" && len(s) <= claim.EventIDBytesMax && strings.IndexByte(s, 0) < 0 && utf8.ValidString(s)
}

// owner checks what complete, extend and release have in common.
func (e *edge) owner(t *claim.Transition, consumer, eventID, attempt string, fence int64) (f *fault.Fault) {
	if t.Key, f = e.key(consumer, eventID); f != nil {
		return f
	}
	var ok bool
	if t.Attempt, ok = parseAttempt(attempt); !ok {
		return fault.Invalid("attempt_id", limitAttempt)
	}
	if fence <= 0 {
		return fault.Invalid("fence", limitFence)
	}
	t.Fence = claim.Fence(fence)
	return nil
}

// lease checks a lease against the contract and the consumer's maximum, and
// fills in the consumer's default.
func (e *edge) lease(d *durationpb.Duration) (time.Duration, *fault.Fault) {
	if d == nil {
		return e.consumer.LeaseDefault, nil
	}
	lease, ok := span(d)
	if !ok || lease < claim.LeaseMin || lease > claim.LeaseMax {
		return 0, fault.Invalid("lease", limitLease)
	}
	if lease > e.consumer.LeaseMax {
		return 0, fault.Invalid("lease", fmt.Sprintf("at most %v, the longest lease of this consumer", e.consumer.LeaseMax))
	}
	return lease, nil
}

// span converts a duration message; false when it is malformed or overflows.
func span(d *durationpb.Duration) (time.Duration, bool) {
	if d.CheckValid() != nil {
		return 0, false
	}
	out := d.AsDuration()
	return out, out/time.Second == time.Duration(d.GetSeconds())
}

const attemptChars = 36

// attemptDigits says where the bytes of a UUID stand in 8-4-4-4-12.
var attemptDigits = [16]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}

// parseAttempt reads a UUID as 8-4-4-4-12 or as 32 hexadecimal digits. The nil
// UUID is no attempt.
func parseAttempt(s string) (id claim.AttemptID, ok bool) {
	hyphens := len(s) == attemptChars
	if hyphens && (s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-') || !hyphens && len(s) != 2*len(id) {
		return id, false
	}
	for n := range id {
		at := 2 * n
		if hyphens {
			at = attemptDigits[n]
		}
		hi, lo := nibble[s[at]], nibble[s[at+1]]
		if hi|lo > 0xf {
			return claim.AttemptID{}, false
		}
		id[n] = hi<<4 | lo
	}
	return id, !id.IsZero()
}

// nibble maps hexadecimal digits to their value and all else to 0xff.
var nibble = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for v, c := range "0123456789abcdef" {
		t[c] = byte(v)
		t[strings.ToUpper(string(c))[0]] = byte(v)
	}
	return t
}()

// attemptText writes an attempt ID as 8-4-4-4-12.
func attemptText(id claim.AttemptID) string {
	var b [attemptChars]byte
	hex.Encode(b[0:8], id[0:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// newAttempt makes a random (version 4) UUID.
func newAttempt() (id claim.AttemptID) {
	_, _ = rand.Read(id[:]) // never fails: it ends the process instead
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// plainText reports whether s is UTF-8 of at most charsMax characters and free
// of control characters, so that it can stand in a header or a log.
func plainText(s string, charsMax int) bool {
	if len(s) > charsMax*utf8.UTFMax || !utf8.ValidString(s) || utf8.RuneCountInString(s) > charsMax {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// The wire's names for the words of package claim.
var (
	decisions = [...]warifuv1.Decision{
		claim.Granted: warifuv1.Decision_DECISION_GRANTED, claim.Duplicate: warifuv1.Decision_DECISION_DUPLICATE,
		claim.HeldByOther: warifuv1.Decision_DECISION_IN_PROGRESS, claim.Mismatch: warifuv1.Decision_DECISION_MISMATCH,
		claim.Doubtful: warifuv1.Decision_DECISION_IN_DOUBT, claim.TooOld: warifuv1.Decision_DECISION_TOO_OLD,
		claim.Unprotected: warifuv1.Decision_DECISION_UNPROTECTED,
	}
	takeovers = [...]warifuv1.Takeover{
		claim.NoTakeover: warifuv1.Takeover_TAKEOVER_UNSPECIFIED, claim.LeaseLapsed: warifuv1.Takeover_TAKEOVER_LEASE_LAPSED,
		claim.AttemptReleased: warifuv1.Takeover_TAKEOVER_RELEASED,
	}
	states = [...]warifuv1.State{
		claim.Absent: warifuv1.State_STATE_ABSENT, claim.InProgress: warifuv1.State_STATE_IN_PROGRESS,
		claim.Released: warifuv1.State_STATE_RELEASED, claim.InDoubt: warifuv1.State_STATE_IN_DOUBT,
		claim.Completed: warifuv1.State_STATE_COMPLETED, claim.Forgotten: warifuv1.State_STATE_FORGOTTEN,
	}
	statuses = [...]warifuv1.Status{
		claim.OK: warifuv1.Status_STATUS_OK, claim.Stale: warifuv1.Status_STATUS_STALE,
		claim.ResultConflict: warifuv1.Status_STATUS_RESULT_CONFLICT,
	}
	outcomes = [...]warifuv1.Outcome{
		claim.Succeeded: warifuv1.Outcome_OUTCOME_SUCCEEDED, claim.Rejected: warifuv1.Outcome_OUTCOME_REJECTED,
	}
	omissions = [...]warifuv1.ResultOmitted{
		claim.NotOmitted: warifuv1.ResultOmitted_RESULT_OMITTED_UNSPECIFIED, claim.TooLarge: warifuv1.ResultOmitted_RESULT_OMITTED_TOO_LARGE,
		claim.Shredded: warifuv1.ResultOmitted_RESULT_OMITTED_SHREDDED, claim.BatchBudget: warifuv1.ResultOmitted_RESULT_OMITTED_BATCH_BUDGET,
		claim.StoreFull: warifuv1.ResultOmitted_RESULT_OMITTED_STORE_FULL, claim.Unreadable: warifuv1.ResultOmitted_RESULT_OMITTED_UNREADABLE,
	}
)

// word looks an enum up; a value this binary does not know becomes unspecified.
func word[E ~int32, I ~uint8](words []E, i I) E {
	if int(i) < len(words) {
		return words[i]
	}
	return 0
}
