package server

func storeGauges() []gauge {
	return []gauge{
		level("warifu_store_records", "Estimated number of records; absent where the engine cannot say.", func(s *snapshot) float64 { return float64(s.store.RecordsEstimate) }),
		level("warifu_store_disk_bytes", "Estimated bytes on disk; absent where the engine cannot say.", func(s *snapshot) float64 { return float64(s.store.DiskBytes) }),
		level("warifu_store_clock_suspect", "Whether the store's clock jumped and is not confirmed.", func(s *snapshot) float64 { return flag(s.store.ClockSuspect) }),
		level("warifu_filter_ready", "Whether the filter lets fresh keys skip the read.", func(s *snapshot) float64 { return flag(s.store.Filter.Ready) }),
		level("warifu_filter_keys", "Keys in the filter.", func(s *snapshot) float64 { return float64(s.store.Filter.Keys) }),
		level("warifu_filter_bytes", "Memory of the filter.", func(s *snapshot) float64 { return float64(s.store.Filter.Bytes) }),
		level("warifu_filter_fill_ratio", "Share of the filter's bits that are set.", func(s *snapshot) float64 { return s.store.Filter.Fill }),
		counter("warifu_filter_skipped_reads_total", "Reads that the filter made unnecessary.", func(s *snapshot) float64 { return float64(s.store.Filter.Skipped) }),
		counter("warifu_filter_passed_reads_total", "Reads that were made because the filter said maybe.", func(s *snapshot) float64 { return float64(s.store.Filter.Passed) }),
		counter("warifu_filter_false_positives_total", "Reads that found nothing after a maybe.", func(s *snapshot) float64 { return float64(s.store.Filter.FalsePositives) }),
		counter("warifu_filter_audited_total", "Negatives that were read all the same.", func(s *snapshot) float64 { return float64(s.store.Filter.Audited) }),
		counter("warifu_filter_audit_hits_total", "Negatives that were wrong: corruption.", func(s *snapshot) float64 { return float64(s.store.Filter.AuditHits) }),
		counter("warifu_filter_rebuilds_total", "Rebuilds of the filter.", func(s *snapshot) float64 { return float64(s.store.Filter.Rebuilds) }),
	}
}
