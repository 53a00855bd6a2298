-- Content and result go; fence and last attempt stay, so that a late packet of
-- that attempt resurrects nothing.
UPDATE claims AS c
SET
  version = c.version + 1, state = 5, ended_at = t.at,
  expires_at = greatest(c.expires_at, greatest(t.at, c.lease_until) + c.redelivery_window),
  digests = ''::BYTEA, event_time = NULL, outcome = 0, omitted = 0, content_type = NULL, metadata = NULL,
  result_sum = NULL, result = NULL, aside_bytes = 0
FROM
  (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t,
  unnest(
    $3::INT2[], $4::INT2[], $5::INT8[], $6::TEXT[], $7::TEXT[],
    $8::INT8[], $9::INT8[]
  ) AS i (
    n, shard, tenant_id, consumer, event_id,
    fence, version
  )
WHERE c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
  AND c.fence = i.fence AND c.version = i.version AND c.state <> 5 AND NOT (c.state = 1 AND c.lease_until > t.at)
RETURNING i.n
