package main

import (
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	warifuv1 "github.com/warifu/warifu/api/gen/warifu/v1"
)

// tenantFlags are a tenant's settings.
type tenantFlags struct {
	cmd    *cobra.Command
	strict bool
	note   string
	quotas warifuv1.Quotas
}

// quotaOf is one of a tenant's quotas, with its name in the API as a flag.
type quotaOf struct {
	name, help string
	value      *int64
}

func quotasOf(q *warifuv1.Quotas) []quotaOf {
	return []quotaOf{
		{"requests-per-second", "requests per second", &q.RequestsPerSecond}, {"items-per-second", "items per second", &q.ItemsPerSecond},
		{"live-leases-max", "attempts that work at the same time", &q.LiveLeasesMax}, {"retained-keys-max", "records that are kept", &q.RetainedKeysMax},
		{"stored-bytes-max", "bytes that are kept", &q.StoredBytesMax}, {"in-doubt-max", "claims that wait for an operator", &q.InDoubtMax},
	}
}

// quotasIn is a copy of a tenant's quotas, which may be missing.
func quotasIn(t *warifuv1.Tenant) *warifuv1.Quotas {
	if t.GetQuotas() == nil {
		return &warifuv1.Quotas{}
	}
	return proto.CloneOf(t.GetQuotas())
}

func (t *tenantFlags) bind(cmd *cobra.Command) {
	t.cmd = cmd
	cmd.Flags().BoolVar(&t.strict, "strict", false, "refuse claims of consumers that were not declared")
	cmd.Flags().StringVar(&t.note, "note", "", "a note for people")
	for _, q := range quotasOf(&t.quotas) {
		cmd.Flags().Int64Var(q.value, q.name, 0, "quota: "+q.help+"; 0: the installation's default")
	}
}

// given reports whether any setting was.
func (t *tenantFlags) given() bool {
	names := []string{"strict", "note"}
	for _, q := range quotasOf(&t.quotas) {
		names = append(names, q.name)
	}
	return slices.ContainsFunc(names, t.cmd.Flags().Changed)
}

// over is what is stored with what was given in its place.
func (t *tenantFlags) over(stored *warifuv1.Tenant) *warifuv1.Tenant {
	next := &warifuv1.Tenant{
		Name: stored.GetName(), StrictConsumers: stored.GetStrictConsumers(), Note: stored.GetNote(), Quotas: quotasIn(stored),
	}
	into := quotasOf(next.GetQuotas())
	for i, q := range quotasOf(&t.quotas) {
		if t.cmd.Flags().Changed(q.name) {
			*into[i].value = *q.value
		}
	}
	if t.cmd.Flags().Changed("strict") {
		next.StrictConsumers = t.strict
	}
	if t.cmd.Flags().Changed("note") {
		next.Note = t.note
	}
	return next
}

// tightens reports whether a tenant may be refused something after a change that
// it was not refused before.
func tightens(before, after *warifuv1.Tenant) bool {
	if after.GetStrictConsumers() && !before.GetStrictConsumers() {
		return true
	}
	was := quotasOf(quotasIn(before))
	for i, q := range quotasOf(quotasIn(after)) {
		old, now := *was[i].value, *q.value
		if old != now && (now == 0 || old == 0 || now < old) { // the default may be anything
			return true
		}
	}
	return false
}
