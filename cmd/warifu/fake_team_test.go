package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

func (f *fakeAPI) PutConsumer(ctx context.Context, m *warifuv1.PutConsumerRequest) (*warifuv1.PutConsumerResponse, error) {
	err := f.begin(ctx, "PutConsumer", m)
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	place := m.GetTenant() + "/" + m.GetName()
	now := f.mu.consumers[place]
	made, err := f.version(m.GetChange(), now.GetVersion())
	if err != nil || made {
		return &warifuv1.PutConsumerResponse{Consumer: now}, err
	}
	next := &warifuv1.Consumer{Name: m.GetName(), Policy: m.GetPolicy(), Note: m.GetNote(), Version: now.GetVersion() + 1}
	if !m.GetChange().GetDryRun() {
		f.mu.consumers[place] = next
	}
	return &warifuv1.PutConsumerResponse{Consumer: next, Consequence: fakeConsequence}, nil
}

func (f *fakeAPI) GetConsumer(ctx context.Context, m *warifuv1.GetConsumerRequest) (*warifuv1.GetConsumerResponse, error) {
	err := f.begin(ctx, "GetConsumer", m)
	defer f.mu.Unlock()
	found := f.mu.consumers[m.GetTenant()+"/"+m.GetName()]
	if err == nil && found == nil {
		err = refusal(warifuv1.Reason_REASON_NOT_FOUND)
	}
	return &warifuv1.GetConsumerResponse{Consumer: proto.CloneOf(found)}, err
}

func (f *fakeAPI) ListConsumers(ctx context.Context, m *warifuv1.ListConsumersRequest) (*warifuv1.ListConsumersResponse, error) {
	err := f.begin(ctx, "ListConsumers", m)
	hang := f.mu.hang
	if hang != nil {
		f.mu.Unlock()
		<-hang
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	var all []*warifuv1.Consumer
	for place, c := range f.mu.consumers {
		if strings.HasPrefix(place, m.GetTenant()+"/"+m.GetPrefix()) {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *warifuv1.Consumer) int { return strings.Compare(a.GetName(), b.GetName()) })
	on, next := cutPage(all, m.GetPageSize(), m.GetPageToken())
	return &warifuv1.ListConsumersResponse{Consumers: on, NextPageToken: next}, err
}

func (f *fakeAPI) DeleteConsumer(ctx context.Context, m *warifuv1.DeleteConsumerRequest) (*warifuv1.DeleteConsumerResponse, error) {
	err := f.begin(ctx, "DeleteConsumer", m)
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	place := m.GetTenant() + "/" + m.GetName()
	if _, err := f.version(m.GetChange(), f.mu.consumers[place].GetVersion()); err != nil {
		return nil, err
	}
	if !m.GetChange().GetDryRun() {
		delete(f.mu.consumers, place)
	}
	return &warifuv1.DeleteConsumerResponse{Consequence: fakeConsequence}, nil
}

func (f *fakeAPI) CreateKey(ctx context.Context, m *warifuv1.CreateKeyRequest) (*warifuv1.CreateKeyResponse, error) {
	err := f.begin(ctx, "CreateKey", m)
	defer f.mu.Unlock()
	if err != nil || m.GetChange().GetDryRun() {
		return &warifuv1.CreateKeyResponse{Key: &warifuv1.Key{Scopes: m.GetScopes()}}, err
	}
	k := &warifuv1.Key{Id: fmt.Sprintf("key%d", len(f.mu.keys)+1), Scopes: m.GetScopes(), Note: m.GetNote(), ExpiresAt: m.GetExpiresAt(), Version: 1}
	f.mu.keys = append(f.mu.keys, k)
	return &warifuv1.CreateKeyResponse{Key: k, Secret: "wf_live_" + k.GetId() + "_secret_sum"}, nil
}

func (f *fakeAPI) RotateKey(ctx context.Context, m *warifuv1.RotateKeyRequest) (*warifuv1.RotateKeyResponse, error) {
	err := f.begin(ctx, "RotateKey", m)
	defer f.mu.Unlock()
	return &warifuv1.RotateKeyResponse{
		Key: &warifuv1.Key{Id: "key9"}, Secret: "wf_live_key9_secret_sum", Old: &warifuv1.Key{Id: m.GetId(), ExpiresAt: timestamppb.New(fakeNow)},
	}, err
}

func (f *fakeAPI) RevokeKey(ctx context.Context, m *warifuv1.RevokeKeyRequest) (*warifuv1.RevokeKeyResponse, error) {
	err := f.begin(ctx, "RevokeKey", m)
	defer f.mu.Unlock()
	return &warifuv1.RevokeKeyResponse{Key: &warifuv1.Key{Id: m.GetId(), RevokedAt: timestamppb.New(fakeNow)}}, err
}

func (f *fakeAPI) ListKeys(ctx context.Context, m *warifuv1.ListKeysRequest) (*warifuv1.ListKeysResponse, error) {
	err := f.begin(ctx, "ListKeys", m)
	defer f.mu.Unlock()
	on, next := cutPage(f.mu.keys, m.GetPageSize(), m.GetPageToken())
	return &warifuv1.ListKeysResponse{Keys: on, NextPageToken: next}, err
}

func (f *fakeAPI) GetUsage(ctx context.Context, m *warifuv1.GetUsageRequest) (*warifuv1.GetUsageResponse, error) {
	err := f.begin(ctx, "GetUsage", m)
	defer f.mu.Unlock()
	return &warifuv1.GetUsageResponse{
		Usage:     []*warifuv1.Usage{{What: "retained_keys", Used: 42, Limit: 100}, {What: "in_doubt", Used: 1}},
		Consumers: []*warifuv1.ConsumerUsage{{Consumer: "inventory", RetainedKeys: 40}, {RetainedKeys: 2}},
	}, err
}

func (f *fakeAPI) ListAudit(ctx context.Context, m *warifuv1.ListAuditRequest) (*warifuv1.ListAuditResponse, error) {
	err := f.begin(ctx, "ListAudit", m)
	defer f.mu.Unlock()
	on, next := cutPage(f.mu.entries, m.GetPageSize(), m.GetPageToken())
	return &warifuv1.ListAuditResponse{Entries: on, NextPageToken: next}, err
}

func (f *fakeAPI) ListFindings(ctx context.Context, m *warifuv1.ListFindingsRequest) (*warifuv1.ListFindingsResponse, error) {
	err := f.begin(ctx, "ListFindings", m)
	defer f.mu.Unlock()
	on, next := cutPage(f.mu.findings, m.GetPageSize(), m.GetPageToken())
	return &warifuv1.ListFindingsResponse{Findings: on, NextPageToken: next}, err
}

func (f *fakeAPI) UpdateFinding(ctx context.Context, m *warifuv1.UpdateFindingRequest) (*warifuv1.UpdateFindingResponse, error) {
	err := f.begin(ctx, "UpdateFinding", m)
	defer f.mu.Unlock()
	return &warifuv1.UpdateFindingResponse{Finding: &warifuv1.Finding{Id: m.GetId(), State: m.GetState(), Assignee: m.GetAssignee()}}, err
}

func (f *fakeAPI) RotateDataKey(ctx context.Context, m *warifuv1.RotateDataKeyRequest) (*warifuv1.RotateDataKeyResponse, error) {
	err := f.begin(ctx, "RotateDataKey", m)
	defer f.mu.Unlock()
	return &warifuv1.RotateDataKeyResponse{DataKeyId: 12}, err
}

func (f *fakeAPI) ShredResults(ctx context.Context, m *warifuv1.ShredResultsRequest) (*warifuv1.ShredResultsResponse, error) {
	err := f.begin(ctx, "ShredResults", m)
	defer f.mu.Unlock()
	return &warifuv1.ShredResultsResponse{Consequence: fakeConsequence}, err
}

func (f *fakeAPI) ListClaims(ctx context.Context, m *warifuv1.ListClaimsRequest) (*warifuv1.ListClaimsResponse, error) {
	err := f.begin(ctx, "ListClaims", m)
	defer f.mu.Unlock()
	var all []*warifuv1.ClaimRecord
	for _, c := range f.mu.claims {
		if (m.GetConsumer() == "" || c.GetConsumer() == m.GetConsumer()) && strings.HasPrefix(c.GetEventId(), m.GetEventIdPrefix()) {
			all = append(all, c)
		}
	}
	on, next := cutPage(all, m.GetPageSize(), m.GetPageToken())
	return &warifuv1.ListClaimsResponse{Claims: on, NextPageToken: next}, err
}

func (f *fakeAPI) ResolveClaim(ctx context.Context, m *warifuv1.ResolveClaimRequest) (*warifuv1.ResolveClaimResponse, error) {
	err := f.begin(ctx, "ResolveClaim", m)
	defer f.mu.Unlock()
	return &warifuv1.ResolveClaimResponse{Record: &warifuv1.ClaimRecord{
		Consumer: m.GetConsumer(), EventId: m.GetEventId(), State: warifuv1.State_STATE_COMPLETED, Fence: m.GetExpectedFence(),
	}}, err
}

func (f *fakeAPI) ForgetClaim(ctx context.Context, m *warifuv1.ForgetClaimRequest) (*warifuv1.ForgetClaimResponse, error) {
	err := f.begin(ctx, "ForgetClaim", m)
	defer f.mu.Unlock()
	return &warifuv1.ForgetClaimResponse{Record: &warifuv1.ClaimRecord{EventId: m.GetEventId(), State: warifuv1.State_STATE_FORGOTTEN}}, err
}

// ResolveClaims answers with what the test has laid ready, one page after the
// other; a dry run begins anew.
func (f *fakeAPI) ResolveClaims(ctx context.Context, m *warifuv1.ResolveClaimsRequest) (*warifuv1.ResolveClaimsResponse, error) {
	err := f.begin(ctx, "ResolveClaims", m)
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	n, _ := strconv.Atoi(m.GetPageToken())
	if n >= len(f.mu.bulk) {
		return &warifuv1.ResolveClaimsResponse{}, nil
	}
	page := proto.CloneOf(f.mu.bulk[n])
	if m.GetDryRun() {
		page.Changed, page.MovedOn = 0, 0
	}
	if n+1 < len(f.mu.bulk) {
		page.NextPageToken = strconv.Itoa(n + 1)
	}
	return page, nil
}
