package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/quota"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

var errNoFinding = fault.New(warifuv1.Reason_REASON_NOT_FOUND, "no such finding")

// ListAudit pages through the audit log.
func (a *team) ListAudit(ctx context.Context, m *warifuv1.ListAuditRequest) (*warifuv1.ListAuditResponse, error) {
	w, err := a.maybeOf(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	q := registry.AuditQuery{Scope: w.scope()}
	if q.From, err = bound("from", m.GetFrom()); err != nil {
		return nil, err
	}
	if q.Until, err = bound("until", m.GetUntil()); err != nil {
		return nil, err
	}
	p, err := a.page(w, "audit", m.GetPageSize(), m.GetPageToken(), strconv.FormatInt(int64(q.From), 10), strconv.FormatInt(int64(q.Until), 10))
	if err != nil {
		return nil, err
	}
	q.Cursor, q.Limit = p.cursor, p.limit
	found, err := a.cfg.Registry.Audit(ctx, q)
	if err != nil {
		return nil, listFault(err)
	}
	res := &warifuv1.ListAuditResponse{NextPageToken: a.next(&p, found.Cursor)}
	for i := range found.Entries {
		res.Entries = append(res.Entries, auditMessage(&found.Entries[i]))
	}
	return res, nil
}

// bound is one end of a range of time, 0 where it is open.
func bound(field string, t *timestamppb.Timestamp) (claim.Time, error) {
	if t == nil {
		return 0, nil
	}
	if t.CheckValid() != nil || t.AsTime().Unix() < 0 {
		return 0, fault.Invalid(field, "a valid time after 1970-01-01T00:00:00Z")
	}
	return claim.FromTime(t.AsTime()), nil
}

// listFault is the fault of a list: what the registry refuses the caller has
// asked for.
func listFault(err error) error {
	var invalid *registry.InvalidError
	if errors.As(err, &invalid) {
		return fault.Invalid(invalid.Field, invalid.Rule).WithCause(err)
	}
	return readFault(err)
}

// ListFindings pages through findings.
func (a *team) ListFindings(ctx context.Context, m *warifuv1.ListFindingsRequest) (*warifuv1.ListFindingsResponse, error) {
	w, err := a.maybeOf(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	states, filter, err := words(findingStates, m.GetStates())
	if err != nil {
		return nil, err
	}
	p, err := a.page(w, "findings", m.GetPageSize(), m.GetPageToken(), filter)
	if err != nil {
		return nil, err
	}
	found, err := a.cfg.Registry.Findings(ctx, registry.FindingQuery{Scope: w.scope(), States: states, Cursor: p.cursor, Limit: p.limit})
	if err != nil {
		return nil, listFault(err)
	}
	res := &warifuv1.ListFindingsResponse{NextPageToken: a.next(&p, found.Cursor)}
	for i := range found.Findings {
		res.Findings = append(res.Findings, findingMessage(&found.Findings[i]))
	}
	return res, nil
}

// words turns the states of a filter into the registry's, and into one text.
func words[R ~uint8, W ~int32](known map[R]W, asked []W) (states []R, filter string, err error) {
	for i, s := range asked {
		r, ok := wordOf(known, s)
		if !ok {
			return nil, "", fault.Invalid("states["+strconv.Itoa(i)+"]", "a state that rows can have")
		}
		if !slices.Contains(states, r) {
			states = append(states, r)
		}
	}
	slices.Sort(states)
	for _, r := range states {
		filter += string(rune('0' + r))
	}
	return states, filter, nil
}

// UpdateFinding assigns a finding to somebody, or resolves it.
func (a *team) UpdateFinding(ctx context.Context, m *warifuv1.UpdateFindingRequest) (*warifuv1.UpdateFindingResponse, error) {
	if err := why(m.GetChange(), true); err != nil {
		return nil, err
	}
	w, err := a.maybeOf(ctx, m.GetTenant())
	if err != nil {
		return nil, err
	}
	state, ok := wordOf(findingStates, m.GetState())
	if !ok {
		return nil, fault.Invalid("state", "FINDING_STATE_OPEN, ASSIGNED or RESOLVED")
	}
	old, err := a.finding(ctx, w, m.GetId())
	if err != nil {
		return nil, err
	}
	row := *old
	row.State, row.Assignee = state, m.GetAssignee()
	if m.GetChange().GetDryRun() {
		return &warifuv1.UpdateFindingResponse{Finding: findingMessage(&row)}, holds(m.GetChange(), old.Version)
	}
	row.Version = m.GetChange().GetExpectedVersion()
	entry := w.entry("finding.update", m.GetId(), m.GetChange(), findingMessage(old), findingMessage(&row))
	entry.Tenant = row.Tenant
	err = a.apply(ctx, registry.Change{ID: w.changeID(m), Findings: []registry.Write[registry.Finding]{registry.Put(row)}, Audit: []registry.AuditEntry{entry}})
	if err != nil {
		return nil, writeFault(err)
	}
	now, err := shown(a.finding(ctx, w, m.GetId()))
	if err != nil {
		return nil, err
	}
	return &warifuv1.UpdateFindingResponse{Finding: findingMessage(now)}, nil
}

// findingPagesMax bounds how far back a finding is looked for.
const findingPagesMax = 200

// finding looks for a finding among those that the caller sees.
func (a *Admin) finding(ctx context.Context, w *acting, text string) (*registry.Finding, error) {
	var id registry.ID
	if len(text) != hex.EncodedLen(len(id)) || id.UnmarshalText([]byte(text)) != nil {
		return nil, errNoFinding
	}
	q := registry.FindingQuery{Scope: w.scope(), Limit: registry.PageMax}
	for range findingPagesMax {
		p, err := a.cfg.Registry.Findings(ctx, q)
		if err != nil {
			return nil, readFault(err)
		}
		for i := range p.Findings {
			if p.Findings[i].ID == id {
				return &p.Findings[i], nil
			}
		}
		if q.Cursor = p.Cursor; q.Cursor == nil {
			break
		}
	}
	return nil, errNoFinding
}

// ListJobs pages through background jobs.
func (a *platform) ListJobs(ctx context.Context, m *warifuv1.ListJobsRequest) (*warifuv1.ListJobsResponse, error) {
	w, err := a.maybeOf(ctx, "")
	if err != nil {
		return nil, err
	}
	states, filter, err := words(jobStates, m.GetStates())
	if err != nil {
		return nil, err
	}
	p, err := a.page(w, "jobs", m.GetPageSize(), m.GetPageToken(), filter)
	if err != nil {
		return nil, err
	}
	found, err := a.cfg.Registry.Jobs(ctx, registry.JobQuery{Scope: w.scope(), States: states, Cursor: p.cursor, Limit: p.limit})
	if err != nil {
		return nil, listFault(err)
	}
	res := &warifuv1.ListJobsResponse{NextPageToken: a.next(&p, found.Cursor)}
	for i := range found.Jobs {
		if found.Jobs[i].Kind == quota.JobKind {
			continue // one for each tenant: GetUsage shows them
		}
		res.Jobs = append(res.Jobs, jobMessage(&found.Jobs[i]))
	}
	return res, nil
}
