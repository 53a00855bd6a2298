-- Everything is asked again of what is deleted: a candidate may have been
-- claimed, completed or extended since it was found.
DELETE FROM claims AS c
WHERE (c.shard, c.tenant_id, c.consumer, c.event_id) IN (
    SELECT i.shard, i.tenant_id, i.consumer, i.event_id
    FROM unnest($2::INT2[], $3::INT8[], $4::TEXT[], $5::TEXT[]) AS i (shard, tenant_id, consumer, event_id)
  )
  AND c.expires_at <= $1::TIMESTAMPTZ - $6::INTERVAL AND (c.state IN (2, 4, 5) OR (c.state = 1 AND NOT c.hold AND c.lease_until <= $1::TIMESTAMPTZ))
