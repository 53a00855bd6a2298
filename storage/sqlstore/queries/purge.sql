-- What is left of a tenant in one shard, or a part of it that was measured before.
DELETE FROM claims AS c
WHERE c.shard = $1::INT2 AND c.tenant_id = $2::INT8
  AND (c.consumer, c.event_id) >= ($3::TEXT, $4::TEXT) AND (c.consumer, c.event_id) <= ($5::TEXT, $6::TEXT)
