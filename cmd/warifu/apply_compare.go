package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// step is one change on the way from what is declared on a server to what a
// file says.
type step struct {
	Action   string        `json:"action"` // create, update, delete
	Tenant   string        `json:"tenant,omitempty"`
	Consumer string        `json:"consumer,omitempty"`
	Fields   []fieldChange `json:"fields,omitempty"`
	Done     bool          `json:"done"`

	id          string // of the change
	version     int64
	warnings    []string // why it has to be confirmed
	unrehearsed bool     // its tenant is not there yet
	send        func(context.Context, *warifuv1.Change) (*warifuv1.Consequence, error)
}

type fieldChange struct {
	Field  string `json:"field"`
	Before string `json:"before"`
	After  string `json:"after"`
}

const (
	stepCreate = "create"
	stepUpdate = "update"
	stepDelete = "delete"
)

func (s *step) name() string {
	switch {
	case s.Consumer == "":
		return "tenant " + plain(s.Tenant)
	case s.Tenant == "":
		return "consumer " + plain(s.Consumer)
	}
	return "consumer " + plain(s.Tenant) + "/" + plain(s.Consumer)
}

func (s *step) show(w io.Writer) {
	mark := map[string]string{stepCreate: "+", stepUpdate: "~", stepDelete: "-"}[s.Action]
	row(w, mark+" "+s.name())
	for _, f := range s.Fields {
		row(w, fmt.Sprintf("    %s: %s -> %s", f.Field, plain(f.Before), plain(f.After)))
	}
	for _, text := range s.warnings {
		row(w, "    ! "+text)
	}
}

// compareTenant returns what is to be done about a tenant itself; nil: nothing.
func (a *applier) compareTenant(ctx context.Context, t *declaredTenant) (s *step, exists bool, err error) {
	next := &warifuv1.Tenant{Name: t.Name, StrictConsumers: t.Strict, Note: t.Note, Quotas: t.Quotas.message()}
	stored, err := a.storedTenant(ctx, t.Name)
	if err != nil {
		return nil, false, err
	}
	s = &step{Tenant: t.Name, id: uuid.NewString()}
	if stored == nil {
		s.Action = stepCreate
		s.send = func(ctx context.Context, c *warifuv1.Change) (*warifuv1.Consequence, error) {
			_, err := call(ctx, &a.client, a.platform.CreateTenant, &warifuv1.CreateTenantRequest{
				Name: next.GetName(), StrictConsumers: next.GetStrictConsumers(), Quotas: next.GetQuotas(), Note: next.GetNote(), Change: c,
			})
			return nil, err
		}
		return s, false, nil
	}
	if s.Fields = tenantDifference(stored, next); len(s.Fields) == 0 {
		return nil, true, nil
	}
	s.Action, s.version = stepUpdate, stored.GetVersion()
	if tightens(stored, next) {
		s.warnings = []string{"claims may be refused that were not refused before"}
	}
	s.send = func(ctx context.Context, c *warifuv1.Change) (*warifuv1.Consequence, error) {
		answer, err := call(ctx, &a.client, a.platform.UpdateTenant, &warifuv1.UpdateTenantRequest{
			Name: next.GetName(), StrictConsumers: next.GetStrictConsumers(), Quotas: next.GetQuotas(), Note: next.GetNote(), Change: c,
		})
		return answer.GetConsequence(), err
	}
	return s, true, nil
}

// storedTenant is a tenant as it is now; nil where there is none.
func (a *applier) storedTenant(ctx context.Context, name string) (*warifuv1.Tenant, error) {
	found, err := call(ctx, &a.client, a.platform.GetTenant, &warifuv1.GetTenantRequest{Name: name})
	switch {
	case err != nil && exitCodeOf(err) == exitNotFound:
		return nil, nil //nolint:nilnil // documented: there is none
	case err != nil:
		return nil, err
	case found.GetTenant().GetState() == warifuv1.TenantState_TENANT_STATE_DELETED:
		return nil, nil //nolint:nilnil // documented: there is none
	case found.GetTenant().GetState() == warifuv1.TenantState_TENANT_STATE_DELETING:
		return nil, exit(exitPrecondition, fmt.Errorf("tenant %s is being deleted; its name is free when its records are gone", plain(name)))
	}
	return found.GetTenant(), nil
}

func tenantDifference(stored, next *warifuv1.Tenant) []fieldChange {
	var out []fieldChange
	out = differ(out, "strict", yesNo(stored.GetStrictConsumers()), yesNo(next.GetStrictConsumers()))
	was := quotasOf(quotasIn(stored))
	for i, q := range quotasOf(quotasIn(next)) {
		out = differ(out, q.name, quota(*was[i].value), quota(*q.value))
	}
	return differ(out, "note", stored.GetNote(), next.GetNote())
}

func differ(all []fieldChange, field, before, after string) []fieldChange {
	if before == after {
		return all
	}
	return append(all, fieldChange{field, before, after})
}

// compareConsumers returns what is to be done about a tenant's consumers.
func (a *applier) compareConsumers(ctx context.Context, tenant string, exists bool, wanted []declaredConsumer, prune bool) ([]*step, error) {
	stored := map[string]*warifuv1.Consumer{}
	if exists {
		found, _, err := collect(0, func(size uint32, token string) (*warifuv1.ListConsumersResponse, error) {
			return call(ctx, &a.client, a.team.ListConsumers, &warifuv1.ListConsumersRequest{Tenant: tenant, PageSize: size, PageToken: token})
		}, (*warifuv1.ListConsumersResponse).GetConsumers)
		if err != nil {
			return nil, err
		}
		for _, c := range found {
			stored[c.GetName()] = c
		}
	}
	var todo []*step
	for i := range wanted {
		s, err := a.compareConsumer(tenant, stored[wanted[i].Name], &wanted[i])
		if err != nil {
			return nil, err
		}
		if s != nil {
			s.unrehearsed = !exists
			todo = append(todo, s)
		}
		delete(stored, wanted[i].Name)
	}
	if prune {
		todo = append(todo, a.pruned(tenant, stored)...)
	}
	return todo, nil
}

// compareConsumer returns what is to be done about one consumer; nil: nothing.
// stored is nil where it is not declared.
func (a *applier) compareConsumer(tenant string, stored *warifuv1.Consumer, wanted *declaredConsumer) (*step, error) {
	policy, err := wanted.Policy.message()
	if err != nil {
		return nil, err
	}
	s := &step{Action: stepCreate, Tenant: tenant, Consumer: wanted.Name, id: uuid.NewString()}
	if stored != nil {
		s.Action, s.version = stepUpdate, stored.GetVersion()
		s.Fields = consumerDifference(stored, policy, wanted.Note)
		s.warnings = weakens(stored.GetPolicy(), policy)
		if len(s.Fields) == 0 {
			return nil, nil //nolint:nilnil // documented: nothing is to be done
		}
	}
	name, note := wanted.Name, wanted.Note
	s.send = func(ctx context.Context, c *warifuv1.Change) (*warifuv1.Consequence, error) {
		answer, err := call(ctx, &a.client, a.team.PutConsumer, &warifuv1.PutConsumerRequest{
			Tenant: tenant, Name: name, Policy: proto.CloneOf(policy), Note: note, Change: c,
		})
		return answer.GetConsequence(), err
	}
	return s, nil
}

func consumerDifference(stored *warifuv1.Consumer, policy *warifuv1.ConsumerPolicy, note string) []fieldChange {
	was := declared(stored.GetPolicy()).rows()
	var out []fieldChange
	for i, field := range declared(policy).rows() {
		out = differ(out, field[0], was[i][1], field[1])
	}
	return differ(out, "note", stored.GetNote(), note)
}

// pruned are the ends of consumers that a file does not name.
func (a *applier) pruned(tenant string, left map[string]*warifuv1.Consumer) []*step {
	var todo []*step
	for name, c := range left {
		todo = append(todo, &step{
			Action: stepDelete, Tenant: tenant, Consumer: name, id: uuid.NewString(), version: c.GetVersion(),
			warnings: []string{"the declaration is taken back"},
			send: func(ctx context.Context, c *warifuv1.Change) (*warifuv1.Consequence, error) {
				answer, err := call(ctx, &a.client, a.team.DeleteConsumer, &warifuv1.DeleteConsumerRequest{Tenant: tenant, Name: name, Change: c})
				return answer.GetConsequence(), err
			},
		})
	}
	slices.SortFunc(todo, func(x, y *step) int { return strings.Compare(x.Consumer, y.Consumer) })
	return todo
}
