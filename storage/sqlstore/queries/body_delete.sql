-- Bodies go with the grant they belong to: none is left that no record names.
DELETE FROM claim_results AS r
USING unnest($1::INT2[], $2::INT8[], $3::TEXT[], $4::TEXT[]) AS i (shard, tenant_id, consumer, event_id)
WHERE r.shard = i.shard AND r.tenant_id = i.tenant_id AND r.consumer = i.consumer AND r.event_id = i.event_id
  AND NOT EXISTS (
    SELECT 1 FROM claims AS c
    WHERE c.shard = r.shard AND c.tenant_id = r.tenant_id AND c.consumer = r.consumer AND c.event_id = r.event_id
      AND c.fence = r.fence AND c.aside_bytes > 0
  )
