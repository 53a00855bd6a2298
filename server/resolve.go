package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	adminapi "github.com/warifu/warifu/server/admin"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// bulkMax is how many claims one call of ResolveClaims looks at; each that it
// changes has an audit entry of its own, in one change.
const bulkMax = 100

const (
	limitReason     = "1-1024 bytes: why, for the audit log"
	limitResolution = "RESOLUTION_COMPLETE or RESOLUTION_RETRY"
	limitNoResult   = "only with COMPLETE"
	limitAction     = "BULK_ACTION_RETRY, BULK_ACTION_FORGET or BULK_ACTION_COMPLETE"
	limitBulkStates = "at least one, so that nothing is changed by leaving it out"
	limitBulkNamed  = "required: one consumer at a time"
)

var errNoAudit = fault.New(warifuv1.Reason_REASON_PRECONDITION,
	"this server keeps no audit log, and nobody may decide about claims without one")

// actor is who administers claims, and whose.
type actor struct {
	call   *interceptor.Call
	tenant *tenant.Tenant
}

// acting finds whose claims a call is about. A tenant that is not the caller's
// does not exist.
func (s *admin) acting(ctx context.Context, name string) (*actor, error) {
	call := interceptor.CallFrom(ctx)
	own := call.Principal.Tenant
	switch {
	case own != nil && (name == "" || name == own.Name):
		return &actor{call, own}, nil
	case own == nil && name == "":
		return nil, fault.Invalid("tenant", "required with a credential of the platform")
	case own == nil:
		if t, ok := s.directory.Tenant(name); ok {
			return &actor{call, t}, nil
		}
	}
	return nil, adminapi.ErrNoTenant
}

// ResolveClaim completes one claim, or gives it back.
func (s *admin) ResolveClaim(ctx context.Context, m *warifuv1.ResolveClaimRequest) (*warifuv1.ResolveClaimResponse, error) {
	of, err := s.acting(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	v, action := claim.Verb{Kind: claim.ResolveRetry}, "claim.retry"
	switch m.GetResolution() {
	case warifuv1.Resolution_RESOLUTION_COMPLETE:
		v.Kind, action = claim.ResolveComplete, "claim.complete"
	case warifuv1.Resolution_RESOLUTION_RETRY:
		if m.GetCompletion() != nil {
			return nil, fault.Invalid("completion", limitNoResult)
		}
	case warifuv1.Resolution_RESOLUTION_UNSPECIFIED:
		return nil, fault.Invalid("resolution", limitResolution)
	default:
		return nil, fault.Invalid("resolution", limitResolution)
	}
	rec, err := s.decideOne(ctx, of, m, m.GetCompletion(), v, action)
	return &warifuv1.ResolveClaimResponse{Record: rec}, err
}

// ForgetClaim drops what one claim remembers.
func (s *admin) ForgetClaim(ctx context.Context, m *warifuv1.ForgetClaimRequest) (*warifuv1.ForgetClaimResponse, error) {
	of, err := s.acting(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	rec, err := s.decideOne(ctx, of, m, nil, claim.Verb{Kind: claim.Forget}, "claim.forget")
	return &warifuv1.ForgetClaimResponse{Record: rec}, err
}

// named is a request about one claim.
type named interface {
	GetConsumer() string
	GetEventId() string
	GetExpectedFence() int64
	GetExpectedState() warifuv1.State
	GetReason() string
}

func (s *admin) decideOne(
	ctx context.Context, of *actor, m named, result *warifuv1.Completion, v claim.Verb, action string,
) (*warifuv1.ClaimRecord, error) {
	if n := len(m.GetReason()); n == 0 || n > registry.TextBytesMax {
		return nil, fault.Invalid("reason", limitReason)
	}
	e := &edge{tenant: of.tenant, principal: of.call.Principal, begun: true, now: claim.FromTime(of.call.Began)}
	var f *fault.Fault
	if v.Key, f = e.key(m.GetConsumer(), m.GetEventId()); f != nil {
		return nil, f
	}
	of.call.About(m.GetConsumer(), m.GetEventId())
	if m.GetExpectedFence() <= 0 {
		return nil, fault.Invalid("expected_fence", limitFence)
	}
	v.Fence = claim.Fence(m.GetExpectedFence())
	for st, w := range states {
		if w == m.GetExpectedState() {
			v.State = claim.State(st)
		}
	}
	if v.State == claim.Absent {
		return nil, fault.Invalid("expected_state", limitStates)
	}
	if v.Kind == claim.ResolveComplete {
		if v.Result, f = e.completion(result, "completion"); f != nil {
			return nil, f
		}
	}
	n, last, err := s.decide(ctx, of, []claim.Verb{v}, action, m.GetReason())
	if err != nil {
		return nil, err
	}
	if n.movedOn > 0 {
		return nil, movedOn(&last)
	}
	rec := recordMessage(&last.Record, last.Now)
	rec.Consumer, rec.EventId = v.Key.Consumer, v.Key.EventID
	return rec, nil
}

// movedOn says what is there in place of what was expected.
func movedOn(f *storage.Found) *fault.Fault {
	if f.Record.State == claim.Absent || f.Record.Expired(f.Now) {
		return fault.New(warifuv1.Reason_REASON_NOT_FOUND, "nothing is stored of this event; nothing was changed")
	}
	return fault.New(warifuv1.Reason_REASON_CONFLICT, fmt.Sprintf(
		"the claim has fence %d and is %s: it moved on, or this is not allowed there; nothing was changed, look again",
		f.Record.Fence, f.Record.Effective(f.Now)))
}

// decided counts what became of verbs.
type decided struct{ done, movedOn int }

// decide carries verbs out, each with an entry in the audit log that is written
// first: what was done is always there, and what did not happen after all has a
// second entry that says so.
func (s *admin) decide(ctx context.Context, of *actor, vs []claim.Verb, action, reason string) (n decided, last storage.Found, err error) {
	if s.registry == nil {
		return n, last, errNoAudit
	}
	keys := make([]claim.Key, len(vs))
	for i := range vs {
		keys[i] = vs[i].Key
	}
	found, err := s.store.Get(ctx, keys)
	if err != nil {
		return n, last, readFault(err)
	}
	var swaps []claim.Swap
	var entries []registry.AuditEntry
	doubts := map[claim.Key]bool{}
	for i := range vs {
		if last = found[i]; last.Err != nil {
			return n, last, readFault(last.Err)
		}
		ruling, sw := vs[i].Rule(&last.Record, last.Now)
		switch ruling {
		case claim.Done:
			n.done++
		case claim.Refused:
			n.movedOn++
		case claim.SwapAllowed:
			swaps, entries = append(swaps, sw), append(entries, s.entry(of, &vs[i].Key, &last, action, reason))
			doubts[sw.Key] = last.Record.Effective(last.Now) == claim.InDoubt
		}
	}
	if len(swaps) == 0 {
		return n, last, nil
	}
	if err := s.audit(ctx, entries); err != nil {
		return n, last, err
	}
	found, err = s.store.Replace(ctx, swaps)
	if err != nil {
		found = make([]storage.Found, len(swaps))
		for i := range found {
			found[i].Err = err
		}
	}
	var late []registry.AuditEntry
	var faults []error
	for i := range found {
		switch last = found[i]; {
		case last.Applied:
			n.done++
			if doubts[swaps[i].Key] && s.quotas != nil {
				s.quotas.Note(of.tenant.ID, quota.Delta{InDoubt: -1})
			}
			continue
		case last.Err == nil:
			n.movedOn++
		default:
			faults = append(faults, writeFault(last.Err))
		}
		entries[i].Action += amended(last.Err)
		late = append(late, entries[i])
	}
	if len(late) > 0 {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
		defer cancel()
		if err := s.audit(after, late); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 && n.done > 0 {
		return n, last, fault.New(warifuv1.Reason_REASON_OUTCOME_UNKNOWN, fmt.Sprintf(
			"%d claims are changed, and of %d it is not known: send the call again", n.done, len(faults))).WithCause(errors.Join(faults...))
	}
	return n, last, errors.Join(faults...)
}

// auditTimeout bounds the entry that says what did not happen, which is written
// although the caller may be gone.
const auditTimeout = 5 * time.Second

// amended is how the log marks what was announced and did not, or not surely,
// happen.
func amended(err error) string {
	if errors.Is(err, storage.ErrUnknown) {
		return ".unknown"
	}
	return ".missed"
}

func (s *admin) entry(of *actor, k *claim.Key, f *storage.Found, action, reason string) registry.AuditEntry {
	record := recordMessage(&f.Record, f.Now)
	if record.Result != nil { // the log outlives results, and is not sealed
		record.Result = &warifuv1.StoredResult{Outcome: record.GetResult().GetOutcome(), CompletedAt: record.GetResult().GetCompletedAt()}
	}
	before, err := protojson.Marshal(record)
	if err != nil { // our own message is valid
		before = nil
	}
	return registry.AuditEntry{
		Tenant: of.tenant.ID, Actor: of.call.Principal.KeyID, Action: action, Target: k.Consumer + "/" + k.EventID,
		Reason: reason, RequestID: of.call.RequestID, Before: before,
	}
}

func (s *admin) audit(ctx context.Context, entries []registry.AuditEntry) error {
	c := registry.Change{Audit: entries}
	_, _ = rand.Read(c.ID[:]) // never fails: it ends the process instead
	_, err := s.registry.Apply(ctx, c)
	if errors.Is(err, storage.ErrUnknown) {
		_, err = s.registry.Apply(ctx, c) // its ID makes it one
	}
	if err != nil {
		return readFault(err)
	}
	return nil
}

// ResolveClaims carries one verb out on a page of claims.
func (s *admin) ResolveClaims(ctx context.Context, m *warifuv1.ResolveClaimsRequest) (*warifuv1.ResolveClaimsResponse, error) {
	of, err := s.acting(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	v, action, f := bulkVerb(of, m)
	if f != nil {
		return nil, f
	}
	l, f := s.filtered(of, action, m, bulkMax)
	if f != nil {
		return nil, f
	}
	page, listErr := s.store.List(ctx, l.List)
	if listErr != nil {
		return nil, readFault(listErr)
	}
	var vs []claim.Verb
	for i := range page.Records {
		rec := &page.Records[i]
		v.Key, v.Fence, v.State = rec.Key, rec.Fence, rec.Effective(page.Now)
		if ruling, _ := v.Rule(rec, page.Now); l.shows(rec, page.Now) && ruling == claim.SwapAllowed {
			vs = append(vs, v)
		}
	}
	res := &warifuv1.ResolveClaimsResponse{Matched: uint32(len(vs))} //nolint:gosec // at most bulkMax
	if page.Cursor != nil {
		res.NextPageToken = s.tokens.Seal(page.Cursor, l.bound()...)
	}
	if m.GetDryRun() || len(vs) == 0 {
		return res, nil
	}
	n, _, err := s.decide(ctx, of, vs, action, m.GetReason())
	res.Changed, res.MovedOn = uint32(n.done), uint32(n.movedOn) //nolint:gosec // at most bulkMax
	return res, err
}

// bulkVerb checks what is to be done with each claim.
func bulkVerb(of *actor, m *warifuv1.ResolveClaimsRequest) (v claim.Verb, action string, f *fault.Fault) {
	switch n := len(m.GetReason()); {
	case n == 0 && !m.GetDryRun(), n > registry.TextBytesMax:
		return v, "", fault.Invalid("reason", limitReason)
	case m.GetConsumer() == "":
		return v, "", fault.Invalid("consumer", limitBulkNamed)
	case len(m.GetStates()) == 0:
		return v, "", fault.Invalid("states", limitBulkStates)
	}
	switch m.GetAction() {
	case warifuv1.BulkAction_BULK_ACTION_RETRY:
		v.Kind, action = claim.ResolveRetry, "claim.retry"
	case warifuv1.BulkAction_BULK_ACTION_FORGET:
		v.Kind, action = claim.Forget, "claim.forget"
	case warifuv1.BulkAction_BULK_ACTION_COMPLETE:
		e := &edge{tenant: of.tenant, principal: of.call.Principal, begun: true}
		if _, f = e.key(m.GetConsumer(), "any"); f != nil {
			return v, "", f
		}
		v.Kind, action = claim.ResolveComplete, "claim.complete"
		if v.Result, f = e.completion(m.GetCompletion(), "completion"); f != nil {
			return v, "", f
		}
	case warifuv1.BulkAction_BULK_ACTION_UNSPECIFIED:
		return v, "", fault.Invalid("action", limitAction)
	default:
		return v, "", fault.Invalid("action", limitAction)
	}
	if v.Kind != claim.ResolveComplete && m.GetCompletion() != nil {
		return v, "", fault.Invalid("completion", limitNoResult)
	}
	return v, action, nil
}
