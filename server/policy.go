package server

import (
	"context"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
	"github.com/warifu/warifu/server/fault"
	"github.com/warifu/warifu/server/interceptor"
	"github.com/warifu/warifu/server/tenant"
)

// GetPolicy returns the policy in force for a consumer, declared or not.
func (s *claims) GetPolicy(ctx context.Context, m *warifuv1.GetPolicyRequest) (*warifuv1.GetPolicyResponse, error) {
	name := m.GetConsumer()
	if !tenant.ValidConsumer(name) {
		return nil, fault.Invalid("consumer", limitConsumer)
	}
	c, declared, err := interceptor.CallFrom(ctx).Principal.Tenant.Consumer(name)
	if err != nil {
		return nil, readFault(err)
	}
	return &warifuv1.GetPolicyResponse{
		Consumer: name, Policy: policyMessage(c), Version: c.Version,
		Declared: declared, ProtocolVersion: protocolVersion,
	}, nil
}
