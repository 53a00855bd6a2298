package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warifu/warifu/server/tenant"
	"github.com/warifu/warifu/storage/claim"
	"github.com/warifu/warifu/storage/registry"
)

// platformGauges show the journal of unprotected runs and how many tenants there
// are. No tenant is a label.
func platformGauges() []gauge {
	refused := func(cause string, read func(*snapshot) float64) gauge {
		return labelled("warifu_journal_refused_total", "Appends to the journal that were refused; their claims were not opened.",
			prometheus.Labels{"cause": cause}, prometheus.CounterValue, read)
	}
	out := []gauge{
		counter("warifu_unprotected_runs_total", "Claims that were answered UNPROTECTED, or may have been: entries the journal took.", func(s *snapshot) float64 { return float64(s.journal.Appended) }),
		level("warifu_journal_up", "Whether the journal takes entries; without it FAIL_OPEN consumers fail closed.", func(s *snapshot) float64 { return flag(!s.journal.Broken) }),
		level("warifu_journal_entries", "Unprotected runs that wait to be looked at.", func(s *snapshot) float64 { return float64(s.journal.Entries) }),
		level("warifu_journal_bytes", "Size of the journal.", func(s *snapshot) float64 { return float64(s.journal.Bytes) }),
		level("warifu_journal_limit_bytes", "Size that the journal may have.", func(s *snapshot) float64 { return float64(s.journal.BytesMax) }),
		level("warifu_journal_oldest_timestamp_seconds", "When the oldest entry was made; absent where there is none.", oldestEntry),
		counter("warifu_journal_removed_total", "Entries that were reconciled and removed.", func(s *snapshot) float64 { return float64(s.journal.Removed) }),
		refused("full", func(s *snapshot) float64 { return float64(s.journal.Full) }),
		refused("broken", func(s *snapshot) float64 { return float64(s.journal.Failed) }),
	}
	for i, state := range tenantStates {
		out = append(out, labelled("warifu_tenants", "Tenants in force; those that are deleting are being purged.",
			prometheus.Labels{"state": state.label}, prometheus.GaugeValue, func(s *snapshot) float64 { return float64(s.tenants[i]) }))
	}
	return out
}

func oldestEntry(s *snapshot) float64 {
	if s.journal.Oldest == claim.Never {
		return -1
	}
	return float64(s.journal.Oldest) / float64(time.Second/time.Microsecond)
}

// directoryGauges show how well the directory is kept up to date.
func directoryGauges() []gauge {
	return []gauge{
		level("warifu_directory_age_seconds", "How old the knowledge of tenants and keys is: a revoked key may work as long.", func(s *snapshot) float64 { return s.server.synced.Age().Seconds() }),
		level("warifu_directory_revision", "Revision of the registry that is in force.", func(s *snapshot) float64 { return float64(s.synced.Revision) }),
		level("warifu_directory_faulty_rows", "Stored rows that cannot be followed and are left out.", func(s *snapshot) float64 { return float64(s.synced.FaultyRows) }),
		counter("warifu_directory_loads_total", "Looks at the registry, failed ones included.", func(s *snapshot) float64 { return float64(s.synced.Loads) }),
		counter("warifu_directory_load_failures_total", "Looks at the registry that failed.", func(s *snapshot) float64 { return float64(s.synced.LoadFailures) }),
		counter("warifu_directory_seen_failures_total", "Notes of when keys were last used that were not stored.", func(s *snapshot) float64 { return float64(s.synced.SeenFailures) }),
	}
}

var tenantStates = [...]struct {
	state registry.TenantState
	label string
}{{registry.TenantActive, "active"}, {registry.TenantSuspended, "suspended"}, {registry.TenantDeleting, "deleting"}}

type tenantCounts [len(tenantStates)]int

func countTenants(t *tenant.Table) (n tenantCounts) {
	for of := range t.Tenants() {
		for i := range tenantStates {
			if of.State == tenantStates[i].state {
				n[i]++
			}
		}
	}
	return n
}
