-- Everything is asked again of what is deleted: a candidate may have been
-- claimed, completed or extended since it was found. By key: a bare range of
-- expiries would tempt PostgreSQL to look those through.
DELETE FROM claims AS c
USING unnest($2::INT2[], $3::INT8[], $4::TEXT[], $5::TEXT[]) AS i (shard, tenant_id, consumer, event_id)
WHERE c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
  AND c.expires_at + $6::INTERVAL <= $1::TIMESTAMPTZ
  AND (c.state IN (2, 4, 5) OR (c.state = 1 AND NOT c.hold AND c.lease_until <= $1::TIMESTAMPTZ))
