package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/tenant"
)

// policyRefresh is how long clients may use a policy before they ask again.
const policyRefresh = 30 * time.Second

// GetPolicy returns the policy in force for a consumer, declared or not.
func (s *claims) GetPolicy(ctx context.Context, m *warifuv1.GetPolicyRequest) (*warifuv1.GetPolicyResponse, error) {
	name := m.GetConsumer()
	if !tenant.ValidConsumer(name) {
		return nil, fault.Invalid("consumer", limitConsumer)
	}
	p := interceptor.CallFrom(ctx).Principal
	if !p.Consumer(name) {
		return nil, errOtherConsumer
	}
	c, declared, err := p.Tenant.Consumer(name)
	if err != nil {
		return nil, readFault(err)
	}
	return &warifuv1.GetPolicyResponse{
		Consumer: name, Policy: policyMessage(c), Version: c.Version,
		Declared: declared, ProtocolVersion: protocolVersion, RefreshAfter: durationpb.New(policyRefresh),
	}, nil
}
