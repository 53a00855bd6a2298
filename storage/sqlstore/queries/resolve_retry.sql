-- An operator wants it to run again. The old owner's late completion still
-- wins until the next grant.
UPDATE claims AS c
SET
  version = c.version + 1, state = 2, ended_at = t.at,
  expires_at = greatest(c.expires_at, greatest(t.at, c.lease_until) + c.redelivery_window)
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
  AND c.fence = i.fence AND c.version = i.version AND c.state IN (1, 3)
RETURNING i.n
