-- The bodies of a range, whatever grant they belong to.
DELETE FROM claim_results AS r
WHERE r.shard = $1::INT2 AND r.tenant_id = $2::INT8
  AND (r.consumer, r.event_id) >= ($3::TEXT, $4::TEXT) AND (r.consumer, r.event_id) <= ($5::TEXT, $6::TEXT)
